//! The file with the positions of the journal's further readers.
//!
//! Guarantees: an older position than a reader's own is safe, since it holds more; so the file is replaced
//! without a sync of its name. A file that is missing, damaged, of another version or of another gateway
//! gives no position, and then a reader holds the whole journal. It lies in the journal's directory: what
//! makes the next name of a segment durable makes this one durable before.
//!
//! ```text
//!   tollgate readers 1
//!   gateway 0123abcd
//!   postgres 48113
//!   crc 0c9e31ab
//! ```

use std::fmt::Write;
use std::io;

use crc32c::crc32c;

use crate::limits::{READER_NAME_BYTES_MAX, READERS_MAX};
use crate::readers::Readers;
use crate::storage::{Storage, StorageFile};

/// The positions: the names of readers, and up to which entry each has released the journal.
type Positions = Vec<(String, u64)>;

/// Places further readers where they have released the journal, which has the entries `first_lsn` to
/// `last_lsn`; returns what is to be said of it. No failure here stops a start.
pub(crate) fn place(
    storage: &impl Storage,
    gateway: u32,
    readers: &Readers,
    (first_lsn, last_lsn): (u64, u64),
) -> Vec<String> {
    if readers.status().is_empty() {
        return Vec::new();
    }
    let mut notes = Vec::new();
    let stored = read(storage, gateway).map_err(|cause| {
        notes.push(format!("the journal's file `{NAME}`: {cause}; each reader holds the whole journal"));
    });
    let placed = readers.place(stored.ok().as_deref(), (first_lsn, last_lsn));
    notes.extend(placed.iter().map(ToString::to_string));
    // Of a new reader too: what it misses later is known then, also after a restart.
    let positions = readers.positions();
    match store(storage, gateway, &positions) {
        Ok(()) => readers.note_stored(&positions),
        Err(error) => notes.push(format!("the journal's file `{NAME}` cannot be written: {error}")),
    }
    notes
}

/// Reads the file of a gateway; no positions if there is none, or `storage` is empty.
///
/// # Errors
/// It cannot be read, is damaged, or is of another gateway; the text says which.
fn read(storage: &impl Storage, gateway: u32) -> Result<Positions, String> {
    let names = storage.names().map_err(|error| error.to_string())?;
    if !names.iter().any(|name| name == NAME) {
        return Ok(Positions::new());
    }
    let file = storage.open(NAME).map_err(|error| error.to_string())?;
    let mut bytes = vec![0; BYTES_MAX];
    let read = file.read_at(&mut bytes, 0).map_err(|error| error.to_string())?;
    let (of, positions) = parse(&bytes[..read]).ok_or_else(|| "it is damaged".to_owned())?;
    match of == gateway {
        true => Ok(positions),
        false => Err(format!("it is of gateway {of:08x}, and the journal is of {gateway:08x}")),
    }
}

/// Replaces the file. A power failure may undo that.
///
/// # Errors
/// The disk's; the file is as it was.
pub(super) fn store(storage: &impl Storage, gateway: u32, positions: &[(String, u64)]) -> io::Result<()> {
    let file = storage.create(NEW_NAME)?;
    file.write_at(render(gateway, positions).as_bytes(), 0)?;
    // Without it the new name could lead to an empty file after a power failure.
    file.sync()?;
    storage.rename(NEW_NAME, NAME)
}

fn render(gateway: u32, positions: &[(String, u64)]) -> String {
    let mut text = format!("{FIRST_LINE}{GATEWAY}{gateway:08x}\n");
    for (name, position) in positions {
        let _ = writeln!(text, "{name} {position}");
    }
    let crc = crc32c(text.as_bytes());
    let _ = writeln!(text, "crc {crc:08x}");
    text
}

fn parse(bytes: &[u8]) -> Option<(u32, Positions)> {
    let text = str::from_utf8(bytes).ok()?;
    let (lines, crc) = text.strip_suffix('\n')?.rsplit_once("crc ")?;
    if crc.len() != 8 || u32::from_str_radix(crc, 16).ok()? != crc32c(lines.as_bytes()) {
        return None;
    }
    let position = |line: &str| {
        let (name, position) = line.split_once(' ')?;
        Some((name.to_owned(), position.parse().ok()?))
    };
    let mut lines = lines.strip_prefix(FIRST_LINE)?.lines();
    let gateway = u32::from_str_radix(lines.next()?.strip_prefix(GATEWAY)?, 16).ok()?;
    Some((gateway, lines.map(position).collect::<Option<_>>()?))
}

const NAME: &str = "readers";
const NEW_NAME: &str = "readers-new";
const FIRST_LINE: &str = "tollgate readers 1\n";
/// Before the number of the gateway to whose journal the positions belong.
const GATEWAY: &str = "gateway ";
/// A longer file is damaged.
const BYTES_MAX: usize = 64 << 10;
/// A space, the digits of a number, and the end of a line.
const POSITION_BYTES_MAX: usize = 22;

const _: () = assert!(READERS_MAX * (READER_NAME_BYTES_MAX + POSITION_BYTES_MAX) + 100 <= BYTES_MAX);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::memory::Memory;

    const GATEWAY: u32 = 0x0123_abcd;

    fn positions() -> Positions {
        vec![("archive".to_owned(), 0), ("postgres".to_owned(), u64::MAX)]
    }

    #[test]
    fn positions_round_trip() {
        let memory = Memory::default();
        assert_eq!(read(&memory, GATEWAY), Ok(Positions::new()));
        for positions in [positions(), Positions::new()] {
            store(&memory, GATEWAY, &positions).unwrap();
            assert_eq!(read(&memory, GATEWAY), Ok(positions));
        }
        let other = read(&memory, 7).unwrap_err();
        assert_eq!(other, "it is of gateway 0123abcd, and the journal is of 00000007");
    }

    #[test]
    fn damaged_positions_are_refused() {
        let memory = Memory::default();
        store(&memory, GATEWAY, &positions()).unwrap();
        let bytes = memory.content(NAME).unwrap();
        for length in 0..bytes.len() {
            assert_eq!(parse(&bytes[..length]), None, "cut to {length} bytes");
        }
        for bit in 0..bytes.len() * 8 {
            memory.put_content(NAME, bytes.clone());
            memory.flip(NAME, bit);
            // A checksum in capital letters is the same number.
            let found = read(&memory, GATEWAY);
            assert!(found.is_err() || found == Ok(positions()), "bit {bit}: {found:?}");
        }
    }
}
