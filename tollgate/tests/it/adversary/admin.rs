//! Connections to the admin side that send their request slowly, or never.
//!
//! Regression: 64 connections, each with a packet every five seconds, delayed every probe of `/healthz` for
//! as long, and a supervisor restarts a process that does not respond. Now a new connection evicts a waiting
//! one.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::footprint::Footprint;
use super::valid_user::StopOnDrop;
use crate::harness::{Gateway, TIMEOUT, eventually, with_timeouts};
use crate::peers::{Destination, check_echo, tunnel};

const PROBES: usize = 100;
const ATTACKERS: usize = 4;
/// All together more than the admin side's slots, and fewer than the 128 that may wait in the kernel: beyond
/// those the kernel drops SYNs, which clients repeat after seconds.
const CONNECTIONS_EACH: usize = 25;

/// Holds connections whose heads never end, and opens another one for each that is closed.
fn hold(admin: SocketAddr, is_over: &AtomicBool) {
    let open = || {
        let mut stream = with_timeouts(TcpStream::connect(admin).unwrap());
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHo").unwrap();
        stream.set_nonblocking(true).unwrap();
        stream
    };
    let is_held = |mut stream: &TcpStream| {
        stream.read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    };
    let mut held: Vec<TcpStream> = (0..CONNECTIONS_EACH).map(|_| open()).collect();
    while !is_over.load(Ordering::Relaxed) {
        held.retain(is_held);
        // At most 80 a second from all threads: a probe that takes most of a second keeps its slot.
        held.extend((held.len()..CONNECTIONS_EACH).take(1).map(|_| open()));
        thread::sleep(Duration::from_millis(50));
    }
}

fn is_healthy(admin: SocketAddr) -> bool {
    let mut response = String::new();
    let mut stream = with_timeouts(TcpStream::connect(admin).unwrap());
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").is_ok()
        && stream.read_to_string(&mut response).is_ok()
        && response.starts_with("HTTP/1.1 200 ")
}

#[test]
fn slow_connections_do_not_starve_the_probes() {
    let destination = Destination::echo();
    let gateway = Gateway::local("");
    let mut live = tunnel(&gateway, destination.address);
    assert!(is_healthy(gateway.admin));
    let before = Footprint::measure(&gateway);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        // Stops the attackers, also if an assertion fails.
        let _stop = StopOnDrop(&is_over);
        for _ in 0..ATTACKERS {
            scope.spawn(|| hold(gateway.admin, &is_over));
        }
        let sockets = || gateway.descriptors().saturating_sub(before.descriptors);
        eventually("every slot is taken", || sockets() >= 64);
        let deadline = Instant::now() + TIMEOUT;
        let probes = (0..PROBES).take_while(|_| Instant::now() < deadline);
        let healthy = probes.filter(|_| is_healthy(gateway.admin)).count();
        assert!(healthy * 100 >= PROBES * 99, "{healthy} of {PROBES} probes succeeded");
        check_echo(&mut live, b"still open");
    });
    before.await_return(&gateway);
}
