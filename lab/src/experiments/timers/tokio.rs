//! Tokio's timer: a `Sleep` for each deadline, registered by its first poll and dropped to cancel.
//!
//! Guarantees: the measured cost is that of a timeout for tokio's users and no more: they have the `Sleep`
//! inside a task and the task's waker, so both are reused here, and nothing is allocated for a timer.
//!
//! The runtime is what `#[tokio::main]` makes, with two workers: an idle worker keeps the time. That the
//! users are threads of their own changes nothing for the timers, which share the lock of the runtime's
//! wheel, but each `Sleep` is made inside the runtime's context, which is entered for it.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use sys::clock::{Nanos, monotonic};
use tokio::runtime::{Builder, Runtime, RuntimeMetrics};
use tokio::time::Sleep;

use super::free_list::{FreeList, LocalFreeList};
use super::sleep;
use super::timer_impl::{self, Sink, TimerImpl, Wakes};

const WORKERS: usize = 2;

/// Later deadlines are kept as this one: tokio's clock ends, and the experiments are over before.
const AHEAD_MAX: Duration = Duration::from_secs(1 << 30);

/// The runtime; clones share it.
#[derive(Clone)]
pub(super) struct Tokio(Arc<TokioState>);

struct TokioState {
    runtime: Runtime,
    /// The same moment on both clocks, or the second a little later: then no timer is early.
    start: (Nanos, Instant),
    free: Arc<FreeList<Call>>,
    state: Arc<SinkState>,
}

impl TimerImpl for Tokio {
    type User = User;

    fn start(sink: Sink) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
        let metrics = runtime.handle().metrics();
        let (parks_seen, fired) = (AtomicU64::new(0), AtomicU64::new(0));
        let state =
            Arc::new(SinkState { sink, metrics, parks_seen, fired, detached: Mutex::new(Some(Vec::new())) });
        Ok(Self(Arc::new(TokioState {
            runtime,
            start: (monotonic(), Instant::now()),
            free: FreeList::new(),
            state,
        })))
    }

    fn enter(&self) -> User {
        User { free: self.0.free.local(), shared: Arc::clone(&self.0) }
    }

    /// A wake that only moved timers within tokio's wheel counts as dead: it cannot be recognised.
    fn wakes(&self) -> Option<Wakes> {
        let all = self.0.state.parks().saturating_sub(WORKERS as u64);
        Some(Wakes { all, dead: all.saturating_sub(self.0.state.fired.load(Ordering::Relaxed)) })
    }
}

impl TokioState {
    fn instant(&self, deadline: Nanos) -> Instant {
        self.start.1 + deadline.since(self.start.0).min(AHEAD_MAX)
    }
}

impl Drop for TokioState {
    fn drop(&mut self) {
        let detached = self.state.detached.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Outside of the lock: dropping a timer takes the runtime's.
        drop(detached);
    }
}

/// A thread's handle, with its free calls.
pub(super) struct User {
    shared: Arc<TokioState>,
    free: LocalFreeList<Call>,
}

impl timer_impl::User for User {
    type Handle = Handle;

    fn arm(&mut self, deadline: Nanos) -> io::Result<Handle> {
        let mut call = self.free.pop().unwrap_or_else(|| Call::new(&self.shared.state));
        call.call_waker.arm(deadline);
        let context = self.shared.runtime.enter();
        call.sleep.set(Some(tokio::time::sleep_until(self.shared.instant(deadline).into())));
        drop(context);
        let sleep = call.sleep.as_mut().as_pin_mut().expect("the timer was just set");
        if sleep.poll(&mut Context::from_waker(&call.waker)).is_ready() {
            call.call_waker.fire();
        }
        Ok(Handle(Some(call)))
    }

    fn cancel(&mut self, mut handle: Handle) -> bool {
        let mut call = handle.0.take().expect("a handle holds its call until cancel or drop");
        let is_ours = call.call_waker.disarm();
        call.sleep.set(None);
        self.free.push(call);
        is_ours
    }

    fn sleep_until(&mut self, until: Nanos) {
        sleep::until(until);
    }
}

/// What a task of tokio's users has: storage for the timer, and a waker.
struct Call {
    sleep: Pin<Box<Option<Sleep>>>,
    call_waker: Arc<CallWaker>,
    waker: Waker,
}

impl Call {
    fn new(state: &Arc<SinkState>) -> Self {
        let state = Arc::clone(state);
        let call_waker =
            Arc::new(CallWaker { version: AtomicU32::new(0), deadline: AtomicU64::new(0), state });
        Self { sleep: Box::pin(None), waker: Waker::from(Arc::clone(&call_waker)), call_waker }
    }
}

/// An armed timer. A dropped handle's timer is kept until it has fired.
pub(super) struct Handle(Option<Call>);

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(call) = self.0.take() {
            SinkState::keep_detached(&Arc::clone(&call.call_waker.state), call);
        }
    }
}

/// The sink, and the counts of the runtime's wakes.
struct SinkState {
    sink: Sink,
    metrics: RuntimeMetrics,
    /// The workers' parks when the last timer fired.
    parks_seen: AtomicU64,
    /// Wakes in which a timer fired.
    fired: AtomicU64,
    /// Timers whose handles were dropped; `None` when all is closed.
    detached: Mutex<Option<Vec<Call>>>,
}

impl SinkState {
    fn parks(&self) -> u64 {
        (0..WORKERS).map(|worker| self.metrics.worker_park_count(worker)).sum()
    }

    fn keep_detached(&self, call: Call) {
        let mut detached = self.detached.lock().unwrap_or_else(PoisonError::into_inner);
        let mut finished = Vec::new();
        if let Some(detached) = detached.as_mut() {
            // Searched when it is full, and so as often as it doubles.
            if detached.len() == detached.capacity() {
                finished.extend(detached.extract_if(.., |call| !call.call_waker.is_armed()));
            }
            detached.push(call);
        } else {
            finished.push(call);
        }
        drop(detached);
        // Outside of the lock: dropping a timer takes the runtime's.
        drop(finished);
    }
}

/// The waker of a call. Its version is odd while the timer is armed.
struct CallWaker {
    version: AtomicU32,
    deadline: AtomicU64,
    state: Arc<SinkState>,
}

impl CallWaker {
    fn arm(&self, deadline: Nanos) {
        self.deadline.store(deadline.0, Ordering::Relaxed);
        // Release pairs with the Acquire in `fire`; no other thread changes the version while it is even.
        self.version.store(self.version.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    fn is_armed(&self) -> bool {
        self.version.load(Ordering::Relaxed) % 2 == 1
    }

    fn disarm(&self) -> bool {
        let version = self.version.load(Ordering::Relaxed);
        version % 2 == 1 && self.claim(version)
    }

    fn claim(&self, version: u32) -> bool {
        let next = version.wrapping_add(1);
        self.version.compare_exchange(version, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Calls the sink, if the timer is armed and due. A wake for a cancelled timer may come when the call has
    /// a later deadline already, and the end of the runtime wakes all: neither is due.
    fn fire(&self) -> bool {
        let version = self.version.load(Ordering::Acquire);
        let deadline = Nanos(self.deadline.load(Ordering::Relaxed));
        let is_ours = version % 2 == 1 && deadline <= monotonic() && self.claim(version);
        if is_ours {
            (self.state.sink)(deadline);
        }
        is_ours
    }
}

impl Wake for CallWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.fire() {
            return;
        }
        // The worker that fires does not park meanwhile, hence one count for each wake.
        let parks = self.state.parks();
        if self.state.parks_seen.swap(parks, Ordering::Relaxed) != parks {
            self.state.fired.fetch_add(1, Ordering::Relaxed);
        }
    }
}
