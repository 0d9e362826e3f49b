//! The relays of a thread whose pipes hold bytes that the sink does not take, in the order of their noting.
//!
//! Guarantees: a relay is in here at most once, and comes out [`PIPE_STALL_MAX`] after it was noted; a pipe
//! whose sink has taken something meanwhile is noted anew. Leaves out: emptying the pipe (`splice`).

use std::collections::VecDeque;

use engine::slab::Key;
use sys::clock::Nanos;

use super::{Direction, Relay, RelayBuffers};
use crate::limits::PIPE_STALL_MAX;

/// See the file's header.
#[derive(Debug, Default)]
pub(super) struct Stalls(VecDeque<(Nanos, Key)>);

impl Stalls {
    /// Notes `relay`, which has run, if one of its pipes stalls.
    pub(super) fn note(&mut self, key: Key, relay: &mut Relay, now: Nanos) {
        let stalls = |direction: &Direction| direction.has_stalled_pipe();
        if relay.is_stall_candidate || !stalls(&relay.up) && !stalls(&relay.down) {
            return;
        }
        for direction in [&mut relay.up, &mut relay.down] {
            direction.stalls = direction.has_stalled_pipe();
        }
        relay.is_stall_candidate = true;
        self.0.push_back((now + PIPE_STALL_MAX, key));
    }

    /// Takes out the next one that was noted long enough ago; it may be gone by now.
    pub(super) fn next_due(&mut self, now: Nanos) -> Option<Key> {
        self.0.pop_front_if(|(due_at, _)| *due_at <= now).map(|(_, key)| key)
    }
}

impl Relay {
    /// Frees the pipes that have stalled since it was noted, as far as there is memory for what they hold.
    pub(super) fn free_pipes(&mut self, tools: &mut RelayBuffers) {
        self.is_stall_candidate = false;
        for direction in [&mut self.up, &mut self.down] {
            if direction.stalls && direction.has_stalled_pipe() && tools.pending.has_capacity() {
                direction.empty_pipe(tools);
            }
        }
    }
}
