//! `shared`: every thread watches one socket, level triggered: the thundering herd of early servers.

use sys::epoll::Trigger;

use super::Strategy;

/// A connection wakes every sleeping thread; one gets it, the others find nothing. Kept as a baseline for
/// measurements, with one accept for each wake, as such servers had.
pub(super) struct Shared;

impl Strategy for Shared {
    fn name(&self) -> &'static str {
        "shared"
    }

    fn trigger(&self) -> Trigger {
        Trigger::LevelRead
    }

    fn accepts_per_wake_max(&self) -> u32 {
        1
    }
}
