//! When a connection last moved bytes, and whether it has stalled for longer than it may.
//!
//! Guarantees: a peer's acknowledgement counts as progress, however long ago the last call was, so that a
//! draining send queue is never cut; a stalled queue counts as none, whatever calls add to it, and its
//! connection ends at most an eighth of the span late; a call that moves bytes costs one store, and the
//! kernel is asked only when a timer fires.
//!
//! ```text
//!   last call   1/8 of the span later                        the whole span later
//!       |---------------|-------------------------------------------|
//!                    check: nothing is queued ........... check: the deadline has passed
//!                    check: bytes are queued
//!                             check   check   check ...  each: has the peer acknowledged any since?
//! ```

use std::time::Duration;

use ledger::record::{CloseReason, Legs};
use sys::clock::Nanos;
use sys::socket::Socket;

use crate::config::settings::Timeouts;

/// Checks of a stalled queue within its span. More of them end it sooner, at a higher cost.
const CHECKS_PER_SPAN: u32 = 8;

/// When a connection last moved bytes.
#[derive(Debug)]
pub(crate) struct Progress {
    /// When a call last moved bytes.
    moved_at: Nanos,
    /// The last acknowledgement that a check has found.
    acknowledged_at: Nanos,
    /// If bytes were queued at the last check: how many were acknowledged by then, modulo 2^32.
    acknowledged_count: Option<u32>,
}

/// The kernel's send queues of a connection's two sockets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SocketQueues {
    /// Sent bytes that no peer has acknowledged. A FIN counts as one.
    held: u64,
    /// Acknowledged bytes, plus a constant, modulo 2^32.
    acknowledged: u32,
    /// How long ago a peer last sent an ACK, whether of new bytes or not.
    quiet: Duration,
}

/// The deadlines of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadlines {
    /// How long no byte may move in either direction.
    pub idle: Duration,
    /// How long no byte may move after one direction has ended.
    pub half_closed: Duration,
    /// How long its flow may be open.
    pub lifetime: Option<Duration>,
}

/// What a check of the deadlines needs, beside the progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Age {
    /// When the flow was opened.
    pub opened: Nanos,
    /// Whether one direction has ended, and the other has not.
    pub is_half_closed: bool,
    /// The time now.
    pub now: Nanos,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Verdict {
    /// The connection goes on; check again at that time.
    CheckAt(Nanos),
    /// The connection has reached this deadline.
    Over(CloseReason),
}

impl SocketQueues {
    /// Reads both queues, of which `legs` bytes were sent.
    pub(crate) fn read(client: &Socket, upstream: &Socket, legs: &Legs) -> SocketQueues {
        let held = client.unacknowledged_bytes() + upstream.unacknowledged_bytes();
        let quiet = client.since_acknowledged().min(upstream.since_acknowledged());
        SocketQueues::of(held, legs.client_tx + legs.upstream_tx, quiet)
    }

    /// Reads the queue of one socket, on which nothing more is sent.
    pub(crate) fn read_one(socket: &Socket) -> SocketQueues {
        SocketQueues::of(socket.unacknowledged_bytes(), 0, socket.since_acknowledged())
    }

    fn of(held: u64, sent: u64, quiet: Duration) -> SocketQueues {
        // Modulo 2^32, as the kernel's sequence numbers: only a change between two checks matters.
        let acknowledged = sent.wrapping_sub(held) & u64::from(u32::MAX);
        let acknowledged = u32::try_from(acknowledged).expect("32 bits were kept");
        SocketQueues { held, acknowledged, quiet }
    }
}

impl Progress {
    /// The progress of a connection that opens at `now`.
    pub(crate) fn begin(now: Nanos) -> Progress {
        Progress { moved_at: now, acknowledged_at: now, acknowledged_count: None }
    }

    /// The time since a call last moved bytes.
    pub(crate) fn since_moved(&self, now: Nanos) -> Duration {
        now.since(self.moved_at)
    }

    /// When bytes last moved, or a check last found an acknowledgement.
    pub(crate) fn stalled_since(&self) -> Nanos {
        self.moved_at.max(self.acknowledged_at)
    }

    /// Notes that a call has moved bytes.
    pub(crate) fn moved(&mut self, now: Nanos) {
        self.moved_at = now;
    }

    /// Restarts the deadlines at an event that moves no byte.
    pub(crate) fn restart(&mut self, now: Nanos) {
        self.moved_at = now;
        self.acknowledged_at = now;
    }

    /// The last known progress.
    fn last(&self) -> Nanos {
        // Bytes that calls add to a stalled queue are no progress.
        if self.acknowledged_count.is_some() {
            self.acknowledged_at
        } else {
            self.acknowledged_at.max(self.moved_at)
        }
    }

    /// When to check next a connection that may stall for `span`.
    pub(crate) fn next_check(&self, now: Nanos, span: Duration) -> Nanos {
        let deadline = self.last() + span;
        // A queue that is full by then is checked from then on; an empty one stays empty without another
        // call.
        let first = self.last() + span / CHECKS_PER_SPAN;
        match self.acknowledged_count {
            Some(_) => deadline.min(now + span / CHECKS_PER_SPAN),
            None if first > now => first,
            None => deadline,
        }
    }

    /// Updates the progress by the kernel's queues; `None` if the connection has stalled for `span`.
    pub(crate) fn check(&mut self, now: Nanos, span: Duration, queues: SocketQueues) -> Option<Nanos> {
        match self.acknowledged_count {
            Some(acknowledged) if acknowledged == queues.acknowledged => {}
            Some(_) => self.acknowledged_at = now,
            // In a stalled queue, ACKs respond to probes. Otherwise the last ACK tells when the peer received
            // the last call's bytes; in a queue that is new, some may have been received as late as that.
            None => self.acknowledged_at = self.last().max(now.before(queues.quiet)),
        }
        self.acknowledged_count = (queues.held > 0).then_some(queues.acknowledged);
        Some(self.next_check(now, span)).filter(|_| self.last() + span > now)
    }
}

impl Deadlines {
    /// When to check a connection next.
    pub(crate) fn next_check(&self, progress: &Progress, age: Age) -> Nanos {
        progress.next_check(age.now, self.span(age).0).min(self.ends_at(age))
    }

    /// Checks a connection whose timer fired. `read` reads the kernel's queues; `has_arrived` returns whether
    /// unread bytes wait, of which epoll has not reported to a thread that was stopped.
    pub(crate) fn judge(
        &self,
        progress: &mut Progress,
        age: Age,
        read: impl FnOnce() -> SocketQueues,
        has_arrived: impl FnOnce() -> bool,
    ) -> Verdict {
        let ends_at = self.ends_at(age);
        if ends_at <= age.now {
            return Verdict::Over(CloseReason::LifetimeTimeout);
        }
        let (span, reason) = self.span(age);
        match progress.check(age.now, span, read()) {
            Some(next) => Verdict::CheckAt(next.min(ends_at)),
            None if has_arrived() => Verdict::CheckAt((age.now + span / CHECKS_PER_SPAN).min(ends_at)),
            None => Verdict::Over(reason),
        }
    }

    /// Whether one of these deadlines is earlier than that of `others`.
    pub(crate) fn are_earlier_than(&self, others: &Deadlines) -> bool {
        let lifetime = |deadlines: &Deadlines| deadlines.lifetime.unwrap_or(Duration::MAX);
        self.idle < others.idle || self.half_closed < others.half_closed || lifetime(self) < lifetime(others)
    }

    /// How long the connection may stall, and the reason for which it then ends.
    fn span(&self, age: Age) -> (Duration, CloseReason) {
        if age.is_half_closed && self.half_closed <= self.idle {
            (self.half_closed, CloseReason::HalfClosedTimeout)
        } else {
            (self.idle, CloseReason::IdleTimeout)
        }
    }

    fn ends_at(&self, age: Age) -> Nanos {
        self.lifetime.map_or(Nanos::NEVER, |lifetime| age.opened + lifetime)
    }
}

impl From<&Timeouts> for Deadlines {
    fn from(timeouts: &Timeouts) -> Deadlines {
        let Timeouts { idle, half_closed, lifetime, .. } = *timeouts;
        Deadlines { idle, half_closed, lifetime }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const IDLE: Duration = Duration::from_secs(80);
    const HALF_CLOSED: Duration = Duration::from_secs(8);
    const DEADLINES: Deadlines = Deadlines { idle: IDLE, half_closed: HALF_CLOSED, lifetime: None };

    /// An event of a connection, and its time.
    #[derive(Clone, Copy, Debug)]
    enum Event {
        /// A call sends so many bytes.
        Sends(u64),
        /// The peer acknowledges up to so many bytes.
        Takes(u64),
    }

    fn at(ms: u64) -> Nanos {
        Nanos(0) + Duration::from_millis(ms)
    }

    /// Runs a half-closed connection through `events`, each at its millisecond. Returns when it ends, and how
    /// often the kernel was asked.
    fn lives_through(events: &[(u64, Event)]) -> (Nanos, u32) {
        let age = |now| Age { opened: at(0), is_half_closed: true, now };
        let (mut progress, mut sent, mut taken, mut taken_at) = (Progress::begin(at(0)), 0, 0, at(0));
        let mut check_at = DEADLINES.next_check(&progress, age(at(0)));
        let (mut events, mut checks) = (events.iter().peekable(), 0);
        loop {
            while let Some((ms, event)) = events.next_if(|(ms, _)| at(*ms) <= check_at) {
                match event {
                    Event::Sends(bytes) => {
                        sent += bytes;
                        progress.moved(at(*ms));
                    }
                    Event::Takes(bytes) => (taken, taken_at) = (sent.min(taken + bytes), at(*ms)),
                }
            }
            checks += 1;
            let queues = || SocketQueues::of(sent - taken, sent, check_at.since(taken_at));
            match DEADLINES.judge(&mut progress, age(check_at), queues, || false) {
                Verdict::CheckAt(next) => {
                    assert!(next > check_at, "a check at {check_at:?} is repeated at once");
                    check_at = next;
                }
                Verdict::Over(reason) => {
                    assert_eq!(reason, CloseReason::HalfClosedTimeout);
                    return (check_at, checks);
                }
            }
        }
    }

    /// Checks that the connection ends a span, or at most an eighth more, after the progress at `last_ms`.
    #[track_caller]
    fn check_end(events: &[(u64, Event)], last_ms: u64) {
        let (ended, _) = lives_through(events);
        let earliest = at(last_ms) + HALF_CLOSED;
        let latest = earliest + HALF_CLOSED / CHECKS_PER_SPAN;
        assert!(earliest <= ended && ended <= latest, "{ended:?} is not in {earliest:?} ..= {latest:?}");
    }

    #[test]
    fn silent_connection_ends_after_two_checks() {
        use Event::{Sends, Takes};
        assert_eq!(lives_through(&[]), (at(8_000), 2));
        assert_eq!(lives_through(&[(3_000, Sends(9)), (3_001, Takes(9))]), (at(11_001), 3));
    }

    #[test]
    fn draining_queue_lives_until_drained() {
        use Event::{Sends, Takes};
        let mut events = vec![(10, Sends(100))];
        events.extend((1..=100).map(|step| (step * 700, Takes(1))));
        check_end(&events, 70_000);
    }

    #[test]
    fn stalled_queue_ends_though_calls_add_to_it() {
        use Event::{Sends, Takes};
        check_end(&[(10, Sends(100))], 10);
        let mut events = vec![(10, Sends(5)), (20, Takes(4))];
        events.extend((1..200).map(|step| (6_000 + step * 500, Sends(1))));
        check_end(&events, 10);
    }

    #[test]
    fn overdue_queue_is_checked_for_one_span() {
        // A reload has shortened the deadlines.
        let mut progress = Progress::begin(at(0));
        assert_eq!(
            progress.check(at(50_000), HALF_CLOSED, SocketQueues::of(10, 20, Duration::ZERO)),
            Some(at(51_000))
        );
        assert_eq!(
            progress.check(at(51_000), HALF_CLOSED, SocketQueues::of(9, 20, Duration::ZERO)),
            Some(at(52_000))
        );
        assert_eq!(
            progress.check(at(58_999), HALF_CLOSED, SocketQueues::of(9, 20, Duration::ZERO)),
            Some(at(59_000))
        );
        assert_eq!(progress.check(at(59_000), HALF_CLOSED, SocketQueues::of(9, 20, Duration::ZERO)), None);
    }

    #[test]
    fn unread_bytes_postpone_the_end() {
        let mut progress = Progress::begin(at(0));
        let age = Age { opened: at(0), is_half_closed: false, now: at(90_000) };
        let mut judge = |has_arrived| {
            DEADLINES.judge(&mut progress, age, || SocketQueues::of(0, 0, IDLE * 2), || has_arrived)
        };
        assert_eq!(judge(true), Verdict::CheckAt(at(100_000)));
        assert_eq!(judge(false), Verdict::Over(CloseReason::IdleTimeout));
    }

    #[test]
    fn lifetime_ends_a_moving_connection() {
        let deadlines = Deadlines { lifetime: Some(IDLE / 2), ..DEADLINES };
        let mut progress = Progress::begin(at(39_999));
        let age = |ms| Age { opened: at(0), is_half_closed: false, now: at(ms) };
        let queues = || SocketQueues::of(0, 5, Duration::ZERO);
        assert_eq!(
            deadlines.judge(&mut progress, age(39_999), queues, || false),
            Verdict::CheckAt(at(40_000))
        );
        let over = Verdict::Over(CloseReason::LifetimeTimeout);
        assert_eq!(deadlines.judge(&mut progress, age(40_000), queues, || false), over);
    }

    proptest! {
        /// The peer acknowledges bytes at least every 7 s; the deadline is 8 s.
        #[test]
        fn moving_connection_lives_stalled_one_ends(
            steps in prop::collection::vec((1..3_500_u64, prop::bool::ANY, 1..1_000_u64), 0..60),
        ) {
            let (mut now_ms, mut taken_ms, mut queued) = (0, 0, 0);
            let mut events = Vec::new();
            for (pause_ms, sends, bytes) in steps {
                now_ms += pause_ms;
                if queued == 0 || sends && now_ms < taken_ms + 3_500 {
                    // An empty queue has not stalled.
                    taken_ms = if queued == 0 { now_ms } else { taken_ms };
                    queued += bytes;
                    events.push((now_ms, Event::Sends(bytes)));
                } else {
                    taken_ms = now_ms;
                    queued -= bytes.min(queued);
                    events.push((now_ms, Event::Takes(bytes)));
                }
            }
            let (ended, _) = lives_through(&events);
            prop_assert!(ended >= at(taken_ms) + HALF_CLOSED);
            prop_assert!(ended <= at(now_ms) + HALF_CLOSED + HALF_CLOSED / CHECKS_PER_SPAN * 2);
        }
    }
}
