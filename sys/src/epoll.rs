//! A thin wrapper of epoll: readiness of descriptors, each source level or edge triggered.
//!
//! Guarantees: epoll returns each 64-bit token unchanged. Timeouts are nanoseconds (`epoll_pwait2`, Linux
//! 5.11), or milliseconds rounded up where the kernel lacks that call. A signal is never an error.
//!
//! Not handled here: stale tokens of closed sources (see `engine`'s sources).

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::epoll::{self, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use crate::kernel::{self, Descriptor};

/// How a source reports readiness.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Trigger {
    /// Incoming only, once per change: for streams that are read until they would block. A connected socket
    /// is almost always writable, so watching that as well costs a needless event.
    EdgeRead,
    /// Both directions, once per change: for streams whose last write would have blocked.
    EdgeReadWrite,
    /// That a write would not block, once per change: for streams that are not read for a while.
    EdgeWrite,
    /// Failures alone, once per change: for streams that are neither read nor written for a while.
    EdgeFailure,
    /// Incoming only, reported until it is read: for listeners and wake-up descriptors.
    LevelRead,
    /// As [`Trigger::LevelRead`], but one of several epolls that watch the same socket is woken, not all
    /// (`EPOLLEXCLUSIVE`, Linux 4.5).
    LevelReadExclusive,
}

impl Trigger {
    fn flags(self) -> EventFlags {
        // RDHUP reports that the peer has ended its direction: a short read then needs no second read to
        // find the end (epoll(7), question 9). PRI reports urgent data, where the second read is needed.
        const STREAM: EventFlags =
            EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::PRI).union(EventFlags::ET);
        match self {
            Trigger::EdgeRead => STREAM,
            Trigger::EdgeReadWrite => STREAM | EventFlags::OUT,
            Trigger::EdgeWrite => EventFlags::OUT | EventFlags::ET,
            Trigger::EdgeFailure => EventFlags::ET,
            Trigger::LevelRead => EventFlags::IN,
            Trigger::LevelReadExclusive => EventFlags::IN | EventFlags::EXCLUSIVE,
        }
    }
}

/// The readiness of a source.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Readiness {
    /// A read would not block: bytes, the end of the stream or an error are available.
    pub readable: bool,
    /// A write would not block, or would fail at once.
    pub writable: bool,
    /// What follows the received bytes.
    pub end: StreamEnd,
}

/// What follows the received bytes. The worse state is the greater: a later event may raise the state of an
/// earlier one, and never lowers it.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum StreamEnd {
    /// Nothing yet.
    #[default]
    Open,
    /// The stream's end, and nothing else: a short read has returned the last byte.
    Ended,
    /// Unknown until the next read.
    Unclear,
    /// An urgent byte, at which reads stop short; `splice` cannot move past it.
    Urgent,
    /// The connection has failed, for instance by a reset: reads return the bytes, then the error.
    Broken,
}

/// One event: a source's token and its readiness.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// The token given to [`Epoll::add`].
    pub token: u64,
    /// The readiness of the source.
    pub readiness: Readiness,
}

/// An epoll instance.
#[derive(Debug)]
pub struct Epoll {
    descriptor: Descriptor,
    /// Whether a wait has returned ENOSYS for `epoll_pwait2`: before Linux 5.11, and under emulators that
    /// lack the call, such as older valgrinds. Relaxed: the flag guards no other data.
    lacks_pwait2: AtomicBool,
}

impl Epoll {
    /// A new instance, closed on exec.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE` or `ENOMEM` of `epoll_create1`.
    pub fn new() -> io::Result<Epoll> {
        let descriptor = kernel::epoll_create()?;
        Ok(Epoll { descriptor, lacks_pwait2: AtomicBool::new(false) })
    }

    /// Watches `source`. A source that is already ready is reported by the next wait, edge-triggered ones
    /// too. Closing the descriptor ends the watch, provided it was not duplicated.
    ///
    /// # Errors
    /// `ENOSPC` at `fs.epoll.max_user_watches`, `ENOMEM`.
    pub fn add(&self, source: impl AsFd, token: u64, trigger: Trigger) -> io::Result<()> {
        Ok(kernel::epoll_add(self.descriptor.as_fd(), source.as_fd(), token, trigger.flags())?)
    }

    /// Changes the trigger of `source`. Readiness that the new trigger adds is reported by the next wait.
    ///
    /// # Errors
    /// `ENOENT` if it is not watched.
    pub fn modify(&self, source: impl AsFd, token: u64, trigger: Trigger) -> io::Result<()> {
        Ok(kernel::epoll_modify(self.descriptor.as_fd(), source.as_fd(), token, trigger.flags())?)
    }

    /// Ends the watch of `source`.
    ///
    /// # Errors
    /// `ENOENT` if it is not watched.
    pub fn delete(&self, source: impl AsFd) -> io::Result<()> {
        Ok(kernel::epoll_delete(self.descriptor.as_fd(), source.as_fd())?)
    }

    /// Waits until a source is ready or `timeout` has passed (`None`: without limit), then fills `events`.
    /// A signal ends the wait early with no events.
    ///
    /// # Errors
    /// None that the caller can cause.
    pub fn wait(&self, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        if self.lacks_pwait2.load(Ordering::Relaxed) {
            return self.wait_milliseconds(events, timeout);
        }
        match kernel::epoll_wait(self.descriptor.as_fd(), &mut events.list, timeout) {
            Ok(()) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(rustix::io::Errno::NOSYS) => {
                self.lacks_pwait2.store(true, Ordering::Relaxed);
                self.wait_milliseconds(events, timeout)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// As [`Epoll::wait`], by `epoll_pwait`.
    fn wait_milliseconds(&self, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        // The kernel writes libc's layout into the list, and rustix reads its own.
        const _: () = assert!(size_of::<epoll::Event>() == size_of::<libc::epoll_event>());
        let list = &mut events.list;
        list.clear();
        let capacity = libc::c_int::try_from(list.capacity()).unwrap_or(libc::c_int::MAX);
        // SAFETY: the list has capacity for `capacity` events, which rustix lays out as the kernel does; a
        // null mask leaves the signal mask unchanged.
        let count = unsafe {
            libc::epoll_pwait(
                self.descriptor.as_fd().as_raw_fd(),
                list.as_mut_ptr().cast(),
                capacity,
                milliseconds(timeout),
                std::ptr::null(),
            )
        };
        let Ok(count) = usize::try_from(count) else {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) };
        };
        // SAFETY: the kernel has written that many events, at most `capacity`.
        unsafe { list.set_len(count) };
        Ok(())
    }
}

/// The timeout of `epoll_pwait`; -1 is without limit. Rounded up: a wait that ends before its timer is due
/// would be repeated until then without sleeping.
fn milliseconds(timeout: Option<Duration>) -> libc::c_int {
    let Some(timeout) = timeout else { return -1 };
    let whole = timeout.as_secs().saturating_mul(1_000);
    let rounded_up = whole.saturating_add(u64::from(timeout.subsec_nanos().div_ceil(1_000_000)));
    libc::c_int::try_from(rounded_up).unwrap_or(libc::c_int::MAX)
}

/// A buffer for the events of one wait.
pub struct Events {
    list: Vec<epoll::Event>,
}

impl Events {
    /// A buffer for `capacity` events; further events stay in the kernel until the next wait.
    pub fn with_capacity(capacity: usize) -> Events {
        Events { list: Vec::with_capacity(capacity) }
    }

    /// The events of the last wait.
    pub fn iter(&self) -> impl Iterator<Item = Event> + '_ {
        self.list.iter().map(|event| {
            let (flags, data) = (event.flags, event.data);
            Event { token: data.u64(), readiness: Readiness::from_flags(flags) }
        })
    }
}

impl Readiness {
    /// Adds a later report.
    pub fn add(&mut self, later: Readiness) {
        self.readable |= later.readable;
        self.writable |= later.writable;
        self.end = self.end.max(later.end);
    }

    fn from_flags(flags: EventFlags) -> Readiness {
        let broken = EventFlags::ERR | EventFlags::HUP;
        // HUP without an error means that both directions have ended; RDHUP reports the one that is read.
        let end = if flags.contains(EventFlags::ERR) {
            StreamEnd::Broken
        } else if flags.contains(EventFlags::PRI) {
            StreamEnd::Urgent
        } else if flags.contains(EventFlags::RDHUP) {
            StreamEnd::Ended
        } else if flags.contains(EventFlags::HUP) {
            StreamEnd::Unclear
        } else {
            StreamEnd::Open
        };
        Readiness {
            readable: flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::PRI | broken),
            writable: flags.intersects(EventFlags::OUT | broken),
            end,
        }
    }
}

/// An eventfd by which another thread ends this thread's wait.
#[derive(Debug)]
pub struct WakeUp(OwnedFd);

impl WakeUp {
    /// A new eventfd, not signalled.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE` or `ENOMEM`.
    pub fn new() -> io::Result<WakeUp> {
        Ok(WakeUp(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Ends the wait that watches this descriptor, or the next one.
    pub fn signal(&self) {
        // The only failure is a counter near 2^64 signals: then the reader is awake already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Consumes all signals, so that a level-triggered watch reports no more.
    pub fn clear(&self) {
        // It fails only when there is no signal, which is what the caller wants.
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl AsFd for WakeUp {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worst_flag_decides_the_stream_end() {
        let end_of = |flags| Readiness::from_flags(flags).end;
        let end = EventFlags::IN | EventFlags::RDHUP;
        assert_eq!(end_of(EventFlags::IN | EventFlags::OUT), StreamEnd::Open);
        assert_eq!(end_of(end), StreamEnd::Ended);
        assert_eq!(end_of(end | EventFlags::HUP), StreamEnd::Ended);
        assert_eq!(end_of(end | EventFlags::PRI), StreamEnd::Urgent);
        assert_eq!(end_of(end | EventFlags::PRI | EventFlags::HUP | EventFlags::ERR), StreamEnd::Broken);
        let sorted =
            [StreamEnd::Open, StreamEnd::Ended, StreamEnd::Unclear, StreamEnd::Urgent, StreamEnd::Broken];
        assert!(sorted.is_sorted(), "an earlier report never hides a worse state");
    }

    #[test]
    fn wake_up_stays_readable_until_cleared() {
        let (epoll, wake_up) = (Epoll::new().unwrap(), WakeUp::new().unwrap());
        let mut events = Events::with_capacity(4);
        epoll.add(&wake_up, 0xdead_beef_0000_0001, Trigger::LevelRead).unwrap();
        epoll.wait(&mut events, Some(Duration::ZERO)).unwrap();
        assert_eq!(events.iter().count(), 0);

        wake_up.signal();
        wake_up.signal();
        for _ in 0..2 {
            epoll.wait(&mut events, None).unwrap();
            let event = events.iter().next().expect("a level-triggered source stays ready");
            assert_eq!(event.token, 0xdead_beef_0000_0001);
            assert!(event.readiness.readable);
        }
        wake_up.clear();
        epoll.wait(&mut events, Some(Duration::from_nanos(1))).unwrap();
        assert_eq!(events.iter().count(), 0);
    }

    #[test]
    fn milliseconds_are_rounded_up() {
        let cases = [
            (None, -1),
            (Some(Duration::ZERO), 0),
            (Some(Duration::from_nanos(1)), 1),
            (Some(Duration::from_millis(1)), 1),
            (Some(Duration::from_micros(1_001)), 2),
            (Some(Duration::MAX), i32::MAX),
        ];
        for (timeout, expected) in cases {
            assert_eq!(milliseconds(timeout), expected, "{timeout:?}");
        }
    }

    #[test]
    fn epoll_pwait_fallback_reports_the_same_events() {
        let (epoll, wake_up) = (Epoll::new().unwrap(), WakeUp::new().unwrap());
        epoll.lacks_pwait2.store(true, Ordering::Relaxed);
        let mut events = Events::with_capacity(4);
        epoll.add(&wake_up, 0xdead_beef_0000_0001, Trigger::LevelRead).unwrap();
        epoll.wait(&mut events, Some(Duration::from_nanos(1))).unwrap();
        assert_eq!(events.iter().count(), 0);
        wake_up.signal();
        epoll.wait(&mut events, None).unwrap();
        let tokens: Vec<u64> = events.iter().map(|event| event.token).collect();
        assert_eq!(tokens, [0xdead_beef_0000_0001]);
        wake_up.clear();
        epoll.wait(&mut events, Some(Duration::ZERO)).unwrap();
        assert_eq!(events.iter().count(), 0, "events of an earlier wait are gone");
    }

    #[test]
    fn deleted_source_reports_no_events() {
        let (epoll, wake_up) = (Epoll::new().unwrap(), WakeUp::new().unwrap());
        let mut events = Events::with_capacity(4);
        epoll.add(&wake_up, 1, Trigger::LevelRead).unwrap();
        wake_up.signal();
        epoll.delete(&wake_up).unwrap();
        epoll.wait(&mut events, Some(Duration::ZERO)).unwrap();
        assert_eq!(events.iter().count(), 0);
        assert!(epoll.delete(&wake_up).is_err());
    }
}
