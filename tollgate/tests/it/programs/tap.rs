//! A relay between programs and the gateway that counts every byte in both directions, without parsing any.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::harness::{eventually, with_timeouts};
use crate::peers::Destination;

/// A counting relay to one gateway.
pub(crate) struct Tap {
    destination: Destination,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    /// Directions that have ended, two for each connection.
    ended: AtomicU64,
    up: AtomicU64,
    down: AtomicU64,
}

impl Tap {
    /// Starts a relay to `gateway`.
    pub(crate) fn before(gateway: SocketAddr) -> Tap {
        let counts = Arc::new(Counts::default());
        let counter = Arc::clone(&counts);
        let destination = Destination::start(move |client| {
            let gateway = with_timeouts(TcpStream::connect(gateway).unwrap());
            thread::scope(|scope| {
                scope.spawn(|| pass(&gateway, &client, &counter.down, &counter.ended));
                pass(&client, &gateway, &counter.up, &counter.ended);
            });
        });
        Tap { destination, counts }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.destination.address
    }

    /// Connections so far.
    pub(crate) fn accepted(&self) -> u64 {
        self.destination.accepted()
    }

    /// Bytes from and to programs, once all connections have ended.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let ended = || self.counts.ended.load(Ordering::SeqCst);
        eventually("all connections have ended", || ended() == 2 * self.accepted());
        (self.counts.up.load(Ordering::SeqCst), self.counts.down.load(Ordering::SeqCst))
    }
}

/// Forwards one direction until its end. A closed sink ends its source too.
fn pass(mut source: &TcpStream, mut sink: &TcpStream, count: &AtomicU64, ended: &AtomicU64) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = source.read(&mut buffer) {
        count.fetch_add(read as u64, Ordering::SeqCst);
        if sink.write_all(&buffer[..read]).is_err() {
            let _ = source.shutdown(Shutdown::Both);
            break;
        }
    }
    let _ = sink.shutdown(Shutdown::Write);
    ended.fetch_add(1, Ordering::SeqCst);
}
