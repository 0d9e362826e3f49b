//! A simulated epoll instance: the sources that it watches.

use std::os::fd::RawFd;

use rustix::event::epoll::{Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Object, State};

/// Watched sources, in the order of their registration.
#[derive(Default)]
pub(super) struct InterestList {
    pub(super) entries: Vec<Interest>,
}

/// A watched source.
#[derive(Clone, Copy)]
pub(super) struct Interest {
    pub(super) descriptor: RawFd,
    pub(super) object: Object,
    pub(super) token: u64,
    pub(super) flags: EventFlags,
    /// Whether the source changed since its readiness was last reported, or found missing.
    pub(super) has_changed: bool,
}

impl InterestList {
    /// Notes a change of `object`.
    pub(super) fn wake(&mut self, object: Object) {
        let watched = self.entries.iter_mut().filter(|entry| entry.object == object);
        watched.for_each(|entry| entry.has_changed = true);
    }

    /// Whether a wait would report an event.
    pub(super) fn has_events(&self, state: &State) -> bool {
        self.entries.iter().any(|entry| entry.may_report() && !entry.readiness(state).is_empty())
    }
}

impl Interest {
    /// Whether a wait looks at the source: always, or once for each change if it is edge triggered.
    pub(super) fn may_report(&self) -> bool {
        self.has_changed || !self.flags.contains(EventFlags::ET)
    }

    /// What it would report.
    pub(super) fn readiness(&self, state: &State) -> EventFlags {
        let wanted = self.flags | EventFlags::ERR | EventFlags::HUP;
        wanted & readiness(state, self.object)
    }

    /// The event with these flags.
    pub(super) fn event(&self, flags: EventFlags) -> Event {
        Event { flags, data: EventData::new_u64(self.token) }
    }
}

/// What epoll and poll report of `object`.
pub(super) fn readiness(state: &State, object: Object) -> EventFlags {
    let when = |is_ready: bool| if is_ready { EventFlags::IN } else { EventFlags::empty() };
    match object {
        Object::Stream(number) => state.streams[number].readiness(),
        Object::Listener(number) => when(!state.listeners[number].accept_queue.is_empty()),
        Object::Pipe(number) => when(!state.pipes[number].bytes.is_empty()),
        Object::Epoll(_) => EventFlags::empty(),
        Object::Real(descriptor) => {
            // SAFETY: the descriptor is watched, so its owner has it open: it is removed or closed with its
            // registration.
            let source = unsafe { std::os::fd::BorrowedFd::borrow_raw(descriptor) };
            when(poll(&mut [PollFd::new(&source, PollFlags::IN)], Some(&Timespec::default())) == Ok(1))
        }
    }
}
