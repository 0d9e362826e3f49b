//! Identifies the user of a client: by its source address, or by a name with a password or token.
//!
//! Guarantees: A reactor thread never hashes a password, and never waits for the thread that does. A
//! credential that was verified recently costs a keyed hash. A wrong credential costs the same time whether
//! or not the name exists, and counts against its source. Wrong credentials do not lock out credentials that
//! were right before: neither by the budget of a shared address, nor by keeping the hashing thread busy. A
//! full queue is [`AuthError::Overloaded`] and never [`AuthError::Wrong`]. No secret outlives its check.
//!
//! ```text
//!   token right ---------------------------------------------> accepted, even from a throttled source:
//!      | no                                                    130 random bits cannot be guessed
//!   fresh in the cache (credential_cache.rs)? --yes----------> accepted, likewise
//!      | no
//!   stale in the cache? --no--> budgets of the source (throttle.rs) used up? --yes--> Throttled
//!      |                         |
//!   check pending for another client of this thread? --yes--> its result
//!      | no
//!   queue of the hashing thread (check_queue.rs) --full------> Overloaded
//!      |
//!   cached or throttled by now? else argon2 -----------------> accepted, or Wrong
//! ```

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use engine::oneshot;
use policy::UserIndex;
use proto::credentials::Credentials;
use sys::clock::monotonic;

use crate::identity::credential_cache::{CacheLookup, CredentialMac};
use crate::identity::shared::{AuthShared, Check, CheckOutcome};
use crate::snapshot::Snapshot;
use crate::users::{Credential, PasswordHash, TokenHash};

/// Why a client is not authenticated.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AuthError {
    /// There is no such user, or the secret is wrong.
    #[error("the user or the secret is wrong")]
    Wrong,
    /// The secret is right, and the user is disabled.
    #[error("the user is disabled")]
    Disabled,
    /// Too many wrong secrets came from the client's source, for this user or in total.
    #[error("too many wrong credentials from this source")]
    Throttled {
        /// Seconds until the next attempt is checked; at least 1.
        retry_after_s: u32,
    },
    /// Too many password checks are queued.
    #[error("too many passwords are being checked")]
    Overloaded,
}

/// Identifies and verifies clients. Each reactor thread has one, shared by its tasks.
pub struct Authenticator {
    shared: Arc<AuthShared>,
    /// Password checks that are pending for a task of this thread, each with the other tasks that await its
    /// result.
    pending_checks: RefCell<HashMap<CredentialMac, Vec<oneshot::Sender<bool>>>>,
}

impl Authenticator {
    /// An authenticator without pending checks.
    pub fn new(shared: Arc<AuthShared>) -> Authenticator {
        Authenticator { shared, pending_checks: RefCell::default() }
    }

    /// The user whose source network holds the address. If that user is disabled there is none, even where a
    /// network of another user encloses the disabled one's.
    pub fn user_of_source(&self, snapshot: &Snapshot, source: IpAddr) -> Option<UserIndex> {
        let user = snapshot.identity_index.user_at(source)?;
        (!snapshot.config.users[user.as_usize()].disabled).then_some(user)
    }

    /// The user of `snapshot` that the credentials prove.
    ///
    /// # Errors
    /// See [`AuthError`].
    pub async fn verify(
        &self,
        snapshot: &Snapshot,
        credentials: &Credentials,
        source: IpAddr,
    ) -> Result<UserIndex, AuthError> {
        let user = snapshot.config.user(&credentials.user);
        let (password, token) = match user.and_then(|user| user.credential.as_ref()) {
            Some(Credential::Password(hash)) => (Some(hash), None),
            Some(Credential::Token(hash)) => (None, Some(hash)),
            None => (None, None),
        };
        let is_disabled = user.is_some_and(|user| user.disabled);
        let right_token = token.is_some_and(|hash| hash.verify(credentials.secret.expose()));
        // A disabled user's credentials are checked in full and count as a failure. So neither the time nor
        // the throttle reveals that the secret is right.
        let right = right_token && !is_disabled
            || self
                .verify_password(snapshot, credentials, source, password, is_disabled, token.is_none())
                .await?;
        match user {
            Some(user) if user.disabled && (right || right_token) => Err(AuthError::Disabled),
            Some(user) if right => {
                self.shared.throttle().record_success(source, monotonic());
                Ok(user.index)
            }
            _ => Err(AuthError::Wrong),
        }
    }

    /// Whether the secret is the password of `hash`. Without a hash the result is false after the same time.
    /// That includes a token's hash, if the caller computed none.
    async fn verify_password(
        &self,
        snapshot: &Snapshot,
        credentials: &Credentials,
        source: IpAddr,
        hash: Option<&PasswordHash>,
        is_disabled: bool,
        needs_token_decoy: bool,
    ) -> Result<bool, AuthError> {
        let now = monotonic();
        let failures_per_minute = snapshot.config.auth.failures_per_minute;
        let decoys = snapshot.identity_index.decoys();
        let Some(reference_hash) = hash.or(decoys.first()) else {
            hash_decoy_token(needs_token_decoy, credentials);
            // No user has a password, so there is no time from which users could be distinguished.
            let throttle = self.shared.throttle();
            throttle.check(source, &credentials.user, failures_per_minute, now).map_err(throttled_for)?;
            throttle.record_failure(source, &credentials.user, failures_per_minute, now);
            return Ok(false);
        };
        let key = self.shared.mac(&credentials.user, reference_hash, credentials.secret.expose());
        // The cache holds only credentials that were right. It is searched for all others too, for equal
        // time.
        let lookup = match snapshot.credential_cache.lookup(&key, now) {
            _ if is_disabled => CacheLookup::Miss,
            lookup => lookup,
        };
        if lookup == CacheLookup::Fresh {
            return Ok(true);
        }
        hash_decoy_token(needs_token_decoy, credentials);
        // Boxed: every handshake task reserves space for this future, and few tasks get here.
        let check = Box::new(Check {
            key,
            hash: hash.cloned(),
            decoys: Arc::clone(decoys),
            is_stale_hit: lookup == CacheLookup::Stale,
            is_disabled,
            user: credentials.user.as_str().into(),
            secret: credentials.secret.expose().to_vec().into(),
            source,
            failures_per_minute,
            cache: Arc::clone(&snapshot.credential_cache),
        });
        self.check_once(check).await
    }

    /// The result of `check`. The hashing thread computes it once for all tasks that await it: they present
    /// the same guess, so it is one guess and one failure.
    async fn check_once(&self, check: Box<Check>) -> Result<bool, AuthError> {
        self.shared.check_throttle(&check).map_err(throttled_for)?;
        while let Some(result) = self.join_pending_check(&check.key) {
            if let Ok(right) = result.await {
                return Ok(right);
            }
            // The first client left, or its source was throttled. One of the waiting tasks submits the check
            // again. If the check in the queue succeeds, its result is in the cache.
            self.shared.check_throttle(&check).map_err(throttled_for)?;
        }
        let key = check.key;
        let result = self.shared.submit(check);
        let pending = PendingCheck { authenticator: self, key };
        self.pending_checks.borrow_mut().insert(key, Vec::new());
        // A check that was rejected or evicted by the queue has no result, nor has one that panicked. That
        // proves nothing, and is no reason to report wrong credentials.
        match result.await.map_err(|_| AuthError::Overloaded)? {
            CheckOutcome::Right => Ok(pending.complete(true)),
            CheckOutcome::Wrong => Ok(pending.complete(false)),
            CheckOutcome::Throttled(wait) => Err(throttled_for(wait)),
        }
    }

    /// The result of the same check, if it is pending for another task.
    fn join_pending_check(&self, key: &CredentialMac) -> Option<oneshot::Receiver<bool>> {
        let mut pending = self.pending_checks.borrow_mut();
        let waiters = pending.get_mut(key)?;
        let (sender, receiver) = oneshot::channel();
        waiters.push(sender);
        Some(receiver)
    }
}

/// A pending check. If it is dropped before `complete`, because its client left, the waiting tasks resume.
struct PendingCheck<'a> {
    authenticator: &'a Authenticator,
    key: CredentialMac,
}

impl PendingCheck<'_> {
    fn complete(self, right: bool) -> bool {
        let waiters = self.authenticator.pending_checks.borrow_mut().remove(&self.key);
        waiters.into_iter().flatten().for_each(|waiter| waiter.send(right));
        right
    }
}

impl Drop for PendingCheck<'_> {
    fn drop(&mut self) {
        self.authenticator.pending_checks.borrow_mut().remove(&self.key);
    }
}

/// Hashes the secret as a token, if no token was hashed.
fn hash_decoy_token(is_needed: bool, credentials: &Credentials) {
    if is_needed {
        std::hint::black_box(TokenHash::decoy().verify(credentials.secret.expose()));
    }
}

fn throttled_for(wait: Duration) -> AuthError {
    // Rounded up: an attempt after `Retry-After` must be checked.
    let seconds = wait.as_millis().div_ceil(1000).max(1);
    AuthError::Throttled { retry_after_s: u32::try_from(seconds).unwrap_or(u32::MAX) }
}
