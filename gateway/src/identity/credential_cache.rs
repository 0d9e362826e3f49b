//! A cache of verified credentials: a fixed table of atomic words that all threads read.
//!
//! Guarantees: Lookups take no lock and allocate nothing, and the table never grows. A fresh entry needs no
//! check. A stale entry still earns a check, whatever failed at its source meanwhile. Without the key, which
//! never leaves the process (`shared.rs`), an entry reveals nothing.
//!
//! Not handled here: the clock. At most one thread at a time may insert.
//!
//! An entry is a keyed hash over a user's name, their stored hash and the secret, so a new password makes the
//! old entry unreachable. 128 bits of the hash identify the entry. A reader of a half-written entry could
//! match half of the old one and half of the new one. That is as likely as any other guess at 128 bits.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sys::clock::Nanos;

use crate::config::settings::Auth;

/// A keyed hash over a user's name, their stored hash and a secret. The key is random for each process and
/// never leaves it, so the hash reveals nothing about the secret.
pub(crate) type CredentialMac = [u8; 32];

/// Slots per bucket; an entry may use any slot of its bucket.
const WAYS: usize = 4;

/// How long an entry is stale after it was fresh: over a night.
const STALE_SPAN: Duration = Duration::from_secs(24 * 60 * 60);

/// The verified credentials. Entries are found by their MAC.
pub(crate) struct CredentialCache {
    /// `buckets x WAYS` slots, the number of buckets a power of two; empty if the cache is disabled.
    slots: Box<[CacheSlot]>,
    entries_max: u32,
    ttl: Duration,
}

#[derive(Default)]
struct CacheSlot {
    tag: [AtomicU64; 2],
    /// When the credentials were verified, in nanoseconds of the monotonic clock; 0 in an empty slot.
    verified_at: AtomicU64,
}

/// The result of a lookup.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum CacheLookup {
    /// Verified recently: no check is needed.
    Fresh,
    /// Verified before, and to be checked again.
    Stale,
    /// Not in the cache.
    Miss,
}

impl CredentialCache {
    /// An empty cache of the size in the settings.
    pub(crate) fn new(settings: &Auth) -> CredentialCache {
        let entries_max = settings.cache_entries;
        let slots = match entries_max as usize {
            0 => 0,
            entries => entries.div_ceil(WAYS).next_power_of_two() * WAYS,
        };
        let slots = std::iter::repeat_with(CacheSlot::default).take(slots).collect();
        CredentialCache { slots, entries_max, ttl: settings.cache_ttl }
    }

    /// Whether the cache was made by the same settings.
    pub(crate) fn matches(&self, settings: &Auth) -> bool {
        (self.entries_max, self.ttl) == (settings.cache_entries, settings.cache_ttl)
    }

    /// Looks up the credentials with this key.
    pub(crate) fn lookup(&self, key: &CredentialMac, now: Nanos) -> CacheLookup {
        let (tag, bucket) = self.bucket_of(key);
        let age = bucket.iter().find_map(|slot| {
            // Acquire pairs with the Release in `insert`: a reader that sees the time sees the entry's tag.
            let verified_at = slot.verified_at.load(Ordering::Acquire);
            (verified_at != 0 && slot.tag() == tag).then(|| now.since(Nanos(verified_at)))
        });
        match age {
            Some(age) if age < self.ttl => CacheLookup::Fresh,
            Some(age) if age < self.ttl + STALE_SPAN => CacheLookup::Stale,
            _ => CacheLookup::Miss,
        }
    }

    /// Stores that the credentials with this key were verified. The entry replaces the one with the same key,
    /// else the oldest of its bucket. One thread at a time.
    pub(crate) fn insert(&self, key: &CredentialMac, now: Nanos) {
        let (tag, bucket) = self.bucket_of(key);
        let slot = bucket.iter().min_by_key(|slot| match slot.verified_at.load(Ordering::Relaxed) {
            verified_at if verified_at != 0 && slot.tag() == tag => 0,
            verified_at => verified_at.saturating_add(1),
        });
        let Some(slot) = slot else { return };
        slot.tag.iter().zip(tag).for_each(|(word, tag)| word.store(tag, Ordering::Relaxed));
        slot.verified_at.store(now.0.max(1), Ordering::Release);
    }

    /// The tag of a key, and its bucket.
    fn bucket_of(&self, key: &CredentialMac) -> ([u64; 2], &[CacheSlot]) {
        let [first, second, third, _] = words(key);
        let buckets = self.slots.len() / WAYS;
        if buckets == 0 {
            return ([first, second], &[]);
        }
        let start = (third as usize & (buckets - 1)) * WAYS;
        ([first, second], &self.slots[start..start + WAYS])
    }
}

impl CacheSlot {
    fn tag(&self) -> [u64; 2] {
        [0, 1].map(|word| self.tag[word].load(Ordering::Relaxed))
    }
}

/// Shows no contents: they do not belong into a log.
impl fmt::Debug for CredentialCache {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("CredentialCache").finish_non_exhaustive()
    }
}

/// The key as words.
fn words(key: &CredentialMac) -> [u64; 4] {
    let (words, _) = key.as_chunks();
    [0, 1, 2, 3].map(|word| u64::from_le_bytes(words[word]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Nanos = Nanos(1_000_000_000_000);
    const TTL: Duration = Duration::from_secs(600);

    fn cache_with(cache_entries: u32) -> CredentialCache {
        CredentialCache::new(&Auth { cache_entries, cache_ttl: TTL, ..Auth::default() })
    }

    /// A key that is as random as a hash.
    fn key(number: u64) -> CredentialMac {
        let mut key = [0; 32];
        for (at, word) in key.chunks_exact_mut(8).enumerate() {
            let word_of = (number * 4 + at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
            word.copy_from_slice(&word_of.wrapping_mul(0xbf58_476d_1ce4_e5b9).to_le_bytes());
        }
        key
    }

    #[test]
    fn entry_is_fresh_then_stale_then_gone() {
        let cache = cache_with(16);
        assert_eq!(cache.lookup(&key(1), START), CacheLookup::Miss);
        cache.insert(&key(1), START);
        for (later, expected) in [
            (Duration::ZERO, CacheLookup::Fresh),
            (TTL - Duration::from_nanos(1), CacheLookup::Fresh),
            (TTL, CacheLookup::Stale),
            (TTL + STALE_SPAN - Duration::from_nanos(1), CacheLookup::Stale),
            (TTL + STALE_SPAN, CacheLookup::Miss),
        ] {
            assert_eq!(cache.lookup(&key(1), START + later), expected, "after {later:?}");
        }
        cache.insert(&key(1), START + STALE_SPAN);
        assert_eq!(cache.lookup(&key(1), START + STALE_SPAN), CacheLookup::Fresh, "verified again");
        assert_eq!(cache.lookup(&key(2), START), CacheLookup::Miss);
    }

    #[test]
    fn every_tag_bit_is_compared() {
        let cache = cache_with(4);
        cache.insert(&key(1), START);
        for bit in 0..128 {
            let mut other = key(1);
            other[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(cache.lookup(&other, START), CacheLookup::Miss, "bit {bit}");
        }
    }

    #[test]
    fn full_bucket_evicts_the_oldest() {
        let cache = cache_with(4);
        for number in 0..4 {
            cache.insert(&key(number), START + Duration::from_secs(number));
        }
        cache.insert(&key(0), START + Duration::from_secs(4));
        cache.insert(&key(4), START + Duration::from_secs(5));
        let cached: Vec<u64> =
            (0..5).filter(|&number| cache.lookup(&key(number), START) == CacheLookup::Fresh).collect();
        assert_eq!(cached, [0, 2, 3, 4]);
    }

    #[test]
    fn size_is_fixed_and_may_be_zero() {
        let cache_of_some = cache_with(100);
        assert_eq!(cache_of_some.slots.len(), 128);
        (0..10_000).for_each(|number| cache_of_some.insert(&key(number), START));
        let cached =
            (0..10_000).filter(|&number| cache_of_some.lookup(&key(number), START) == CacheLookup::Fresh);
        assert_eq!(cached.count(), 128, "every slot is used");
        let empty = cache_with(0);
        empty.insert(&key(1), START);
        assert_eq!(empty.lookup(&key(1), START), CacheLookup::Miss);
    }

    #[test]
    fn concurrent_readers_see_only_inserted_keys() {
        let cache = cache_with(4);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                // The writer inserts until it reaches the last key.
                while cache.lookup(&key(9_999), START) == CacheLookup::Miss {
                    assert_eq!(cache.lookup(&key(10_001), START), CacheLookup::Miss);
                    std::hint::spin_loop();
                }
            });
            (0..10_000).for_each(|number| cache.insert(&key(number), START));
            reader.join().unwrap();
        });
    }
}
