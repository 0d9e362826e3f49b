//! Waits are timers: a reactor of the engine on each CPU, and no thread is held by a request that waits.
//! Promises: a request that was admitted begins its wait before any admitted one computes its answer, and
//! goes to the end of its thread's queue when it yields; timers are looked at after every few answers.
//!
//! ```text
//!   admit --step 1--> waits --> timer wheel --due--.
//!                 \-> yields, or nothing ----------+--> ready --step 3--> done: room for the next
//! ```
//!
//! Requests belong to a thread by their number, in blocks, so that no thread has all the waits.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result, anyhow};
use engine::inbox::Parking;
use engine::reactor::{Reactor, Tag, Waiter, Wake};
use engine::stats::ReactorStats;

use super::Strategy;
use super::recording::{Place, Track};
use super::waits::Wait;
use super::work::{Lane, Work};

/// Neighbours in number that one thread gets. The waits stand 500 apart.
const BLOCK: u32 = 64;

/// Answers between two looks at the timers: about a tick of the wheel.
const ANSWERS_PER_TURN_MAX: usize = 32;

pub(super) struct Event {
    /// Requests of all threads that may be under way at a time.
    pub(super) window: u32,
    pub(super) threads: usize,
}

impl Strategy for Event {
    fn run(&self, work: &Arc<Work>) -> Result<()> {
        let window = self.window.div_ceil(self.threads as u32) as usize;
        thread::scope(|scope| {
            let start = |number| {
                let thread = move || {
                    Loop::new(work, window, number)?.run(share(work.requests(), self.threads, number))
                };
                thread::Builder::new().spawn_scoped(scope, thread).context("creating a thread")
            };
            let threads = (0..self.threads).map(start).collect::<Result<Vec<_>>>()?;
            threads.into_iter().try_for_each(|thread| {
                thread.join().unwrap_or_else(|_| Err(anyhow!("a reactor's thread panicked")))
            })
        })
    }
}

/// The requests of thread `number`.
fn share(requests: u32, threads: usize, number: usize) -> impl Iterator<Item = u32> {
    (0..requests).filter(move |request| (request / BLOCK) as usize % threads == number)
}

/// A request after its first step.
struct Begun {
    request: u32,
    response: String,
}

/// One thread's requests.
struct Loop<'a> {
    work: &'a Work,
    lane: Lane,
    reactor: std::rc::Rc<Reactor>,
    ready: VecDeque<Begun>,
    /// By the tags of their timers.
    waiting: HashMap<Tag, Begun>,
    window: usize,
}

impl<'a> Loop<'a> {
    fn new(work: &'a Work, window: usize, number: usize) -> Result<Self> {
        let parking = Arc::new(Parking::new().context("making an eventfd")?);
        let stats = Arc::new(ReactorStats::default());
        let reactor = Reactor::new(parking, stats).context("making an epoll instance")?;
        let (ready, waiting) = (VecDeque::new(), HashMap::new());
        Ok(Self { work, lane: work.lane(Place::Slot(number as u32)), reactor, ready, waiting, window })
    }

    fn run(mut self, mut requests: impl Iterator<Item = u32>) -> Result<()> {
        let mut wakes = Vec::new();
        loop {
            self.admit(&mut requests);
            if self.under_way() == 0 {
                return Ok(());
            }
            self.reactor.turn(&mut wakes, || self.ready.is_empty())?;
            for wake in wakes.drain(..) {
                let Wake::Due(tag) = wake else { continue };
                self.ready.extend(self.waiting.remove(&tag));
            }
            for _ in 0..ANSWERS_PER_TURN_MAX {
                let Some(begun) = self.ready.pop_front() else { break };
                self.answer(begun);
            }
        }
    }

    fn under_way(&self) -> usize {
        self.ready.len() + self.waiting.len()
    }

    fn admit(&mut self, requests: &mut impl Iterator<Item = u32>) {
        while self.under_way() < self.window {
            let Some(request) = requests.next() else { return };
            self.lane.note(|track| track.request_begins(request));
            let begun = Begun { request, response: self.work.begin(request) };
            self.lane.note(Track::request_ends);
            match self.work.wait(request) {
                Wait::Nothing | Wait::Yield => self.ready.push_back(begun),
                Wait::Sleep(time) => {
                    let tag = Tag(request);
                    // The turn's time is that of its beginning, and the wait is to be a whole one.
                    self.reactor.arm(sys::clock::monotonic() + time, Waiter::Tag(tag));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_has_one_thread_and_each_thread_its_share() {
        let shares: Vec<Vec<u32>> = (0..3).map(|number| share(10_000, 3, number).collect()).collect();
        let mut all: Vec<u32> = shares.iter().flatten().copied().collect();
        all.sort_unstable();
        assert_eq!(all, (0..10_000).collect::<Vec<_>>());
        for share in shares {
            assert!((3_270..=3_400).contains(&share.len()), "{} of 10,000", share.len());
        }
    }
}
