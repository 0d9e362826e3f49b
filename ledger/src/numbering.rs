//! Numbering: accounts, named sets and the policy get the numbers that stand in records.
//!
//! Guarantees: a number is on stable storage before it is returned. A numbering waits until all entries of
//! earlier runs are applied, since they may have numbers that the database does not know. Until then a record
//! has number 0, and the database finds the account by the user's name.
//!
//! Only the applier writes to the database. So a request waits here for its next pass, and a failing database
//! delays it without an effect on open or new flows.

use std::collections::HashMap;
use std::fmt;
use std::sync::PoisonError;

use sys::sync::atomic::{AtomicBool, Ordering};
use sys::sync::{Mutex, MutexGuard};

/// What a configuration has to be numbered.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// The users.
    pub users: Vec<UserNames>,
    /// The named sets of destinations, each once.
    pub sets: Vec<String>,
    /// A hash of the rules of all users.
    pub policy: [u8; 32],
}

/// The names of a user.
#[derive(Clone, Debug, Default)]
pub struct UserNames {
    /// The present name.
    pub name: String,
    /// Earlier names, the last one first: the account of one of them becomes the user's.
    pub former: Vec<String>,
    /// The team; empty for none. A user that is removed keeps the last one.
    pub team: String,
}

/// The numbers of [`Names`], in their order; 0 is none.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Numbers {
    /// The accounts of the users. A user keeps its account when it is removed and added again.
    pub accounts: Vec<u32>,
    /// The numbers of the sets.
    pub sets: Vec<u16>,
    /// The version of the policy.
    pub policy: u32,
    /// What does not go as the configuration says, each in sentences.
    pub notes: Vec<String>,
}

/// The accounts in entries that the database has not applied yet. An older copy of a database lacks them, and
/// must not give them to other names meanwhile.
#[derive(Clone, Debug, Default)]
pub(crate) struct AccountsAhead {
    /// The first account that entries have for a name.
    by_name: HashMap<String, u32>,
    /// The greatest of all.
    last: u32,
}

impl AccountsAhead {
    /// Notes the account of a flow's user, if it is known.
    pub(crate) fn note(&mut self, user: &str, account: u32) {
        if account > 0 && !self.by_name.contains_key(user) {
            self.by_name.insert(user.to_owned(), account);
        }
        self.last = self.last.max(account);
    }

    /// Notes what comes behind all that was noted.
    pub(crate) fn append(&mut self, behind: AccountsAhead) {
        for (name, account) in behind.by_name {
            self.by_name.entry(name).or_insert(account);
        }
        self.last = self.last.max(behind.last);
    }

    /// The account of a name that the database does not know.
    pub(crate) fn find(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    /// The greatest account, 0 if there is none.
    pub(crate) fn last(&self) -> u32 {
        self.last
    }
}

/// Receives the numbers, on the applier thread.
pub(crate) type Receiver = Box<dyn FnOnce(Numbers) + Send>;

/// A request for numbers.
pub(crate) struct Request {
    pub(crate) names: Names,
    pub(crate) receive: Receiver,
}

/// The last request that waits for the applier.
#[derive(Default)]
pub(crate) struct Requests {
    waiting: Mutex<Option<Request>>,
    /// Whether there is one.
    is_waiting: AtomicBool,
}

impl Requests {
    /// Replaces the request that waits, if there is one: its configuration is not in use any more.
    pub(crate) fn put(&self, request: Request) {
        *self.lock() = Some(request);
        self.is_waiting.store(true, Ordering::Release);
    }

    /// Whether a request waits.
    pub(crate) fn is_waiting(&self) -> bool {
        self.is_waiting.load(Ordering::Acquire)
    }

    /// The request that waits.
    pub(crate) fn take(&self) -> Option<Request> {
        let mut waiting = self.lock();
        self.is_waiting.store(false, Ordering::Relaxed);
        waiting.take()
    }

    /// Puts back a request that failed, unless a later one waits.
    pub(crate) fn put_back(&self, request: Request) {
        self.lock().get_or_insert(request);
        self.is_waiting.store(true, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Request>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Requests {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Requests").field("is_waiting", &self.is_waiting()).finish_non_exhaustive()
    }
}
