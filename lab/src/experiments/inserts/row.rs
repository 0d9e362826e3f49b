//! The row that every store inserts: sequential id, time, writer, 16-byte guid, one fixed text. All stores
//! receive the same rows, and the store assigns the sequential id.

use std::time::Duration;

/// The text of each row.
pub(super) const TEXT: &str = "this is a string for me and for you";

/// A row in bytes: id, time, writer, guid, text, and the overhead of a row in a slotted page.
pub(super) const ROW_BYTES: usize = 80;

/// The fields that precede the text: id and time of 8 bytes each, a writer of 4, a guid of 16.
const FIXED_BYTES: usize = 36;

const _: () = assert!(FIXED_BYTES + TEXT.len() <= ROW_BYTES);

/// A row before the store assigns its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// Nanoseconds since the Unix epoch, when the writer last read the clock.
    pub(super) at_ns: u64,
    pub(super) writer: u32,
    pub(super) guid: u128,
}

impl Row {
    /// The row with its id, as a page stores it.
    pub(super) fn encode(&self, id: u64, into: &mut [u8; ROW_BYTES]) {
        into[0..8].copy_from_slice(&id.to_le_bytes());
        into[8..16].copy_from_slice(&self.at_ns.to_le_bytes());
        into[16..20].copy_from_slice(&self.writer.to_le_bytes());
        into[20..36].copy_from_slice(&self.guid.to_be_bytes());
        into[FIXED_BYTES..FIXED_BYTES + TEXT.len()].copy_from_slice(TEXT.as_bytes());
    }
}

/// The rows of one writer. Guids grow with time, 48 bits of milliseconds and then writer and counter, as
/// those of a database with a clustered key do.
#[derive(Debug)]
pub(super) struct Rows {
    next: Row,
    /// The time when the writer began.
    began_ns: u64,
}

impl Rows {
    pub(super) fn of(writer: u32, now_ns: u64) -> Self {
        let milliseconds = u128::from(now_ns / 1_000_000);
        let guid = (milliseconds << 80) | (u128::from(writer) << 48);
        Self { next: Row { at_ns: now_ns, writer, guid }, began_ns: now_ns }
    }

    /// The row that is next.
    pub(super) fn current(&self) -> &Row {
        &self.next
    }

    /// The row was accepted: the next one follows.
    pub(super) fn advance(&mut self) {
        self.next.guid += 1;
    }

    /// Sets the time of the following rows: the writer has worked for `elapsed`.
    pub(super) fn set_elapsed(&mut self, elapsed: Duration) {
        self.next.at_ns = self.began_ns + u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX / 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_row_holds_each_field_once() {
        let row = Row { at_ns: 0x0102, writer: 7, guid: 0xfeed };
        let mut bytes = [0; ROW_BYTES];
        row.encode(9, &mut bytes);
        assert_eq!((bytes[0], bytes[8], bytes[9], bytes[16]), (9, 2, 1, 7));
        assert_eq!(bytes[34..36], [0xfe, 0xed]);
        assert_eq!(&bytes[36..71], TEXT.as_bytes());
    }

    #[test]
    fn guids_of_all_writers_are_unique() {
        let mut guids = std::collections::BTreeSet::new();
        for writer in 0..8 {
            let mut rows = Rows::of(writer, 1_700_000_000_000_000_000);
            for _ in 0..1_000 {
                assert!(guids.insert(rows.current().guid));
                rows.advance();
            }
        }
    }
}
