//! Waits are timers: a reactor of the engine on each CPU, and no thread is held by a request that waits.
//! Promises: a request's wait begins when it is admitted, before those in front of it have computed their
//! answers; a yield lets the whole queue go first; timers are looked at after every few answers.
//!
//! ```text
//!   admit --step 1--> waits --> timer wheel --due--.
//!                 \-> yields, or nothing ----------+--> ready --step 3--> done: room for the next
//! ```
//!
//! A thread takes the next request of all whenever it has room, so that requests are admitted in order and
//! a thread that loses its CPU for a while gets fewer. Its room is its share of the window: with everything
//! admitted that is half of the requests on two CPUs, however late the second thread begins. So one that has
//! nothing left to do answers what is ready on the others.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result, anyhow};
use engine::inbox::Notifier;
use engine::reactor::{RawToken, Reactor, Wake, WakeTarget};
use engine::stats::ReactorStats;

use super::Strategy;
use super::recording::{Place, Track};
use super::waits::Wait;
use super::work::{Lane, Work};

/// Answers between two looks at the timers: about a tick of the wheel.
const ANSWERS_PER_TURN_MAX: usize = 32;

pub(super) struct Event {
    /// Requests of all threads that may be under way at a time.
    pub(super) window: u32,
    pub(super) threads: usize,
}

impl Strategy for Event {
    fn run(&self, work: &Arc<Work>) -> Result<()> {
        let window = self.window.min(work.requests()).div_ceil(self.threads as u32) as usize;
        let next = AtomicU32::new(0);
        let ready: Vec<Ready> = (0..self.threads).map(|_| Ready::default()).collect();
        thread::scope(|scope| {
            let (next, ready) = (&next, &ready[..]);
            let start = |number| {
                let thread = move || Loop::new(work, next, ready, window, number)?.run();
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
struct Begun {
    request: u32,
    response: String,
}

/// Requests of one thread whose waits are over, in order. The thread itself takes the oldest, others the
/// newest, which it would come to last.
#[derive(Default)]
struct Ready(Mutex<VecDeque<Begun>>);

impl Ready {
    fn with<T>(&self, access: impl FnOnce(&mut VecDeque<Begun>) -> T) -> T {
        access(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// One thread's requests.
struct Loop<'a> {
    work: &'a Work,
    /// The next request to be admitted, by whichever thread. Relaxed: it stands alone.
    next: &'a AtomicU32,
    lane: Lane,
    reactor: std::rc::Rc<Reactor>,
    /// Of all threads, by their numbers.
    ready: &'a [Ready],
    number: usize,
    /// By the tags of their timers.
    waiting: HashMap<RawToken, Begun>,
    window: usize,
}

impl<'a> Loop<'a> {
    fn new(
        work: &'a Work,
        next: &'a AtomicU32,
        ready: &'a [Ready],
        window: usize,
        number: usize,
    ) -> Result<Self> {
        let notifier = Arc::new(Notifier::new().context("making an eventfd")?);
        let stats = Arc::new(ReactorStats::default());
        let reactor = Reactor::new(notifier, stats).context("making an epoll instance")?;
        let lane = work.lane(Place::Slot(number as u32));
        Ok(Self { work, next, lane, reactor, ready, number, waiting: HashMap::new(), window })
    }

    fn run(mut self) -> Result<()> {
        let mut wakes = Vec::new();
        loop {
            self.admit();
            if self.under_way() == 0 {
                self.help();
                return Ok(());
            }
            self.reactor.turn(&mut wakes, || self.own(|ready| ready.is_empty()))?;
            for wake in wakes.drain(..) {
                let Wake::Due(tag) = wake else { continue };
                if let Some(begun) = self.waiting.remove(&tag) {
                    self.own(|ready| ready.push_back(begun));
                }
            }
            for _ in 0..ANSWERS_PER_TURN_MAX {
                let Some(begun) = self.own(VecDeque::pop_front) else { break };
                self.answer(begun);
            }
        }
    }

    /// Answers what others have ready.
    fn help(&mut self) {
        while let Some(begun) = self.ready.iter().find_map(|ready| ready.with(VecDeque::pop_back)) {
            self.answer(begun);
        }
    }

    fn own<T>(&self, access: impl FnOnce(&mut VecDeque<Begun>) -> T) -> T {
        self.ready[self.number].with(access)
    }

    fn under_way(&self) -> usize {
        self.own(|ready| ready.len()) + self.waiting.len()
    }

    fn admit(&mut self) {
        while self.under_way() < self.window {
            let request = self.next.fetch_add(1, Ordering::Relaxed);
            if request >= self.work.requests() {
                return;
            }
            self.lane.note(|track| track.request_begins(request));
            let begun = Begun { request, response: self.work.begin(request) };
            self.lane.note(Track::request_ends);
            match self.work.wait(request) {
                Wait::Nothing | Wait::Yield => self.own(|ready| ready.push_back(begun)),
                Wait::Sleep(time) => {
                    let tag = RawToken(request);
                    // The turn's time is that of its beginning, and the wait is to be a whole one.
                    self.reactor.arm(sys::clock::monotonic() + time, WakeTarget::Tag(tag));
                    self.waiting.insert(tag, begun);
                }
            }
        }
    }

    fn answer(&mut self, begun: Begun) {
        self.lane.note(|track| track.request_begins(begun.request));
        self.work.finish(begun.response);
        self.lane.note(Track::request_ends);
    }
}
