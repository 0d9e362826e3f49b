//! `shared`: one socket that every thread watches, plainly: the herd, as servers had it before there was
//! better.

use sys::epoll::Trigger;

use super::Strategy;

/// A connection wakes every thread that sleeps; one gets it, the others find nothing. Kept to be measured
/// against, with one accept a wake, as such servers did.
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
