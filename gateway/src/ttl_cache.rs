//! A bounded cache of values that expire, for one thread.
//!
//! Guarantees: a fixed number of slots, allocated once. A lookup or an insertion touches one bucket of
//! [`WAYS`] slots and nothing else. An expired value is never returned.
//!
//! Not handled here: the hash, which must be keyed where clients choose the keys, and the clock.

use sys::clock::Nanos;

/// Slots per bucket. With four, a half full cache loses almost nothing to crowded buckets.
const WAYS: usize = 4;

/// A set-associative table of values with a deadline each.
pub(crate) struct TtlCache<K, V> {
    /// `buckets x WAYS` slots; the number of buckets is a power of two.
    slots: Box<[Option<Entry<K, V>>]>,
}

struct Entry<K, V> {
    key: K,
    value: V,
    /// The first time at which the value is no longer valid.
    expires: Nanos,
}

impl<K, V> TtlCache<K, V> {
    /// A cache with at least `entries_max` slots (rounded up to whole buckets, a power of two of them).
    pub(crate) fn with_capacity(entries_max: usize) -> Self {
        let buckets = entries_max.div_ceil(WAYS).next_power_of_two();
        Self { slots: std::iter::repeat_with(|| None).take(buckets * WAYS).collect() }
    }

    /// The value of the key that `is_key` recognises, if it is still valid at `now`.
    pub(crate) fn get(&self, hash: u64, is_key: impl Fn(&K) -> bool, now: Nanos) -> Option<&V> {
        let entry = self.slots[self.bucket(hash)].iter().flatten().find(|entry| is_key(&entry.key))?;
        (now < entry.expires).then_some(&entry.value)
    }

    /// Stores `value` until `expires`. It replaces the entry of the same key, else takes an empty slot, else
    /// evicts from a full bucket the value that expires first.
    pub(crate) fn insert(&mut self, hash: u64, key: K, value: V, expires: Nanos)
    where
        K: Eq,
    {
        let bucket = self.bucket(hash);
        let slot = self.slots[bucket]
            .iter_mut()
            .min_by_key(|slot| match slot {
                Some(entry) if entry.key == key => (0, Nanos(0)),
                None => (1, Nanos(0)),
                Some(entry) => (2, entry.expires),
            })
            .expect("a bucket has WAYS slots, at least one");
        *slot = Some(Entry { key, value, expires });
    }

    /// The slots of one bucket.
    fn bucket(&self, hash: u64) -> std::ops::Range<usize> {
        // The upper half of the hash, so that callers may use the lower half for themselves.
        let buckets = self.slots.len() / WAYS;
        let start = ((hash >> 32) as usize & (buckets - 1)) * WAYS;
        start..start + WAYS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cached(cache: &TtlCache<u32, u32>, hash: u64, key: u32, now: u64) -> Option<u32> {
        cache.get(hash, |k| *k == key, Nanos(now)).copied()
    }

    #[test]
    fn value_expires_at_its_deadline() {
        let mut cache = TtlCache::with_capacity(1);
        cache.insert(0, 7, 70, Nanos(100));
        assert_eq!(cached(&cache, 0, 7, 99), Some(70));
        assert_eq!(cached(&cache, 0, 7, 100), None);
        assert_eq!(cached(&cache, 0, 8, 0), None);
    }

    #[test]
    fn key_keeps_its_slot() {
        let mut cache = TtlCache::with_capacity(4);
        for value in 0..100 {
            cache.insert(0, 7, value, Nanos(100));
        }
        assert_eq!(cache.slots.iter().flatten().count(), 1);
        assert_eq!(cached(&cache, 0, 7, 0), Some(99));
    }

    #[test]
    fn full_bucket_evicts_the_first_to_expire() {
        let mut cache = TtlCache::with_capacity(4);
        for key in 0..4 {
            cache.insert(0, key, key, Nanos(100 + u64::from(key)));
        }
        cache.insert(0, 4, 4, Nanos(50));
        let cached_keys: Vec<_> = (0..5).filter(|key| cached(&cache, 0, *key, 0).is_some()).collect();
        assert_eq!(cached_keys, [1, 2, 3, 4]);
    }

    #[test]
    fn size_is_fixed_and_every_bucket_is_used() {
        let mut cache = TtlCache::with_capacity(100);
        assert_eq!(cache.slots.len(), 128);
        for key in 0..10_000u32 {
            // A multiplicative hash stands in for the keyed one: the test is that all buckets are used.
            cache.insert(u64::from(key).wrapping_mul(0x9e37_79b9_7f4a_7c15), key, key, Nanos(1));
        }
        assert_eq!(cache.slots.iter().flatten().count(), 128);
    }
}
