//! A timerfd for each call, and one thread that waits for all of them with epoll: the kernel keeps the
//! deadlines, for four system calls a timer.
//!
//! A cancelled timer is closed at once. The limit of descriptors (`RLIMIT_NOFILE`) bounds the number of
//! timers.
//!
//! A call is in the slot of its descriptor's number. The thread that takes it from there owns it, to fire or
//! to close; its generation distinguishes it from an event of an earlier call with the same number.

use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::thread::Timespec;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use sys::clock::Nanos;

use super::counters::Counters;
use super::sleep;
use super::timer_impl::{Sink, TimerImpl, User, Wakes};
use super::timer_thread::{TimerLoop, TimerThread};

/// More calls than any experiment has at a time, and the descriptors of everything else.
const DESCRIPTORS_MAX: usize = 1 << 16;
const EVENTS_MAX: usize = 256;
/// No call's: the generation is the upper half, and the lower one is below `DESCRIPTORS_MAX`.
const CLOSED: u64 = u64::MAX;

/// The descriptors of all calls; clones share them and the thread.
#[derive(Clone)]
pub(super) struct Timerfd(Arc<TimerThread<TimerfdThread>>);

impl TimerImpl for Timerfd {
    type User = Timerfd;

    fn start(sink: Sink) -> io::Result<Self> {
        Ok(Self(TimerThread::start("timerfd", TimerfdThread::new(sink)?)?))
    }

    fn enter(&self) -> Timerfd {
        self.clone()
    }

    fn wakes(&self) -> Option<Wakes> {
        Some(self.0.counters.wakes())
    }
}

impl User for Timerfd {
    type Handle = Id;

    fn arm(&mut self, deadline: Nanos) -> io::Result<Id> {
        self.0.arm(deadline)
    }

    fn cancel(&mut self, id: Id) -> bool {
        // The taken descriptor is dropped here, which closes it.
        self.0.take(id).is_some()
    }

    fn sleep_until(&mut self, until: Nanos) {
        sleep::until(until);
    }
}

/// The descriptor and generation of an armed timer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Id {
    descriptor: u32,
    generation: u32,
}

impl Id {
    fn data(self) -> EventData {
        EventData::new_u64(u64::from(self.generation) << 32 | u64::from(self.descriptor))
    }

    fn of(data: EventData) -> Self {
        // The two halves.
        Self { descriptor: data.u64() as u32, generation: (data.u64() >> 32) as u32 }
    }
}

struct TimerfdThread {
    epoll: OwnedFd,
    /// Readable when all is closed.
    closing: OwnedFd,
    /// By the number of the descriptor.
    slots: Box<[Mutex<Slot>]>,
    sink: Sink,
    counters: Counters,
}

#[derive(Default)]
struct Slot {
    generation: u32,
    call: Option<Call>,
}

struct Call {
    timer: OwnedFd,
    deadline: Nanos,
}

impl TimerfdThread {
    fn new(sink: Sink) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let closing = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &closing, EventData::new_u64(CLOSED), EventFlags::IN)?;
        let slots = (0..DESCRIPTORS_MAX).map(|_| Mutex::default()).collect();
        Ok(Self { epoll, closing, slots, sink, counters: Counters::default() })
    }

    fn arm(&self, deadline: Nanos) -> io::Result<Id> {
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let number = usize::try_from(timer.as_raw_fd()).expect("descriptors are not negative");
        let mut slot = self.slot(number).ok_or(ErrorKind::OutOfMemory)?;
        slot.generation = slot.generation.wrapping_add(1);
        let id = Id { descriptor: number as u32, generation: slot.generation };
        timerfd_settime(&timer, TimerfdTimerFlags::ABSTIME, &once_at(deadline))?;
        epoll::add(&self.epoll, &timer, id.data(), EventFlags::IN | EventFlags::ONESHOT)?;
        slot.call = Some(Call { timer, deadline });
        Ok(id)
    }

    fn take(&self, id: Id) -> Option<Call> {
        let mut slot = self.slot(id.descriptor as usize)?;
        if slot.generation == id.generation { slot.call.take() } else { None }
    }

    fn slot(&self, number: usize) -> Option<MutexGuard<'_, Slot>> {
        Some(self.slots.get(number)?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn once_at(deadline: Nanos) -> Itimerspec {
    // Zero would disarm it.
    let it_value = sleep::timespec(deadline.max(Nanos(1)));
    Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value }
}

impl TimerLoop for TimerfdThread {
    fn run(&self) {
        let mut account = self.counters.account();
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
        loop {
            events.clear();
            let waited =
                account.sleep(|| epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None));
            assert!(matches!(waited, Ok(_) | Err(Errno::INTR)), "waiting for timers: {waited:?}");
            for Event { data, .. } in events.drain(..) {
                if data.u64() == CLOSED {
                    return;
                }
                if let Some(Call { timer, deadline }) = self.take(Id::of(data)) {
                    account.note_fired();
                    (self.sink)(deadline);
                    drop(timer);
                }
            }
        }
    }

    fn close(&self) {
        // Cannot fail: the counter is far from full.
        let _ = rustix::io::write(&self.closing, &1u64.to_ne_bytes());
    }
}
