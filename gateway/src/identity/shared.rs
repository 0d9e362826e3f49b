//! What all threads share for checking credentials: the queue of the thread that hashes, and the throttle.
//!
//! Promises: checks are made one after another, and each asks the throttle at its turn, so that of any number
//! that come at once no more are looked at than the budgets have; a failure counts against its source even if
//! the client has left; a secret is wiped when its check has ended or was refused. Leaves to others: the
//! tasks that wait for a result (`auth.rs`), room and turns (`auth/queue.rs`), and that the pool hashes one
//! at a time, which bounds memory and CPU (`jobs.rs`).

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

use super::check_queue::{Arrival, Queue, Rank};
use super::credential_cache::{CredentialCache, Mac, Proof};
use crate::config::settings::Auth;
use crate::identity::throttle::{Throttle, client, network};
use crate::identity::users::{HashMemory, PasswordHash};
use crate::jobs::HASHING;

/// See the file's header.
pub struct AuthShared {
    key: Zeroizing<[u8; 32]>,
    pool: Pool,
    queue: Queue<Waiting>,
    /// Jobs of the pool that have not come to take a check yet, each of which takes one.
    jobs: AtomicUsize,
    /// As many jobs as checks may wait.
    jobs_max: usize,
    throttle: Arc<Throttle>,
    /// Locked by the thread that makes a check: one at a time, of which the budgets make use.
    memory: Mutex<HashMemory>,
}

/// A password to check.
pub(super) struct Check {
    pub(super) key: Mac,
    /// The user's; none if there is no such user, or none who has a password.
    pub(super) hash: Option<PasswordHash>,
    /// A hash of each cost, among them that of `hash`.
    pub(super) decoys: Arc<[PasswordHash]>,
    /// The credentials were right in the last day: no guess, so the throttle is not asked.
    pub(super) is_known: bool,
    /// The user may not log in: it is no proof if it is right, and counts as a failure.
    pub(super) is_disabled: bool,
    /// The name as the client gave it.
    pub(super) user: Box<str>,
    pub(super) secret: Zeroizing<Vec<u8>>,
    pub(super) source: IpAddr,
    pub(super) failures_per_minute: u32,
    /// Where it is remembered if it is right.
    pub(super) remembered: Arc<CredentialCache>,
}

impl Check {
    /// What is hashed, in this order: one hash of each cost, the user's own in place of the decoy of its
    /// cost. So the costs are the same for every name. To pad the time of the answer instead would not do:
    /// how long the thread was busy is seen by the next in its queue.
    fn work(&self) -> impl Iterator<Item = (&PasswordHash, bool)> {
        self.decoys.iter().map(|decoy| match &self.hash {
            Some(own) if own.cost() == decoy.cost() => (own, true),
            _ => (decoy, false),
        })
    }
}

/// A check that waits for its turn.
struct Waiting {
    check: Box<Check>,
    reply: oneshot::Sender<Verdict>,
}

/// How a check ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Verdict {
    Right,
    Wrong,
    /// It was not made: others that came before it used a budget up. It may be made after so long.
    Throttled(Duration),
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
            queue: Queue::new(settings.hash_queue as usize),
            jobs: AtomicUsize::new(0),
            jobs_max: settings.hash_queue as usize,
            throttle: Arc::new(Throttle::new()),
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

    /// Whether `check` may be made now.
    ///
    /// # Errors
    /// How long it must wait.
    pub(super) fn ask_throttle(&self, check: &Check) -> Result<(), Duration> {
        if check.is_known {
            return Ok(());
        }
        self.throttle.check(check.source, &check.user, check.failures_per_minute, monotonic())
    }

    /// Queues `check`. Where there is no room for it, now or once others have come, there is no result.
    pub(super) fn submit(self: &Arc<Self>, check: Box<Check>) -> oneshot::Receiver<Verdict> {
        let rank = self.rank_of(&check);
        let source = match rank {
            Rank::Proven | Rank::Standing => network(check.source),
            Rank::Stranger | Rank::Failing => client(check.source),
        };
        let (reply, result) = oneshot::channel();
        self.queue.put(Arrival { rank, source, check: Waiting { check, reply } });
        self.summon();
        result
    }

    fn rank_of(&self, check: &Check) -> Rank {
        let now = monotonic();
        match check.is_known {
            true => Rank::Proven,
            false if self.throttle.is_in_standing(check.source, now) => Rank::Standing,
            false if self.throttle.has_failed(check.source, now) => Rank::Failing,
            false => Rank::Stranger,
        }
    }

    /// Has the pool take another check, whichever is next then. A check that lost its place leaves its job
    /// behind, so there may be more jobs than checks, and no more are needed than checks may wait.
    fn summon(self: &Arc<Self>) {
        let another = |jobs: usize| (jobs < self.jobs_max).then_some(jobs + 1);
        // Relaxed: a job that is counted here takes the lock of the queue after it is counted off.
        if self.jobs.fetch_update(Ordering::Relaxed, Ordering::Relaxed, another).is_err() {
            return;
        }
        let shared = Arc::clone(self);
        if self.pool.run_then(HASHING, move || shared.perform_next(), |_| ()).is_err() {
            // The pool has room for all of them until the process ends.
            self.jobs.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// On a thread of the pool.
    fn perform_next(&self) {
        self.jobs.fetch_sub(1, Ordering::Relaxed);
        if let Some(Waiting { check, reply }) = self.queue.take() {
            reply.send(self.perform(&check));
        }
    }

    fn perform(&self, check: &Check) -> Verdict {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        // What came before it may have shown it right, for a client of another thread, or used up a budget.
        let proof = check.remembered.proof(&check.key, monotonic());
        if proof == Proof::Recent && !check.is_disabled {
            return Verdict::Right;
        }
        if let Err(wait) = self.ask_throttle(check) {
            return Verdict::Throttled(wait);
        }
        let mut is_right = false;
        for (hash, is_own) in check.work() {
            // Always made: that is what a decoy is for.
            is_right |= hash.verify_in(&mut memory, &check.secret) & is_own;
        }
        let now = monotonic();
        if is_right && !check.is_disabled {
            check.remembered.insert(&check.key, now);
            return Verdict::Right;
        }
        self.throttle.failed(check.source, &check.user, check.failures_per_minute, now);
        if is_right { Verdict::Right } else { Verdict::Wrong }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(key: Mac, hash: &PasswordHash, secret: &str, is_own: bool) -> Check {
        let secret = Zeroizing::new(secret.as_bytes().to_vec());
        Check {
            key,
            hash: is_own.then(|| hash.clone()),
            decoys: [hash.clone()].into(),
            is_known: false,
            is_disabled: false,
            user: "ann".into(),
            secret,
            source: [192, 0, 2, 1].into(),
            failures_per_minute: 1,
            remembered: Arc::new(CredentialCache::new(&Auth::default())),
        }
    }

    fn shared() -> AuthShared {
        AuthShared::new(crate::jobs::start(1).unwrap(), &Auth::default()).unwrap()
    }

    #[test]
    fn a_check_that_another_thread_asked_for_is_not_hashed_again() {
        let (shared, hash) = (shared(), PasswordHash::make("open sesame").unwrap());
        let mut check = check([1; 32], &hash, "open sesame", true);
        assert_eq!(shared.perform(&check), Verdict::Right);
        // Hashed again, this secret would be wrong: the key is remembered.
        check.secret = b"wrong".to_vec().into();
        assert_eq!(shared.perform(&check), Verdict::Right);
        check.key = [2; 32];
        assert_eq!(shared.perform(&check), Verdict::Wrong);
    }

    #[test]
    fn a_budget_that_is_used_up_meanwhile_ends_a_check_unless_its_credentials_are_known() {
        let (shared, hash) = (shared(), PasswordHash::make("open sesame").unwrap());
        assert_eq!(shared.perform(&check([1; 32], &hash, "wrong", true)), Verdict::Wrong);
        let mut late = check([2; 32], &hash, "open sesame", true);
        assert!(matches!(shared.perform(&late), Verdict::Throttled(_)));
        late.is_known = true;
        assert_eq!(shared.perform(&late), Verdict::Right);
    }

    #[test]
    fn a_decoy_is_never_right() {
        let (shared, hash) = (shared(), PasswordHash::make("open sesame").unwrap());
        let decoy = check([1; 32], &hash, "open sesame", false);
        assert_eq!(shared.perform(&decoy), Verdict::Wrong);
        assert!(matches!(shared.perform(&decoy), Verdict::Throttled(_)), "and counts");
    }

    /// Hashes of other costs than the user's own were not made, so an answer's time told users apart, and
    /// that there is one at all.
    #[test]
    fn every_check_makes_a_hash_of_each_cost() {
        let hash_at = |memory_kib| {
            let salt_and_hash = "c29tZXNhbHRzb21lc2FsdA$RdescudvJCsgt3ub+b27ltmRu8nyhAs7XVvNS0fKwVo";
            format!("$argon2id$v=19$m={memory_kib},t=1,p=1${salt_and_hash}").parse::<PasswordHash>().unwrap()
        };
        let decoys: Arc<[PasswordHash]> = [hash_at(8), hash_at(16), hash_at(32)].into();
        for own in [None, Some(8), Some(16), Some(32)] {
            let hash = own.map(hash_at);
            let check = Check { hash, decoys: Arc::clone(&decoys), ..check([1; 32], &decoys[0], "x", false) };
            let (costs, owned): (Vec<_>, Vec<_>) = check.work().map(|(hash, own)| (hash.cost(), own)).unzip();
            assert_eq!(costs, decoys.iter().map(PasswordHash::cost).collect::<Vec<_>>());
            assert_eq!(owned, [8, 16, 32].map(|memory_kib| own == Some(memory_kib)));
        }
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
