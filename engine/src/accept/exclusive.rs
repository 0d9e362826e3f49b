//! `exclusive`: every thread watches one socket with EPOLLEXCLUSIVE; the kernel wakes one of them.

use sys::epoll::Trigger;

use super::Strategy;

/// Accepts few connections at a time, so that an idle thread gets the rest.
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
