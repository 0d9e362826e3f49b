//! Accounts: what all of a user's flows share, whichever thread they are on.
//!
//! Promises: taking and giving back a place is one atomic operation; places never leak, because a [`Seat`]
//! gives its own back when it is dropped. Leaves to others: credit and rate, which will stand here too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// One user's account. It outlives changes of the configuration for as long as a flow holds it.
#[derive(Debug)]
pub struct Account {
    name: Box<str>,
    /// Flows open now.
    connections: AtomicU32,
    /// The cap; 0 is none.
    connections_max: AtomicU32,
    /// The user was removed or disabled: nothing new, and what is open ends.
    revoked: AtomicBool,
}

impl Account {
    /// An account without flows.
    pub fn new(name: &str, connections_max: u32) -> Account {
        Account {
            name: name.into(),
            connections: AtomicU32::new(0),
            connections_max: AtomicU32::new(connections_max),
            revoked: AtomicBool::new(false),
        }
    }

    /// The user's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes a place for a flow; `None` when the cap is reached or the user is revoked.
    pub fn seat(self: &Arc<Account>) -> Option<Seat> {
        let cap = self.connections_max.load(Ordering::Relaxed);
        let free = |taken: u32| (cap == 0 || taken < cap).then_some(taken + 1);
        let taken = self.connections.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free);
        let seat = taken.is_ok().then(|| Seat(Arc::clone(self)));
        seat.filter(|_| !self.is_revoked())
    }

    /// Flows open now.
    pub fn connections(&self) -> u32 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Sets the cap anew; open flows above it stay.
    pub fn set_connections_max(&self, connections_max: u32) {
        self.connections_max.store(connections_max, Ordering::Relaxed);
    }

    /// Whether the user was removed or disabled.
    pub fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Relaxed)
    }

    /// Revokes the user, or takes that back.
    pub fn set_revoked(&self, revoked: bool) {
        self.revoked.store(revoked, Ordering::Relaxed);
    }
}

/// A flow's place in its user's account.
#[derive(Debug)]
pub struct Seat(Arc<Account>);

impl Seat {
    /// The account.
    pub fn account(&self) -> &Arc<Account> {
        &self.0
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cap_holds_for_all_threads_together_and_places_come_back() {
        let account = Arc::new(Account::new("ci", 50));
        let seats: Vec<Seat> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| (0..100).filter_map(|_| account.seat()).collect::<Vec<_>>()))
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(seats.len(), 50);
        drop(seats);
        assert_eq!(account.connections(), 0);
    }

    #[test]
    fn no_cap_and_a_revoked_user() {
        let account = Arc::new(Account::new("me", 0));
        let seats: Vec<_> = (0..1000).filter_map(|_| account.seat()).collect();
        assert_eq!(seats.len(), 1000);
        account.set_revoked(true);
        assert!(account.seat().is_none());
        assert_eq!(account.connections(), 1000);
        account.set_revoked(false);
        assert!(account.seat().is_some());
    }
}
