//! A bounded table of values that expire, for what one thread remembers: names, credentials that held.
//!
//! Promises: a fixed number of places, made once; a lookup or an insertion touches one bucket of
//! [`WAYS`] places and nothing else; an expired value is never returned. Leaves to others: the hash (keyed,
//! where strangers choose the keys) and the clock: every call takes `now`.

use sys::clock::Nanos;

/// Places per bucket. Four are enough that a table half full loses almost nothing to crowded buckets.
const WAYS: usize = 4;

/// See the file's header.
pub(crate) struct TtlCache<K, V> {
    /// `buckets x WAYS` places; the number of buckets is a power of two.
    slots: Box<[Option<Entry<K, V>>]>,
}

struct Entry<K, V> {
    key: K,
    value: V,
    /// The first moment at which the value no longer holds.
    expires: Nanos,
}

impl<K, V> TtlCache<K, V> {
    /// A table with at least `entries_max` places (rounded up to whole buckets, a power of two of them).
    pub(crate) fn with_capacity(entries_max: usize) -> Self {
        let buckets = entries_max.div_ceil(WAYS).next_power_of_two();
        Self { slots: std::iter::repeat_with(|| None).take(buckets * WAYS).collect() }
    }

    /// The value of the key that `is_key` recognises, if it still holds at `now`.
    pub(crate) fn get(&self, hash: u64, is_key: impl Fn(&K) -> bool, now: Nanos) -> Option<&V> {
        let entry = self.slots[self.bucket(hash)].iter().flatten().find(|entry| is_key(&entry.key))?;
        (now < entry.expires).then_some(&entry.value)
    }

    /// Remembers `value` until `expires`. It takes the place of the same key, or an empty one, or in a
    /// full bucket that of the value which expires first.
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
            .expect("a bucket has WAYS places, more than none");
        *slot = Some(Entry { key, value, expires });
    }

    /// The places of one bucket.
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
            // A multiplicative hash stands for the keyed one: what counts is that all buckets are used.
            cache.insert(u64::from(key).wrapping_mul(0x9e37_79b9_7f4a_7c15), key, key, Nanos(1));
        }
        assert_eq!(cache.slots.iter().flatten().count(), 128);
    }
}
