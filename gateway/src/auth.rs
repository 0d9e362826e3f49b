//! Who a client is: by its source address, or by a name and a password or token.
//!
//! Promises: a reactor thread never hashes a password and never waits for one who does; a credential that was
//! right a moment ago costs a keyed hash; one that is wrong costs the same time whether the name exists or
//! not, and counts against its source; a full queue is [`AuthError::Overloaded`] and never
//! [`AuthError::Wrong`]; no secret outlives its check. Leaves to others: the protocols (`connection`), the
//! stored credentials (`users`), and what the user may do (`policy`).
//!
//! ```text
//!   token right ---------------------------------------------> in, even from a source that is throttled:
//!      | no                                                    130 random bits are not found by guessing
//!   throttled? --yes--> Throttled
//!      | no
//!   remembered by this thread? --yes-------------------------> in
//!      | no
//!   on its way for another client of this thread? --yes--> its result
//!      | no
//!   queue of the hashing thread (shared.rs) --full--> Overloaded
//!      |
//!   remembered there, for another thread? else argon2 -------> in, or Wrong
//! ```

mod roster;
mod shared;
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
use sys::clock::{Nanos, monotonic};

pub use roster::Roster;
pub use shared::AuthShared;

use crate::expiring::Expiring;
use crate::settings::Auth;
use crate::snapshot::Snapshot;
use crate::users::{Credential, PasswordHash};
use shared::{Check, Mac, hash_of};

/// Why a client is not let in.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AuthError {
    /// There is no such user, or the secret is wrong.
    #[error("the user or the secret is wrong")]
    Wrong,
    /// The secret is right, and the user is disabled.
    #[error("the user is disabled")]
    Disabled,
    /// Too many wrong secrets came from the client's source.
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
    /// Passwords that were right.
    remembered: RefCell<Remembered>,
    /// Passwords being checked for a task of this thread, with the other tasks that wait for the result.
    flights: RefCell<HashMap<Mac, Vec<oneshot::Sender<bool>>>>,
}

impl Authenticator {
    /// An authenticator that remembers nothing yet.
    pub fn new(shared: Arc<AuthShared>, snapshot: &Snapshot) -> Authenticator {
        let remembered = RefCell::new(Remembered::new(&snapshot.config.auth));
        Authenticator { shared, remembered, flights: RefCell::default() }
    }

    /// Remembers by the settings of `snapshot` from now on. What it knows stays, unless they are others: a
    /// credential that changed has another key, and a user who is gone is not asked for it.
    pub fn adopt(&self, snapshot: &Snapshot) {
        let new = &snapshot.config.auth;
        let mut remembered = self.remembered.borrow_mut();
        if (remembered.entries_max, remembered.ttl) != (new.cache_entries as usize, new.cache_ttl) {
            *remembered = Remembered::new(new);
        }
    }

    /// The user to whom the address belongs; a disabled user's addresses are nobody's.
    #[expect(
        clippy::wrong_self_convention,
        reason = "it makes no authenticator: the user is from that source"
    )]
    pub fn from_source(&self, snapshot: &Snapshot, source: IpAddr) -> Option<UserIndex> {
        let user = snapshot.roster.user_at(source)?;
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
        let right = match user.and_then(|user| user.credential.as_ref()) {
            Some(Credential::Token(hash)) if hash.verify(credentials.secret.expose()) => true,
            Some(Credential::Password(hash)) => {
                self.verify_password(snapshot, credentials, source, Some(hash)).await?
            }
            _ => self.verify_password(snapshot, credentials, source, None).await?,
        };
        match user {
            Some(user) if right && user.disabled => Err(AuthError::Disabled),
            Some(user) if right => Ok(user.index),
            _ => Err(AuthError::Wrong),
        }
    }

    /// Whether the secret is the password of `hash`; without a hash it is not, after the same time.
    async fn verify_password(
        &self,
        snapshot: &Snapshot,
        credentials: &Credentials,
        source: IpAddr,
        hash: Option<&PasswordHash>,
    ) -> Result<bool, AuthError> {
        let settings = &snapshot.config.auth;
        let now = monotonic();
        let throttle = self.shared.throttle();
        throttle.check(source, settings.failures_per_minute, now).map_err(throttled)?;
        let Some(costly) = hash.or(snapshot.roster.decoy()) else {
            // Nobody has a password, so there is no time to be told apart from.
            throttle.failed(source, settings.failures_per_minute, now);
            return Ok(false);
        };
        let key = self.shared.mac(&credentials.user, costly, credentials.secret.expose());
        if hash.is_some() && self.remembered.borrow().holds(&key, now) {
            return Ok(true);
        }
        // Boxed, because every handshake has room for this future, and few get here.
        let check = Box::new(Check {
            key,
            hash: costly.clone(),
            is_decoy: hash.is_none(),
            secret: credentials.secret.expose().to_vec().into(),
            source,
            failures_per_minute: settings.failures_per_minute,
        });
        let right = self.check_once(check).await?;
        if right {
            self.remembered.borrow_mut().insert(key, monotonic());
        }
        Ok(right)
    }

    /// The result of `check`, for which the hashing thread is asked once however many tasks wait for it.
    async fn check_once(&self, check: Box<Check>) -> Result<bool, AuthError> {
        while let Some(result) = self.join_flight(&check.key) {
            if let Ok(right) = result.await {
                if !right {
                    // The hashing thread counted the failure of the one who asked it.
                    self.shared.throttle().failed(check.source, check.failures_per_minute, monotonic());
                }
                return Ok(right);
            }
            // The client that we waited behind went away. One of those who waited takes its place, and the
            // check it had queued becomes a lookup for the next.
        }
        let key = check.key;
        let result = self.shared.submit(check).ok_or(AuthError::Overloaded)?;
        let flight = Flight { authenticator: self, key };
        self.flights.borrow_mut().insert(key, Vec::new());
        // A check that panicked gave no result: that is no proof, and no reason to say that it was wrong.
        let right = result.await.map_err(|_| AuthError::Overloaded)?;
        flight.land(right);
        Ok(right)
    }

    /// The result of a check that is on its way for another task.
    fn join_flight(&self, key: &Mac) -> Option<oneshot::Receiver<bool>> {
        let mut flights = self.flights.borrow_mut();
        let waiters = flights.get_mut(key)?;
        let (sender, receiver) = oneshot::channel();
        waiters.push(sender);
        Some(receiver)
    }
}

/// A check on its way. Dropped without landing, when its client goes away, it frees those who wait.
struct Flight<'a> {
    authenticator: &'a Authenticator,
    key: Mac,
}

impl Flight<'_> {
    fn land(self, right: bool) {
        let waiters = self.authenticator.flights.borrow_mut().remove(&self.key);
        waiters.into_iter().flatten().for_each(|waiter| waiter.send(right));
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.authenticator.flights.borrow_mut().remove(&self.key);
    }
}

/// What a thread remembers of passwords that were right: keyed hashes over user, stored hash and secret. With
/// a new password the old one is thus forgotten.
struct Remembered {
    /// None if the settings want nothing remembered.
    keys: Option<Expiring<Mac, ()>>,
    entries_max: usize,
    ttl: Duration,
}

impl Remembered {
    fn new(settings: &Auth) -> Remembered {
        let entries_max = settings.cache_entries as usize;
        Remembered {
            keys: (entries_max > 0).then(|| Expiring::with_places(entries_max)),
            entries_max,
            ttl: settings.cache_ttl,
        }
    }

    fn holds(&self, key: &Mac, now: Nanos) -> bool {
        self.keys.as_ref().is_some_and(|keys| keys.value(hash_of(key), |known| known == key, now).is_some())
    }

    fn insert(&mut self, key: Mac, now: Nanos) {
        if let Some(keys) = &mut self.keys {
            keys.insert(hash_of(&key), key, (), now + self.ttl);
        }
    }
}

fn throttled(wait: Duration) -> AuthError {
    // Rounded up: who comes back when told so is looked at.
    let seconds = wait.as_millis().div_ceil(1000).max(1);
    AuthError::Throttled { retry_after_s: u32::try_from(seconds).unwrap_or(u32::MAX) }
}
