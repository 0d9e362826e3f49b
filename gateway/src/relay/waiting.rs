//! The relays of a thread that wait for credit, by the moment at which they have some.
//!
//! Guarantees: one timer for all of them; a relay that waits costs an entry of 16 bytes, and no wake before
//! its moment.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use engine::reactor::{Reactor, WakeTarget};
use engine::slab::Key;
use engine::timer::wheel::TimerId;
use sys::clock::Nanos;

use crate::token::Token;

/// Relays that wait for credit.
#[derive(Debug, Default)]
pub(super) struct WaitingRelays {
    /// Moments and keys; a relay may have ended.
    waiting: BinaryHeap<Reverse<(Nanos, u64)>>,
    timer: Option<(Nanos, TimerId)>,
}

impl WaitingRelays {
    /// Adds a relay, which has credit at `moment`.
    pub(super) fn add(&mut self, relay: Key, moment: Nanos, reactor: &Reactor) {
        self.waiting.push(Reverse((moment, relay.to_bits())));
        self.arm(reactor);
    }

    /// Takes the next relay whose moment has come by `now`.
    pub(super) fn take_due(&mut self, now: Nanos) -> Option<Key> {
        let Reverse((moment, _)) = self.waiting.peek()?;
        (*moment <= now).then(|| self.waiting.pop()).flatten().map(|Reverse((_, bits))| Key::from_bits(bits))
    }

    /// Notes that the timer has fired, and that all due relays were taken.
    pub(super) fn rearm(&mut self, reactor: &Reactor) {
        self.timer = None;
        self.arm(reactor);
    }

    /// Arms the timer for the first moment.
    fn arm(&mut self, reactor: &Reactor) {
        let Some(Reverse((first, _))) = self.waiting.peek() else { return };
        match self.timer {
            Some((armed, _)) if armed <= *first => return,
            Some((_, timer)) => reactor.cancel(timer),
            None => {}
        }
        let timer = reactor.arm(*first, WakeTarget::Token(Token::CreditTimer.to_raw()));
        self.timer = Some((*first, timer));
    }
}
