//! A hierarchical timer wheel in virtual time, for one thread.
//!
//! Guarantees: those of its levels (`levels.rs`: O(1), never early, at most a tick late). A cancelled timer's
//! memory is free at once.
//!
//! Not handled here: the clock, and threads.

use std::num::NonZeroU64;

use sys::clock::Nanos;

use super::levels::{self, Levels, Links, NONE, due_tick, start_of};

/// The id of an armed timer. An id may outlive its timer: then a cancel has no effect.
///
/// One non-zero word, so that a result or an option of it is returned in registers. (Two halves that are
/// stored apart and loaded as one made the CPU wait for the store, as long as all of arming.)
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TimerId(NonZeroU64);

impl TimerId {
    #[inline]
    fn new(index: u32, generation: u32) -> TimerId {
        // The sum is exact: `add_node` bounds the index below u32::MAX.
        TimerId(NonZeroU64::MIN.saturating_add(u64::from(generation) << 32 | u64::from(index)))
    }

    #[inline]
    fn index_and_generation(self) -> (u32, u32) {
        let bits = self.0.get() - 1;
        (bits as u32, (bits >> 32) as u32)
    }
}

/// When a timer for `when` is due: at the first tick that begins later, as it must never be early.
pub fn due(when: Nanos) -> Nanos {
    start_of(due_tick(when))
}

#[derive(Debug)]
struct Node<T> {
    /// u64::MAX while the node is free.
    tick: u64,
    generation: u32,
    /// Its list while it is armed; else `next` is the next free node.
    links: Links,
    payload: Option<T>,
}

/// A timer wheel whose timers carry a payload.
#[derive(Debug)]
pub struct Wheel<T> {
    levels: Levels,
    nodes: Vec<Node<T>>,
    free: u32,
}

impl<T> Wheel<T> {
    /// An empty wheel at `now`.
    pub fn new(now: Nanos) -> Wheel<T> {
        Wheel { levels: Levels::new(now), nodes: Vec::new(), free: NONE }
    }

    /// The number of armed timers.
    pub fn armed(&self) -> usize {
        self.levels.armed()
    }

    /// Makes `payload` due at `when`; at the next tick if that has passed.
    pub fn arm(&mut self, when: Nanos, payload: T) -> TimerId {
        if self.free == NONE {
            self.add_node();
        }
        let index = self.free;
        let node = &mut self.nodes[index as usize];
        // Lets the compiler omit the code that would drop an old payload.
        assert!(node.payload.is_none(), "a free node has no payload");
        self.free = node.links.next;
        node.tick = self.levels.ahead(due_tick(when));
        node.payload = Some(payload);
        let generation = node.generation;
        self.levels.insert(&mut self.nodes, index);
        TimerId::new(index, generation)
    }

    /// Cancels a timer. `None` if it was due or cancelled before.
    pub fn cancel(&mut self, id: TimerId) -> Option<T> {
        let (index, generation) = id.index_and_generation();
        let node = self.nodes.get(index as usize)?;
        if node.generation != generation || node.payload.is_none() {
            return None;
        }
        self.levels.remove(&mut self.nodes, index);
        self.free_node(index)
    }

    /// The earliest time at which a timer can be due; `None` when none is armed.
    pub fn next_due(&mut self) -> Option<Nanos> {
        self.levels.next_due(&self.nodes)
    }

    /// Moves the wheel to `now` and returns one timer that is due, if any. To be called until there is none.
    /// One at a time, so that the caller may cancel another that is due as well.
    pub fn pop_due(&mut self, now: Nanos) -> Option<T> {
        let index = self.levels.pop_due(&mut self.nodes, now)?;
        self.free_node(index)
    }

    /// Adds a free node.
    #[cold]
    fn add_node(&mut self) {
        let index = u32::try_from(self.nodes.len()).expect("owners bound their timers far below 2^32");
        assert_ne!(index, NONE, "owners bound their timers far below 2^32");
        let links = Links { next: std::mem::replace(&mut self.free, index), ..Links::NONE };
        self.nodes.push(Node { tick: u64::MAX, generation: 0, links, payload: None });
    }

    fn free_node(&mut self, index: u32) -> Option<T> {
        let node = &mut self.nodes[index as usize];
        node.generation = node.generation.wrapping_add(1);
        node.tick = u64::MAX;
        node.links.next = std::mem::replace(&mut self.free, index);
        node.payload.take()
    }
}

impl<T> levels::Node for Node<T> {
    fn tick(&self) -> u64 {
        self.tick
    }

    fn links(&self) -> &Links {
        &self.links
    }

    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::levels::TICK_BITS;
    use super::*;
    use std::collections::BTreeMap;

    const TICK: u64 = 1 << TICK_BITS;

    /// A small generator of reproducible numbers (xorshift64*).
    pub(in super::super) struct Random(pub(in super::super) u64);

    impl Random {
        pub(in super::super) fn below(&mut self, bound: u64) -> u64 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) % bound
        }
    }

    fn drain(wheel: &mut Wheel<u64>, now: Nanos) -> Vec<u64> {
        std::iter::from_fn(|| wheel.pop_due(now)).collect()
    }

    #[test]
    fn wheel_is_never_early_and_a_tick_late_at_most() {
        for when in [0, 1, TICK - 1, TICK, TICK + 1, 63 * TICK, 64 * TICK, 4096 * TICK + 5, 1 << 50] {
            let mut wheel = Wheel::new(Nanos(0));
            wheel.arm(Nanos(when), when);
            assert_eq!(drain(&mut wheel, Nanos(when)), [], "never due at its own instant's tick: {when}");
            assert_eq!(wheel.next_due(), Some(Nanos((when / TICK + 1) * TICK)));
            assert_eq!(drain(&mut wheel, Nanos(when + TICK)), [when]);
            assert_eq!(wheel.next_due(), None);
        }
    }

    #[test]
    fn deadline_never_stays_armed_and_causes_no_wake() {
        let mut wheel = Wheel::new(Nanos(5 * TICK));
        let never = wheel.arm(Nanos::NEVER, 1);
        let mut now = 5 * TICK;
        // Over several revolutions of the top level.
        while now < u64::MAX / 4 {
            now += u64::MAX / 1000;
            assert_eq!(wheel.pop_due(Nanos(now)), None);
        }
        assert_eq!(wheel.cancel(never), Some(1));
        assert_eq!(wheel.next_due(), None);
    }

    #[test]
    fn cancel_frees_the_node_and_id_goes_stale() {
        let mut wheel = Wheel::new(Nanos(0));
        let first = wheel.arm(Nanos(TICK), 1);
        assert_eq!(wheel.cancel(first), Some(1));
        assert_eq!(wheel.cancel(first), None);
        let second = wheel.arm(Nanos(TICK), 2);
        assert_eq!(wheel.nodes.len(), 1, "the node is reused");
        assert_eq!(wheel.cancel(first), None);
        assert_eq!(wheel.armed(), 1);
        assert_eq!(drain(&mut wheel, Nanos(3 * TICK)), [2]);
        assert_eq!(wheel.cancel(second), None);
    }

    #[test]
    fn next_due_skips_a_cancelled_earliest_timer() {
        let mut wheel = Wheel::new(Nanos(0));
        // All in one slot of the second level.
        let ids: Vec<_> = (0..10).map(|n| wheel.arm(Nanos((130 + 3 * n) * TICK), n)).collect();
        for n in 0..9 {
            assert_eq!(wheel.next_due(), Some(due(Nanos((130 + 3 * n) * TICK))));
            assert_eq!(wheel.cancel(ids[n as usize]), Some(n));
        }
        wheel.arm(Nanos(140 * TICK), 99);
        assert_eq!(wheel.next_due(), Some(due(Nanos(140 * TICK))));
        // A slot with many timers is not searched; the bound holds.
        let many: Vec<_> = (0..40).map(|n| wheel.arm(Nanos((130 + n) * TICK), n)).collect();
        assert_eq!(wheel.cancel(many[0]), Some(0));
        assert!(wheel.next_due() <= Some(due(Nanos(131 * TICK))));
    }

    #[test]
    fn due_timer_may_cancel_another_due_timer() {
        let mut wheel = Wheel::new(Nanos(0));
        let ids: Vec<_> = (0..3).map(|n| wheel.arm(Nanos(TICK), n)).collect();
        let due = wheel.pop_due(Nanos(4 * TICK)).unwrap();
        let other = (due + 1) % 3;
        assert_eq!(wheel.cancel(ids[other as usize]), Some(other));
        assert_eq!(drain(&mut wheel, Nanos(4 * TICK)).len(), 1);
    }

    #[test]
    fn wheel_agrees_with_an_ordered_map() {
        for seed in 1..=20 {
            compare_with_map(seed, if cfg!(miri) { 100 } else { 20_000 });
        }
    }

    /// Compares random arms, cancels and steps of the clock, near and far, with a map ordered by time.
    fn compare_with_map(seed: u64, operations: usize) {
        let mut random = Random(seed);
        let mut now = random.below(1 << 40);
        let mut wheel = Wheel::new(Nanos(now));
        let mut map: BTreeMap<(u64, u64), TimerId> = BTreeMap::new();
        for number in 0..operations as u64 {
            match random.below(10) {
                0..=5 => {
                    let span = 1 << (10 + random.below(38));
                    let when = now + random.below(span);
                    let id = wheel.arm(Nanos(when), number);
                    map.insert((when / TICK + 1, number), id);
                }
                6..=7 => {
                    let skip = random.below(map.len().max(1) as u64) as usize;
                    if let Some((&key, &id)) = map.iter().nth(skip.min(50)) {
                        assert_eq!(wheel.cancel(id), Some(key.1));
                        map.remove(&key);
                    }
                }
                _ => {
                    let span = 1 << (12 + random.below(32));
                    now += random.below(span);
                    let mut due = drain(&mut wheel, Nanos(now));
                    due.sort_unstable();
                    let later = map.split_off(&(now / TICK + 1, 0));
                    let mut expected: Vec<_> = map.keys().map(|&(_, number)| number).collect();
                    expected.sort_unstable();
                    assert_eq!(due, expected, "seed {seed}");
                    map = later;
                }
            }
            let earliest = map.keys().next().map(|&(tick, _)| tick * TICK);
            let next = wheel.next_due().map(|next| next.0);
            assert!(next <= earliest || earliest.is_none(), "seed {seed}: {next:?} > {earliest:?}");
            assert_eq!(next.is_none(), earliest.is_none(), "seed {seed}");
            assert_eq!(wheel.armed(), map.len(), "seed {seed}");
        }
    }
}
