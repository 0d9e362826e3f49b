//! What all threads share for password checks: the queue of the hashing thread, and the throttle.
//!
//! Guarantees: Checks run one after another, and each consults the throttle when it runs. So of any number
//! that arrive at once, no more are hashed than the budgets allow. A failure counts against its source even
//! if the client has left. A secret is wiped when its check ends or is rejected.
//!
//! Not handled here: that the pool hashes one password at a time, which bounds memory and CPU (`jobs.rs`).

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use blake2::Blake2sMac256;
use blake2::digest::{FixedOutput, KeyInit, Update};
use engine::oneshot;
use engine::pool::Pool;
use sys::clock::monotonic;
use zeroize::Zeroizing;

use super::check_queue::{CheckQueue, NewCheck, Rank};
use super::credential_cache::{CacheLookup, CredentialCache, CredentialMac};
use crate::config::settings::Auth;
use crate::identity::throttle::{Throttle, site_or_address};
use crate::jobs::HASHING;
use crate::source_network::source_network;
use crate::users::{HashMemory, PasswordHash};

/// The state behind every thread's authenticator: MAC key, queue and throttle.
pub struct AuthShared {
    key: Zeroizing<[u8; 32]>,
    pool: Pool,
    queue: CheckQueue<QueuedCheck>,
    /// Jobs of the pool that have not started yet; each takes one check.
    pending_jobs: AtomicUsize,
    /// As many jobs as checks may be queued.
    pending_jobs_max: usize,
    throttle: Arc<Throttle>,
    /// Held while a check runs: one at a time, on which the budgets rely.
    memory: Mutex<HashMemory>,
}

/// A password to check.
pub(crate) struct Check {
    pub(crate) key: CredentialMac,
    /// The user's hash; `None` if the user does not exist or has no password.
    pub(crate) hash: Option<PasswordHash>,
    /// A hash of each cost, among them that of `hash`.
    pub(crate) decoys: Arc<[PasswordHash]>,
    /// The credentials were right in the last day. They are no guess, so the throttle is not consulted.
    pub(crate) is_stale_hit: bool,
    /// The user is disabled: a right password is not cached, and counts as a failure.
    pub(crate) is_disabled: bool,
    /// The name as the client sent it.
    pub(crate) user: Box<str>,
    pub(crate) secret: Zeroizing<Vec<u8>>,
    pub(crate) source: IpAddr,
    pub(crate) failures_per_minute: u32,
    /// Where right credentials are stored.
    pub(crate) cache: Arc<CredentialCache>,
}

impl Check {
    /// The hashes to compute, in this order: one of each cost, with the user's own in place of the decoy of
    /// its cost. So every name costs the same. Padding the response's time would not do: the next check in
    /// the queue shows how long the thread was busy.
    fn hashes(&self) -> impl Iterator<Item = (&PasswordHash, bool)> {
        self.decoys.iter().map(|decoy| match &self.hash {
            Some(own) if own.cost() == decoy.cost() => (own, true),
            _ => (decoy, false),
        })
    }
}

/// A check in the queue.
struct QueuedCheck {
    check: Box<Check>,
    reply: oneshot::Sender<CheckOutcome>,
}

/// How a check ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum CheckOutcome {
    Right,
    Wrong,
    /// The check did not run: earlier ones used up a budget. It may run after this long.
    Throttled(Duration),
}

impl AuthShared {
    /// Checks passwords on `pool`, whose queue has the length in the settings.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn new(pool: Pool, settings: &Auth) -> io::Result<AuthShared> {
        let mut key = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *key)?;
        Ok(AuthShared {
            key,
            pool,
            queue: CheckQueue::new(settings.hash_queue as usize),
            pending_jobs: AtomicUsize::new(0),
            pending_jobs_max: settings.hash_queue as usize,
            throttle: Arc::new(Throttle::new()),
            memory: Mutex::default(),
        })
    }

    pub(crate) fn throttle(&self) -> &Throttle {
        &self.throttle
    }

    pub(crate) fn mac(&self, user: &str, hash: &PasswordHash, secret: &[u8]) -> CredentialMac {
        let mut mac = Blake2sMac256::new_from_slice(&*self.key).expect("BLAKE2s takes keys of 32 bytes");
        let hash = hash.to_text();
        // The lengths come first, so that no two triples give the same bytes.
        mac.update(&[(user.len() as u64).to_le_bytes(), (hash.len() as u64).to_le_bytes()].concat());
        mac.update(user.as_bytes());
        mac.update(hash.as_bytes());
        mac.update(secret);
        mac.finalize_fixed().into()
    }

    /// Whether `check` may run now.
    ///
    /// # Errors
    /// How long it must wait.
    pub(crate) fn check_throttle(&self, check: &Check) -> Result<(), Duration> {
        if check.is_stale_hit {
            return Ok(());
        }
        self.throttle.check(check.source, &check.user, check.failures_per_minute, monotonic())
    }

    /// Queues `check`. If it is rejected, now or by later checks, there is no result.
    pub(crate) fn submit(self: &Arc<Self>, check: Box<Check>) -> oneshot::Receiver<CheckOutcome> {
        let rank = self.rank_of(&check);
        let source = match rank {
            Rank::KnownCredentials | Rank::TrustedSource => source_network(check.source),
            Rank::UnknownSource | Rank::FailingSource => site_or_address(check.source),
        };
        let (reply, result) = oneshot::channel();
        self.queue.put(NewCheck { rank, source, check: QueuedCheck { check, reply } });
        self.submit_job();
        result
    }

    fn rank_of(&self, check: &Check) -> Rank {
        let now = monotonic();
        match check.is_stale_hit {
            true => Rank::KnownCredentials,
            false if self.throttle.is_trusted(check.source, now) => Rank::TrustedSource,
            false if self.throttle.has_failed(check.source, now) => Rank::FailingSource,
            false => Rank::UnknownSource,
        }
    }

    /// Submits a job that takes the next check. An evicted check leaves its job behind. So there may be more
    /// jobs than checks, but never more than checks may be queued.
    fn submit_job(self: &Arc<Self>) {
        let another = |jobs: usize| (jobs < self.pending_jobs_max).then_some(jobs + 1);
        // Relaxed: a counted job takes the queue's lock after it is counted off.
        if self.pending_jobs.fetch_update(Ordering::Relaxed, Ordering::Relaxed, another).is_err() {
            return;
        }
        let shared = Arc::clone(self);
        if self.pool.run_then(HASHING, move || shared.run_next(), |_| ()).is_err() {
            // The pool accepts all of them until the process ends.
            self.pending_jobs.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Runs on a thread of the pool.
    fn run_next(&self) {
        self.pending_jobs.fetch_sub(1, Ordering::Relaxed);
        if let Some(QueuedCheck { check, reply }) = self.queue.take() {
            reply.send(self.run(&check));
        }
    }

    fn run(&self, check: &Check) -> CheckOutcome {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        // An earlier check may have verified the same credentials for another thread, or used up a budget.
        let lookup = check.cache.lookup(&check.key, monotonic());
        if lookup == CacheLookup::Fresh && !check.is_disabled {
            return CheckOutcome::Right;
        }
        if let Err(wait) = self.check_throttle(check) {
            return CheckOutcome::Throttled(wait);
        }
        let mut is_right = false;
        for (hash, is_own) in check.hashes() {
            // The hash is always computed, also of a decoy.
            is_right |= hash.verify_in(&mut memory, &check.secret) & is_own;
        }
        let now = monotonic();
        if is_right && !check.is_disabled {
            check.cache.insert(&check.key, now);
            return CheckOutcome::Right;
        }
        self.throttle.record_failure(check.source, &check.user, check.failures_per_minute, now);
        if is_right { CheckOutcome::Right } else { CheckOutcome::Wrong }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(key: CredentialMac, hash: &PasswordHash, secret: &str, is_own: bool) -> Check {
        let secret = Zeroizing::new(secret.as_bytes().to_vec());
        Check {
            key,
            hash: is_own.then(|| hash.clone()),
            decoys: [hash.clone()].into(),
            is_stale_hit: false,
            is_disabled: false,
            user: "ann".into(),
            secret,
            source: [192, 0, 2, 1].into(),
            failures_per_minute: 1,
            cache: Arc::new(CredentialCache::new(&Auth::default())),
        }
    }

    fn shared() -> AuthShared {
        AuthShared::new(crate::jobs::start(1).unwrap(), &Auth::default()).unwrap()
    }

    #[test]
    fn cached_check_is_not_hashed_again() {
        let (shared, hash) = (shared(), PasswordHash::make("open sesame").unwrap());
        let mut check = check([1; 32], &hash, "open sesame", true);
        assert_eq!(shared.run(&check), CheckOutcome::Right);
        // This secret would be wrong if it were hashed again; the key is in the cache.
        check.secret = b"wrong".to_vec().into();
        assert_eq!(shared.run(&check), CheckOutcome::Right);
        check.key = [2; 32];
        assert_eq!(shared.run(&check), CheckOutcome::Wrong);
    }

    #[test]
    fn exhausted_budget_spares_known_credentials() {
        let (shared, hash) = (shared(), PasswordHash::make("open sesame").unwrap());
        assert_eq!(shared.run(&check([1; 32], &hash, "wrong", true)), CheckOutcome::Wrong);
        let mut late = check([2; 32], &hash, "open sesame", true);
        assert!(matches!(shared.run(&late), CheckOutcome::Throttled(_)));
        late.is_stale_hit = true;
        assert_eq!(shared.run(&late), CheckOutcome::Right);
    }

    #[test]
    fn decoy_is_never_right() {
        let (shared, hash) = (shared(), PasswordHash::make("open sesame").unwrap());
        let decoy = check([1; 32], &hash, "open sesame", false);
        assert_eq!(shared.run(&decoy), CheckOutcome::Wrong);
        assert!(matches!(shared.run(&decoy), CheckOutcome::Throttled(_)), "and it counts as a failure");
    }

    /// Only hashes of the user's own cost were computed, so the time of a response revealed users and whether
    /// they exist.
    #[test]
    fn check_hashes_once_at_each_cost() {
        let hash_at = |memory_kib| {
            let salt_and_hash = "c29tZXNhbHRzb21lc2FsdA$RdescudvJCsgt3ub+b27ltmRu8nyhAs7XVvNS0fKwVo";
            format!("$argon2id$v=19$m={memory_kib},t=1,p=1${salt_and_hash}").parse::<PasswordHash>().unwrap()
        };
        let decoys: Arc<[PasswordHash]> = [hash_at(8), hash_at(16), hash_at(32)].into();
        for own in [None, Some(8), Some(16), Some(32)] {
            let hash = own.map(hash_at);
            let check = Check { hash, decoys: Arc::clone(&decoys), ..check([1; 32], &decoys[0], "x", false) };
            let (costs, owned): (Vec<_>, Vec<_>) =
                check.hashes().map(|(hash, own)| (hash.cost(), own)).unzip();
            assert_eq!(costs, decoys.iter().map(PasswordHash::cost).collect::<Vec<_>>());
            assert_eq!(owned, [8, 16, 32].map(|memory_kib| own == Some(memory_kib)));
        }
    }

    #[test]
    fn macs_differ_in_every_input() {
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
