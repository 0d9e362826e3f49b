//! `shared`: one socket that every thread watches, plainly: the herd, as servers had it before there was
//! better.

use std::io;
use std::net::SocketAddr;

use sys::epoll::Trigger;
use sys::socket::{ListenOptions, Listener};

use super::{Strategy, one_socket};

/// A connection wakes every thread that sleeps; one gets it, the others find nothing. Kept to be measured
/// against, with one accept a wake, as such servers did.
pub(super) struct Shared;

impl Strategy for Shared {
    fn name(&self) -> &'static str {
        "shared"
    }

    fn listen(
        &self,
        address: SocketAddr,
        options: ListenOptions,
        threads: usize,
    ) -> io::Result<Vec<Listener>> {
        one_socket(address, options, threads)
    }

    fn trigger(&self) -> Trigger {
        Trigger::LevelRead
    }

    fn accepts_per_wake_max(&self) -> u32 {
        1
    }
}
