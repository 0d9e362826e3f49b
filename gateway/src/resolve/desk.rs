//! The DNS thread's desk: takes requests, asks about each name once, hands the reply to all who wait.
//!
//! Promises: never waits for a lookup, so that no name delays another; at most [`NAMES_IN_FLIGHT_MAX`] names
//! and [`WAITERS_MAX`] waiters; a lookup that panics fails alone. Leaves to others: the lookup itself
//! ([`Backend`]) and its deadline.
//!
//! ```text
//!   absent --request--> Asked --settled, nothing left--> absent
//!                         |                                ^
//!                         +--settled, the rest runs on--> Settled --rest done--+
//! ```
//!
//! A settled name repeats its reply until the rest of its work is done: a name whose `getaddrinfo` hangs
//! holds one thread, not one more for each client that asks.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use engine::oneshot;
use tokio::runtime;
use tokio::sync::mpsc;
use tokio::task::{Id, JoinError, JoinSet};

use super::{
    DnsThread, NAMES_IN_FLIGHT_MAX, REQUESTS_MAX, Reply, Request, ResolveError, Resolver, WAITERS_MAX,
};

/// Work that goes on after its reply was given.
pub(super) type Rest = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The end of a lookup as far as those who wait are concerned.
pub(super) struct Settled {
    pub(super) reply: Reply,
    /// What still runs, if anything.
    pub(super) rest: Option<Rest>,
}

/// Who does the lookups.
pub(super) trait Backend: Send + 'static {
    /// Looks `name` up; settles by the deadline.
    fn lookup(&mut self, name: Arc<str>) -> impl Future<Output = Settled> + Send + 'static;
}

/// Starts the DNS thread with `backend`, whose lookups settle within `deadline`.
pub(super) fn start(backend: impl Backend, deadline: Duration) -> io::Result<(Resolver, DnsThread)> {
    let runtime = runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let (requests, inlet) = mpsc::channel(REQUESTS_MAX);
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let desk = Desk {
        backend,
        inlet,
        stopped,
        names: HashMap::new(),
        waiters: 0,
        tasks: JoinSet::new(),
        ids: HashMap::new(),
    };
    // The desk is the runtime's main future, which a sender wakes without touching the run queue's lock.
    let thread = thread::Builder::new().name("dns".into()).spawn(move || runtime.block_on(desk.serve()))?;
    Ok((Resolver { requests, deadline }, DnsThread { stop: Some(stop), thread: Some(thread) }))
}

struct Desk<B> {
    backend: B,
    inlet: mpsc::Receiver<Request>,
    /// Ready when the owner is gone.
    stopped: tokio::sync::oneshot::Receiver<()>,
    names: HashMap<Arc<str>, State>,
    /// The waiters of all names.
    waiters: usize,
    /// One task per name; it gives `Some` when it settles, `None` when its rest is done.
    tasks: JoinSet<Option<Box<Settled>>>,
    ids: HashMap<Id, Arc<str>>,
}

/// What is known of a name in flight.
enum State {
    /// A task is on it, and these wait.
    Asked(Vec<oneshot::Sender<Reply>>),
    /// This was the reply, and a task is still on the rest.
    Settled(Box<Reply>),
}

/// All that can wake the desk.
enum Event {
    Stop,
    Ended(Id, Result<Option<Box<Settled>>, JoinError>),
    Request(Request),
}

impl<B: Backend> Desk<B> {
    async fn serve(mut self) {
        loop {
            match poll_fn(|context| self.poll_event(context)).await {
                Event::Stop => return,
                Event::Request(request) => self.take(request),
                Event::Ended(id, outcome) => self.ended(id, outcome),
            }
        }
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        if Pin::new(&mut self.stopped).poll(context).is_ready() {
            return Poll::Ready(Event::Stop);
        }
        // `None` says that no task is left; the next one is spawned by the next request.
        match self.tasks.poll_join_next_with_id(context) {
            Poll::Ready(Some(Ok((id, outcome)))) => return Poll::Ready(Event::Ended(id, Ok(outcome))),
            Poll::Ready(Some(Err(error))) => return Poll::Ready(Event::Ended(error.id(), Err(error))),
            Poll::Ready(None) | Poll::Pending => {}
        }
        self.inlet.poll_recv(context).map(|request| request.map_or(Event::Stop, Event::Request))
    }

    fn take(&mut self, request: Request) {
        let full = self.names.len() >= NAMES_IN_FLIGHT_MAX;
        match self.names.get_mut(&*request.name) {
            Some(State::Settled(reply)) => request.reply.send(Reply::clone(reply)),
            Some(State::Asked(_)) | None if self.waiters >= WAITERS_MAX => {
                request.reply.send(Reply::overloaded())
            }
            Some(State::Asked(waiters)) => {
                waiters.push(request.reply);
                self.waiters += 1;
            }
            None if full => request.reply.send(Reply::overloaded()),
            None => {
                let name: Arc<str> = request.name.into();
                let lookup = self.backend.lookup(Arc::clone(&name));
                self.spawn(&name, async { Some(Box::new(lookup.await)) });
                self.names.insert(name, State::Asked(vec![request.reply]));
                self.waiters += 1;
            }
        }
    }

    fn spawn(&mut self, name: &Arc<str>, task: impl Future<Output = Option<Box<Settled>>> + Send + 'static) {
        let id = self.tasks.spawn(task).id();
        self.ids.insert(id, Arc::clone(name));
    }

    fn ended(&mut self, id: Id, outcome: Result<Option<Box<Settled>>, JoinError>) {
        let name = self.ids.remove(&id).expect("each task's id is entered when it is spawned");
        let state = self.names.remove(&name);
        let settled = match outcome {
            Ok(Some(settled)) => *settled,
            Ok(None) => return,
            Err(_) => {
                let error = ResolveError::Failed("the lookup panicked".into());
                Settled { reply: Reply::failed(error), rest: None }
            }
        };
        if let Some(State::Asked(waiters)) = state {
            self.waiters -= waiters.len();
            waiters.into_iter().for_each(|waiter| waiter.send(settled.reply.clone()));
        }
        if let Some(rest) = settled.rest {
            self.spawn(&name, async {
                rest.await;
                None
            });
            self.names.insert(name, State::Settled(Box::new(settled.reply)));
        }
    }
}
