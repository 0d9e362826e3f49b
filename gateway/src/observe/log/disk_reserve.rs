//! The part of the log's disk that lines about unknown clients may not use.
//!
//! Guarantees: while less than a tenth of the disk is free, or less than [`RESERVE_BYTES_MAX`] of a large
//! one, such lines are withheld and counted. So the log cannot take the space of a ledger on the same disk.
//!
//! Not handled here: lines of flows and users, and rotation, which is the operator's task.

use std::fs::File;
use std::time::Duration;

use sys::clock::Nanos;
use sys::disk::{self, DiskSpace};

/// What is kept free of a large disk: four times the journal of a ledger whose database keeps up.
const RESERVE_BYTES_MAX: u64 = 1 << 30;
/// How often the disk is checked while there are lines.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Whether the log's disk has reached the reserve, as of the last check.
#[derive(Default)]
pub(super) struct DiskReserve {
    next_check: Nanos,
    /// Whether no more is free than the reserve.
    pub(super) is_reached: bool,
    /// Withheld lines that no line has reported yet.
    pub(super) withheld: u64,
}

impl DiskReserve {
    /// Checks the disk of `file`, if the last check is long enough ago. Returns whether it has reached the
    /// reserve since then.
    pub(super) fn check(&mut self, file: &File, now: Nanos) -> bool {
        if now < self.next_check {
            return false;
        }
        self.next_check = now + CHECK_INTERVAL;
        let was_reached = self.is_reached;
        // A disk whose space cannot be read counts as not full.
        self.is_reached = disk::space(file).is_ok_and(is_below_reserve);
        self.is_reached && !was_reached
    }
}

/// Whether no more is free than the reserve. A device and a pipe have no size.
fn is_below_reserve(space: DiskSpace) -> bool {
    space.bytes > 0 && space.free_bytes < (space.bytes / 10).min(RESERVE_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserve_is_a_tenth_and_at_most_a_gibibyte() {
        const GIB: u64 = 1 << 30;
        for (bytes, free_bytes, expected) in [
            (0, 0, false),
            (2 * GIB, GIB / 4, false),
            (2 * GIB, GIB / 6, true),
            (1000 * GIB, GIB, false),
            (1000 * GIB, GIB - 1, true),
        ] {
            assert_eq!(
                is_below_reserve(DiskSpace { bytes, free_bytes }),
                expected,
                "{free_bytes} of {bytes}"
            );
        }
    }

    #[test]
    fn disk_is_checked_once_a_second() {
        let file = tempfile::tempfile().unwrap();
        let space = disk::space(&file).unwrap();
        assert!(space.bytes > 0 && space.free_bytes <= space.bytes, "{space:?}");
        let mut reserve = DiskReserve { is_reached: true, ..DiskReserve::default() };
        let now = Nanos(5_000_000_000);
        reserve.check(&file, now);
        assert_eq!(reserve.is_reached, is_below_reserve(space));
        reserve.is_reached = true;
        assert!(!reserve.check(&file, now), "not again at once");
        assert!(reserve.is_reached);
    }
}
