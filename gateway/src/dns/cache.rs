//! The cache of a reactor thread: a frequent name needs no message to another thread.
//!
//! Guarantees: bounded ([`NAMES_MAX`]). A reply is repeated only while it is valid, and its TTL counts down.
//! Failures are repeated for a second, overload never.

use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use sys::clock::{Nanos, monotonic};

use super::{Answer, Reply, ResolveError, Resolver};
use crate::account::AccountId;
use crate::ttl_cache::TtlCache;

/// Names in a thread's cache. An existing one takes some 400 bytes.
const NAMES_MAX: usize = 2_048;

/// A cache before the [`Resolver`]. Each reactor thread has one, shared by its tasks.
pub struct ResolveCache {
    resolver: Resolver,
    /// Clients choose the names, so the hash is keyed.
    key: RandomState,
    names: RefCell<TtlCache<Box<str>, CacheEntry>>,
}

/// A reply and the end of its validity.
struct CacheEntry {
    // Boxed: most slots of the cache are empty or hold a failure.
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

    /// As [`Resolver::lookup`], on the share of `account`, and from the cache if possible.
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

    /// The cached result of `name`, with the TTL that remains at `now`.
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
