//! No timers at all: what the threads of the experiment, their loop and the transfer between them cost. It is
//! measured beside the timer implementations, and nothing fires.

use std::io;

use sys::clock::Nanos;

use super::sleep;
use super::timer_impl::{Sink, TimerImpl, User, Wakes};

/// An implementation without timers.
#[derive(Clone)]
pub(super) struct NoTimers;

impl TimerImpl for NoTimers {
    type User = NoUser;

    fn start(_sink: Sink) -> io::Result<Self> {
        Ok(Self)
    }

    fn enter(&self) -> NoUser {
        NoUser
    }

    fn wakes(&self) -> Option<Wakes> {
        None
    }
}

/// A thread's handle.
pub(super) struct NoUser;

impl User for NoUser {
    /// As large as that of the engine's timers.
    type Handle = [Nanos; 2];

    fn arm(&mut self, deadline: Nanos) -> io::Result<[Nanos; 2]> {
        Ok([deadline; 2])
    }

    fn cancel(&mut self, handle: [Nanos; 2]) -> bool {
        handle[0] == handle[1]
    }

    fn sleep_until(&mut self, until: Nanos) {
        sleep::until(until);
    }
}
