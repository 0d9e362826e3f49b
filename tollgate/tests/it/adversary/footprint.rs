//! What a gateway holds before an attack, and that it holds no more behind it.
//!
//! Promises: descriptors are back to the last one, and memory but for what is kept for the next connections.
//! Leaves to others: what is held while the attack lasts.

use crate::harness::{Gateway, eventually};

/// What may be kept: the room of as many tasks as there were at once, and what the allocator does not give
/// back to the system. A round of 300 slow names keeps 10 MiB; five more rounds kept no more.
const KEPT_BYTES_MAX: u64 = 16 << 20;

/// See the file's header.
pub(super) struct Footprint {
    pub(super) descriptors: usize,
    memory_bytes: u64,
}

impl Footprint {
    /// What `gateway` holds now.
    pub(super) fn measure(gateway: &Gateway) -> Footprint {
        Footprint { descriptors: descriptors(gateway), memory_bytes: gateway.memory_bytes() }
    }

    /// The same with so many descriptors more, which the gateway opens meanwhile and keeps.
    pub(super) fn with_spare(self, descriptors: usize) -> Footprint {
        Footprint { descriptors: self.descriptors + descriptors, ..self }
    }

    /// Waits until `gateway` holds no more than then.
    #[track_caller]
    pub(super) fn await_return(&self, gateway: &Gateway) {
        eventually("descriptors are back", || descriptors(gateway) <= self.descriptors);
        eventually("memory is back", || gateway.memory_bytes() <= self.memory_bytes + KEPT_BYTES_MAX);
    }
}

/// The descriptors of `gateway`, without those of the pipes that it keeps for the next streams.
fn descriptors(gateway: &Gateway) -> usize {
    let descriptors = gateway.descriptors();
    descriptors - 2 * gateway.metric("tollgate_pipes_held").unwrap() as usize
}
