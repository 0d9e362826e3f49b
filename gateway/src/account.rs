//! Accounts: what all flows of a user share, whichever thread they are on.
//!
//! Guarantees: a permit is acquired and returned by one atomic operation. Permits never leak, because a
//! [`ConnectionPermit`] returns itself when it is dropped.
//!
//! Not handled here: what all users together may have (`budget`). Credit and rate will belong here too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Sessions that a user may have beyond their connections. A browser keeps 32 connections to a proxy (the
/// default of Chromium and Firefox), also where one request at a time is allowed.
pub const SESSIONS_SPARE: u32 = 32;

/// The key of an account in tables kept elsewhere. A user that is removed and added again gets another one.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct AccountId(u64);

impl AccountId {
    /// The process itself, which has no account.
    pub const PROCESS: AccountId = AccountId(0);

    /// An id that no account has had in this process.
    pub fn next() -> AccountId {
        static LAST: AtomicU64 = AtomicU64::new(0);
        AccountId(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// One user's account. It outlives changes of the configuration for as long as a flow holds it.
#[derive(Debug)]
pub struct Account {
    id: AccountId,
    name: Box<str>,
    /// The account's number in the ledger, which stays over restarts; 0 until it is known.
    number: AtomicU32,
    /// Open flows, and requests that are becoming one.
    connections: AtomicU32,
    /// The bound; 0 is none.
    connections_max: AtomicU32,
    /// Client connections of plain HTTP, with or without a request.
    sessions: AtomicU32,
    /// The user was removed or disabled: nothing new is admitted, and what is open ends.
    revoked: AtomicBool,
}

impl Account {
    /// An account without flows.
    pub fn new(name: &str, connections_max: u32) -> Account {
        Account {
            id: AccountId::next(),
            name: name.into(),
            number: AtomicU32::new(0),
            connections: AtomicU32::new(0),
            connections_max: AtomicU32::new(connections_max),
            sessions: AtomicU32::new(0),
            revoked: AtomicBool::new(false),
        }
    }

    /// The account's id.
    pub fn id(&self) -> AccountId {
        self.id
    }

    /// The user's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The account's number in the ledger; 0 until it is known.
    pub fn number(&self) -> u32 {
        self.number.load(Ordering::Relaxed)
    }

    pub(crate) fn set_number(&self, number: u32) {
        self.number.store(number, Ordering::Relaxed);
    }

    /// Acquires a permit for a flow; `None` when the bound is reached or the user is revoked.
    pub fn try_acquire(self: &Arc<Account>) -> Option<ConnectionPermit> {
        let max = self.connections_max.load(Ordering::Relaxed);
        let increment = |acquired: u32| (max == 0 || acquired < max).then_some(acquired + 1);
        let acquired = self.connections.fetch_update(Ordering::Relaxed, Ordering::Relaxed, increment);
        let permit = acquired.is_ok().then(|| ConnectionPermit(Arc::clone(self)));
        permit.filter(|_| !self.is_revoked())
    }

    /// Counts one more session and returns the new count; `None` when the user has as many as they may.
    pub(crate) fn add_session(&self) -> Option<u32> {
        let max = self.connections_max.load(Ordering::Relaxed);
        let increment = |acquired: u32| {
            (max == 0 || acquired < max.saturating_add(SESSIONS_SPARE)).then_some(acquired + 1)
        };
        let before = self.sessions.fetch_update(Ordering::Relaxed, Ordering::Relaxed, increment);
        before.ok().map(|before| before + 1)
    }

    /// Counts one session less and returns the new count.
    pub(crate) fn remove_session(&self) -> u32 {
        self.sessions.fetch_sub(1, Ordering::Relaxed) - 1
    }

    /// The client connections of plain HTTP now.
    pub fn sessions(&self) -> u32 {
        self.sessions.load(Ordering::Relaxed)
    }

    /// The open flows now, and the requests that are becoming one.
    pub fn connections(&self) -> u32 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Sets the bound; open flows above it stay.
    pub fn set_connections_max(&self, connections_max: u32) {
        self.connections_max.store(connections_max, Ordering::Relaxed);
    }

    /// Whether the user was removed or disabled.
    pub fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Relaxed)
    }

    /// Revokes the account, permanently: a user that is enabled or added again gets another one.
    pub fn revoke(&self) {
        self.revoked.store(true, Ordering::Relaxed);
    }
}

/// The right to one flow of a user; returned when it is dropped.
#[derive(Debug)]
pub struct ConnectionPermit(Arc<Account>);

impl ConnectionPermit {
    /// The account.
    pub fn account(&self) -> &Arc<Account> {
        &self.0
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cap_holds_across_threads_and_permits_return() {
        let account = Arc::new(Account::new("ci", 50));
        let permits: Vec<ConnectionPermit> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| (0..100).filter_map(|_| account.try_acquire()).collect::<Vec<_>>()))
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(permits.len(), 50);
        drop(permits);
        assert_eq!(account.connections(), 0);
    }

    #[test]
    fn revoked_user_gets_no_permit() {
        let account = Arc::new(Account::new("me", 0));
        let permits: Vec<_> = (0..1000).filter_map(|_| account.try_acquire()).collect();
        assert_eq!(permits.len(), 1000);
        account.revoke();
        assert!(account.try_acquire().is_none());
        assert_eq!(account.connections(), 1000);
    }
}
