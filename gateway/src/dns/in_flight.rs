//! The table of names in flight: queries each name once, and sends the reply to all waiting lookups.
//!
//! Guarantees: The DNS thread never waits for a lookup, so no name delays another. There are at most
//! [`NAMES_IN_FLIGHT_MAX`] names and [`WAITERS_MAX`] waiters. No user takes more than a share (`shares`) of
//! names, of running lookups, and of waiters. A lookup that panics fails alone.
//!
//! Not handled here: the lookup itself ([`Backend`]) and its deadline.
//!
//! ```text
//!   absent --request--> Queued --a lookup is free--> Running --completed, no background work--> absent
//!                          |                           |
//!                          '--deadline--> absent       '--completed, background work goes on--> Replied
//!                                                                Replied --background work done--> absent
//! ```
//!
//! A replied name repeats its reply until its background work is done. So a name whose `getaddrinfo` hangs
//! holds one thread, not one more for each client that requests it.
//!
//! A name counts for the user that requested it first. It starts on the share of any user that waits for it.
//! So a user that requests the names of others early, behind hung lookups of their own, delays no other user.

use std::collections::{HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use engine::oneshot;
use sys::clock::{Nanos, monotonic};
use tokio::runtime;
use tokio::sync::mpsc;
use tokio::task::{Id, JoinError, JoinSet};

use super::{
    DnsThread, NAMES_IN_FLIGHT_MAX, REQUESTS_MAX, Reply, Request, ResolveError, Resolver, WAITERS_MAX,
};
use crate::account::AccountId;
use crate::shares::FairShares;

/// Users on whose share a name may start. Further users that wait for it start no other lookup either.
const ELIGIBLE_USERS_MAX: usize = 8;

/// Work that continues after the reply.
pub(super) type BackgroundWork = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The end of a lookup as its waiters see it.
pub(super) struct Completed {
    pub(super) reply: Reply,
    /// What still runs, if anything.
    pub(super) background: Option<BackgroundWork>,
}

/// Performs lookups.
pub(super) trait Backend: Send + 'static {
    /// Lookups that may run at a time, including those with only background work left.
    fn concurrency_max(&self) -> usize;

    /// Looks `name` up; completes by the deadline.
    fn lookup(&mut self, name: Arc<str>) -> impl Future<Output = Completed> + Send + 'static;
}

/// Starts the DNS thread with `backend`, whose lookups complete within `deadline`.
pub(super) fn start(backend: impl Backend, deadline: Duration) -> io::Result<(Resolver, DnsThread)> {
    let runtime = runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let (requests, receiver) = mpsc::channel(REQUESTS_MAX);
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let table = InFlightTable {
        lookup_shares: FairShares::new(backend.concurrency_max()),
        backend,
        deadline,
        requests: receiver,
        stopped,
        names: HashMap::new(),
        queue: VecDeque::new(),
        name_shares: FairShares::new(NAMES_IN_FLIGHT_MAX),
        waiter_shares: FairShares::new(WAITERS_MAX),
        tasks: JoinSet::new(),
        ids: HashMap::new(),
    };
    // The table is the runtime's main future: a sender wakes it without the run queue's lock.
    let thread = thread::Builder::new().name("dns".into()).spawn(move || runtime.block_on(table.serve()))?;
    Ok((Resolver { requests, deadline }, DnsThread { stop: Some(stop), thread: Some(thread) }))
}

struct InFlightTable<B> {
    backend: B,
    requests: mpsc::Receiver<Request>,
    /// Ready when the [`DnsThread`] is dropped.
    stopped: tokio::sync::oneshot::Receiver<()>,
    names: HashMap<Arc<str>, InFlightName>,
    /// Names whose lookup has not started, oldest first.
    queue: VecDeque<Arc<str>>,
    deadline: Duration,
    /// Names, by the user that requested them first.
    name_shares: FairShares,
    /// Running lookups, by the user on whose share they run.
    lookup_shares: FairShares,
    /// The waiters of all names.
    waiter_shares: FairShares,
    /// One task per name. It returns `Some` when the lookup completes, `None` when its background work is
    /// done.
    tasks: JoinSet<Option<Box<Completed>>>,
    ids: HashMap<Id, Arc<str>>,
}

/// A name in flight.
struct InFlightName {
    /// The user that requested the name first; it counts on their share.
    owner: AccountId,
    state: State,
}

/// The state of a name in flight.
enum State {
    /// The lookup has not started. It may start on the share of an eligible user, at most
    /// [`ELIGIBLE_USERS_MAX`] of the waiters.
    Queued { waiters: Vec<Waiter>, eligible_users: Vec<AccountId>, expires: Nanos },
    /// A task looks the name up, on the runner's share.
    Running { runner: AccountId, waiters: Vec<Waiter> },
    /// The reply is known, and a task does background work, on the runner's share.
    Replied { runner: AccountId, reply: Box<Reply> },
}

/// A request that waits for the reply.
struct Waiter {
    account: AccountId,
    reply: oneshot::Sender<Reply>,
}

/// All that can wake the table.
enum Event {
    Stop,
    TaskEnded(Id, Result<Option<Box<Completed>>, JoinError>),
    Request(Request),
}

impl<B: Backend> InFlightTable<B> {
    async fn serve(mut self) {
        loop {
            match poll_fn(|context| self.poll_event(context)).await {
                Event::Stop => return,
                Event::Request(request) => self.handle_request(request),
                Event::TaskEnded(id, outcome) => self.handle_ended_task(id, outcome),
            }
        }
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        if Pin::new(&mut self.stopped).poll(context).is_ready() {
            return Poll::Ready(Event::Stop);
        }
        // `None` means that no task is left; the next request spawns one.
        match self.tasks.poll_join_next_with_id(context) {
            Poll::Ready(Some(Ok((id, outcome)))) => return Poll::Ready(Event::TaskEnded(id, Ok(outcome))),
            Poll::Ready(Some(Err(error))) => return Poll::Ready(Event::TaskEnded(error.id(), Err(error))),
            Poll::Ready(None) | Poll::Pending => {}
        }
        self.requests.poll_recv(context).map(|request| request.map_or(Event::Stop, Event::Request))
    }

    fn handle_request(&mut self, request: Request) {
        self.expire(monotonic());
        let Request { account, name, reply } = request;
        if let Some(InFlightName { state: State::Replied { reply: known_reply, .. }, .. }) =
            self.names.get(&*name)
        {
            return reply.send(Reply::clone(known_reply));
        }
        let is_known = self.names.contains_key(&*name);
        let name_share = if is_known { Ok(()) } else { self.name_shares.check(account) };
        if let Err(exhausted) = name_share.and(self.waiter_shares.check(account)) {
            return reply.send(Reply::exhausted(exhausted));
        }
        self.waiter_shares.take(account);
        let waiter = Waiter { account, reply };
        match self.names.get_mut(&*name).map(|in_flight| &mut in_flight.state) {
            Some(State::Running { waiters, .. }) => waiters.push(waiter),
            Some(State::Queued { waiters, eligible_users, .. }) => {
                waiters.push(waiter);
                if eligible_users.len() < ELIGIBLE_USERS_MAX && !eligible_users.contains(&account) {
                    eligible_users.push(account);
                    self.start_queued();
                }
            }
            Some(State::Replied { .. }) => unreachable!("a replied name returned above"),
            None => self.enqueue(name.into(), waiter),
        }
    }

    /// Adds a name that is not in flight.
    fn enqueue(&mut self, name: Arc<str>, waiter: Waiter) {
        let owner = waiter.account;
        self.name_shares.take(owner);
        let expires = monotonic() + self.deadline;
        let state = State::Queued { waiters: vec![waiter], eligible_users: vec![owner], expires };
        self.names.insert(Arc::clone(&name), InFlightName { owner, state });
        self.queue.push_back(name);
        self.start_queued();
    }

    /// Starts the lookups of those names that have waited longest and may start.
    fn start_queued(&mut self) {
        let mut at = 0;
        while at < self.queue.len() && !self.lookup_shares.is_full() {
            let in_flight = self.names.get_mut(&self.queue[at]).expect("each name in `queue` is in `names`");
            let State::Queued { waiters, eligible_users, .. } = &mut in_flight.state else {
                unreachable!("`queue` holds only names that have not started");
            };
            let Some(&runner) = eligible_users.iter().find(|user| self.lookup_shares.check(**user).is_ok())
            else {
                at += 1;
                continue;
            };
            in_flight.state = State::Running { runner, waiters: std::mem::take(waiters) };
            self.lookup_shares.take(runner);
            let name = self.queue.remove(at).expect("`at` is less than the queue's length");
            let lookup = self.backend.lookup(Arc::clone(&name));
            self.spawn(&name, async { Some(Box::new(lookup.await)) });
        }
    }

    /// Ends names whose lookup has not started by their deadline. Expiry may lag until the next event: each
    /// waiter has its own deadline.
    fn expire(&mut self, now: Nanos) {
        while let Some(name) = self.queue.front() {
            let state = self.names.get(name).map(|in_flight| &in_flight.state);
            if !matches!(state, Some(State::Queued { expires, .. }) if *expires <= now) {
                return;
            }
            let name = self.queue.pop_front().expect("`front` returned it");
            if let Some(InFlightName { owner, state: State::Queued { waiters, .. } }) =
                self.names.remove(&name)
            {
                self.name_shares.release(owner);
                self.send_reply(waiters, &Reply::failed(ResolveError::Timeout));
            }
        }
    }

    fn send_reply(&mut self, waiters: Vec<Waiter>, reply: &Reply) {
        for waiter in waiters {
            self.waiter_shares.release(waiter.account);
            waiter.reply.send(reply.clone());
        }
    }

    fn spawn(
        &mut self,
        name: &Arc<str>,
        task: impl Future<Output = Option<Box<Completed>>> + Send + 'static,
    ) {
        let id = self.tasks.spawn(task).id();
        self.ids.insert(id, Arc::clone(name));
    }

    fn handle_ended_task(&mut self, id: Id, outcome: Result<Option<Box<Completed>>, JoinError>) {
        let name = self.ids.remove(&id).expect("`spawn` stores each task's id");
        let InFlightName { owner, state } =
            self.names.remove(&name).expect("a name with a task is in flight");
        let completed = match outcome {
            Ok(completed) => completed.map(|completed| *completed),
            Err(_) => {
                let error = ResolveError::Failed("the lookup panicked".into());
                Some(Completed { reply: Reply::failed(error), background: None })
            }
        };
        let (runner, waiters) = match state {
            State::Running { runner, waiters } => (runner, waiters),
            State::Replied { runner, .. } => (runner, Vec::new()),
            State::Queued { .. } => unreachable!("a name that has not started has no task"),
        };
        match completed {
            Some(Completed { reply, background: Some(background) }) => {
                self.send_reply(waiters, &reply);
                self.spawn(&name, async {
                    background.await;
                    None
                });
                let state = State::Replied { runner, reply: Box::new(reply) };
                self.names.insert(name, InFlightName { owner, state });
            }
            finished => {
                if let Some(Completed { reply, .. }) = finished {
                    self.send_reply(waiters, &reply);
                }
                self.name_shares.release(owner);
                self.lookup_shares.release(runner);
                self.start_queued();
            }
        }
    }
}
