//! What a thread asks of the owner of a wheel when it arms a timer there.
//!
//! Promises: nothing by itself: whoever fills the timer's cell writes it, and the list into which the cell
//! goes publishes it. Leaves to others: whose the cell is (`cell.rs`).

use sys::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::slack::Slack;

/// A timer as it was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArmRequest {
    /// The tick at which it is to be due, with its slack.
    pub(super) tick: u64,
    /// What its callback is to be told.
    pub(super) tag: u64,
    /// For when it is armed anew.
    pub(super) slack: Slack,
}

/// See the file's header.
#[derive(Debug, Default)]
pub(super) struct ArmCell {
    tick: AtomicU64,
    tag: AtomicU64,
    /// The class's number.
    slack: AtomicU8,
}

impl ArmCell {
    pub(super) fn write(&self, request: ArmRequest) {
        self.tick.store(request.tick, Ordering::Relaxed);
        self.tag.store(request.tag, Ordering::Relaxed);
        self.slack.store(request.slack as u8, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> ArmRequest {
        ArmRequest {
            tick: self.tick.load(Ordering::Relaxed),
            tag: self.tag.load(Ordering::Relaxed),
            slack: Slack::ALL[usize::from(self.slack.load(Ordering::Relaxed))],
        }
    }
}
