//! Slow receivers: as long as a receiver reads something its tunnel is not cut, however much is queued in the
//! kernel; a receiver that reads nothing is cut.
//!
//! Regression: a server sent 3 MB and closed, its client read 30 kB/s. After a minute (`half_closed`) the
//! client had less than 2 MB and a reset, and was billed for all. Deadlines considered the gateway's own
//! reads and writes, which had ended when the kernel had taken the last byte.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::net::{SendFlags, sockopt};
use rustix::process::Signal;

use crate::harness::{Gateway, LOCAL_USER, with_timeouts};
use crate::origin::{ok, read_head, read_response_to, request_to};
use crate::peers::{
    Destination, connect_request, pattern, read_exactly, read_response, reset, socket, tunnel,
};

/// A slow transfer takes nearly twice as long, in forty reads.
const DEADLINES: &str = "[timeouts]\nidle = \"4s\"\nhalf_closed = \"4s\"\n";

/// The pause between two steps of a receiver. Nothing waits for it: it only makes the receiver slow.
const STEP: Duration = Duration::from_millis(100);

/// Steps in which a slow receiver reads all.
const STEPS: usize = 70;

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Toward {
    Client,
    Destination,
}

/// The end that closes its direction while bytes are in flight.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum HalfClosed {
    Neither,
    Sender,
    Receiver,
    Both,
}

/// How much is sent, and how fast the receiver reads it.
#[derive(Clone, Copy, Debug)]
struct Pace {
    bytes: usize,
    step: usize,
    /// The receive buffer (`SO_RCVBUF`): so small that the receiver acknowledges as it reads.
    receive_buffer: usize,
    /// Begins with an urgent byte, behind which nothing is spliced.
    is_copied: bool,
}

impl Pace {
    const fn new(bytes: usize, receive_buffer: usize) -> Pace {
        Pace { bytes, step: bytes.div_ceil(STEPS), receive_buffer, is_copied: false }
    }
}

const PACES: [Pace; 7] = [
    // 1 kB/s, 25 kB/s, 140 kB/s, which all wait in the kernel. A receiver's kernel opens the window when half
    // of the buffer is free: the slowest has the smallest buffer, 2 kB.
    Pace::new(7_000, 1),
    Pace::new(175_000, 16_384),
    Pace::new(1_000_000, 65_536),
    Pace { is_copied: true, ..Pace::new(1_000_000, 65_536) },
    // More than the kernel takes for one socket: some waits in the gateway.
    Pace { step: 10_000, ..Pace::new(6_000_000, 65_536) },
    Pace { step: 10_000, is_copied: true, ..Pace::new(6_000_000, 65_536) },
    // 10 MB/s.
    Pace { step: 1_000_000, ..Pace::new(10_000_000, 262_144) },
];

/// One transfer: a sender and a receiver with a tunnel between them.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    toward: Toward,
    half_closed: HalfClosed,
    pace: Pace,
}

/// Both ends of a transfer's tunnel.
struct Tunnel {
    client: SocketAddr,
    sender: TcpStream,
    receiver: TcpStream,
}

impl Transfer {
    /// A listening destination, and a connected client; the receiver has a small buffer.
    fn both_ends(&self, gateway: &Gateway) -> (TcpListener, TcpStream) {
        let narrow = || {
            let socket = socket();
            sockopt::set_socket_recv_buffer_size(&socket, self.pace.receive_buffer).unwrap();
            // As on a network: where a window is smaller than a segment, as on loopback, the kernel sends
            // into it by a timer that doubles each time.
            socket2::SockRef::from(&socket).set_tcp_mss(536).unwrap();
            socket
        };
        let destination = match self.toward {
            Toward::Client => TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap(),
            Toward::Destination => {
                let listener = narrow();
                rustix::net::bind(&listener, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
                rustix::net::listen(&listener, 16).unwrap();
                TcpListener::from(listener)
            }
        };
        let client = match self.toward {
            Toward::Client => {
                let client = narrow();
                rustix::net::connect(&client, &gateway.listeners[0]).unwrap();
                with_timeouts(TcpStream::from(client))
            }
            Toward::Destination => gateway.connect(),
        };
        (destination, client)
    }

    /// Opens the tunnel.
    fn open(&self, gateway: &Gateway) -> Tunnel {
        let (destination, mut client) = self.both_ends(gateway);
        let address = destination.local_addr().unwrap().to_string();
        client.write_all(connect_request(&address).as_bytes()).unwrap();
        assert_eq!(read_response(&mut client).status, 200);
        let upstream = with_timeouts(destination.accept().unwrap().0);
        let address = client.local_addr().unwrap();
        match self.toward {
            Toward::Client => Tunnel { client: address, sender: upstream, receiver: client },
            Toward::Destination => Tunnel { client: address, sender: client, receiver: upstream },
        }
    }

    /// Sends all, and keeps the connection until the receiver is done.
    fn send(&self, mut sender: TcpStream, bytes: &[u8], done: mpsc::Receiver<()>) {
        if self.pace.is_copied {
            rustix::net::send(&sender, b"!", SendFlags::OOB).unwrap();
        }
        // Fails where the gateway ends a transfer: the receiver reports it.
        if sender.write_all(bytes).is_ok()
            && matches!(self.half_closed, HalfClosed::Sender | HalfClosed::Both)
        {
            let _ = sender.shutdown(Shutdown::Write);
        }
        let _ = done.recv();
    }

    /// Reads all: slowly for `steps` steps, then as it arrives.
    fn receive(&self, receiver: &mut TcpStream, bytes: &[u8], steps: usize) -> Result<(), String> {
        let (mut slow, fast) = bytes.split_at(bytes.len().min(self.pace.step * steps));
        while !slow.is_empty() {
            let (step, rest) = slow.split_at(self.pace.step.min(slow.len()));
            take(receiver, step).map_err(|error| format!("{error} with {} bytes to come", slow.len()))?;
            slow = rest;
            thread::sleep(STEP);
        }
        take(receiver, fast)?;
        self.check_end(receiver)
    }

    /// Expects an orderly end, where the sender ended.
    fn check_end(&self, receiver: &mut TcpStream) -> Result<(), String> {
        match self.half_closed {
            HalfClosed::Neither | HalfClosed::Receiver => Ok(()),
            HalfClosed::Sender | HalfClosed::Both => match receiver.read(&mut [0]) {
                Ok(0) => Ok(()),
                other => Err(format!("{other:?} in place of the end")),
            },
        }
    }

    /// Runs the transfer; the error names what was wrong.
    fn run(&self, gateway: &Gateway) -> Result<(), String> {
        let bytes = pattern(1, self.pace.bytes);
        let Tunnel { client, sender, mut receiver } = self.open(gateway);
        if matches!(self.half_closed, HalfClosed::Receiver | HalfClosed::Both) {
            receiver.shutdown(Shutdown::Write).unwrap();
        }
        let (done_sender, done) = mpsc::channel();
        thread::scope(|scope| {
            let bytes = &bytes;
            scope.spawn(move || self.send(sender, bytes, done));
            let received = self.receive(&mut receiver, bytes, STEPS);
            drop((receiver, done_sender));
            received
        })?;
        let line = gateway.await_close_line(client);
        let billed = (line["client_tx"].as_u64(), line["upstream_tx"].as_u64());
        let count = Some(self.pace.bytes as u64);
        let expected = if self.toward == Toward::Client { (count, Some(0)) } else { (Some(0), count) };
        if billed == expected { Ok(()) } else { Err(format!("billed {line}")) }
    }
}

/// Reads as many bytes as are `expected`, and compares them.
fn take(receiver: &mut TcpStream, expected: &[u8]) -> Result<(), String> {
    let mut taken = vec![0; expected.len()];
    receiver.read_exact(&mut taken).map_err(|error| error.to_string())?;
    if taken == expected { Ok(()) } else { Err("other bytes than were sent".to_owned()) }
}

/// Runs all `transfers` at once; fails with the error of each.
#[track_caller]
fn check_all(
    transfers: impl Iterator<Item = Transfer>,
    check: impl Fn(&Transfer) -> Result<(), String> + Sync,
) {
    let check = &check;
    let wrong: Vec<String> = thread::scope(|scope| {
        let runs = transfers.map(|transfer| {
            let run = scope.spawn(move || check(&transfer));
            (transfer, run)
        });
        let runs: Vec<_> = runs.collect();
        let ended = runs.into_iter().map(|(transfer, run)| (transfer, run.join().unwrap()));
        ended.filter_map(|(transfer, end)| Some(format!("{transfer:?}: {}", end.err()?))).collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Every direction with every combination of half-closes.
fn directions(half_closed: &[HalfClosed]) -> impl Iterator<Item = (Toward, HalfClosed)> {
    let toward = [Toward::Client, Toward::Destination];
    toward.into_iter().flat_map(|toward| half_closed.iter().map(move |half_closed| (toward, *half_closed)))
}

#[test]
fn slow_receiver_is_sent_and_billed_all_bytes() {
    let mut gateway = Gateway::local(DEADLINES);
    let transfers =
        directions(&[HalfClosed::Neither, HalfClosed::Sender, HalfClosed::Receiver, HalfClosed::Both])
            .flat_map(|(toward, half_closed)| PACES.map(|pace| Transfer { toward, half_closed, pace }));
    check_all(transfers, |transfer| transfer.run(&gateway));
    assert!(gateway.metric("tollgate_pipes_created_total") > Some(0.0), "some bytes were spliced");
    gateway.stop();
    let bytes = 4 * PACES.iter().map(|pace| pace.bytes as u64).sum::<u64>();
    assert_eq!(gateway.usage(), (8 * PACES.len() as u64, bytes, bytes));
}

#[test]
fn stalled_receiver_ends_and_kernel_delivers_the_rest() {
    let gateway = Gateway::local(DEADLINES);
    let paces = [Pace::new(200_000, 65_536), Pace::new(10_000_000, 65_536)];
    let transfers = directions(&[HalfClosed::Neither, HalfClosed::Sender, HalfClosed::Receiver])
        .flat_map(|(toward, half_closed)| paces.map(|pace| Transfer { toward, half_closed, pace }));
    check_all(transfers, |transfer| {
        let bytes = pattern(1, transfer.pace.bytes);
        let Tunnel { client, sender, mut receiver } = transfer.open(&gateway);
        if transfer.half_closed == HalfClosed::Receiver {
            receiver.shutdown(Shutdown::Write).unwrap();
        }
        let (done_sender, done) = mpsc::channel();
        thread::scope(|scope| {
            let bytes = &bytes;
            scope.spawn(move || transfer.send(sender, bytes, done));
            // The receiver cannot know the end of bytes that the gateway itself could not send.
            let is_whole = transfer.half_closed == HalfClosed::Sender && transfer.pace.bytes < 1_000_000;
            let is_half_closed = transfer.half_closed == HalfClosed::Receiver || is_whole;
            let expected = if is_half_closed { "half_closed_timeout" } else { "idle_timeout" };
            let reason = gateway.await_close_line(client)["close_reason"].as_str().map(str::to_owned);
            drop(done_sender);
            if reason.as_deref() != Some(expected) {
                return Err(format!("{reason:?} in place of {expected}"));
            }
            if is_whole { transfer.receive(&mut receiver, bytes, 0) } else { Ok(()) }
        })
    });
}

/// Checks that a receiver gets all bytes and their end, where the sender has half-closed and then `end` ends
/// the tunnel for `reason`.
#[track_caller]
fn check_whole(toward: Toward, timeouts: &str, reason: &str, end: impl FnOnce(&Gateway, TcpStream)) {
    let gateway = Gateway::local(timeouts);
    let transfer = Transfer { toward, half_closed: HalfClosed::Sender, pace: Pace::new(200_000, 16_384) };
    let bytes = pattern(1, transfer.pace.bytes);
    let Tunnel { client, mut sender, mut receiver } = transfer.open(&gateway);
    sender.write_all(&bytes).unwrap();
    sender.shutdown(Shutdown::Write).unwrap();
    // Received and sent.
    gateway.await_metric("tollgate_bytes_total", 2.0 * bytes.len() as f64);
    end(&gateway, sender);
    let line = gateway.await_close_line(client);
    let leg = if toward == Toward::Client { "client_tx" } else { "upstream_tx" };
    assert_eq!((line["close_reason"].as_str(), &line[leg]), (Some(reason), &bytes.len().into()));
    transfer.receive(&mut receiver, &bytes, 10).unwrap();
}

#[test]
fn bytes_before_a_fin_arrive_however_the_tunnel_ends() {
    thread::scope(|scope| {
        for toward in [Toward::Client, Toward::Destination] {
            scope.spawn(move || {
                check_whole(toward, "[timeouts]\nlifetime = \"2s\"\n", "lifetime_timeout", |_, sender| {
                    // Keeps the socket open, so that the lifetime ends the tunnel.
                    std::mem::forget(sender);
                });
            });
            scope.spawn(move || {
                check_whole(toward, "", "policy_changed", |gateway, _sender| {
                    gateway.reload(&LOCAL_USER.replace("name = \"me\"", "name = \"me\"\ndisabled = true"));
                });
            });
            scope.spawn(move || {
                check_whole(toward, "[timeouts]\ndrain = \"0s\"\n", "drained", |gateway, _sender| {
                    gateway.signal(Signal::TERM);
                });
            });
        }
        // An upload behind which the client resets.
        scope.spawn(|| check_whole(Toward::Destination, "", "client_reset", |_, sender| reset(sender)));
    });
}

#[test]
fn half_closed_tunnel_deadline_starts_at_half_close() {
    let destination = Destination::start(|mut stream| {
        // The response is known once the client has ended, and takes time.
        let _ = stream.read_to_end(&mut Vec::new());
        thread::sleep(3 * STEP);
        let _ = stream.write_all(b"answer");
    });
    let gateway = Gateway::local("[timeouts]\nhalf_closed = \"2s\"\n");
    let silent = Duration::from_millis(2_500);
    let mut client = tunnel(&gateway, destination.address);
    thread::sleep(silent);
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_exactly(&mut client, 6), b"answer");
    gateway.check_closed(client.local_addr().unwrap(), "client_closed");
}

#[test]
fn half_closed_request_deadline_starts_at_half_close() {
    let destination = Destination::start(|mut stream| {
        read_head(&mut stream).unwrap();
        // Longer than the client waits before its end.
        thread::sleep(40 * STEP);
        let _ = stream.write_all(&ok("answer"));
    });
    let gateway = Gateway::local("[timeouts]\nhalf_closed = \"3s\"\n");
    let mut client = gateway.connect();
    client.write_all(request_to(destination.address, "GET", "/", "").as_bytes()).unwrap();
    thread::sleep(35 * STEP);
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_response_to("GET", &mut client).text(), "answer");
}

#[test]
fn bytes_during_a_pause_prevent_the_idle_timeout() {
    let destination = Destination::echo();
    let gateway = Gateway::local("[timeouts]\nidle = \"1s\"\n");
    let mut clients: Vec<TcpStream> = (0..16).map(|_| tunnel(&gateway, destination.address)).collect();
    gateway.pause();
    clients.iter_mut().for_each(|client| client.write_all(b"meanwhile").unwrap());
    thread::sleep(Duration::from_millis(1_500));
    gateway.resume();
    clients.iter_mut().for_each(|client| assert_eq!(read_exactly(client, 9), b"meanwhile"));
}

/// Checks a plain request whose body, or that of its response, is read at this pace.
#[track_caller]
fn check_body(toward: Toward, pace: Pace) {
    let transfer = Transfer { toward, half_closed: HalfClosed::Neither, pace };
    let bytes = pattern(1, pace.bytes);
    let gateway = Gateway::local(DEADLINES);
    let (listener, mut client) = transfer.both_ends(&gateway);
    let address = listener.local_addr().unwrap();
    let length = format!("Content-Length: {}\r\n", bytes.len());
    let request_line = if toward == Toward::Destination { ("POST", &*length) } else { ("GET", "") };
    client.write_all(request_to(address, request_line.0, "/", request_line.1).as_bytes()).unwrap();
    let mut upstream = with_timeouts(listener.accept().unwrap().0);
    read_head(&mut upstream).unwrap();
    thread::scope(|scope| {
        let bytes = &bytes;
        if toward == Toward::Destination {
            let mut sender = client.try_clone().unwrap();
            scope.spawn(move || sender.write_all(bytes));
            transfer.receive(&mut upstream, bytes, STEPS).unwrap();
            upstream.write_all(&ok("taken")).unwrap();
            assert_eq!(read_response_to("POST", &mut client).text(), "taken");
        } else {
            scope.spawn(move || {
                let head = format!("HTTP/1.1 200 OK\r\n{length}\r\n");
                let _ = upstream.write_all(&[head.as_bytes(), bytes].concat());
            });
            read_head(&mut client).unwrap();
            transfer.receive(&mut client, bytes, STEPS).unwrap();
        }
    });
    gateway.check_closed(client.local_addr().unwrap(), "completed");
}

/// Regression: the client sent on behind its last request, as a pipeline does, and read in turn. The gateway
/// read the connection for two seconds and then closed it with bytes unread: the reset discarded the rest of
/// the response.
#[test]
fn last_response_arrives_though_the_client_sends_on() {
    let transfer = Transfer {
        toward: Toward::Client,
        half_closed: HalfClosed::Sender,
        pace: Pace::new(1_000_000, 65_536),
    };
    let bytes = pattern(1, transfer.pace.bytes);
    let gateway = Gateway::local("");
    let (listener, mut client) = transfer.both_ends(&gateway);
    let request = request_to(listener.local_addr().unwrap(), "GET", "/", "Connection: close\r\n");
    client.write_all(format!("{request}more").as_bytes()).unwrap();
    let mut upstream = with_timeouts(listener.accept().unwrap().0);
    read_head(&mut upstream).unwrap();
    thread::scope(|scope| {
        let bytes = &bytes;
        scope.spawn(move || {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", bytes.len());
            let _ = upstream.write_all(&[head.as_bytes(), bytes].concat());
        });
        read_head(&mut client).unwrap();
        for step in bytes.chunks(transfer.pace.step) {
            // More than buffers hold: the client reads once all of it is sent.
            client.write_all(&[b'x'; 150_000]).unwrap();
            take(&mut client, step).unwrap();
            thread::sleep(STEP);
        }
        transfer.check_end(&mut client).unwrap();
    });
}

#[test]
fn slowly_received_body_arrives_whole() {
    let large = Pace { step: 10_000, ..Pace::new(6_000_000, 65_536) };
    thread::scope(|scope| {
        for (toward, pace) in [
            (Toward::Client, large),
            (Toward::Destination, large),
            (Toward::Destination, Pace::new(7_000, 1)),
            (Toward::Destination, Pace::new(1_000_000, 65_536)),
        ] {
            scope.spawn(move || check_body(toward, pace));
        }
    });
}
