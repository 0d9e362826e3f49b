//! A hierarchical timer wheel in virtual time: who is due by when.
//!
//! Promises: arm and cancel are O(1); a timer is never due before its time, and at most one tick
//! (2^20 ns, about a millisecond) after it; [`Wheel::next`] is the earliest time at which anything can be
//! due, so a thread that sleeps until then is never woken by an empty slot or by a cancelled timer of
//! another slot; a cancelled timer's node is free at once. Leaves to others: the clock, and threads.
//!
//! Six levels of 64 slots; a slot of level n spans 64^n ticks. A timer is kept at the level of the highest
//! digit (base 64) in which its tick differs from the wheel's, hence every timer of a level is due before
//! any timer of the levels above. When the wheel's tick enters a slot of a higher level, that slot's timers
//! move down. (G. Varghese, A. Lauck, "Hashed and Hierarchical Timing Wheels", SOSP 1987.)

use sys::clock::Nanos;

const TICK_BITS: u32 = 20;
const LEVELS: usize = 6;
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
/// The farthest that a timer is kept from the wheel's tick: about 2.2 years. Later ones wait there and
/// are kept again when they come round. One slot less than a whole turn of the top level, so that a timer
/// of the next turn never shares a slot with the wheel's position.
const TICKS_AHEAD_MAX: u64 = ((SLOTS as u64 - 1) << (SLOT_BITS * (LEVELS as u32 - 1))) - 1;
const NONE: u32 = u32::MAX;

// A node names its list in 16 bits.
const _: () = assert!(LEVELS * SLOTS <= 1 << 16);

/// Names an armed timer. An id outlives its timer harmlessly: cancelling it again does nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TimerId {
    index: u32,
    generation: u32,
}

impl TimerId {
    /// The id as a word: generation above, index below.
    pub fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// The id that [`TimerId::to_bits`] made the word of.
    pub fn from_bits(bits: u64) -> TimerId {
        TimerId { index: bits as u32, generation: (bits >> 32) as u32 }
    }
}

/// When a timer that is armed for `when` is due: at the first tick that begins later.
pub fn due(when: Nanos) -> Nanos {
    Nanos(due_tick(when).saturating_mul(1 << TICK_BITS))
}

fn due_tick(when: Nanos) -> u64 {
    // Rounded up: a timer must never be early.
    (when.0 >> TICK_BITS).saturating_add(1)
}

#[derive(Debug)]
struct Node<T> {
    /// The first tick at which the timer is due; u64::MAX while the node is free.
    tick: u64,
    generation: u32,
    next: u32,
    previous: u32,
    /// Which list holds the node: level * SLOTS + slot.
    list: u16,
    payload: Option<T>,
}

#[derive(Clone, Copy, Debug)]
struct Level {
    /// Bit s is set if and only if slot s holds a timer.
    occupied: u64,
    heads: [u32; SLOTS],
    /// No timer of the slot is due before this tick. Exact unless the earliest one was cancelled.
    earliest: [u64; SLOTS],
}

/// See the file's header.
#[derive(Debug)]
pub struct Wheel<T> {
    /// The tick that the wheel has reached: all timers before or at it have been given out.
    tick: u64,
    levels: Box<[Level; LEVELS]>,
    nodes: Vec<Node<T>>,
    free: u32,
    armed: usize,
}

impl<T> Wheel<T> {
    /// An empty wheel that stands at `now`.
    pub fn new(now: Nanos) -> Wheel<T> {
        Wheel::with_capacity(now, 0)
    }

    /// As [`Wheel::new`], with memory for so many timers.
    pub fn with_capacity(now: Nanos, timers: usize) -> Wheel<T> {
        let level = Level { occupied: 0, heads: [NONE; SLOTS], earliest: [u64::MAX; SLOTS] };
        let tick = now.0 >> TICK_BITS;
        Wheel {
            tick,
            levels: Box::new([level; LEVELS]),
            nodes: Vec::with_capacity(timers),
            free: NONE,
            armed: 0,
        }
    }

    /// How many timers are armed.
    pub fn armed(&self) -> usize {
        self.armed
    }

    /// Makes `payload` due at `when`; at the next tick if that has passed.
    pub fn arm(&mut self, when: Nanos, payload: T) -> TimerId {
        let tick = due_tick(when).max(self.tick + 1);
        if self.free == NONE {
            self.add_node();
        }
        let index = self.free;
        let node = &mut self.nodes[index as usize];
        // Said so that no code is made which would drop one.
        assert!(node.payload.is_none(), "a free node has no payload");
        self.free = node.next;
        node.tick = tick;
        node.payload = Some(payload);
        let generation = node.generation;
        self.armed += 1;
        self.link(index);
        TimerId { index, generation }
    }

    /// Takes a timer back. `None` if it was due or cancelled before.
    pub fn cancel(&mut self, id: TimerId) -> Option<T> {
        let node = self.nodes.get(id.index as usize)?;
        if node.generation != id.generation || node.payload.is_none() {
            return None;
        }
        self.unlink(id.index);
        self.armed -= 1;
        self.free_node(id.index)
    }

    /// The earliest time at which a timer can be due; `None` when none is armed.
    pub fn next(&self) -> Option<Nanos> {
        let (level, slot) = self.first_slot()?;
        let tick = self.levels[level].earliest[slot];
        Some(Nanos(tick.saturating_mul(1 << TICK_BITS)))
    }

    /// Moves the wheel to `now` and gives out one timer that is due, if any: call it until it has none.
    /// One at a time, so that whoever gets it may cancel another that is due as well.
    pub fn pop_due(&mut self, now: Nanos) -> Option<T> {
        let now_tick = now.0 >> TICK_BITS;
        while let Some((level, slot)) = self.first_slot() {
            let start = self.slot_start(level, slot);
            if start > now_tick {
                break;
            }
            if level == 0 {
                self.tick = self.tick.max(start.saturating_sub(1));
                let index = self.levels[0].heads[slot];
                self.unlink(index);
                self.armed -= 1;
                return self.free_node(index);
            }
            self.cascade(level, slot, start);
        }
        self.tick = self.tick.max(now_tick);
        None
    }

    /// The first occupied slot of the lowest occupied level: the one with the earliest timers.
    fn first_slot(&self) -> Option<(usize, usize)> {
        (0..LEVELS).find_map(|level| {
            let occupied = self.levels[level].occupied;
            if occupied == 0 {
                return None;
            }
            let position = (self.tick >> (SLOT_BITS * level as u32)) as u32 % SLOTS as u32;
            let ahead = occupied.rotate_right(position).trailing_zeros();
            Some((level, (position + ahead) as usize % SLOTS))
        })
    }

    /// The first tick of a slot, in the turn of its level that is under way or begins next.
    fn slot_start(&self, level: usize, slot: usize) -> u64 {
        let shift = SLOT_BITS * level as u32;
        let turn = self.tick >> shift >> SLOT_BITS << SLOT_BITS;
        let start = (turn + slot as u64) << shift;
        // A slot behind the wheel's position belongs to the next turn: only the top level wraps.
        if start + (1 << shift) <= self.tick { start + (1 << (shift + SLOT_BITS)) } else { start }
    }

    /// Moves the timers of a slot that the wheel enters to the levels below.
    fn cascade(&mut self, level: usize, slot: usize, start: u64) {
        let mut index = std::mem::replace(&mut self.levels[level].heads[slot], NONE);
        self.levels[level].occupied &= !(1 << slot);
        self.levels[level].earliest[slot] = u64::MAX;
        self.tick = self.tick.max(start);
        while index != NONE {
            let next = self.nodes[index as usize].next;
            self.link(index);
            index = next;
        }
    }

    #[inline]
    fn link(&mut self, index: u32) {
        let Wheel { tick: position, levels, nodes, .. } = self;
        // Borrowed once, so that nothing is loaded again behind the stores into the levels.
        let (position, levels, nodes) = (*position, &mut **levels, &mut nodes[..]);
        let node = &mut nodes[index as usize];
        let kept = node.tick.min(position + TICKS_AHEAD_MAX);
        let distance = (kept ^ position) | (SLOTS as u64 - 1);
        let level = ((63 - distance.leading_zeros()) / SLOT_BITS).min(LEVELS as u32 - 1);
        let slot = (kept >> (SLOT_BITS * level)) as usize % SLOTS;
        let home = &mut levels[level as usize];
        let head = std::mem::replace(&mut home.heads[slot], index);
        home.occupied |= 1 << slot;
        home.earliest[slot] = home.earliest[slot].min(kept);
        (node.next, node.previous) = (head, NONE);
        node.list = (level as usize * SLOTS + slot) as u16;
        if head != NONE {
            nodes[head as usize].previous = index;
        }
    }

    #[inline]
    fn unlink(&mut self, index: u32) {
        let nodes = &mut self.nodes[..];
        let Node { next, previous, list, .. } = nodes[index as usize];
        if next != NONE {
            nodes[next as usize].previous = previous;
        }
        if previous != NONE {
            nodes[previous as usize].next = next;
            return;
        }
        let (level, slot) = (usize::from(list) / SLOTS, usize::from(list) % SLOTS);
        let home = &mut self.levels[level];
        home.heads[slot] = next;
        if next == NONE {
            home.occupied &= !(1 << slot);
            home.earliest[slot] = u64::MAX;
        }
    }

    /// One more node, which is free.
    #[cold]
    fn add_node(&mut self) {
        let index = u32::try_from(self.nodes.len()).expect("owners bound their timers far below 2^32");
        let next = std::mem::replace(&mut self.free, index);
        self.nodes.push(Node { tick: u64::MAX, generation: 0, next, previous: NONE, list: 0, payload: None });
    }

    fn free_node(&mut self, index: u32) -> Option<T> {
        let node = &mut self.nodes[index as usize];
        node.generation = node.generation.wrapping_add(1);
        node.tick = u64::MAX;
        node.next = std::mem::replace(&mut self.free, index);
        node.payload.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const TICK: u64 = 1 << TICK_BITS;

    /// A small generator of reproducible numbers (xorshift64*).
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: u64) -> u64 {
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
    fn never_early_and_at_most_a_tick_late() {
        for when in [0, 1, TICK - 1, TICK, TICK + 1, 63 * TICK, 64 * TICK, 4096 * TICK + 5, 1 << 50] {
            let mut wheel = Wheel::new(Nanos(0));
            wheel.arm(Nanos(when), when);
            assert_eq!(drain(&mut wheel, Nanos(when)), [], "not due at its own instant's tick: {when}");
            assert_eq!(wheel.next(), Some(Nanos((when / TICK + 1) * TICK)));
            assert_eq!(drain(&mut wheel, Nanos(when + TICK)), [when]);
            assert_eq!(wheel.next(), None);
        }
    }

    #[test]
    fn a_deadline_that_never_comes_is_kept_and_disturbs_nobody() {
        let mut wheel = Wheel::new(Nanos(5 * TICK));
        let never = wheel.arm(Nanos::NEVER, 1);
        let mut now = 5 * TICK;
        // Over several turns of the top level.
        while now < u64::MAX / 4 {
            now += u64::MAX / 1000;
            assert_eq!(wheel.pop_due(Nanos(now)), None);
        }
        assert_eq!(wheel.cancel(never), Some(1));
        assert_eq!(wheel.next(), None);
    }

    #[test]
    fn cancelling_frees_the_node_and_an_old_id_does_nothing() {
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
    fn who_is_given_a_due_timer_may_cancel_another() {
        let mut wheel = Wheel::new(Nanos(0));
        let ids: Vec<_> = (0..3).map(|n| wheel.arm(Nanos(TICK), n)).collect();
        let due = wheel.pop_due(Nanos(4 * TICK)).unwrap();
        let other = (due + 1) % 3;
        assert_eq!(wheel.cancel(ids[other as usize]), Some(other));
        assert_eq!(drain(&mut wheel, Nanos(4 * TICK)).len(), 1);
    }

    #[test]
    fn agrees_with_an_ordered_map() {
        for seed in 1..=20 {
            compare_with_map(seed, 20_000);
        }
    }

    /// Random arms, cancels and steps of the clock, near and far, against a map ordered by time.
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
            let next = wheel.next().map(|next| next.0);
            assert!(next <= earliest || earliest.is_none(), "seed {seed}: {next:?} > {earliest:?}");
            assert_eq!(next.is_none(), earliest.is_none(), "seed {seed}");
            assert_eq!(wheel.armed(), map.len(), "seed {seed}");
        }
    }
}
