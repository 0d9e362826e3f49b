//! Credentials that were right: a fixed table of atomic words that all threads read.
//!
//! Promises: no lock, no allocation, and no growth; one that is recent is let in, and one that is older is
//! known to be worth a check, whatever came from its source meanwhile; without its key, which never leaves
//! the process (`auth/shared.rs`), an entry says nothing. Leaves to others: the clock, and to be one thread
//! at a time that inserts.
//!
//! An entry is a keyed hash over a user's name, their stored hash and the secret, so a new password makes the
//! old one unknown. 128 bits of the hash tell entries apart. A reader that meets a half-written entry could
//! match half of the old one and half of the new one: as likely as any other guess at 128 bits.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sys::clock::Nanos;

use crate::config::settings::Auth;

/// A keyed hash over a user's name, their stored hash and a secret. The key is random per process and leaves
/// it never, so it says nothing about the secret.
pub(super) type Mac = [u8; 32];

/// Places per bucket, the unit in which an entry finds its place.
const WAYS: usize = 4;

/// How long credentials are known once they are not let in without a check any more: over a night.
const KNOWN: Duration = Duration::from_secs(24 * 60 * 60);

/// See the file's header.
pub(crate) struct CredentialCache {
    /// `buckets x WAYS` places, the number of buckets a power of two; none if nothing is to be remembered.
    places: Box<[CacheSlot]>,
    entries_max: u32,
    ttl: Duration,
}

#[derive(Default)]
struct CacheSlot {
    tag: [AtomicU64; 2],
    /// When they were right, in nanoseconds of the monotonic clock; 0 where there is no entry.
    proven: AtomicU64,
}

/// What is known of some credentials.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Proof {
    /// They were right a moment ago, which suffices.
    Recent,
    /// They were right, and are to be checked again.
    Old,
    /// Nothing.
    Nothing,
}

impl CredentialCache {
    /// An empty table, as large as the settings say.
    pub(crate) fn new(settings: &Auth) -> CredentialCache {
        let entries_max = settings.cache_entries;
        let places = match entries_max as usize {
            0 => 0,
            entries => entries.div_ceil(WAYS).next_power_of_two() * WAYS,
        };
        let places = std::iter::repeat_with(CacheSlot::default).take(places).collect();
        CredentialCache { places, entries_max, ttl: settings.cache_ttl }
    }

    /// Whether it is what these settings ask for.
    pub(crate) fn fits(&self, settings: &Auth) -> bool {
        (self.entries_max, self.ttl) == (settings.cache_entries, settings.cache_ttl)
    }

    /// What is known of the credentials with this key.
    pub(super) fn proof(&self, key: &Mac, now: Nanos) -> Proof {
        let (tag, bucket) = self.place_of(key);
        let found = bucket.iter().find_map(|place| {
            // Acquire pairs with the Release of `insert`: with its moment the tag of an entry is seen.
            let proven = place.proven.load(Ordering::Acquire);
            (proven != 0 && place.tag() == tag).then(|| now.since(Nanos(proven)))
        });
        match found {
            Some(age) if age < self.ttl => Proof::Recent,
            Some(age) if age < self.ttl + KNOWN => Proof::Old,
            _ => Proof::Nothing,
        }
    }

    /// Notes that the credentials with this key were right. It takes the place of the same key, else the one
    /// in its bucket that was right the longest time ago. One thread at a time.
    pub(super) fn insert(&self, key: &Mac, now: Nanos) {
        let (tag, bucket) = self.place_of(key);
        let place = bucket.iter().min_by_key(|place| match place.proven.load(Ordering::Relaxed) {
            proven if proven != 0 && place.tag() == tag => 0,
            proven => proven.saturating_add(1),
        });
        let Some(place) = place else { return };
        place.tag.iter().zip(tag).for_each(|(word, tag)| word.store(tag, Ordering::Relaxed));
        place.proven.store(now.0.max(1), Ordering::Release);
    }

    /// The tag of a key, and the bucket that it belongs into.
    fn place_of(&self, key: &Mac) -> ([u64; 2], &[CacheSlot]) {
        let [first, second, third, _] = words(key);
        let buckets = self.places.len() / WAYS;
        if buckets == 0 {
            return ([first, second], &[]);
        }
        let start = (third as usize & (buckets - 1)) * WAYS;
        ([first, second], &self.places[start..start + WAYS])
    }
}

impl CacheSlot {
    fn tag(&self) -> [u64; 2] {
        [0, 1].map(|word| self.tag[word].load(Ordering::Relaxed))
    }
}

/// Nothing of it belongs into a log.
impl fmt::Debug for CredentialCache {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Remembered").finish_non_exhaustive()
    }
}

/// A key as words.
fn words(key: &Mac) -> [u64; 4] {
    let (words, _) = key.as_chunks();
    [0, 1, 2, 3].map(|word| u64::from_le_bytes(words[word]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Nanos = Nanos(1_000_000_000_000);
    const TTL: Duration = Duration::from_secs(600);

    fn table(cache_entries: u32) -> CredentialCache {
        CredentialCache::new(&Auth { cache_entries, cache_ttl: TTL, ..Auth::default() })
    }

    /// A key as random as a hash.
    fn key(number: u64) -> Mac {
        let mut key = [0; 32];
        for (at, word) in key.chunks_exact_mut(8).enumerate() {
            let word_of = (number * 4 + at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
            word.copy_from_slice(&word_of.wrapping_mul(0xbf58_476d_1ce4_e5b9).to_le_bytes());
        }
        key
    }

    #[test]
    fn what_was_right_is_recent_then_old_then_forgotten() {
        let table = table(16);
        assert_eq!(table.proof(&key(1), START), Proof::Nothing);
        table.insert(&key(1), START);
        for (later, proof) in [
            (Duration::ZERO, Proof::Recent),
            (TTL - Duration::from_nanos(1), Proof::Recent),
            (TTL, Proof::Old),
            (TTL + KNOWN - Duration::from_nanos(1), Proof::Old),
            (TTL + KNOWN, Proof::Nothing),
        ] {
            assert_eq!(table.proof(&key(1), START + later), proof, "after {later:?}");
        }
        table.insert(&key(1), START + KNOWN);
        assert_eq!(table.proof(&key(1), START + KNOWN), Proof::Recent, "right again");
        assert_eq!(table.proof(&key(2), START), Proof::Nothing);
    }

    #[test]
    fn every_bit_of_a_tag_counts() {
        let table = table(4);
        table.insert(&key(1), START);
        for bit in 0..128 {
            let mut other = key(1);
            other[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(table.proof(&other, START), Proof::Nothing, "bit {bit}");
        }
    }

    #[test]
    fn a_full_bucket_gives_up_the_oldest() {
        let table = table(4);
        for number in 0..4 {
            table.insert(&key(number), START + Duration::from_secs(number));
        }
        table.insert(&key(0), START + Duration::from_secs(4));
        table.insert(&key(4), START + Duration::from_secs(5));
        let held: Vec<u64> =
            (0..5).filter(|&number| table.proof(&key(number), START) == Proof::Recent).collect();
        assert_eq!(held, [0, 2, 3, 4]);
    }

    #[test]
    fn it_never_grows_and_may_be_nothing() {
        let table_of_some = table(100);
        assert_eq!(table_of_some.places.len(), 128);
        (0..10_000).for_each(|number| table_of_some.insert(&key(number), START));
        let held = (0..10_000).filter(|&number| table_of_some.proof(&key(number), START) == Proof::Recent);
        assert_eq!(held.count(), 128, "every place is used");
        let nothing = table(0);
        nothing.insert(&key(1), START);
        assert_eq!(nothing.proof(&key(1), START), Proof::Nothing);
    }

    #[test]
    fn threads_that_read_meanwhile_see_what_was_right_and_nothing_else() {
        let table = table(4);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                // The writer is about its work until the last key is there.
                while table.proof(&key(9_999), START) == Proof::Nothing {
                    assert_eq!(table.proof(&key(10_001), START), Proof::Nothing);
                    std::hint::spin_loop();
                }
            });
            (0..10_000).for_each(|number| table.insert(&key(number), START));
            reader.join().unwrap();
        });
    }
}
