//! The part of the log's disk that is not for lines about clients that are not known.
//!
//! Guarantees: while less than a tenth of the disk is free, at most [`RESERVE_BYTES_MAX`], such lines are
//! withheld and counted, so that the log cannot take the room of a ledger on the same disk. Leaves out: lines
//! of flows and users, and rotation, which is the operator's.

use std::fs::File;
use std::time::Duration;

use sys::clock::Nanos;
use sys::disk::{self, DiskSpace};

/// What is kept free of a large disk: four times what a journal takes that the database keeps up with.
const RESERVE_BYTES_MAX: u64 = 1 << 30;
/// How often the disk is looked at while there are lines.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// See the file's header.
#[derive(Default)]
pub(super) struct DiskReserve {
    looks_at: Nanos,
    /// Whether the disk has come to the reserve.
    pub(super) is_touched: bool,
    /// Lines that were withheld and not told of yet.
    pub(super) withheld: u64,
}

impl DiskReserve {
    /// Looks at the disk of `file`, if it is time to; says whether the reserve is touched now and was not.
    pub(super) fn look(&mut self, file: &File, now: Nanos) -> bool {
        if now < self.looks_at {
            return false;
        }
        self.looks_at = now + LOOK_PAUSE;
        let was_touched = self.is_touched;
        // What cannot be asked is not known to be full.
        self.is_touched = disk::space(file).is_ok_and(touches);
        self.is_touched && !was_touched
    }
}

/// Whether no more is free than the reserve. A device and a pipe have no size.
fn touches(room: DiskSpace) -> bool {
    room.bytes > 0 && room.free_bytes < (room.bytes / 10).min(RESERVE_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_of_a_small_disk_is_kept_and_a_gibibyte_of_a_large_one() {
        const GIB: u64 = 1 << 30;
        for (bytes, free_bytes, expected) in [
            (0, 0, false),
            (2 * GIB, GIB / 4, false),
            (2 * GIB, GIB / 6, true),
            (1000 * GIB, GIB, false),
            (1000 * GIB, GIB - 1, true),
        ] {
            assert_eq!(touches(DiskSpace { bytes, free_bytes }), expected, "{free_bytes} of {bytes}");
        }
    }

    #[test]
    fn a_real_disk_is_looked_at_once_a_second() {
        let file = tempfile::tempfile().unwrap();
        let room = disk::space(&file).unwrap();
        assert!(room.bytes > 0 && room.free_bytes <= room.bytes, "{room:?}");
        let mut reserve = DiskReserve { is_touched: true, ..DiskReserve::default() };
        let now = Nanos(5_000_000_000);
        reserve.look(&file, now);
        assert_eq!(reserve.is_touched, touches(room));
        reserve.is_touched = true;
        assert!(!reserve.look(&file, now), "not again at once");
        assert!(reserve.is_touched);
    }
}
