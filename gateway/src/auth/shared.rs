//! What all threads share for checking credentials: the pool that hashes, its memo, and the throttle.
//!
//! Promises: a failure counts against its source even if the client has left; a secret is wiped when its
//! check has ended or was refused; one source fills at most half of the queue. Leaves to others: who waits
//! for a result (`auth.rs`), and that the pool hashes one at a time, which bounds memory and CPU (`jobs.rs`).

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use blake2::Blake2sMac256;
use blake2::digest::{FixedOutput, KeyInit, Update};
use engine::pool::{JobHandle, Pool};
use sys::clock::monotonic;
use zeroize::Zeroizing;

use crate::expiring::Expiring;
use crate::jobs::HASHING;
use crate::settings::Auth;
use crate::throttle::Throttle;
use crate::users::{HashMemory, PasswordHash};

/// A keyed hash over a user's name, his stored hash and a secret. The key is random per process and leaves it
/// never, so it says nothing about the secret.
pub(super) type Mac = [u8; 32];

/// Passwords found right that are remembered here: as many as are checked in the time below, and more.
const MEMO_ENTRIES: usize = 1024;
/// For how long: until the other threads have asked for those that the first one asked for.
const MEMO_TTL: Duration = Duration::from_secs(10);

/// See the file's header.
pub struct AuthShared {
    key: Zeroizing<[u8; 32]>,
    pool: Pool,
    /// Checks of one source that may wait or run.
    per_source_max: u32,
    throttle: Arc<Throttle>,
    /// Locked by whoever hashes, one at a time, as is the next.
    memo: Mutex<Expiring<Mac, ()>>,
    memory: Mutex<HashMemory>,
}

/// A password to check.
pub(super) struct Check {
    pub(super) key: Mac,
    pub(super) hash: PasswordHash,
    /// The user has no password; the hash is there to take as long as one.
    pub(super) is_decoy: bool,
    pub(super) secret: Zeroizing<Vec<u8>>,
    pub(super) source: IpAddr,
    pub(super) failures_per_minute: u32,
}

impl AuthShared {
    /// Checks passwords on `pool`, whose queue is that of the settings.
    ///
    /// # Errors
    /// The system gives no randomness.
    pub fn new(pool: Pool, settings: &Auth) -> io::Result<AuthShared> {
        let mut key = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *key)?;
        Ok(AuthShared {
            key,
            pool,
            per_source_max: settings.hash_queue.div_ceil(2),
            throttle: Arc::new(Throttle::new()),
            memo: Mutex::new(Expiring::with_places(MEMO_ENTRIES)),
            memory: Mutex::default(),
        })
    }

    pub(super) fn throttle(&self) -> &Throttle {
        &self.throttle
    }

    pub(super) fn mac(&self, user: &str, hash: &PasswordHash, secret: &[u8]) -> Mac {
        let mut mac = Blake2sMac256::new_from_slice(&*self.key).expect("BLAKE2s takes keys of 32 bytes");
        let hash = hash.to_text();
        // With the lengths before them no two triples are the same bytes.
        mac.update(&[(user.len() as u64).to_le_bytes(), (hash.len() as u64).to_le_bytes()].concat());
        mac.update(user.as_bytes());
        mac.update(hash.as_bytes());
        mac.update(secret);
        mac.finalize_fixed().into()
    }

    /// Queues `check`; `None` if the queue is full, or half full of checks for the same source.
    pub(super) fn submit(self: &Arc<Self>, check: Box<Check>) -> Option<JobHandle<bool>> {
        let running = self.throttle.enter(check.source, self.per_source_max)?;
        let shared = Arc::clone(self);
        let job = move || {
            let right = shared.perform(&check);
            drop(running);
            right
        };
        self.pool.run(HASHING, job).ok()
    }

    /// On the thread that hashes.
    fn perform(&self, check: &Check) -> bool {
        if self.memo().value(hash_of(&check.key), |known| *known == check.key, monotonic()).is_some() {
            return true;
        }
        // The hash is made for a decoy too: that is what a decoy is for.
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let right = check.hash.verify_in(&mut memory, &check.secret) && !check.is_decoy;
        drop(memory);
        let now = monotonic();
        match right {
            true => self.memo().insert(hash_of(&check.key), check.key, (), now + MEMO_TTL),
            false => self.throttle.failed(check.source, check.failures_per_minute, now),
        }
        right
    }

    fn memo(&self) -> MutexGuard<'_, Expiring<Mac, ()>> {
        // A panic leaves at worst a key that is missing.
        self.memo.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a table keeps the key, which is as random as any hash of it.
pub(super) fn hash_of(key: &Mac) -> u64 {
    u64::from_le_bytes(*key.first_chunk().expect("a MAC has 32 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(key: Mac, hash: &PasswordHash, secret: &str, is_decoy: bool) -> Check {
        let secret = Zeroizing::new(secret.as_bytes().to_vec());
        Check {
            key,
            hash: hash.clone(),
            is_decoy,
            secret,
            source: [192, 0, 2, 1].into(),
            failures_per_minute: 20,
        }
    }

    fn shared() -> AuthShared {
        AuthShared::new(crate::jobs::start(1).unwrap(), &Auth::default()).unwrap()
    }

    #[test]
    fn a_check_that_another_thread_asked_for_is_not_hashed_again() {
        let (shared, hash) = (shared(), PasswordHash::make("open sesame").unwrap());
        assert!(!shared.perform(&check([1; 32], &hash, "wrong", false)));
        assert!(shared.perform(&check([1; 32], &hash, "open sesame", false)));
        // Hashed again, this secret would be wrong: the memo answers for the key.
        assert!(shared.perform(&check([1; 32], &hash, "wrong", false)));
        assert!(!shared.perform(&check([2; 32], &hash, "wrong", false)));
    }

    #[test]
    fn a_decoy_is_never_right() {
        let (shared, hash) = (shared(), PasswordHash::make("open sesame").unwrap());
        assert!(!shared.perform(&check([1; 32], &hash, "open sesame", true)));
        assert!(!shared.perform(&check([1; 32], &hash, "open sesame", true)));
    }

    #[test]
    fn keys_differ_wherever_anything_does() {
        let (shared, other) = (shared(), shared());
        let hashes = ["open sesame", "open sesame"].map(|password| PasswordHash::make(password).unwrap());
        let mut keys = vec![
            shared.mac("ann", &hashes[0], b"secret"),
            shared.mac("ann", &hashes[1], b"secret"),
            shared.mac("an", &hashes[0], b"secret"),
            shared.mac("ann", &hashes[0], b"secre"),
            shared.mac("ann", &hashes[0], b""),
            other.mac("ann", &hashes[0], b"secret"),
        ];
        assert_eq!(keys[0], shared.mac("ann", &hashes[0], b"secret"));
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 6);
    }
}
