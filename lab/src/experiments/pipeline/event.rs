//! Waits are timers: a reactor of the engine on each CPU, and no waiting request holds a thread.
//!
//! Guarantees: a request's wait begins when it is admitted, before earlier requests have computed their
//! answers; a yield puts the request behind the whole queue; timers are checked after every few answers.
//!
//! ```text
//!   admit --step 1--> waits --> timer wheel --due--.
//!                 \-> yields, or nothing ----------+--> ready --step 3--> done: capacity for the next
//! ```
//!
//! A thread takes the next request of all whenever it has capacity, so that requests are admitted in order
//! and a thread that loses its CPU for a while gets fewer. Its capacity is its share of the window: with
//! everything admitted that is half of the requests on two CPUs, however late the second thread begins. So a
//! thread that has nothing left to do answers requests that are ready on the others.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result, anyhow};
use engine::inbox::Notifier;
use engine::reactor::{RawToken, Reactor, ReactorEvent, WakeTarget};
use engine::stats::ReactorStats;

use super::Strategy;
use super::recording::{ThreadPlacement, Track};
use super::waits::Wait;
use super::work::{ThreadGuard, Work};

/// Answers between two checks of the timers: about a tick of the wheel.
const RESPONSES_PER_PASS_MAX: usize = 32;

pub(super) struct Event {
    /// Requests of all threads that may be in progress at a time.
    pub(super) window: u32,
    pub(super) threads: usize,
}

impl Strategy for Event {
    fn run(&self, work: &Arc<Work>) -> Result<()> {
        let window = self.window.min(work.requests()).div_ceil(self.threads as u32) as usize;
        let next = AtomicU32::new(0);
        let ready: Vec<ReadyQueue> = (0..self.threads).map(|_| ReadyQueue::default()).collect();
        thread::scope(|scope| {
            let (next, ready) = (&next, &ready[..]);
            let start = |number| {
                let thread = move || EventLoop::new(work, next, ready, window, number)?.run();
                thread::Builder::new().spawn_scoped(scope, thread).context("creating a thread")
            };
            let threads = (0..self.threads).map(start).collect::<Result<Vec<_>>>()?;
            threads.into_iter().try_for_each(|thread| {
                thread.join().unwrap_or_else(|_| Err(anyhow!("a reactor's thread panicked")))
            })
        })
    }
}

/// A request after its first step.
struct StartedRequest {
    request: u32,
    response: String,
}

/// Requests of one thread whose waits are over, in order. The thread itself takes the oldest, the other
/// threads take the newest, which it would reach last.
#[derive(Default)]
struct ReadyQueue(Mutex<VecDeque<StartedRequest>>);

impl ReadyQueue {
    fn with<T>(&self, access: impl FnOnce(&mut VecDeque<StartedRequest>) -> T) -> T {
        access(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// One thread's requests.
struct EventLoop<'a> {
    work: &'a Work,
    /// The next request to be admitted, by whichever thread. Relaxed: it stands alone.
    next: &'a AtomicU32,
    enter: ThreadGuard,
    reactor: std::rc::Rc<Reactor>,
    /// Of all threads, by their numbers.
    ready: &'a [ReadyQueue],
    number: usize,
    /// By the tokens of their timers.
    waiting: HashMap<RawToken, StartedRequest>,
    window: usize,
}

impl<'a> EventLoop<'a> {
    fn new(
        work: &'a Work,
        next: &'a AtomicU32,
        ready: &'a [ReadyQueue],
        window: usize,
        number: usize,
    ) -> Result<Self> {
        let notifier = Arc::new(Notifier::new().context("creating an eventfd")?);
        let stats = Arc::new(ReactorStats::default());
        let reactor = Reactor::new(notifier, stats).context("creating an epoll instance")?;
        let enter = work.enter(ThreadPlacement::Slot(number as u32));
        Ok(Self { work, next, enter, reactor, ready, number, waiting: HashMap::new(), window })
    }

    fn run(mut self) -> Result<()> {
        let mut wakes = Vec::new();
        loop {
            self.admit();
            if self.in_flight() == 0 {
                self.steal_ready();
                return Ok(());
            }
            self.reactor.poll(&mut wakes, || self.own(|ready| ready.is_empty()))?;
            for wake in wakes.drain(..) {
                let ReactorEvent::TimerDue(tag) = wake else { continue };
                if let Some(started) = self.waiting.remove(&tag) {
                    self.own(|ready| ready.push_back(started));
                }
            }
            for _ in 0..RESPONSES_PER_PASS_MAX {
                let Some(started) = self.own(VecDeque::pop_front) else { break };
                self.finish_request(started);
            }
        }
    }

    /// Answers ready requests of other threads.
    fn steal_ready(&mut self) {
        while let Some(started) = self.ready.iter().find_map(|ready| ready.with(VecDeque::pop_back)) {
            self.finish_request(started);
        }
    }

    fn own<T>(&self, access: impl FnOnce(&mut VecDeque<StartedRequest>) -> T) -> T {
        self.ready[self.number].with(access)
    }

    fn in_flight(&self) -> usize {
        self.own(|ready| ready.len()) + self.waiting.len()
    }

    fn admit(&mut self) {
        while self.in_flight() < self.window {
            let request = self.next.fetch_add(1, Ordering::Relaxed);
            if request >= self.work.requests() {
                return;
            }
            self.enter.note(|track| track.request_begins(request));
            let started = StartedRequest { request, response: self.work.begin(request) };
            self.enter.note(Track::request_ends);
            match self.work.wait(request) {
                Wait::Nothing | Wait::Yield => self.own(|ready| ready.push_back(started)),
                Wait::Sleep(time) => {
                    let tag = RawToken(request);
                    // The reactor's time is that of the pass's beginning, and the wait must be a whole one.
                    self.reactor.arm(sys::clock::monotonic() + time, WakeTarget::Token(tag));
                    self.waiting.insert(tag, started);
                }
            }
        }
    }

    fn finish_request(&mut self, started: StartedRequest) {
        self.enter.note(|track| track.request_begins(started.request));
        self.work.finish(started.response);
        self.enter.note(Track::request_ends);
    }
}
