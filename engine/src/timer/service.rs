//! A timer service: timers that any thread arms and any thread cancels.
//!
//! Guarantees:
//!
//! - A callback never runs before its deadline, and at most a tick (1.05 ms) and its slack after it, as far
//!   as the timer thread gets a CPU. It runs once for each arming, and never after [`Cancel::Cancelled`].
//! - Arming and cancelling take constant time and never wait. They take no lock that another thread may hold;
//!   only the caller that moves the next wake-up makes a system call.
//! - At most 256 cancelled timers (or an eighth of the armed ones, if that is more) keep their memory,
//!   besides those that are cancelled while a thread collects.
//! - A service sleeps while all its timers are cancelled or far in the future. Steps of the wall clock have
//!   no effect.
//!
//! Not handled here: deadlines that never leave their thread; the reactor's own wheel costs less.
//!
//! ```text
//!   Timers (any thread) --arm, cancel--> TimerThread: shard, driver, alarm <-- a thread of the service
//!            \                                                                  '--> callback(tag)
//!             '---------cancel---------> RemoteHandle: shard <-- driver -- LocalTimers: a thread with a loop
//! ```
//!
//! A thread that arms and fires timers in its own loop has [`LocalTimers`](super::LocalTimers), at half the
//! cost. The timers of all other threads are spread over the timer threads; each thread always uses the same
//! one.
//!
//! A wheel has one driver. The operations of other threads reach it by lists that are taken as a whole. (The
//! bucketed timer thread of brpc up to 1.17.0 splits a lock instead, and leaves cancelled timers in its heap
//! until they would have been due: apache/brpc#3383.) The thread that cancels one timer too many collects
//! them all and sets the alarm to a later time. So a sleeping timer thread need not be woken just to learn
//! that it may sleep longer.
//!
//! The cost of another thread's timer is the cache lines that move. So shared data is packed (a word in
//! `cell.rs`, a link in `shard.rs`), timers armed together are neighbours (`cell_allocator.rs`), and all else
//! belongs to the driver alone.

use std::fmt;
use std::io;
use std::sync::Arc;

use sys::alarm::Alarm;
use sys::clock::Nanos;
use sys::sync::atomic::{AtomicUsize, Ordering};
use sys::sync::thread::{self, JoinHandle};

use super::handle::{ArmError, Cancel, Next, Settings, ShardId, TimerHandle};
use super::remote_handle::RemoteHandle;
use super::shard::CELLS_MAX;
use super::slack::Slack;
use super::timer_thread::{TimerStats, TimerThread};

/// The callback of all timers; its second argument is the tag that was given to [`Timers::arm`].
pub type Callback = dyn Fn(&Timers, u64) -> Next + Send + Sync;

/// A running timer service. Dropping it ends its threads and its timers. Its users hold [`Timers`].
#[derive(Debug)]
pub struct Service {
    timers: Timers,
    threads: Vec<JoinHandle<()>>,
}

/// Access to a service, for any thread. It does not keep the service alive.
#[derive(Clone)]
pub struct Timers(Arc<Inner>);

struct Inner {
    number: u16,
    timer_threads: Box<[TimerThread]>,
    remote_handles: Box<[RemoteHandle]>,
    /// How many [`RemoteHandle`]s have been taken.
    attached: AtomicUsize,
    callback: Box<Callback>,
}

impl Service {
    /// Starts the threads. They call `callback` with the tag of each timer that is due, one at a time for
    /// each thread. It should only notify another thread, since it delays other timers. A panic in it ends
    /// the timer and nothing else.
    ///
    /// # Errors
    /// `EAGAIN` when a thread cannot be created, `EMFILE` or `ENFILE` for its alarm.
    ///
    /// # Panics
    /// When the settings have no thread, or more timers than a shard can hold.
    pub fn start(
        settings: &Settings,
        callback: impl Fn(&Timers, u64) -> Next + Send + Sync + 'static,
    ) -> io::Result<Service> {
        assert!(settings.threads > 0, "a timer service needs a thread");
        let now = Alarm::now();
        let timer_threads = (0..settings.threads).map(|_| TimerThread::new(cells(settings.timers_max), now));
        let remote_handles =
            (0..settings.locals).map(|_| RemoteHandle::new(cells(settings.local_timers_max), now));
        assert!(settings.threads + settings.locals <= usize::from(u16::MAX), "too many wheels for `ShardId`");
        let timers = Timers(Arc::new(Inner {
            number: next_service_number(),
            timer_threads: timer_threads.collect::<io::Result<_>>()?,
            remote_handles: remote_handles.collect(),
            attached: AtomicUsize::new(0),
            callback: Box::new(callback),
        }));
        let mut service = Service { timers, threads: Vec::with_capacity(settings.threads) };
        for number in 0..settings.threads {
            let timers = service.timers.clone();
            let name = format!("{}-{number}", settings.name);
            let thread = thread::Builder::new()
                .name(name)
                .spawn(move || timers.0.timer_threads[number].run(|tag| timers.call(tag)))?;
            service.threads.push(thread);
        }
        Ok(service)
    }

    /// Access to the service, for any thread.
    pub fn timers(&self) -> &Timers {
        &self.timers
    }

    /// Ends the service and waits for its threads. Armed timers do not fire; returns their number.
    pub fn shutdown(mut self) -> u64 {
        self.close();
        self.timers.0.timer_threads.iter().map(TimerThread::dropped).sum()
    }

    fn close(&mut self) {
        self.timers.0.timer_threads.iter().for_each(TimerThread::close);
        for thread in self.threads.drain(..) {
            // A callback may drop the service; its thread ends after the callback.
            if thread.thread().id() != thread::current().id() {
                thread.join().expect("panics of callbacks are caught");
            }
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.close();
    }
}

/// Cells for that many timers, and for those that are cancelled and not collected yet.
fn cells(timers: usize) -> usize {
    let cells = timers + super::shard::uncollected_max(timers);
    assert!(cells <= CELLS_MAX, "{timers} timers are more than a shard can hold");
    cells
}

impl Timers {
    /// Arms a timer: the callback gets `tag` at `deadline`, or up to a tick and `slack` later. For a deadline
    /// in the past that is the next tick.
    ///
    /// # Errors
    /// See [`ArmError`].
    pub fn arm(&self, deadline: Nanos, slack: Slack, tag: u64) -> Result<TimerHandle, ArmError> {
        let shard = thread_number() % self.0.timer_threads.len();
        let key = self.0.timer_threads[shard].arm(deadline, slack, tag)?;
        Ok(self.shard_id(shard).handle(key))
    }

    /// Cancels a timer, whichever thread armed it.
    pub fn cancel(&self, handle: TimerHandle) -> Cancel {
        match self.locate(handle) {
            Location::TimerThread(timer_thread) => timer_thread.cancel(handle.key()),
            Location::LocalTimers(remote) => remote.cancel(handle.key()),
            Location::Unknown => Cancel::Gone,
        }
    }

    /// As [`Timers::cancel`], but returns only after a running callback has ended, so that the caller may
    /// free what the callback uses. Inside that callback it returns at once. Two callbacks on different
    /// threads that wait for each other deadlock.
    pub fn cancel_sync(&self, handle: TimerHandle) -> Cancel {
        let found = self.cancel(handle);
        if found == Cancel::Running {
            match self.locate(handle) {
                Location::TimerThread(timer_thread) => {
                    timer_thread.barrier.wait(&timer_thread.shard, handle.key())
                }
                Location::LocalTimers(remote) => remote.barrier.wait(&remote.shard, handle.key()),
                Location::Unknown => {}
            }
        }
        found
    }

    /// The counters so far.
    pub fn stats(&self) -> TimerStats {
        self.0.timer_threads.iter().map(|it| it.stats.read()).fold(TimerStats::default(), TimerStats::plus)
    }

    /// The next local timers that no thread has taken; `None` when all are taken.
    pub(super) fn next_local(&self) -> Option<(usize, &RemoteHandle)> {
        let number = self.0.attached.fetch_add(1, Ordering::Relaxed);
        Some((number, self.0.remote_handles.get(number)?))
    }

    pub(super) fn remote_handle(&self, number: usize) -> &RemoteHandle {
        &self.0.remote_handles[number]
    }

    pub(super) fn local_shard_id(&self, number: usize) -> ShardId {
        self.shard_id(self.0.timer_threads.len() + number)
    }

    fn shard_id(&self, shard: usize) -> ShardId {
        ShardId { service: self.0.number, shard: shard as u16 }
    }

    fn call(&self, tag: u64) -> Next {
        (self.0.callback)(self, tag)
    }

    fn locate(&self, handle: TimerHandle) -> Location<'_> {
        let shard_id = handle.shard_id();
        if shard_id.service != self.0.number {
            return Location::Unknown;
        }
        let (shard, threads) = (usize::from(shard_id.shard), self.0.timer_threads.len());
        match (self.0.timer_threads.get(shard), self.0.remote_handles.get(shard.wrapping_sub(threads))) {
            (Some(timer_thread), _) => Location::TimerThread(timer_thread),
            (None, Some(remote)) => Location::LocalTimers(remote),
            (None, None) => Location::Unknown,
        }
    }
}

/// Where a timer is kept.
enum Location<'t> {
    TimerThread(&'t TimerThread),
    LocalTimers(&'t RemoteHandle),
    /// Not in this service.
    Unknown,
}

impl fmt::Debug for Timers {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Timers").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// Numbers services, so that a handle of one is stale in all others.
fn next_service_number() -> u16 {
    static SERVICES: std::sync::atomic::AtomicU16 = std::sync::atomic::AtomicU16::new(0);
    SERVICES.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

/// Numbers threads as they first arm a timer, so that they spread over the timer threads.
fn thread_number() -> usize {
    static THREADS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    sys::sync::thread_local! {
        static NUMBER: usize = THREADS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}
