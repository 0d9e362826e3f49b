//! The relays of a thread whose pipes hold bytes that the sink does not accept, in the order in which that
//! was seen.
//!
//! Guarantees: a relay is listed at most once, and leaves the list after [`PIPE_STALL_MAX`]; a pipe whose
//! sink has accepted bytes meanwhile is listed again.

use std::collections::VecDeque;

use engine::slab::Key;
use sys::clock::Nanos;

use super::{Direction, Relay, RelayBuffers};
use crate::limits::PIPE_STALL_MAX;

/// Relays with stalled pipes, the longest stalled first.
#[derive(Debug, Default)]
pub(super) struct Stalls(VecDeque<(Nanos, Key)>);

impl Stalls {
    /// Lists `relay`, which has run, if one of its pipes stalls.
    pub(super) fn note(&mut self, key: Key, relay: &mut Relay, now: Nanos) {
        let has_stalled = |direction: &Direction| direction.has_stalled_pipe();
        if relay.is_stall_candidate || !has_stalled(&relay.up) && !has_stalled(&relay.down) {
            return;
        }
        for direction in [&mut relay.up, &mut relay.down] {
            direction.stalls = direction.has_stalled_pipe();
        }
        relay.is_stall_candidate = true;
        self.0.push_back((now + PIPE_STALL_MAX, key));
    }

    /// Removes the next relay that was listed long enough ago; it may have ended.
    pub(super) fn next_due(&mut self, now: Nanos) -> Option<Key> {
        self.0.pop_front_if(|(due_at, _)| *due_at <= now).map(|(_, key)| key)
    }
}

impl Relay {
    /// Frees the pipes that have stalled since the relay was listed, as far as there is memory for their
    /// bytes.
    pub(super) fn free_pipes(&mut self, buffers: &mut RelayBuffers) {
        self.is_stall_candidate = false;
        for direction in [&mut self.up, &mut self.down] {
            if direction.stalls && direction.has_stalled_pipe() && buffers.pending.has_capacity() {
                direction.empty_pipe(buffers);
            }
        }
    }
}
