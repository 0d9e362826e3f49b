//! How many bytes a sustained stream moves in its turn: many while it is the thread's only work, and no more
//! than any other stream as soon as something else on the thread waits for its turns to end.

use std::time::Duration;

use engine::slab::Key;
use sys::clock::Nanos;

use crate::limits::{PASS_BYTES_MAX, SUSTAINED_PASS_BYTES_MAX};

/// How long other work of the thread keeps turns small after it ran. Beside a stream, each of 25 messages a
/// second that found large turns took 0.4 to 0.9 ms longer.
const OTHER_WORK_SPAN: Duration = Duration::from_millis(100);

/// When the thread last had other work than sustained streams. For a stream that is alone, the work by which
/// it began is none: a thread that has nothing else gives it large turns at once.
#[derive(Debug)]
pub(super) struct Turns {
    /// The other work that ran last: of a relay that is not sustained, or of connections that have no relay.
    latest: Option<Key>,
    latest_at: Nanos,
    /// When anything but `latest` last ran. others_at <= latest_at
    others_at: Nanos,
}

impl Turns {
    /// The turns of a thread that begins at `now`.
    pub(super) fn begin(now: Nanos) -> Turns {
        Turns { latest: None, latest_at: now, others_at: now }
    }

    /// Notes that connections without a relay have run.
    pub(super) fn note_connections(&mut self, now: Nanos) {
        self.note(None, now);
    }

    /// Notes that a relay has run that is not sustained.
    pub(super) fn note_relay(&mut self, relay: Key, now: Nanos) {
        self.note(Some(relay), now);
    }

    /// Notes that a connection now has this relay: what connections ran last counts as the relay's own. Work
    /// of other connections in the same pass is among it. If it recurs it is noted again.
    pub(super) fn note_start(&mut self, relay: Key) {
        self.latest = self.latest.or(Some(relay));
    }

    fn note(&mut self, runner: Option<Key>, now: Nanos) {
        if runner != self.latest {
            (self.latest, self.others_at) = (runner, self.latest_at);
        }
        self.latest_at = now;
    }

    /// The bytes of the turn of `relay`, a sustained stream, in a pass in which `queued` relays run.
    pub(super) fn sustained_bytes(&self, relay: Key, queued: usize, now: Nanos) -> usize {
        // Beside another stream, work of this one keeps the turns of both small.
        let is_own = queued <= 1 && self.latest == Some(relay);
        let other_work_at = if is_own { self.others_at } else { self.latest_at };
        if now.since(other_work_at) < OTHER_WORK_SPAN {
            return PASS_BYTES_MAX;
        }
        (SUSTAINED_PASS_BYTES_MAX / queued.max(1)).max(PASS_BYTES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use engine::slab::Slab;

    use super::*;

    const BEGIN: Nanos = Nanos(1_000_000_000);
    const LARGE: usize = SUSTAINED_PASS_BYTES_MAX;

    fn relays() -> [Key; 2] {
        let mut slab = Slab::new();
        [slab.insert(()), slab.insert(())]
    }

    /// The turns of a thread on which a stream has just begun, and the moment.
    fn begun(stream: Key) -> (Turns, Nanos) {
        let (mut turns, start) = (Turns::begin(BEGIN), BEGIN + OTHER_WORK_SPAN);
        turns.note_connections(start);
        turns.note_start(stream);
        turns.note_relay(stream, start);
        (turns, start)
    }

    #[test]
    fn turns_are_large_without_other_work() {
        let [stream, other] = relays();
        for is_relay in [true, false] {
            let mut turns = Turns::begin(BEGIN);
            assert_eq!(turns.sustained_bytes(stream, 1, BEGIN), PASS_BYTES_MAX);
            let later = BEGIN + OTHER_WORK_SPAN;
            assert_eq!(turns.sustained_bytes(stream, 1, later), LARGE);
            match is_relay {
                true => turns.note_relay(other, later),
                false => turns.note_connections(later),
            }
            assert_eq!(turns.sustained_bytes(stream, 1, later + OTHER_WORK_SPAN / 2), PASS_BYTES_MAX);
            assert_eq!(turns.sustained_bytes(stream, 1, later + OTHER_WORK_SPAN), LARGE);
        }
    }

    #[test]
    fn beginning_of_a_stream_is_no_other_work_for_it() {
        let [stream, other] = relays();
        let (mut turns, start) = begun(stream);
        let now = start + OTHER_WORK_SPAN / 4;
        assert_eq!(turns.sustained_bytes(stream, 1, now), LARGE);
        assert_eq!(turns.sustained_bytes(other, 1, now), PASS_BYTES_MAX, "for another it is");
        turns.note_relay(other, now);
        // The stream was slow for a while, after the other.
        turns.note_relay(stream, now);
        assert_eq!(turns.sustained_bytes(stream, 1, now + OTHER_WORK_SPAN / 2), PASS_BYTES_MAX);
        assert_eq!(turns.sustained_bytes(stream, 1, now + OTHER_WORK_SPAN), LARGE);
    }

    #[test]
    fn streams_have_equal_turns_whichever_worked_last() {
        let streams = relays();
        let mut turns = Turns::begin(BEGIN);
        let start = BEGIN + OTHER_WORK_SPAN;
        turns.note_relay(streams[0], start);
        for now in [start, start + OTHER_WORK_SPAN / 2, start + OTHER_WORK_SPAN] {
            let [one, other] = streams.map(|stream| turns.sustained_bytes(stream, 2, now));
            assert_eq!(one, other);
        }
    }

    #[test]
    fn connection_after_the_beginning_is_other_work() {
        let [stream, _] = relays();
        let (mut turns, start) = begun(stream);
        turns.note_connections(start);
        assert_eq!(turns.sustained_bytes(stream, 1, start + OTHER_WORK_SPAN / 2), PASS_BYTES_MAX);
        assert_eq!(turns.sustained_bytes(stream, 1, start + OTHER_WORK_SPAN), LARGE);
    }

    #[test]
    fn start_takes_no_work_of_another_relay() {
        let [stream, other] = relays();
        let mut turns = Turns::begin(BEGIN);
        let start = BEGIN + OTHER_WORK_SPAN;
        turns.note_relay(other, start);
        turns.note_start(stream);
        assert_eq!(turns.sustained_bytes(stream, 1, start), PASS_BYTES_MAX);
    }

    #[test]
    fn streams_share_a_large_turn() {
        let [stream, _] = relays();
        let (turns, later) = (Turns::begin(BEGIN), BEGIN + OTHER_WORK_SPAN);
        for queued in 0..100 {
            let bytes = turns.sustained_bytes(stream, queued, later);
            assert!(bytes == PASS_BYTES_MAX || bytes * queued.max(1) <= LARGE);
            assert!((PASS_BYTES_MAX..=LARGE).contains(&bytes));
        }
    }
}
