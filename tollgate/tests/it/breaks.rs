//! Broken tunnels: a reset is forwarded as a reset, bytes before it are delivered, and a tunnel ends with
//! either of its ends.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, mpsc};
use std::thread;

use crate::harness::{Gateway, eventually};
use crate::peers::{Destination, check_ended, pattern, read_exactly, reset, tunnel};

/// More than the sockets of a tunnel store, usually.
const TOO_MUCH: usize = 24_000_000;

#[test]
fn reset_is_forwarded_as_a_reset() {
    let (report, reports) = mpsc::channel();
    let destination = Destination::start(move |mut stream| {
        if read_exactly(&mut stream, 1) == b"r" {
            reset(stream);
        } else {
            stream.write_all(b"!").unwrap();
            report.send(stream.read(&mut [0]).map_err(|error| error.kind())).unwrap();
        }
    });
    let gateway = Gateway::local("");

    let mut client = tunnel(&gateway, destination.address);
    client.write_all(b"r").unwrap();
    check_ended(&mut client, true);
    gateway.check_closed(client.local_addr().unwrap(), "upstream_reset");

    let mut client = tunnel(&gateway, destination.address);
    let address = client.local_addr().unwrap();
    client.write_all(b"x").unwrap();
    read_exactly(&mut client, 1);
    reset(client);
    assert_eq!(reports.recv().unwrap(), Err(ErrorKind::ConnectionReset));
    gateway.check_closed(address, "client_reset");
}

#[test]
fn response_before_an_upload_reset_is_delivered() {
    const ANSWER: &[u8] = b"HTTP/1.1 413 Content Too Large\r\n\r\n";
    let destination = Destination::start(|mut stream| {
        if read_exactly(&mut stream, 1_000_000)[0].is_multiple_of(2) {
            // With nothing unread the close is a FIN, and later bytes are answered by a reset: the response,
            // its end and the reset arrive almost at once.
            while rustix::io::ioctl_fionread(&stream).unwrap() > 0 {
                assert_ne!(stream.read(&mut [0; 65_536]).unwrap(), 0);
            }
        }
        stream.write_all(ANSWER).unwrap();
        // Closing with bytes unread is a reset.
    });
    let gateway = Gateway::local("");
    let body = pattern(6, TOO_MUCH);
    for round in 0..100 {
        let mut client = tunnel(&gateway, destination.address);
        let mut sender = client.try_clone().unwrap();
        thread::scope(|scope| {
            let upload = scope.spawn(|| sender.write_all(&[round]).and_then(|()| sender.write_all(&body)));
            assert_eq!(read_exactly(&mut client, ANSWER.len()), ANSWER, "round {round}");
            // Without an error the destination has read everything, or the sockets of the tunnel have stored
            // it: `tcp_rmem` lets some grow to 32 MiB.
            if let Err(error) = upload.join().unwrap() {
                assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe));
            }
        });
    }
}

/// Writes until the gateway has read nothing for as long as it needs to settle.
fn fill(client: &mut TcpStream) {
    let bytes = pattern(7, 1_000_000);
    client.set_nonblocking(true).unwrap();
    let mut full = 0;
    eventually("the sender is stopped", || {
        full = if client.write(&bytes).is_ok() { 0 } else { full + 1 };
        full > 20
    });
}

#[test]
fn client_reset_ends_a_tunnel_with_a_full_destination() {
    let (go, may_end) = mpsc::channel::<()>();
    let may_end = Mutex::new(may_end);
    let destination = Destination::start(move |_stream| may_end.lock().unwrap().recv().unwrap_or_default());
    let gateway = Gateway::local("");
    let mut client = tunnel(&gateway, destination.address);
    let address = client.local_addr().unwrap();
    fill(&mut client);
    reset(client);
    gateway.check_closed(address, "client_reset");
    drop(go);
}
