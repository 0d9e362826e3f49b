//! The budget: the client connections that all users together may have.
//!
//! Guarantees: Flows never exceed the bound, and an idle connection never takes a slot that a flow needs. A
//! flow is admitted while there are fewer flows than the bound, and idle connections are evicted for it. Idle
//! connections are added below the bound only. So both kinds together stay below twice the bound, and return
//! to it within a pass of the threads. Slots never leak: the permits return them.
//!
//! Not handled here: which connection is evicted (`idle`), and what one user may have (`account`).
//!
//! ```text
//!   flows         a tunnel from its dial on; a plain HTTP request from its dial to its response's end
//!   idle          a client connection of plain HTTP without one of these
//!   flows + idle > bound:  the thread that admitted a flow evicts an idle connection of its own,
//!                          or has the other threads look for one
//! ```
//!
//! The victim is chosen by what users hold, and not by age alone. Otherwise each flow of a user with hundreds
//! of connections would end a connection of another user. Only users that hold the average or more lose
//! connections, and there is always one. The flows of one user may take every slot if their own bound is no
//! lower than the gateway's; `tollgate check` warns of that.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use engine::inbox::Notifier;

use crate::account::Account;

/// The counts of all flows and sessions, and the bound on them.
#[derive(Debug)]
pub(crate) struct Budget {
    /// The bound (`[limits] connections`).
    connections_max: AtomicU32,
    /// Flows and idle connections in one word, so that both are compared at one instant.
    counts: AtomicU64,
    /// Client connections of plain HTTP of all users, idle or not.
    sessions: AtomicU32,
    /// Users that have a session.
    holders: AtomicU32,
    /// How often a thread found no idle connection of its own to end.
    reclaim_requests: AtomicU32,
    /// The threads that may have idle connections.
    threads: Vec<Arc<Notifier>>,
}

/// Flows and idle connections, in this order, as [`Budget::counts`] holds them.
#[derive(Clone, Copy)]
struct Counts(u32, u32);

impl Counts {
    fn from_word(word: u64) -> Counts {
        Counts((word >> 32) as u32, word as u32)
    }

    fn sum(self) -> u64 {
        u64::from(self.0) + u64::from(self.1)
    }
}

/// The increments of [`Budget::counts`] for a flow and for an idle connection.
const FLOW: u64 = 1 << 32;
const IDLE: u64 = 1;

impl Budget {
    /// An empty budget. Its bound is 0 until [`Budget::set_connections_max`].
    pub(crate) fn new(threads: Vec<Arc<Notifier>>) -> Arc<Budget> {
        Arc::new(Budget {
            connections_max: AtomicU32::new(0),
            counts: AtomicU64::new(0),
            sessions: AtomicU32::new(0),
            holders: AtomicU32::new(0),
            reclaim_requests: AtomicU32::new(0),
            threads,
        })
    }

    /// Sets the bound; flows above it stay.
    pub(crate) fn set_connections_max(&self, connections_max: u32) {
        self.connections_max.store(connections_max, Ordering::Relaxed);
    }

    /// Acquires a permit for a flow; `None` if there are as many flows as there may be.
    pub(crate) fn acquire_flow(self: &Arc<Budget>) -> Option<FlowPermit> {
        let max = self.connections_max.load(Ordering::Relaxed);
        self.add(FLOW, |Counts(flows, _)| flows < max).then(|| FlowPermit(Arc::clone(self)))
    }

    /// Acquires a permit for an idle connection of `account`. `None` if the user has as many as they may, or
    /// if another connection would have to end for it.
    pub(crate) fn acquire_session(self: &Arc<Budget>, account: &Arc<Account>) -> Option<SessionPermit> {
        let max = u64::from(self.connections_max.load(Ordering::Relaxed));
        if !self.add(IDLE, |counts| counts.sum() < max) {
            return None;
        }
        let Some(sessions) = account.add_session() else {
            self.counts.fetch_sub(IDLE, Ordering::Relaxed);
            return None;
        };
        self.sessions.fetch_add(1, Ordering::Relaxed);
        self.holders.fetch_add((sessions == 1).into(), Ordering::Relaxed);
        Some(SessionPermit { budget: Arc::clone(self), account: Arc::clone(account), is_idle: true })
    }

    /// Whether idle connections hold slots that flows have taken since.
    pub(crate) fn is_exceeded(&self) -> bool {
        let max = u64::from(self.connections_max.load(Ordering::Relaxed));
        Counts::from_word(self.counts.load(Ordering::Relaxed)).sum() > max
    }

    /// Requests that every thread looks for a connection to end.
    pub(crate) fn request_reclaim(&self) {
        self.reclaim_requests.fetch_add(1, Ordering::Relaxed);
        // A thread that announces its sleep compares the number once more; `Notifier::wake` has the fence.
        self.threads.iter().for_each(|thread| thread.wake());
    }

    /// The number of requests so far. A thread that reads another number than before has to look. It is read
    /// in each pass, and written under pressure only.
    pub(crate) fn reclaim_requests(&self) -> u32 {
        self.reclaim_requests.load(Ordering::Relaxed)
    }

    /// Calls `evict_one` until the bound holds or it finds nothing to evict. Each eviction lowers the average
    /// by which users are heavy: another thread, which found none before, may have one now, and looks again.
    pub(crate) fn reclaim(&self, mut evict_one: impl FnMut() -> bool) {
        let mut has_evicted_one = false;
        while self.is_exceeded() {
            if !evict_one() {
                if has_evicted_one {
                    self.request_reclaim();
                }
                return;
            }
            has_evicted_one = true;
        }
    }

    fn add(&self, unit: u64, is_allowed: impl Fn(Counts) -> bool) -> bool {
        let add = |word: u64| is_allowed(Counts::from_word(word)).then_some(word + unit);
        self.counts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }
}

/// The right to one flow; returned when it is dropped.
#[derive(Debug)]
pub(crate) struct FlowPermit(Arc<Budget>);

impl Drop for FlowPermit {
    fn drop(&mut self) {
        self.0.counts.fetch_sub(FLOW, Ordering::Relaxed);
    }
}

/// The right to one client connection of plain HTTP, in the budget and among its user's sessions.
#[derive(Debug)]
pub(crate) struct SessionPermit {
    budget: Arc<Budget>,
    account: Arc<Account>,
    is_idle: bool,
}

impl SessionPermit {
    /// Whether the connection counts as one of this user's.
    pub(crate) fn belongs_to(&self, account: &Arc<Account>) -> bool {
        Arc::ptr_eq(&self.account, account)
    }

    /// Records whether the connection is idle. While it is not, its request is bounded by the user's
    /// connections, and holds a flow's permit from its dial on.
    pub(crate) fn set_idle(&mut self, is_idle: bool) {
        match (self.is_idle, is_idle) {
            (false, true) => drop(self.budget.counts.fetch_add(IDLE, Ordering::Relaxed)),
            (true, false) => drop(self.budget.counts.fetch_sub(IDLE, Ordering::Relaxed)),
            _ => {}
        }
        self.is_idle = is_idle;
    }

    /// Whether the user was removed or disabled.
    pub(crate) fn is_revoked(&self) -> bool {
        self.account.is_revoked()
    }

    /// Exchanges the permit of an idle connection for that of a flow; `None` if there are as many flows as
    /// there may be.
    pub(crate) fn acquire_flow(&mut self) -> Option<FlowPermit> {
        self.set_idle(false);
        self.budget.acquire_flow()
    }

    /// The user's account.
    pub(crate) fn account(&self) -> &Account {
        &self.account
    }

    /// The number of connections that the user has.
    pub(crate) fn session_count(&self) -> u32 {
        self.account.sessions()
    }

    /// Whether the user has at least the average number of sessions. Connections of users with fewer are not
    /// evicted.
    pub(crate) fn is_heavy(&self) -> bool {
        let holders = u64::from(self.budget.holders.load(Ordering::Relaxed));
        let sessions = u64::from(self.budget.sessions.load(Ordering::Relaxed));
        u64::from(self.session_count()) * holders >= sessions
    }
}

impl Drop for SessionPermit {
    fn drop(&mut self) {
        self.set_idle(false);
        let was_last = self.account.remove_session() == 0;
        self.budget.sessions.fetch_sub(1, Ordering::Relaxed);
        self.budget.holders.fetch_sub(was_last.into(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::SESSIONS_SPARE;

    fn budget(connections_max: u32) -> Arc<Budget> {
        let budget = Budget::new(Vec::new());
        budget.set_connections_max(connections_max);
        budget
    }

    #[test]
    fn idle_connections_get_what_flows_leave() {
        let budget = budget(3);
        let ann = Arc::new(Account::new("ann", 1));
        let idle: Vec<_> = (0..5).filter_map(|_| budget.acquire_session(&ann)).collect();
        assert_eq!(idle.len(), 3);
        let flows: Vec<_> = (0..5).filter_map(|_| budget.acquire_flow()).collect();
        assert_eq!((flows.len(), budget.is_exceeded()), (3, true));
        drop(idle);
        assert!(!budget.is_exceeded() && budget.acquire_session(&ann).is_none());
        drop(flows);
        assert!(budget.acquire_session(&ann).is_some());
    }

    /// Two threads with a user each: ending connections of one user made the other one heavy, whose thread
    /// had handled the request and found nothing. The bound stayed exceeded.
    #[test]
    fn reclaim_ends_below_the_bound_over_all_threads() {
        let budget = budget(30);
        let users = ["ann", "ben"].map(|name| Arc::new(Account::new(name, 1)));
        let mut idle = [2, 5].map(|_| Vec::new());
        for (user, count) in [2, 5].into_iter().enumerate() {
            idle[user].extend((0..count).filter_map(|_| budget.acquire_session(&users[user])));
        }
        let _flows: Vec<_> = (0..30).filter_map(|_| budget.acquire_flow()).collect();
        let mut seen = [0; 2];
        budget.request_reclaim();
        while let Some(thread) = (0..2).find(|thread| seen[*thread] != budget.reclaim_requests()) {
            seen[thread] = budget.reclaim_requests();
            let idle = &mut idle[thread];
            budget.reclaim(|| idle.pop_if(|session| session.is_heavy()).is_some());
        }
        assert!(!budget.is_exceeded(), "{:?} are left", idle.map(|sessions| sessions.len()));
    }

    #[test]
    fn connection_with_a_request_is_not_idle() {
        let budget = budget(1);
        let ann = Arc::new(Account::new("ann", 1));
        let mut session = budget.acquire_session(&ann).unwrap();
        session.set_idle(false);
        let flow = budget.acquire_flow().unwrap();
        assert!(!budget.is_exceeded());
        drop(flow);
        session.set_idle(true);
        session.set_idle(true);
        assert!(!budget.is_exceeded() && budget.acquire_session(&ann).is_none());
        drop(session);
        assert_eq!(ann.sessions(), 0);
        assert_eq!(budget.counts.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn user_sessions_are_bounded_and_weighed() {
        let budget = budget(1000);
        let (ann, ben) = (Arc::new(Account::new("ann", 1)), Arc::new(Account::new("ben", 1)));
        let ann_sessions: Vec<_> = (0..500).filter_map(|_| budget.acquire_session(&ann)).collect();
        assert_eq!(ann_sessions.len(), 1 + SESSIONS_SPARE as usize);
        let ben_session = budget.acquire_session(&ben).unwrap();
        assert_eq!((ann_sessions[0].is_heavy(), ben_session.is_heavy()), (true, false));
        drop(ann_sessions);
        assert!(ben_session.is_heavy(), "the only user with sessions has the most");
    }

    #[test]
    fn reclaim_ends_no_more_than_needed() {
        let budget = budget(2);
        let ann = Arc::new(Account::new("ann", 1));
        let mut idle: Vec<_> = (0..2).filter_map(|_| budget.acquire_session(&ann)).collect();
        let _flow = budget.acquire_flow().unwrap();
        budget.reclaim(|| false);
        assert!(budget.is_exceeded(), "this thread has nothing to end");
        budget.reclaim(|| idle.pop().is_some());
        assert_eq!((idle.len(), budget.is_exceeded()), (1, false));
    }
}
