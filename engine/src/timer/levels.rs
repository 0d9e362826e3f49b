//! The levels and slots of a hierarchical timer wheel, in virtual time. The caller provides the timers'
//! memory.
//!
//! Guarantees: insertion and removal are O(1). A timer is never due before its time, and due at most one tick
//! (2^20 ns, about a millisecond) after it. [`Levels::next_due`] is the earliest time at which a timer can be
//! due. So a thread that sleeps until then is not woken for an empty slot or a cancelled timer, except once
//! for a slot with many others.
//!
//! Not handled here: the clock, and threads.
//!
//! Six levels of 64 slots; a slot of level n spans 64^n ticks. A timer is kept at the level of the highest
//! digit (base 64) in which its tick differs from the wheel's. Hence every timer of a level is due before any
//! timer of the levels above. When the wheel's tick enters a slot of a higher level, that slot's timers move
//! down. (G. Varghese, A. Lauck, "Hashed and Hierarchical Timing Wheels", SOSP 1987.)

use sys::clock::Nanos;

pub(super) const TICK_BITS: u32 = 20;
const LEVELS: usize = 6;
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
/// The farthest position of a timer ahead of the wheel's tick: about 2.2 years. Later timers are kept there,
/// and are inserted again when the wheel arrives. It is one slot less than a revolution of the top level, so
/// that a timer of the next revolution never shares a slot with the wheel's position.
const TICKS_AHEAD_MAX: u64 = ((SLOTS as u64 - 1) << (SLOT_BITS * (LEVELS as u32 - 1))) - 1;
/// The end of a list.
pub(super) const NONE: u32 = u32::MAX;

// `Links::list` has 16 bits.
const _: () = assert!(LEVELS * SLOTS <= 1 << 16);

/// A timer's position: its neighbours, and its list (level * SLOTS + slot).
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    pub(super) next: u32,
    pub(super) previous: u32,
    pub(super) list: u16,
}

impl Links {
    /// The links of a timer that is in no list.
    pub(super) const NONE: Links = Links { next: NONE, previous: NONE, list: u16::MAX };
}

/// A timer's memory. The caller has a slice of them; a timer is identified by its index.
pub(super) trait Node {
    /// The first tick at which the timer is due.
    fn tick(&self) -> u64;
    fn links(&self) -> &Links;
    fn links_mut(&mut self) -> &mut Links;
}

#[derive(Clone, Copy, Debug)]
struct Level {
    /// Bit s is set if and only if slot s holds a timer.
    occupied: u64,
    heads: [u32; SLOTS],
    /// No timer of the slot is due before this tick. Exact unless the earliest one was cancelled.
    earliest: [u64; SLOTS],
    /// Bit s is set if a search has made `earliest` of slot s as exact as it can.
    searched: u64,
}

/// The most timers of a slot that are searched for the earliest: a search must cost less than a useless wake.
const SEARCH_MAX: usize = 16;

/// The buckets of a timer wheel, and the wheel's position.
#[derive(Debug)]
pub(super) struct Levels {
    /// The wheel's position: all timers up to this tick have been returned.
    tick: u64,
    /// The tick up to which timers are being returned; `tick` or later. A timer inserted meanwhile is due
    /// after it; else a callback that rearms for a past time would never end.
    now: u64,
    /// No timer moves or is due before this tick, so a pass that finds nothing due costs one comparison. 0
    /// when a timer was inserted since.
    quiet_until: u64,
    /// The cached result of [`Levels::next_due`]; 0 when it has to search again.
    next_due: u64,
    levels: Box<[Level; LEVELS]>,
    armed: usize,
}

/// The tick at which a timer for `when` is due: the first one that begins later, as a timer must never be
/// early.
pub(super) fn due_tick(when: Nanos) -> u64 {
    (when.0 >> TICK_BITS).saturating_add(1)
}

/// When a tick begins.
pub(super) fn start_of(tick: u64) -> Nanos {
    Nanos(tick.saturating_mul(1 << TICK_BITS))
}

impl Levels {
    /// Empty levels at `now`.
    pub(super) fn new(now: Nanos) -> Levels {
        let level = Level { occupied: 0, heads: [NONE; SLOTS], earliest: [u64::MAX; SLOTS], searched: 0 };
        let tick = now.0 >> TICK_BITS;
        Levels { tick, now: tick, quiet_until: 0, next_due: 0, levels: Box::new([level; LEVELS]), armed: 0 }
    }

    /// The number of timers.
    pub(super) fn armed(&self) -> usize {
        self.armed
    }

    /// The tick for a timer that should be due at `tick`: the next one if that has passed.
    #[inline]
    pub(super) fn ahead(&self, tick: u64) -> u64 {
        tick.max(self.now + 1)
    }

    /// Inserts a timer whose tick is the result of [`Levels::ahead`].
    #[inline]
    pub(super) fn insert(&mut self, nodes: &mut [impl Node], index: u32) {
        self.armed += 1;
        (self.quiet_until, self.next_due) = (0, 0);
        self.link(nodes, index);
    }

    /// Removes a timer that was inserted.
    #[inline]
    pub(super) fn remove(&mut self, nodes: &mut [impl Node], index: u32) {
        self.armed -= 1;
        let node = &nodes[index as usize];
        let Links { next, previous, list } = *node.links();
        let (level, slot) = (usize::from(list) / SLOTS, usize::from(list) % SLOTS);
        let lists = &mut self.levels[level];
        if node.tick() <= lists.earliest[slot] {
            lists.searched &= !(1 << slot);
            self.next_due = 0;
        }
        if next != NONE {
            nodes[next as usize].links_mut().previous = previous;
        }
        if previous != NONE {
            nodes[previous as usize].links_mut().next = next;
            return;
        }
        lists.heads[slot] = next;
        if next == NONE {
            lists.occupied &= !(1 << slot);
            lists.earliest[slot] = u64::MAX;
        }
    }

    /// The earliest time at which a timer can be due; `None` when there is none.
    pub(super) fn next_due(&mut self, nodes: &[impl Node]) -> Option<Nanos> {
        if self.next_due != 0 {
            return Some(start_of(self.next_due));
        }
        let (level, slot) = self.first_slot()?;
        // Timers of one slot of the lowest level are due together.
        if level > 0 && self.levels[level].searched & 1 << slot == 0 {
            self.find_earliest(nodes, level, slot);
        }
        self.next_due = self.levels[level].earliest[slot];
        Some(start_of(self.next_due))
    }

    /// Finds the earliest timer of a slot, if the slot has few. A timer beyond the reach of the levels is
    /// kept too early, so the result must not be later than the end of the slot.
    fn find_earliest(&mut self, nodes: &[impl Node], level: usize, slot: usize) {
        let end = self.slot_start(level, slot) + (1 << (SLOT_BITS * level as u32)) - 1;
        let lists = &mut self.levels[level];
        lists.searched |= 1 << slot;
        let (mut index, mut earliest) = (lists.heads[slot], end);
        for _ in 0..SEARCH_MAX {
            if index == NONE {
                lists.earliest[slot] = earliest.max(lists.earliest[slot]);
                return;
            }
            let node = &nodes[index as usize];
            earliest = earliest.min(node.tick());
            index = node.links().next;
        }
    }

    /// Moves on to `now` and removes one timer that is due, if any. To be called until there is none. One at
    /// a time, so that the caller may remove another that is due as well.
    pub(super) fn pop_due(&mut self, nodes: &mut [impl Node], now: Nanos) -> Option<u32> {
        self.now = self.now.max(now.0 >> TICK_BITS);
        if self.now < self.quiet_until {
            self.tick = self.now;
            return None;
        }
        (self.quiet_until, self.next_due) = (u64::MAX, 0);
        while let Some((level, slot)) = self.first_slot() {
            let start = self.slot_start(level, slot);
            if start > self.now {
                self.quiet_until = start;
                break;
            }
            if level == 0 {
                self.tick = self.tick.max(start.saturating_sub(1));
                let index = self.levels[0].heads[slot];
                self.remove(nodes, index);
                self.quiet_until = 0;
                return Some(index);
            }
            self.cascade(nodes, level, slot, start);
        }
        self.tick = self.now;
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

    /// The first tick of a slot, in its level's current or next revolution.
    fn slot_start(&self, level: usize, slot: usize) -> u64 {
        let shift = SLOT_BITS * level as u32;
        let revolution = self.tick >> shift >> SLOT_BITS << SLOT_BITS;
        let start = (revolution + slot as u64) << shift;
        // A slot behind the wheel's position belongs to the next revolution: only the top level wraps.
        if start + (1 << shift) <= self.tick { start + (1 << (shift + SLOT_BITS)) } else { start }
    }

    /// Moves the timers of a slot that the wheel enters to the levels below.
    fn cascade(&mut self, nodes: &mut [impl Node], level: usize, slot: usize, start: u64) {
        let mut index = std::mem::replace(&mut self.levels[level].heads[slot], NONE);
        self.levels[level].occupied &= !(1 << slot);
        self.levels[level].earliest[slot] = u64::MAX;
        self.tick = self.tick.max(start);
        while index != NONE {
            let next = nodes[index as usize].links().next;
            self.link(nodes, index);
            index = next;
        }
    }

    #[inline]
    fn link(&mut self, nodes: &mut [impl Node], index: u32) {
        let (position, levels) = (self.tick, &mut *self.levels);
        let node = &mut nodes[index as usize];
        let kept = node.tick().min(position + TICKS_AHEAD_MAX);
        let distance = (kept ^ position) | (SLOTS as u64 - 1);
        let level = ((63 - distance.leading_zeros()) / SLOT_BITS).min(LEVELS as u32 - 1);
        let slot = (kept >> (SLOT_BITS * level)) as usize % SLOTS;
        let lists = &mut levels[level as usize];
        let head = std::mem::replace(&mut lists.heads[slot], index);
        lists.occupied |= 1 << slot;
        lists.earliest[slot] = lists.earliest[slot].min(kept);
        let list = (level as usize * SLOTS + slot) as u16;
        *node.links_mut() = Links { next: head, previous: NONE, list };
        if head != NONE {
            nodes[head as usize].links_mut().previous = index;
        }
    }
}
