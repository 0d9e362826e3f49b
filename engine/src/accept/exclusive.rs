//! `exclusive`: one socket that every thread watches with EPOLLEXCLUSIVE; one of them is woken.

use std::io;
use std::net::SocketAddr;

use sys::epoll::Trigger;
use sys::socket::{ListenOptions, Listener};

use super::{Strategy, one_socket};

/// Takes few connections at once: what one thread leaves, an idle one picks up.
pub(super) struct Exclusive;

impl Strategy for Exclusive {
    fn name(&self) -> &'static str {
        "exclusive"
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
        Trigger::LevelReadExclusive
    }

    fn accepts_per_wake_max(&self) -> u32 {
        4
    }
}
