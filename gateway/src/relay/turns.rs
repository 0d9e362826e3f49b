//! How many bytes a sustained stream moves in its turn: many while it is the thread's only work, and no more
//! than any other stream as soon as something else on the thread waits for its turns to end.

use std::time::Duration;

use sys::clock::Nanos;

use crate::limits::{PASS_BYTES_MAX, SUSTAINED_PASS_BYTES_MAX};

/// How long other work of the thread keeps turns small after it ran. Beside a stream, each of 25 messages a
/// second that found large turns took 0.4 to 0.9 ms longer.
const OTHER_WORK_SPAN: Duration = Duration::from_millis(100);

/// When the thread last had other work than sustained streams.
#[derive(Debug)]
pub(super) struct Turns {
    other_work_at: Nanos,
}

impl Turns {
    /// The turns of a thread that begins at `now`.
    pub(super) fn begin(now: Nanos) -> Turns {
        Turns { other_work_at: now }
    }

    /// Notes that the thread has run other work than a sustained stream.
    pub(super) fn note_other_work(&mut self, now: Nanos) {
        self.other_work_at = now;
    }

    /// The bytes of a sustained stream's turn in a pass in which `queued` relays run.
    pub(super) fn sustained_bytes(&self, queued: usize, now: Nanos) -> usize {
        if now.since(self.other_work_at) < OTHER_WORK_SPAN {
            return PASS_BYTES_MAX;
        }
        (SUSTAINED_PASS_BYTES_MAX / queued.max(1)).max(PASS_BYTES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_large_without_other_work() {
        let begin = Nanos(1_000_000_000);
        let mut turns = Turns::begin(begin);
        assert_eq!(turns.sustained_bytes(1, begin), PASS_BYTES_MAX);
        let later = begin + OTHER_WORK_SPAN;
        assert_eq!(turns.sustained_bytes(1, later), SUSTAINED_PASS_BYTES_MAX);
        turns.note_other_work(later);
        assert_eq!(turns.sustained_bytes(1, later + OTHER_WORK_SPAN / 2), PASS_BYTES_MAX);
        assert_eq!(turns.sustained_bytes(1, later + OTHER_WORK_SPAN), SUSTAINED_PASS_BYTES_MAX);
    }

    #[test]
    fn streams_share_a_large_turn() {
        let begin = Nanos(1_000_000_000);
        let (turns, later) = (Turns::begin(begin), begin + OTHER_WORK_SPAN);
        for queued in 0..100 {
            let bytes = turns.sustained_bytes(queued, later);
            assert!(bytes == PASS_BYTES_MAX || bytes * queued.max(1) <= SUSTAINED_PASS_BYTES_MAX);
            assert!((PASS_BYTES_MAX..=SUSTAINED_PASS_BYTES_MAX).contains(&bytes));
        }
    }
}
