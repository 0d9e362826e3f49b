//! Timers that any thread arms and any thread cancels.
//!
//! Promises: a callback runs never before its deadline, and at most a tick (1.05 ms) and its slack after it,
//! as far as the machine gives the service's thread a CPU; once for each time that a timer was armed; never
//! after [`Cancel::Cancelled`] was answered. Arming and cancelling take constant time and wait for nobody: no
//! lock that another thread may hold, no system call but by the one who moves the next wake-up. Of timers
//! that were cancelled at most 256 or an eighth of the armed ones keep their memory, whichever is more, and
//! what comes while a thread collects them. A service whose timers are all cancelled or far away sleeps.
//! Steps of the wall clock change nothing. Leaves to others: deadlines that never leave their thread (the
//! reactor's own wheel costs less), and what a tag means.
//!
//! ```text
//!   Timers (any thread) --arm, cancel--> Post: shard, wheel, alarm <--sleeps-- a thread of the service
//!            \                                                                    '--> callback(tag)
//!             '---------cancel---------> Desk: shard <--wheel-- Local: a thread with a loop of its own
//! ```
//!
//! A thread that arms and fires timers itself, in its own loop, has a [`LocalTimers`] end: it pays half. The
//! timers of all others go to the posts, each thread's to the same one.
//!
//! A wheel has one owner, and what other threads do reaches it by lists that are taken whole. (The bucketed
//! timer thread of brpc up to 1.17.0 splits a lock instead, and leaves cancelled timers in its heap until
//! they would have been due: apache/brpc#3383.) Whoever cancels one too many collects them, and puts the
//! alarm off: a thread that sleeps need not be woken to learn that it may sleep on.
//!
//! What a thread pays for another's timer is the cache lines that it takes over. So what others touch is
//! packed (a word in `cell.rs`, a link in `shard.rs`), timers armed together are neighbours (`free.rs`), and
//! all else is the owner's alone.

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

/// What a callback is told: whatever the caller of [`Timers::arm`] said.
pub type Callback = dyn Fn(&Timers, u64) -> Next + Send + Sync;

/// A timer service that runs; when it is dropped, its threads end and its timers are gone. What uses it holds
/// [`Timers`].
#[derive(Debug)]
pub struct Service {
    timers: Timers,
    threads: Vec<JoinHandle<()>>,
}

/// A way to a service, for any thread. It does not keep the service alive.
#[derive(Clone)]
pub struct Timers(Arc<Inner>);

struct Inner {
    number: u16,
    timer_threads: Box<[TimerThread]>,
    remote_handles: Box<[RemoteHandle]>,
    /// Desks that have been taken.
    attached: AtomicUsize,
    callback: Box<Callback>,
}

impl Service {
    /// Starts its threads. `callback` is told the tag of each timer that is due, on a thread of the service,
    /// one at a time for each thread: it should tell somebody, and not work or wait. A panic in it ends the
    /// timer and nothing else.
    ///
    /// # Errors
    /// `EAGAIN` when a thread cannot be created, `EMFILE` or `ENFILE` for its alarm.
    ///
    /// # Panics
    /// When the settings ask for no thread or for more timers than a shard can hold.
    pub fn start(
        settings: &Settings,
        callback: impl Fn(&Timers, u64) -> Next + Send + Sync + 'static,
    ) -> io::Result<Service> {
        assert!(settings.threads > 0, "a timer service needs a thread");
        let now = Alarm::now();
        let timer_threads = (0..settings.threads).map(|_| TimerThread::new(cells(settings.timers_max), now));
        let remote_handles =
            (0..settings.locals).map(|_| RemoteHandle::new(cells(settings.local_timers_max), now));
        assert!(settings.threads + settings.locals <= usize::from(u16::MAX), "so many wheels have no names");
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

    /// The way to it.
    pub fn timers(&self) -> &Timers {
        &self.timers
    }

    /// Ends it and waits for its threads. Timers that were armed do not fire; how many there were.
    pub fn shutdown(mut self) -> u64 {
        self.close();
        self.timers.0.timer_threads.iter().map(TimerThread::dropped).sum()
    }

    fn close(&mut self) {
        self.timers.0.timer_threads.iter().for_each(TimerThread::close);
        for thread in self.threads.drain(..) {
            // A callback that drops the service is on one of these threads, which ends after it.
            if thread.thread().id() != thread::current().id() {
                thread.join().expect("callbacks' panics are caught");
            }
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.close();
    }
}

/// Cells for so many timers: those that are cancelled and not collected yet take nobody's place.
fn cells(timers: usize) -> usize {
    let cells = timers + super::shard::uncollected_max(timers);
    assert!(cells <= CELLS_MAX, "{timers} timers are more than a shard can hold");
    cells
}

impl Timers {
    /// Has the callback told `tag` at `deadline`, or up to a tick and `slack` later. One that has passed is
    /// told at the next tick.
    ///
    /// # Errors
    /// See [`ArmError`].
    pub fn arm(&self, deadline: Nanos, slack: Slack, tag: u64) -> Result<TimerHandle, ArmError> {
        let shard = thread_number() % self.0.timer_threads.len();
        let key = self.0.timer_threads[shard].arm(deadline, slack, tag)?;
        Ok(self.shard_id(shard).handle(key))
    }

    /// Takes a timer back, whoever armed it.
    pub fn cancel(&self, handle: TimerHandle) -> Cancel {
        match self.locate(handle) {
            Location::TimerThread(timer_thread) => timer_thread.cancel(handle.key()),
            Location::LocalTimers(remote) => remote.cancel(handle.key()),
            Location::Unknown => Cancel::Gone,
        }
    }

    /// As [`Timers::cancel`]; where the callback runs, it returns when that has ended, so that what the
    /// callback uses may go. Inside that very callback it returns at once; two callbacks on different threads
    /// that wait for each other so wait for ever.
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

    /// The figures so far.
    pub fn stats(&self) -> TimerStats {
        self.0.timer_threads.iter().map(|it| it.stats.read()).fold(TimerStats::default(), TimerStats::plus)
    }

    /// The next local end that no thread has taken; `None` when all are taken.
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

/// Where a timer is.
enum Location<'t> {
    TimerThread(&'t TimerThread),
    LocalTimers(&'t RemoteHandle),
    /// With another service.
    Unknown,
}

impl fmt::Debug for Timers {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Timers").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// Services are numbered, so that a handle of one does not reach into another.
fn next_service_number() -> u16 {
    static SERVICES: std::sync::atomic::AtomicU16 = std::sync::atomic::AtomicU16::new(0);
    SERVICES.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

/// Threads are numbered as they first arm a timer, so that they spread over the posts.
fn thread_number() -> usize {
    static THREADS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    sys::sync::thread_local! {
        static NUMBER: usize = THREADS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}
