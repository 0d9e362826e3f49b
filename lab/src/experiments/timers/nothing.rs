//! No timers at all: what the threads of the experiment, their loop and their hand-over cost. It is measured
//! beside the ways that keep timers, and is none of them: nothing fires.

use std::io;

use sys::clock::Nanos;

use super::facility::{Facility, Sink, User, Wakes};
use super::sleep;

/// See the file's header.
#[derive(Clone)]
pub(super) struct Nothing;

impl Facility for Nothing {
    type User = Nobody;

    fn start(_sink: Sink) -> io::Result<Self> {
        Ok(Self)
    }

    fn enter(&self) -> Nobody {
        Nobody
    }

    fn wakes(&self) -> Option<Wakes> {
        None
    }
}

/// A thread's end.
pub(super) struct Nobody;

impl User for Nobody {
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
