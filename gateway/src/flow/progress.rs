//! When a connection last moved bytes, and whether it has stood still for longer than it may.
//!
//! Guarantees: what a peer acknowledges is movement, however long ago our last call was, so that a send queue
//! of the kernel's that drains is never cut; a queue that stands is none, whatever our calls add to it, and
//! ends at most an eighth of its span late; a call that moves bytes costs one store, and the kernel is asked
//! only when a timer comes. Leaves out: timers, and closing (`relay/table.rs`, `session/exchange.rs`).
//!
//! ```text
//!   last call   1/8 of the span later                        the whole span later
//!       |---------------|-------------------------------------------|
//!                      look: nothing is queued ........... look: it is over
//!                      look: bytes are queued
//!                               look    look    look ...  each: has a peer taken any since the last one?
//! ```

use std::time::Duration;

use ledger::record::{CloseReason, Legs};
use sys::clock::Nanos;
use sys::socket::Socket;

use crate::settings::Timeouts;

/// Looks at a queue that stands, in the span for which it may. The more, the sooner its end, and the dearer.
const LOOKS: u32 = 8;

/// See the file's header.
#[derive(Debug)]
pub(crate) struct Progress {
    /// When a call of ours last moved bytes.
    moved_at: Nanos,
    /// The last movement that a look has found.
    found_at: Nanos,
    /// Where the kernel held bytes at the last look: how many were acknowledged by then, modulo 2^32.
    stood: Option<u32>,
}

/// What the kernel knows about both sockets of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SocketQueues {
    /// Bytes that calls have returned and that no peer has acknowledged. An end (FIN) counts as one.
    held: u64,
    /// Bytes that were acknowledged, up to a constant, modulo 2^32.
    acknowledged: u32,
    /// How long ago a peer last acknowledged anything, be it nothing new.
    quiet: Duration,
}

/// How long a connection may stand, and how long it may live.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadlines {
    /// Without a byte in either direction.
    pub idle: Duration,
    /// Without a byte after one direction has ended.
    pub half_closed: Duration,
    /// Altogether, from the beginning of its flow.
    pub lifetime: Option<Duration>,
}

/// What the deadlines are held against, beside the progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Age {
    /// When the flow was opened.
    pub opened: Nanos,
    /// Whether one direction has ended, and the other has not.
    pub is_half_closed: bool,
    /// The time now.
    pub now: Nanos,
}

/// What a look at a connection comes to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Verdict {
    /// It goes on; the next look is at that time.
    LookAt(Nanos),
    /// It has reached this deadline.
    Over(CloseReason),
}

impl SocketQueues {
    /// Asks the kernel, where calls have returned `legs` so far.
    pub(crate) fn read(client: &Socket, upstream: &Socket, legs: &Legs) -> SocketQueues {
        let held = client.unacknowledged() + upstream.unacknowledged();
        let quiet = client.since_acknowledged().min(upstream.since_acknowledged());
        SocketQueues::of(held, legs.client_tx + legs.upstream_tx, quiet)
    }

    /// The same of one socket, to which nothing is sent any more.
    pub(crate) fn read_one(socket: &Socket) -> SocketQueues {
        SocketQueues::of(socket.unacknowledged(), 0, socket.since_acknowledged())
    }

    fn of(held: u64, sent: u64, quiet: Duration) -> SocketQueues {
        // Modulo 2^32, as the kernel's own numbers: only whether it has changed matters, from look to look.
        let acknowledged = sent.wrapping_sub(held) & u64::from(u32::MAX);
        let acknowledged = u32::try_from(acknowledged).expect("32 bits were kept");
        SocketQueues { held, acknowledged, quiet }
    }
}

impl Progress {
    /// Of a connection that begins now.
    pub(crate) fn begin(now: Nanos) -> Progress {
        Progress { moved_at: now, found_at: now, stood: None }
    }

    /// Notes that a call has moved bytes.
    pub(crate) fn moved(&mut self, now: Nanos) {
        self.moved_at = now;
    }

    /// Notes an event from which the deadlines count anew, although it moves no byte.
    pub(crate) fn restart(&mut self, now: Nanos) {
        self.moved_at = now;
        self.found_at = now;
    }

    /// The last movement that is known.
    fn last(&self) -> Nanos {
        // What our calls add to a queue that stands does not count.
        if self.stood.is_some() { self.found_at } else { self.found_at.max(self.moved_at) }
    }

    /// When the connection, which may stand for `span`, is to be looked at next.
    pub(crate) fn next_check(&self, now: Nanos, span: Duration) -> Nanos {
        let over_at = self.last() + span;
        // What is queued by then is watched from then on; what is not stays so without another call.
        let first = self.last() + span / LOOKS;
        match self.stood {
            Some(_) => over_at.min(now + span / LOOKS),
            None if first > now => first,
            None => over_at,
        }
    }

    /// Takes in what the kernel says; none if the connection has stood for `span`.
    pub(crate) fn check(&mut self, now: Nanos, span: Duration, queues: SocketQueues) -> Option<Nanos> {
        match self.stood {
            Some(acknowledged) if acknowledged == queues.acknowledged => {}
            Some(_) => self.found_at = now,
            // Where a queue stands acknowledgements answer probes. Else the last one tells when the peer took
            // what the last call sent; in a queue that is new some may have been taken, as late as that.
            None => self.found_at = self.last().max(now.before(queues.quiet)),
        }
        self.stood = (queues.held > 0).then_some(queues.acknowledged);
        Some(self.next_check(now, span)).filter(|_| self.last() + span > now)
    }
}

impl Deadlines {
    /// When a connection is to be looked at next.
    pub(crate) fn next_look(&self, progress: &Progress, age: Age) -> Nanos {
        progress.next_check(age.now, self.span(age).0).min(self.ends_at(age))
    }

    /// Looks at a connection whose timer has come. `read` asks the kernel; `has_arrived` says whether
    /// something waits there that the thread, which may have been stopped, has not been told of.
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
            Some(next) => Verdict::LookAt(next.min(ends_at)),
            None if has_arrived() => Verdict::LookAt((age.now + span / LOOKS).min(ends_at)),
            None => Verdict::Over(reason),
        }
    }

    /// Whether some connection's deadline is nearer by these than by `others`.
    pub(crate) fn are_earlier_than(&self, others: &Deadlines) -> bool {
        let lifetime = |deadlines: &Deadlines| deadlines.lifetime.unwrap_or(Duration::MAX);
        self.idle < others.idle || self.half_closed < others.half_closed || lifetime(self) < lifetime(others)
    }

    /// How long it may stand, and what it is ended for.
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

    /// What happens to a connection, and when.
    #[derive(Clone, Copy, Debug)]
    enum Event {
        /// A call sends so many bytes.
        Sends(u64),
        /// The peer acknowledges up to so many.
        Takes(u64),
    }

    fn at(ms: u64) -> Nanos {
        Nanos(0) + Duration::from_millis(ms)
    }

    /// Lets a half-closed connection live through `events`, each at its millisecond; returns when it ends,
    /// and how often the kernel was asked.
    fn lives_through(events: &[(u64, Event)]) -> (Nanos, u32) {
        let age = |now| Age { opened: at(0), is_half_closed: true, now };
        let (mut progress, mut sent, mut taken, mut taken_at) = (Progress::begin(at(0)), 0, 0, at(0));
        let mut look_at = DEADLINES.next_look(&progress, age(at(0)));
        let (mut events, mut looks) = (events.iter().peekable(), 0);
        loop {
            while let Some((ms, event)) = events.next_if(|(ms, _)| at(*ms) <= look_at) {
                match event {
                    Event::Sends(bytes) => {
                        sent += bytes;
                        progress.moved(at(*ms));
                    }
                    Event::Takes(bytes) => (taken, taken_at) = (sent.min(taken + bytes), at(*ms)),
                }
            }
            looks += 1;
            let queues = || SocketQueues::of(sent - taken, sent, look_at.since(taken_at));
            match DEADLINES.judge(&mut progress, age(look_at), queues, || false) {
                Verdict::LookAt(next) => {
                    assert!(next > look_at, "a look at {look_at:?} is repeated at once");
                    look_at = next;
                }
                Verdict::Over(reason) => {
                    assert_eq!(reason, CloseReason::HalfClosedTimeout);
                    return (look_at, looks);
                }
            }
        }
    }

    /// Checks that it ends a span, or at most an eighth more, after the movement at `last_ms`.
    #[track_caller]
    fn check_end(events: &[(u64, Event)], last_ms: u64) {
        let (ended, _) = lives_through(events);
        let earliest = at(last_ms) + HALF_CLOSED;
        let latest = earliest + HALF_CLOSED / LOOKS;
        assert!(earliest <= ended && ended <= latest, "{ended:?} is not in {earliest:?} ..= {latest:?}");
    }

    #[test]
    fn what_is_silent_ends_to_the_point_after_two_looks() {
        use Event::{Sends, Takes};
        assert_eq!(lives_through(&[]), (at(8_000), 2));
        assert_eq!(lives_through(&[(3_000, Sends(9)), (3_001, Takes(9))]), (at(11_001), 3));
    }

    #[test]
    fn a_queue_that_drains_after_the_last_call_lives_until_it_has_drained() {
        use Event::{Sends, Takes};
        let mut events = vec![(10, Sends(100))];
        events.extend((1..=100).map(|step| (step * 700, Takes(1))));
        check_end(&events, 70_000);
    }

    #[test]
    fn a_queue_that_stands_ends_though_calls_add_to_it() {
        use Event::{Sends, Takes};
        check_end(&[(10, Sends(100))], 10);
        let mut events = vec![(10, Sends(5)), (20, Takes(4))];
        events.extend((1..200).map(|step| (6_000 + step * 500, Sends(1))));
        check_end(&events, 10);
    }

    #[test]
    fn a_queue_that_is_first_seen_behind_its_deadline_is_watched_for_a_span() {
        // As after a reload that shortens the deadlines.
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
    fn what_has_arrived_and_was_not_read_is_waited_for() {
        let mut progress = Progress::begin(at(0));
        let age = Age { opened: at(0), is_half_closed: false, now: at(90_000) };
        let mut judge = |has_arrived| {
            DEADLINES.judge(&mut progress, age, || SocketQueues::of(0, 0, IDLE * 2), || has_arrived)
        };
        assert_eq!(judge(true), Verdict::LookAt(at(100_000)));
        assert_eq!(judge(false), Verdict::Over(CloseReason::IdleTimeout));
    }

    #[test]
    fn a_lifetime_ends_what_moves() {
        let deadlines = Deadlines { lifetime: Some(IDLE / 2), ..DEADLINES };
        let mut progress = Progress::begin(at(39_999));
        let age = |ms| Age { opened: at(0), is_half_closed: false, now: at(ms) };
        let queues = || SocketQueues::of(0, 5, Duration::ZERO);
        assert_eq!(
            deadlines.judge(&mut progress, age(39_999), queues, || false),
            Verdict::LookAt(at(40_000))
        );
        let over = Verdict::Over(CloseReason::LifetimeTimeout);
        assert_eq!(deadlines.judge(&mut progress, age(40_000), queues, || false), over);
    }

    proptest! {
        /// The peer takes something of what is queued at least every 7 s, and the deadline is at 8 s.
        #[test]
        fn what_moves_lives_and_what_stands_ends(
            steps in prop::collection::vec((1..3_500_u64, prop::bool::ANY, 1..1_000_u64), 0..60),
        ) {
            let (mut now_ms, mut taken_ms, mut queued) = (0, 0, 0);
            let mut events = Vec::new();
            for (pause_ms, sends, bytes) in steps {
                now_ms += pause_ms;
                if queued == 0 || sends && now_ms < taken_ms + 3_500 {
                    // An empty queue has stood for no time.
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
            prop_assert!(ended <= at(now_ms) + HALF_CLOSED + HALF_CLOSED / LOOKS * 2);
        }
    }
}
