//! Ids of flows: unique without coordination, ordered by time.

use std::cell::Cell;

use sys::clock::WallNanos;

const NANOS_PER_MS: u64 = 1_000_000;

/// The ids of one thread: 48 bits of milliseconds since 1970, 32 of the process, 16 of the thread, 32 of a
/// counter.
pub(crate) struct FlowIds {
    process: u32,
    thread: u16,
    count: Cell<u32>,
}

impl FlowIds {
    /// The ids of thread number `thread` of the process that drew the random number `process`.
    pub(crate) fn new(process: u32, thread: u16) -> FlowIds {
        FlowIds { process, thread, count: Cell::new(0) }
    }

    /// The next id, at the time `now`.
    pub(crate) fn next(&self, now: WallNanos) -> u128 {
        let ms = now.0 / NANOS_PER_MS;
        let count = self.count.get();
        self.count.set(count.wrapping_add(1));
        u128::from(ms) << 80
            | u128::from(self.process) << 48
            | u128::from(self.thread) << 32
            | u128::from(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_and_grow() {
        let (first, second) = (FlowIds::new(7, 0), FlowIds::new(7, 1));
        let mut last = 0;
        for _ in 0..1000 {
            let now = WallNanos(1_800_000_000_000_000_000);
            let (id, other) = (first.next(now), second.next(now));
            assert_ne!(id, other);
            assert!(id > last);
            last = id;
        }
        assert_eq!(last >> 48 & 0xffff_ffff, 7);
    }
}
