//! The resolver's front on a reactor thread: a hot name costs no hop to another thread.
//!
//! Promises: bounded ([`NAMES_MAX`]); repeats a reply only for as long as it is valid, and its TTL counts
//! down meanwhile; failures are repeated for a moment, overload never. Leaves to others: the asking
//! ([`Resolver`]).

use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use sys::clock::{Nanos, monotonic};

use super::{Answer, Reply, ResolveError, Resolver};
use crate::account::AccountId;
use crate::ttl_cache::TtlCache;

/// Names that a thread remembers. An existing one takes some 400 bytes.
const NAMES_MAX: usize = 2_048;

/// See the file's header. One per reactor thread, shared by its tasks.
pub struct ResolveCache {
    resolver: Resolver,
    /// Clients choose the names, so the hash is keyed.
    key: RandomState,
    names: RefCell<TtlCache<Box<str>, CacheEntry>>,
}

/// A reply and the end of its validity.
struct CacheEntry {
    // Boxed: most places of the table are empty or hold a failure.
    result: Result<Box<Answer>, ResolveError>,
    expires: Nanos,
}

impl ResolveCache {
    /// An empty cache before `resolver`.
    pub fn new(resolver: Resolver) -> ResolveCache {
        ResolveCache {
            resolver,
            key: RandomState::new(),
            names: RefCell::new(TtlCache::with_capacity(NAMES_MAX)),
        }
    }

    /// As [`Resolver::lookup`], for the user of the account `asker`, and from memory where it is there.
    ///
    /// # Errors
    /// See [`ResolveError`].
    pub async fn lookup(&self, account: AccountId, name: &str) -> Result<Answer, ResolveError> {
        if let Some(result) = self.cached(name, monotonic()) {
            return result;
        }
        let reply = self.resolver.request(account, name).await;
        self.insert(name, &reply, monotonic());
        reply.result
    }

    /// As [`Resolver::deadline`].
    pub fn deadline(&self) -> Duration {
        self.resolver.deadline()
    }

    /// What is remembered of `name`, with the TTL that is left at `now`.
    pub(super) fn cached(&self, name: &str, now: Nanos) -> Option<Result<Answer, ResolveError>> {
        let names = self.names.borrow();
        let entry = names.get(self.key.hash_one(name), |key| **key == *name, now)?;
        Some(match &entry.result {
            Ok(answer) => Ok(Answer { ttl: entry.expires.since(now), ..**answer }),
            Err(error) => Err(error.clone()),
        })
    }

    pub(super) fn insert(&self, name: &str, reply: &Reply, now: Nanos) {
        if reply.cache_for == Duration::ZERO {
            return;
        }
        let expires = now + reply.cache_for;
        let entry = CacheEntry { result: reply.result.clone().map(Box::new), expires };
        self.names.borrow_mut().insert(self.key.hash_one(name), name.into(), entry, expires);
    }
}
