//! Who a client is: by its source address, or by a name and a password or token.
//!
//! Promises: a reactor thread never hashes a password and never waits for one who does; a credential that was
//! right a moment ago costs a keyed hash; one that is wrong costs the same time whether the name exists or
//! not, and counts against its source; wrong ones keep out neither those from the same address that were
//! right before, nor, by the time that checks take, anybody who was; a full queue is
//! [`AuthError::Overloaded`] and never [`AuthError::Wrong`]; no secret outlives its check. Leaves to others:
//! the protocols (`connection`), the stored credentials (`users`), and what the user may do (`policy`).
//!
//! ```text
//!   token right ---------------------------------------------> in, even from a source that is throttled:
//!      | no                                                    130 random bits are not found by guessing
//!   right a moment ago (remembered.rs)? --yes----------------> in, likewise
//!      | no
//!   right longer ago? --no--> budgets of the source (throttle.rs) used up? --yes--> Throttled
//!      |                         |
//!   on its way for another client of this thread? --yes--> its result
//!      | no
//!   queue of the hashing thread (queue.rs) --no room for it--> Overloaded
//!      |
//!   remembered or throttled by now? else argon2 -------------> in, or Wrong
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

use super::credential_cache::{CacheLookup, CredentialMac};
use super::shared::{AuthShared, Check, CheckOutcome};
use crate::identity::users::{Credential, PasswordHash, TokenHash};
use crate::snapshot::Snapshot;

/// Why a client is not let in.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AuthError {
    /// There is no such user, or the secret is wrong.
    #[error("the user or the secret is wrong")]
    Wrong,
    /// The secret is right, and the user is disabled.
    #[error("the user is disabled")]
    Disabled,
    /// Too many wrong secrets came from the client's source, for this user or in all.
    #[error("too many wrong credentials from this source")]
    Throttled {
        /// Seconds until the next try is looked at; at least 1.
        retry_after_s: u32,
    },
    /// Too many passwords wait to be checked.
    #[error("too many passwords are being checked")]
    Overloaded,
}

/// Recognises clients; one per reactor thread, shared by its tasks. See the file's header.
pub struct Authenticator {
    shared: Arc<AuthShared>,
    /// Passwords being checked for a task of this thread, with the other tasks that wait for the result.
    pending_checks: RefCell<HashMap<CredentialMac, Vec<oneshot::Sender<bool>>>>,
}

impl Authenticator {
    /// An authenticator that knows of no check that is on its way.
    pub fn new(shared: Arc<AuthShared>) -> Authenticator {
        Authenticator { shared, pending_checks: RefCell::default() }
    }

    /// The user to whom the address belongs; a disabled user's addresses are nobody's, also where a network
    /// of another user is around them.
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
        // A disabled user's check is made whole, and counts as wrong: neither its time nor the throttle tells
        // that the secret is right.
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

    /// Whether the secret is the password of `hash`; without a hash it is not, after the same time, that of a
    /// token's hash included where none was made.
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
            // Nobody has a password, so there is no time to be told apart from.
            let throttle = self.shared.throttle();
            throttle.check(source, &credentials.user, failures_per_minute, now).map_err(throttled_for)?;
            throttle.record_failure(source, &credentials.user, failures_per_minute, now);
            return Ok(false);
        };
        let key = self.shared.mac(&credentials.user, reference_hash, credentials.secret.expose());
        // Only credentials that were right are in the table; it is asked for the others too, for the time.
        let lookup = match snapshot.credential_cache.lookup(&key, now) {
            _ if is_disabled => CacheLookup::Miss,
            lookup => lookup,
        };
        if lookup == CacheLookup::Fresh {
            return Ok(true);
        }
        hash_decoy_token(needs_token_decoy, credentials);
        // Boxed, because every handshake has room for this future, and few get here.
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

    /// The result of `check`, for which the hashing thread is asked once however many tasks wait for it: they
    /// all guess the same, which is one guess, and one failure.
    async fn check_once(&self, check: Box<Check>) -> Result<bool, AuthError> {
        self.shared.check_throttle(&check).map_err(throttled_for)?;
        while let Some(result) = self.join_pending_check(&check.key) {
            if let Ok(right) = result.await {
                return Ok(right);
            }
            // The client that we waited behind went away, or its source was throttled. One of those who
            // waited takes its place; what it had queued is remembered if it was right.
            self.shared.check_throttle(&check).map_err(throttled_for)?;
        }
        let key = check.key;
        let result = self.shared.submit(check);
        let pending = PendingCheck { authenticator: self, key };
        self.pending_checks.borrow_mut().insert(key, Vec::new());
        // A check that found no room, or lost it to another, has no result; nor has one that panicked: that
        // is no proof, and no reason to say that it was wrong.
        match result.await.map_err(|_| AuthError::Overloaded)? {
            CheckOutcome::Right => Ok(pending.complete(true)),
            CheckOutcome::Wrong => Ok(pending.complete(false)),
            CheckOutcome::Throttled(wait) => Err(throttled_for(wait)),
        }
    }

    /// The result of a check that is on its way for another task.
    fn join_pending_check(&self, key: &CredentialMac) -> Option<oneshot::Receiver<bool>> {
        let mut pending = self.pending_checks.borrow_mut();
        let waiters = pending.get_mut(key)?;
        let (sender, receiver) = oneshot::channel();
        waiters.push(sender);
        Some(receiver)
    }
}

/// A check on its way. Dropped without landing, when its client goes away, it frees those who wait.
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

/// Hashes the secret as a token where none was hashed.
fn hash_decoy_token(is_needed: bool, credentials: &Credentials) {
    if is_needed {
        std::hint::black_box(TokenHash::decoy().verify(credentials.secret.expose()));
    }
}

fn throttled_for(wait: Duration) -> AuthError {
    // Rounded up: who comes back when told so is looked at.
    let seconds = wait.as_millis().div_ceil(1000).max(1);
    AuthError::Throttled { retry_after_s: u32::try_from(seconds).unwrap_or(u32::MAX) }
}
