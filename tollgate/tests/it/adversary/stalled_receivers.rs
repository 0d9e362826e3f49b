//! Receivers that read fast, and then nothing: each stops with a pipe full of bytes in flight.
//!
//! An attacker spends an admitted connection for each pipe, and so one of its user's `connections`, and gets
//! the use of a pipe for a second. Before, it had the pipe until `idle` ended the connection, and 64
//! connections left all other streams of a thread to be copied.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::thread;

use rustix::net::sockopt;

use crate::harness::{Gateway, eventually, with_timeouts};
use crate::peers::{Destination, connect_request, pattern, read_exactly, read_response, socket, tunnel};

/// More than a thread has pipes.
const STALLED: usize = 80;

/// Bytes that a receiver reads before it stops, and bytes that are sent to it.
const TAKEN_BYTES: usize = 300_000;
const SENT_BYTES: usize = 4_000_000;

/// Bytes of a download by the valid user.
const WHOLE_BYTES: usize = 3_000_000;

/// A tunnel to `destination` with small buffers, so that it stalls soon; it has read its bytes.
fn stall(gateway: &Gateway, destination: SocketAddr) -> TcpStream {
    let socket = socket();
    sockopt::set_socket_recv_buffer_size(&socket, 65_536).unwrap();
    socket2::SockRef::from(&socket).set_tcp_mss(1_448).unwrap();
    rustix::net::connect(&socket, &gateway.listeners[0]).unwrap();
    let mut client = with_timeouts(TcpStream::from(socket));
    client.write_all(connect_request(&destination.to_string()).as_bytes()).unwrap();
    assert_eq!(read_response(&mut client).status, 200);
    read_exactly(&mut client, TAKEN_BYTES);
    client
}

/// A destination that sends `bytes` to each client, and waits for its end.
fn sending(bytes: usize) -> Destination {
    let bytes = pattern(1, bytes);
    Destination::start(move |mut stream| {
        // Fails where the client stops for good.
        if stream.write_all(&bytes).is_ok() {
            let _ = stream.read(&mut [0]);
        }
    })
}

#[test]
fn stalled_receivers_leave_pipes_to_moving_streams() {
    let (slow, fast) = (sending(SENT_BYTES), sending(WHOLE_BYTES));
    let gateway = Gateway::local("[threads]\nreactors = 1\n");
    let expected = pattern(1, WHOLE_BYTES);
    let download = || {
        let mut client = tunnel(&gateway, fast.address);
        assert!(read_exactly(&mut client, WHOLE_BYTES) == expected);
    };
    download();
    let metric = |name: &str| gateway.metric(name).unwrap_or_else(|| panic!("no metric {name}"));
    // A pipe stays in the cache.
    let descriptors = || gateway.descriptors() as f64 - 2.0 * metric("tollgate_pipes_held");
    // From then on the ledger has all its files open. (`usage` already includes the journal before that.)
    eventually("the first download is in the database", || metric("tollgate_ledger_records_total") == 1.0);
    let (descriptors_before, memory_before) = (descriptors(), gateway.memory_bytes());

    let (sender, streams) = mpsc::channel();
    let stalled_receivers: Vec<TcpStream> = thread::scope(|scope| {
        for _ in 0..8 {
            let sender = sender.clone();
            let (gateway, slow) = (&gateway, slow.address);
            scope.spawn(move || (0..STALLED / 8).for_each(|_| sender.send(stall(gateway, slow)).unwrap()));
        }
        drop(sender);
        streams.iter().collect()
    });
    // No receiver reads any more.
    let mut before = -1.0;
    eventually("all receivers stall", || {
        let now = metric("tollgate_bytes_total");
        thread::sleep(std::time::Duration::from_millis(200));
        std::mem::replace(&mut before, now) == now
    });
    let lent_before = metric("tollgate_pipes_lent_total");
    // Each download is complete, whether it is spliced or copied.
    eventually("pipes are emptied, and a moving stream gets one", || {
        download();
        metric("tollgate_pipes_emptied_total") > 0.0 && metric("tollgate_pipes_lent_total") > lent_before
    });
    (0..20).for_each(|_| download());
    assert!(metric("tollgate_pending_bytes") > 0.0);

    drop(stalled_receivers);
    gateway.await_metric("tollgate_connections_active", 0.0);
    eventually("descriptors are closed again", || descriptors() <= descriptors_before);
    // Sixteen buffers of 64 KiB stay cached.
    assert!(metric("tollgate_pending_bytes") <= f64::from(16 * 64 * 1024));
    let kept = gateway.memory_bytes().saturating_sub(memory_before);
    assert!(kept < 16 << 20, "{kept} bytes are kept");
}
