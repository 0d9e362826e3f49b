//! The DNS thread's desk: takes requests, asks about each name once, hands the reply to all who wait.
//!
//! Promises: never waits for a lookup, so that no name delays another; at most [`NAMES_IN_FLIGHT_MAX`] names
//! and [`WAITERS_MAX`] waiters; of names, of lookups that run, and of waiters no user takes more than a share
//! (`shares`); a lookup that panics fails alone. Leaves to others: the lookup itself ([`Backend`]) and its
//! deadline.
//!
//! ```text
//!   absent --request--> Queued --a lookup is free--> Asked --settled, nothing left--> absent
//!                          |                           |
//!                          '--deadline--> absent       '--settled, the rest runs on--> Settled
//!                                                                Settled --rest done--> absent
//! ```
//!
//! A settled name repeats its reply until the rest of its work is done: a name whose `getaddrinfo` hangs
//! holds one thread, not one more for each client that asks.
//!
//! A name counts for the user who asked for it first. It starts on the share of any user who waits for it: so
//! a user who asks early for the names of others, behind lookups of their own that hang, delays nobody.

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

/// Users on whose share a name may start. More who wait for it start no other lookup either.
const ELIGIBLE_USERS_MAX: usize = 8;

/// Work that goes on after its reply was given.
pub(super) type BackgroundWork = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The end of a lookup as far as those who wait are concerned.
pub(super) struct Completed {
    pub(super) reply: Reply,
    /// What still runs, if anything.
    pub(super) background: Option<BackgroundWork>,
}

/// Who does the lookups.
pub(super) trait Backend: Send + 'static {
    /// Lookups that may run at a time, those included of which only the rest runs on.
    fn concurrency_max(&self) -> usize;

    /// Looks `name` up; settles by the deadline.
    fn lookup(&mut self, name: Arc<str>) -> impl Future<Output = Completed> + Send + 'static;
}

/// Starts the DNS thread with `backend`, whose lookups settle within `deadline`.
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
    // The desk is the runtime's main future, which a sender wakes without touching the run queue's lock.
    let thread = thread::Builder::new().name("dns".into()).spawn(move || runtime.block_on(table.serve()))?;
    Ok((Resolver { requests, deadline }, DnsThread { stop: Some(stop), thread: Some(thread) }))
}

struct InFlightTable<B> {
    backend: B,
    requests: mpsc::Receiver<Request>,
    /// Ready when the owner is gone.
    stopped: tokio::sync::oneshot::Receiver<()>,
    names: HashMap<Arc<str>, InFlightName>,
    /// Names whose lookup has not started, in the order of their coming.
    queue: VecDeque<Arc<str>>,
    deadline: Duration,
    /// Names, by the user who asked first.
    name_shares: FairShares,
    /// Lookups that run, by the user on whose share they do.
    lookup_shares: FairShares,
    /// The waiters of all names.
    waiter_shares: FairShares,
    /// One task per name; it gives `Some` when it settles, `None` when its rest is done.
    tasks: JoinSet<Option<Box<Completed>>>,
    ids: HashMap<Id, Arc<str>>,
}

/// A name in flight.
struct InFlightName {
    /// The user for whom it counts.
    owner: AccountId,
    state: State,
}

/// What is known of a name in flight.
enum State {
    /// These wait; the users among them on whose share the lookup may start, at most [`SPONSORS_MAX`].
    Queued { waiters: Vec<Waiter>, eligible_users: Vec<AccountId>, expires: Nanos },
    /// A task is on it on this user's share, and these wait.
    Running { runner: AccountId, waiters: Vec<Waiter> },
    /// This was the reply, and a task is still on the rest, on this user's share.
    Replied { runner: AccountId, reply: Box<Reply> },
}

/// A request that waits for the reply.
struct Waiter {
    account: AccountId,
    reply: oneshot::Sender<Reply>,
}

/// All that can wake the desk.
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
        // `None` says that no task is left; the next one is spawned by the next request.
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
        if let Some(InFlightName { state: State::Replied { reply: known, .. }, .. }) = self.names.get(&*name)
        {
            return reply.send(Reply::clone(known));
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
            Some(State::Replied { .. }) => unreachable!("a settled name was answered above"),
            None => self.enqueue(name.into(), waiter),
        }
    }

    /// Takes a name on that is not in flight.
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
            let in_flight = self.names.get_mut(&self.queue[at]).expect("a queued name is in flight");
            let State::Queued { waiters, eligible_users, .. } = &mut in_flight.state else {
                unreachable!("only names that have not started are queued");
            };
            let Some(&runner) = eligible_users.iter().find(|user| self.lookup_shares.check(**user).is_ok())
            else {
                at += 1;
                continue;
            };
            in_flight.state = State::Running { runner, waiters: std::mem::take(waiters) };
            self.lookup_shares.take(runner);
            let name = self.queue.remove(at).expect("it stands there");
            let lookup = self.backend.lookup(Arc::clone(&name));
            self.spawn(&name, async { Some(Box::new(lookup.await)) });
        }
    }

    /// Ends names whose lookup has not started by their deadline. That nothing happens until the next event
    /// harms nobody: those who wait have a deadline of their own.
    fn expire(&mut self, now: Nanos) {
        while let Some(name) = self.queue.front() {
            let state = self.names.get(name).map(|in_flight| &in_flight.state);
            if !matches!(state, Some(State::Queued { expires, .. }) if *expires <= now) {
                return;
            }
            let name = self.queue.pop_front().expect("it was looked at");
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
        let name = self.ids.remove(&id).expect("each task's id is entered when it is spawned");
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
