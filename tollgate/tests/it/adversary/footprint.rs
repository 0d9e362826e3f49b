//! The resources of a gateway before an attack, and that it holds no more after it.
//!
//! Guarantees: checks descriptors exactly, and memory within a bound for what is kept for later connections.

use crate::harness::{Gateway, eventually};

/// Memory that may be kept: as many task slots as were used at once, and pages that the allocator does not
/// return. A round of 300 slow names keeps 10 MiB; five more rounds kept no more.
const KEPT_BYTES_MAX: u64 = 16 << 20;

/// Descriptors and memory of a gateway at one moment.
pub(super) struct Footprint {
    pub(super) descriptors: usize,
    memory_bytes: u64,
}

impl Footprint {
    /// Measures `gateway` now.
    pub(super) fn measure(gateway: &Gateway) -> Footprint {
        Footprint { descriptors: descriptors(gateway), memory_bytes: gateway.memory_bytes() }
    }

    /// Allows this many descriptors more, which the gateway opens meanwhile and keeps.
    pub(super) fn with_spare(self, descriptors: usize) -> Footprint {
        Footprint { descriptors: self.descriptors + descriptors, ..self }
    }

    /// Waits until `gateway` holds no more than at the measurement.
    #[track_caller]
    pub(super) fn await_return(&self, gateway: &Gateway) {
        eventually("descriptors are closed again", || descriptors(gateway) <= self.descriptors);
        eventually("memory is released", || gateway.memory_bytes() <= self.memory_bytes + KEPT_BYTES_MAX);
    }
}

/// The descriptors of `gateway`, without those of its cached pipes.
fn descriptors(gateway: &Gateway) -> usize {
    let descriptors = gateway.descriptors();
    descriptors - 2 * gateway.metric("tollgate_pipes_held").unwrap() as usize
}
