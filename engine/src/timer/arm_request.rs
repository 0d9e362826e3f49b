//! A request of any thread to the driver of a wheel: arm this timer.
//!
//! Guarantees: none by itself. The thread that fills a timer's cell writes the request; adding the cell to a
//! list publishes both. `cell.rs` says which thread owns the cell.

use sys::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::slack::Slack;

/// The parameters of a timer.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArmRequest {
    /// The tick at which it is due, including its slack.
    pub(super) tick: u64,
    /// The argument of its callback.
    pub(super) tag: u64,
    /// Kept for rearming.
    pub(super) slack: Slack,
}

/// A slot for one [`ArmRequest`], shared by threads; relaxed atomics, published by the cell lists.
#[derive(Debug, Default)]
pub(super) struct ArmCell {
    tick: AtomicU64,
    tag: AtomicU64,
    /// The class as a number.
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
