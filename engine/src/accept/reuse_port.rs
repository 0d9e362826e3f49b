//! `reuse_port`: one socket for each thread; the kernel selects one by a hash of addresses and ports.

use std::io;
use std::net::SocketAddr;

use sys::epoll::Trigger;
use sys::socket::{ListenOptions, Listener};

use super::Strategy;

/// No thread touches another's queue, so it can accept many connections at once.
pub(super) struct ReusePort;

impl Strategy for ReusePort {
    fn name(&self) -> &'static str {
        "reuse_port"
    }

    fn listen(
        &self,
        address: SocketAddr,
        options: ListenOptions,
        threads: usize,
    ) -> io::Result<Vec<Listener>> {
        // Bind without the option first: with it another process of the same user may listen there already,
        // and the kernel would split our clients between the two.
        if address.port() != 0 {
            Listener::probe(address, options)?;
        }
        let options = ListenOptions { reuse_port: true, ..options };
        let first = Listener::bind(address, options)?;
        // With port 0 the others must join the port that the first one got.
        let address = first.local()?;
        let others = (1..threads).map(|_| Listener::bind(address, options));
        std::iter::once(Ok(first)).chain(others).collect()
    }

    fn trigger(&self) -> Trigger {
        Trigger::LevelRead
    }

    fn accepts_per_wake_max(&self) -> u32 {
        64
    }
}
