//! `exclusive`: one socket that every thread watches with EPOLLEXCLUSIVE; one of them is woken.

use sys::epoll::Trigger;

use super::Strategy;

/// Takes few connections at once: what one thread leaves, an idle one picks up.
pub(super) struct Exclusive;

impl Strategy for Exclusive {
    fn name(&self) -> &'static str {
        "exclusive"
    }

    fn trigger(&self) -> Trigger {
        Trigger::LevelReadExclusive
    }

    fn accepts_per_wake_max(&self) -> u32 {
        4
    }
}
