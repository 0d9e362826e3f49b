//! The bucketed design of brpc's TimerThread up to release 1.17.0: arming is a push under one of 13 mutexes,
//! cancelling one exchange of a version, and one thread has a heap of its own.
//!
//! Guarantees: cancelling takes no lock; only a timer that is due before all others wakes the thread early.
//!
//! Not handled here: the memory of cancelled timers. The thread frees one when it finds it while pulling, or
//! else at its deadline; it wakes for it then, and pulls what is in flight at that moment, which it finds
//! dead later in the same way.
//!
//! ```text
//!   user --hash--> bucket 0..12: mutex, nearest, list --pull--> heap (one thread's) --due--> sink
//!                          '--nearest of its bucket--> global nearest --earlier: wake--'
//! ```
//! A task belongs to its owner until it is pushed, then to its bucket, then to the thread, which alone
//! returns it to the free list. Its version says whether it is wanted: even `v` while armed, `v + 1` while it
//! fires, `v + 2` when it has fired or was cancelled, which is the version of its next arming.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use sys::clock::{Nanos, monotonic};

use super::counters::{Counters, WakeAccount};
use super::free_list::LocalFreeList;
use super::sleep;
use super::slots::{NONE, Slots};
use super::timer_impl::{self, Sink, TimerImpl, Wakes};
use super::timer_thread::{TimerLoop, TimerThread};

const BUCKETS: usize = 13;

/// The bucketed timers; clones share the buckets and the thread.
#[derive(Clone)]
pub(super) struct Bucketed(Arc<TimerThread<Timers>>);

impl TimerImpl for Bucketed {
    type User = User;

    fn start(sink: Sink) -> io::Result<Self> {
        Ok(Self(TimerThread::start("bucketed", Timers::new(sink))?))
    }

    fn enter(&self) -> User {
        let mut hasher = DefaultHasher::new();
        thread::current().id().hash(&mut hasher);
        let bucket = (hasher.finish() % BUCKETS as u64) as usize;
        User { free: self.0.tasks.local(), timers: Arc::clone(&self.0), bucket }
    }

    fn wakes(&self) -> Option<Wakes> {
        Some(self.0.counters.wakes())
    }
}

/// A thread's handle: its bucket and its free tasks.
pub(super) struct User {
    timers: Arc<TimerThread<Timers>>,
    bucket: usize,
    free: LocalFreeList<u32>,
}

/// The number and version of an armed timer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Id {
    task: u32,
    version: u32,
}

impl timer_impl::User for User {
    type Handle = Id;

    fn arm(&mut self, deadline: Nanos) -> io::Result<Id> {
        let timers: &Timers = &self.timers;
        let number = timers.tasks.claim(&mut self.free)?;
        let task = timers.tasks.at(number);
        let version = task.version.load(Ordering::Relaxed);
        task.armed.store(version, Ordering::Relaxed);
        task.deadline.store(deadline.0, Ordering::Relaxed);
        if timers.buckets[self.bucket].push(number, task, deadline) {
            timers.expect(deadline);
        }
        Ok(Id { task: number, version })
    }

    fn cancel(&mut self, id: Id) -> bool {
        self.timers.tasks.at(id.task).claim(id.version, id.version.wrapping_add(2))
    }

    fn sleep_until(&mut self, until: Nanos) {
        sleep::until(until);
    }
}

/// Fills a cache line, as in the original. The bucket's mutex publishes every field but the version.
#[derive(Default)]
#[repr(align(64))]
struct Task {
    deadline: AtomicU64,
    next: AtomicU32,
    /// The version with which it was armed.
    armed: AtomicU32,
    version: AtomicU32,
}

impl Task {
    fn claim(&self, version: u32, next: u32) -> bool {
        self.version.compare_exchange(version, next, Ordering::Acquire, Ordering::Acquire).is_ok()
    }

    fn is_wanted(&self) -> bool {
        self.version.load(Ordering::Relaxed) == self.armed.load(Ordering::Relaxed)
    }
}

/// The timers of some threads since the last pull. The mutex protects everything but the check for emptiness.
#[repr(align(64))]
struct Bucket {
    mutex: Mutex<()>,
    head: AtomicU32,
    nearest: AtomicU64,
}

impl Bucket {
    fn new() -> Self {
        Self { mutex: Mutex::new(()), head: AtomicU32::new(NONE), nearest: AtomicU64::new(Nanos::NEVER.0) }
    }

    /// Pushes a task; returns whether it is due before all others of the bucket.
    fn push(&self, number: u32, task: &Task, deadline: Nanos) -> bool {
        let _inside = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        task.next.store(self.head.load(Ordering::Relaxed), Ordering::Relaxed);
        self.head.store(number, Ordering::Relaxed);
        let is_nearest = deadline.0 < self.nearest.load(Ordering::Relaxed);
        if is_nearest {
            self.nearest.store(deadline.0, Ordering::Relaxed);
        }
        is_nearest
    }

    fn take(&self) -> u32 {
        // The thread that pushed the first task of a bucket then calls `expect`, whose mutex the timer thread
        // takes before it sleeps: so a task that this load misses is found in the next pull.
        if self.head.load(Ordering::Relaxed) == NONE {
            return NONE;
        }
        let _inside = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        self.nearest.store(Nanos::NEVER.0, Ordering::Relaxed);
        self.head.swap(NONE, Ordering::Relaxed)
    }
}

struct Timers {
    tasks: Slots<Task>,
    buckets: [Bucket; BUCKETS],
    global: Mutex<Global>,
    earlier: Condvar,
    sink: Sink,
    counters: Counters,
}

struct Global {
    /// While the thread works: the nearest deadline armed since it began. While it sleeps: the time until
    /// which it sleeps.
    nearest: Nanos,
    is_closed: bool,
}

/// The data that only the thread uses.
struct ThreadState<'a> {
    heap: BinaryHeap<Reverse<(Nanos, u32)>>,
    free: LocalFreeList<u32>,
    account: WakeAccount<'a>,
}

impl Timers {
    fn new(sink: Sink) -> Self {
        Self {
            tasks: Slots::new(),
            buckets: std::array::from_fn(|_| Bucket::new()),
            global: Mutex::new(Global { nearest: Nanos::NEVER, is_closed: false }),
            earlier: Condvar::new(),
            sink,
            counters: Counters::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Global> {
        self.global.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn expect(&self, deadline: Nanos) {
        let mut global = self.lock();
        if deadline < global.nearest {
            global.nearest = deadline;
            drop(global);
            self.earlier.notify_one();
        }
    }

    fn pull(&self, state: &mut ThreadState<'_>) {
        for bucket in &self.buckets {
            let mut number = bucket.take();
            while number != NONE {
                let task = self.tasks.at(number);
                let next = task.next.load(Ordering::Relaxed);
                if task.is_wanted() {
                    state.heap.push(Reverse((Nanos(task.deadline.load(Ordering::Relaxed)), number)));
                } else {
                    state.free.push(number);
                }
                number = next;
            }
        }
    }

    /// Returns whether all that is due has run: false if a nearer timer arrived meanwhile.
    fn run_due(&self, state: &mut ThreadState<'_>) -> bool {
        while let Some(&Reverse((deadline, number))) = state.heap.peek()
            && deadline <= monotonic()
        {
            if self.lock().nearest < deadline {
                return false;
            }
            state.heap.pop();
            if self.fire(number, deadline) {
                state.account.note_fired();
            }
            state.free.push(number);
        }
        true
    }

    fn fire(&self, number: u32, deadline: Nanos) -> bool {
        let task = self.tasks.at(number);
        let version = task.armed.load(Ordering::Relaxed);
        let is_wanted = task.claim(version, version.wrapping_add(1));
        if is_wanted {
            (self.sink)(deadline);
            // Release pairs with the Acquire of `claim`: a canceller that comes too late sees the completed
            // firing.
            task.version.store(version.wrapping_add(2), Ordering::Release);
        }
        is_wanted
    }

    fn sleep(&self, state: &mut ThreadState<'_>) {
        let next = state.heap.peek().map_or(Nanos::NEVER, |Reverse((deadline, _))| *deadline);
        let mut global = self.lock();
        if global.is_closed || global.nearest < next {
            return;
        }
        global.nearest = next;
        state.account.sleep(|| {
            if next == Nanos::NEVER {
                drop(self.earlier.wait(global));
            } else {
                drop(self.earlier.wait_timeout(global, next.since(monotonic())));
            }
        });
    }
}

impl TimerLoop for Timers {
    fn run(&self) {
        let account = self.counters.account();
        let mut state = ThreadState { heap: BinaryHeap::new(), free: self.tasks.local(), account };
        loop {
            let mut global = self.lock();
            if global.is_closed {
                return;
            }
            global.nearest = Nanos::NEVER;
            drop(global);
            self.pull(&mut state);
            if self.run_due(&mut state) {
                self.sleep(&mut state);
            }
        }
    }

    fn close(&self) {
        self.lock().is_closed = true;
        self.earlier.notify_one();
    }
}
