//! A slab: values in numbered slots with generations, so that a stale key finds nothing.
//!
//! Guarantees: insertion, look-up and removal are O(1). Slots are reused last-in first-out, while they are in
//! the cache. A stale key matches a later occupant of its slot only after 2^32 occupants.
//!
//! Not handled here: the bound. The owner checks [`Slab::len`].

/// A slot's number and the generation of its occupant.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    /// The slot's number.
    pub fn index(self) -> u32 {
        self.index
    }

    /// The key as one word: the generation in the upper half, the index in the lower.
    pub fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// The inverse of [`Key::to_bits`].
    pub fn from_bits(bits: u64) -> Key {
        Key { index: bits as u32, generation: (bits >> 32) as u32 }
    }
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// Values in numbered slots; each slot has a generation, so that a stale key finds nothing.
#[derive(Debug)]
pub struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    /// An empty slab; it allocates when it first grows.
    pub const fn new() -> Slab<T> {
        Slab { slots: Vec::new(), free: Vec::new() }
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The slot that the next [`Slab::insert`] will fill.
    pub fn next_index(&self) -> u32 {
        let new_index = u32::try_from(self.slots.len()).expect("owners bound their slabs far below 2^32");
        self.free.last().copied().unwrap_or(new_index)
    }

    /// Puts `value` into a free slot.
    pub fn insert(&mut self, value: T) -> Key {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.value = Some(value);
            return Key { index, generation: slot.generation };
        }
        let index = u32::try_from(self.slots.len()).expect("owners bound their slabs far below 2^32");
        self.slots.push(Slot { generation: 0, value: Some(value) });
        Key { index, generation: 0 }
    }

    /// The value of `key`, unless it was removed.
    pub fn get(&self, key: Key) -> Option<&T> {
        let slot = self.slots.get(key.index as usize)?;
        if slot.generation == key.generation { slot.value.as_ref() } else { None }
    }

    /// The value of `key`, unless it was removed.
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation == key.generation { slot.value.as_mut() } else { None }
    }

    /// The value in slot `index`, with its key.
    pub fn at(&mut self, index: u32) -> Option<(Key, &mut T)> {
        let slot = self.slots.get_mut(index as usize)?;
        let key = Key { index, generation: slot.generation };
        slot.value.as_mut().map(|value| (key, value))
    }

    /// Removes and returns the value of `key`.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation != key.generation {
            return None;
        }
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(key.index);
        Some(value)
    }

    /// All values, in the order of their slots.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(|slot| slot.value.as_mut())
    }

    /// The keys of all values, in the order of their slots.
    pub fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        self.slots.iter().enumerate().filter(|(_, slot)| slot.value.is_some()).map(|(index, slot)| {
            let index = u32::try_from(index).expect("insert keeps indexes below 2^32");
            Key { index, generation: slot.generation }
        })
    }
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_key_finds_nothing() {
        let mut slab = Slab::new();
        let first = slab.insert("first");
        assert_eq!(slab.remove(first), Some("first"));
        let second = slab.insert("second");
        assert_eq!(second.index(), first.index(), "the slot is reused");
        assert_eq!(slab.get(first), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get(second), Some(&"second"));
        assert_eq!(slab.len(), 1);
    }

    #[test]
    fn key_round_trips_through_bits() {
        let key = Key { index: 7, generation: u32::MAX };
        assert_eq!(Key::from_bits(key.to_bits()), key);
    }

    #[test]
    fn keys_lists_occupied_slots() {
        let mut slab = Slab::new();
        let keys: Vec<_> = (0..5).map(|n| slab.insert(n)).collect();
        slab.remove(keys[1]);
        slab.remove(keys[3]);
        assert_eq!(slab.keys().map(Key::index).collect::<Vec<_>>(), [0, 2, 4]);
        assert_eq!(slab.at(2), Some((keys[2], &mut 2)));
        assert_eq!(slab.at(3), None);
    }
}
