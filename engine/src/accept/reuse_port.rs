//! `reuse_port`: a socket per thread, the kernel picks one by a hash of the addresses and ports.

use std::io;
use std::net::SocketAddr;

use sys::epoll::Trigger;
use sys::socket::{ListenOptions, Listener};

use super::Strategy;

/// No thread ever touches another's queue, so it is free to take many connections at once.
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
        // Alone at first: with the option another process of ours may listen there already, and the kernel
        // would deal our clients out between the two.
        if address.port() != 0 {
            Listener::probe(address, options)?;
        }
        let options = ListenOptions { reuse_port: true, ..options };
        let first = Listener::bind(address, options)?;
        // Where the port was 0 the others must join the port that the first one got.
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
