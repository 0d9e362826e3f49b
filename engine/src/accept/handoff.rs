//! `handoff`: one socket; whoever is woken accepts, and hands each connection to the least loaded of itself
//! and two others. HAProxy's way (listener.c), without a lock and without a queue in which one thread can
//! stall another (`sys::mailbox`).

use std::io;
use std::net::SocketAddr;

use sys::epoll::Trigger;
use sys::socket::{ListenOptions, Listener};

use super::{Seat, Strategy, one_socket};

/// By how much another thread's load must be less for a connection to be handed to it: a hand-over costs a
/// wake where the other one sleeps, and a difference of a connection or two is none.
const MARGIN: u64 = 2;

/// See the file's header.
pub(super) struct Handoff;

impl Strategy for Handoff {
    fn name(&self) -> &'static str {
        "handoff"
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

    /// HAProxy's `tune.maxaccept` for threads that share a socket.
    fn accepts_per_wake_max(&self) -> u32 {
        4
    }

    /// The power of two choices (Mitzenmacher 1996): two samples come nearly as close to an even balance as a
    /// look at all would, and oneself is free of a hand-over.
    fn server(&self, seat: &Seat) -> usize {
        let Some(best) = seat.sample().into_iter().flatten().min_by_key(|other| seat.load(*other)) else {
            return seat.number();
        };
        if seat.load(best) + MARGIN < seat.load(seat.number()) { best } else { seat.number() }
    }
}
