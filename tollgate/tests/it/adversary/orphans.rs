//! Receivers that read nothing while their connections end: their user still pays for the bytes in the
//! kernel.
//!
//! The attack: a peer of a flow has the smallest receive buffer and never reads; the other peer sends what
//! the kernel takes for one socket, and ends. The flow ended in order, the user's connection was free again,
//! and the bytes stayed in the kernel for a minute or longer. One user with five connections left 40 sockets
//! and 80 MB in 2 s; some 1,100 of these sockets reach `tcp_mem`, the limit of the whole machine. **Cost**
//! now: one of the user's connections for each queue, for as long as it exists; or one of the 32 that a user
//! has beyond those for plain HTTP.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};

use rustix::net::sockopt;

use super::footprint::Footprint;
use super::valid_user::ValidUser;
use crate::harness::{Gateway, LOCAL_USER, eventually, with_timeouts};
use crate::origin::{Origin, ok, read_head, request_to};
use crate::peers::{Destination, connect_from, connect_request, socket};

/// Bytes to a peer that reads nothing: more than a socket's own buffers, less than the kernel takes.
const SENT_BYTES: usize = 200_000;

/// The attacker's address and connections.
const ATTACKER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 4);
const CONNECTIONS: usize = 4;

/// Plain HTTP connections of a user beyond their `connections`.
const SESSIONS_SPARE: usize = 32;

/// Bytes that a closed connection may leave without a permit: twice the amount below which the gateway does
/// not check.
const QUEUED_MIN: u64 = 2 * 32 * 1024;

/// Connections of one attack.
const ATTEMPTS: usize = 60;

/// A socket with the smallest receive buffer; the caller connects or binds it.
fn narrow_socket() -> std::os::fd::OwnedFd {
    let socket = socket();
    sockopt::set_socket_recv_buffer_size(&socket, 1).unwrap();
    socket
}

/// A client that will read nothing.
fn narrow_client(gateway: &Gateway) -> TcpStream {
    let socket = narrow_socket();
    rustix::net::bind(&socket, &SocketAddr::from((ATTACKER, 0))).unwrap();
    rustix::net::connect(&socket, &gateway.listeners[0]).unwrap();
    with_timeouts(TcpStream::from(socket))
}

/// A destination that will read nothing.
fn narrow_listener() -> TcpListener {
    let listener = narrow_socket();
    rustix::net::bind(&listener, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    rustix::net::listen(&listener, 64).unwrap();
    TcpListener::from(listener)
}

/// Reads the status of a response, and no byte more.
fn read_status(stream: &mut TcpStream) -> u16 {
    let mut line = [0; 12];
    stream.read_exact(&mut line).unwrap();
    std::str::from_utf8(&line[9..]).unwrap().parse().unwrap()
}

/// A socket of this machine, from `/proc/net/tcp`.
struct Row {
    local_port: u16,
    remote_port: u16,
    /// Bytes that its peer has not acknowledged.
    queued: u64,
    /// No process has it open any more.
    is_orphan: bool,
}

fn rows() -> Vec<Row> {
    let row = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let port = |address: &str| u16::from_str_radix(address.rsplit(':').next().unwrap(), 16).unwrap();
        let queued = u64::from_str_radix(fields[4].split(':').next().unwrap(), 16).unwrap();
        let (local_port, remote_port) = (port(fields[1]), port(fields[2]));
        Row { local_port, remote_port, queued, is_orphan: fields[9] == "0" }
    };
    std::fs::read_to_string("/proc/net/tcp").unwrap().lines().skip(1).map(row).collect()
}

/// Bytes that the kernel holds for sockets of this machine whose peers have not acknowledged them.
fn queued_bytes(matches: impl Fn(&Row) -> bool) -> u64 {
    rows().iter().filter(|row| matches(row)).map(|row| row.queued).sum()
}

/// The connections of an attack.
struct Attack<'a> {
    gateway: &'a Gateway,
    valid_user: ValidUser<'a>,
    /// The attacker's ends: none is read.
    held: Vec<TcpStream>,
}

impl Attack<'_> {
    /// Makes attempts by `attempt`, which returns the response's status. Expects that no more than
    /// `may_stand` leave a queue, and that the valid user is served.
    #[track_caller]
    fn run(&mut self, may_stand: usize, mut attempt: impl FnMut(&Gateway, &mut Vec<TcpStream>) -> u16) {
        let mut standing = 0;
        for number in 0..ATTEMPTS {
            match attempt(self.gateway, &mut self.held) {
                200 => standing += 1,
                status => assert_eq!(status, 429, "after {standing} that left a queue"),
            }
            if number % 10 == 0 {
                self.valid_user.check_served(10);
            }
        }
        assert!((1..=may_stand).contains(&standing), "{standing} left a queue, {may_stand} may");
        self.held.clear();
        // Nothing of the attacker's counts any more, so it may begin again.
        self.gateway.await_metric("tollgate_connections_closing", 0.0);
    }
}

impl Attack<'_> {
    /// Waits until the gateway has no client connection but closing ones, and the one that the valid user
    /// keeps.
    fn await_end(&self) {
        let port = self.gateway.listeners[0].port();
        let is_live = |row: &Row| row.local_port == port && row.remote_port != 0 && !row.is_orphan;
        eventually("the attackers' connections are over", || {
            let closing = self.gateway.metric("tollgate_connections_closing").unwrap();
            rows().iter().filter(|row| is_live(row)).count() as f64 <= closing + 1.0
        });
    }
}

/// Tunnels whose both sides end.
fn end_tunnels(attack: &mut Attack<'_>) {
    let sends = Destination::start(|mut stream| drop(stream.write_all(&vec![7; SENT_BYTES])));
    attack.run(CONNECTIONS, |gateway, held| {
        let mut client = narrow_client(gateway);
        client.write_all(connect_request(&sends.address.to_string()).as_bytes()).unwrap();
        let status = read_status(&mut client);
        client.shutdown(Shutdown::Write).unwrap();
        if status == 200 {
            gateway.await_close_line(client.local_addr().unwrap());
        }
        held.push(client);
        status
    });
}

/// Plain HTTP: the connection ends with the response; or it stays open, and the client ends it.
fn leave_responses_unread(attack: &mut Attack<'_>) {
    let responses = Destination::start(|mut stream| {
        while read_head(&mut stream).is_some() {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {SENT_BYTES}\r\n\r\n");
            let _ = stream.write_all(&[head.as_bytes(), &vec![7; SENT_BYTES]].concat());
        }
    });
    for (lines, may_stand) in
        [("Connection: close\r\n", CONNECTIONS), ("", CONNECTIONS + SESSIONS_SPARE + CONNECTIONS)]
    {
        attack.run(may_stand, |gateway, held| {
            let mut client = narrow_client(gateway);
            client.write_all(request_to(responses.address, "GET", "/", lines).as_bytes()).unwrap();
            let status = read_status(&mut client);
            if status == 200 {
                gateway.await_close_line(client.local_addr().unwrap());
            }
            client.shutdown(Shutdown::Write).unwrap();
            held.push(client);
            status
        });
    }
}

/// Uploads with a response before they were read.
fn leave_uploads_unread(attack: &mut Attack<'_>) {
    let listener = narrow_listener();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    attack.run(CONNECTIONS, |gateway, held| {
        let mut client = connect_from(ATTACKER, gateway.listeners[0]);
        let lines = format!("Content-Length: {SENT_BYTES}\r\n");
        let head = request_to(format!("127.0.0.1:{port}"), "POST", "/", &lines);
        // Fails where the request is refused and its rest is not read.
        let _ = client.write_all(&[head.as_bytes(), &vec![7; SENT_BYTES]].concat());
        client.set_nonblocking(true).unwrap();
        let mut upstream = None;
        eventually("the request is forwarded, or refused", || {
            upstream = upstream.take().or_else(|| listener.accept().ok());
            match &upstream {
                Some((_, peer)) => queued_bytes(|row| row.local_port == peer.port()) > SENT_BYTES as u64 / 2,
                None => client.peek(&mut [0]).is_ok(),
            }
        });
        if let Some((mut upstream, _)) = upstream {
            upstream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
            held.push(upstream);
        }
        client.set_nonblocking(false).unwrap();
        let status = read_status(&mut client);
        held.push(client);
        status
    });
}

/// The gateway's own responses, all unread: a user with one connection left 500 KB for each.
fn leave_refusals_unread(attack: &mut Attack<'_>) {
    let port = attack.gateway.listeners[0].port();
    let denied = request_to("192.0.2.1", "GET", "/", "").repeat(1500);
    for _ in 0..ATTEMPTS {
        let mut client = narrow_client(attack.gateway);
        // Fails once the gateway has reset a client that does not read.
        let _ = client.write_all(denied.as_bytes());
        let _ = client.shutdown(Shutdown::Write);
        attack.held.push(client);
    }
    attack.valid_user.check_served(10);
    attack.await_end();
    let left = queued_bytes(|row| row.local_port == port && row.is_orphan);
    assert!(left < QUEUED_MIN, "{left} bytes have no permit");
    attack.held.clear();
    attack.gateway.await_metric("tollgate_connections_closing", 0.0);
}

/// Uploads on a kept connection, each too small for the gateway to query the kernel.
fn leave_small_uploads_unread(attack: &mut Attack<'_>) {
    const REQUEST_BYTES: usize = 24_000;
    let listener = narrow_listener();
    let port = listener.local_addr().unwrap().port();
    listener.set_nonblocking(true).unwrap();
    let toward = |row: &Row| row.remote_port == port;
    let head =
        request_to(format!("127.0.0.1:{port}"), "POST", "/", &format!("Content-Length: {REQUEST_BYTES}\r\n"));
    let request = [head.as_bytes(), &[7; REQUEST_BYTES]].concat();
    let mut client = connect_from(ATTACKER, attack.gateway.listeners[0]);
    let mut upstreams: Vec<TcpStream> = Vec::new();
    let mut answered = 0;
    while answered < 12 {
        let before = queued_bytes(toward);
        client.write_all(&request).unwrap();
        client.set_nonblocking(true).unwrap();
        eventually("the request is forwarded, or refused", || {
            upstreams.extend(listener.accept().ok().map(|(upstream, _)| upstream));
            queued_bytes(toward) > before + REQUEST_BYTES as u64 / 2 || client.peek(&mut [0]).is_ok()
        });
        client.set_nonblocking(false).unwrap();
        upstreams.extend(listener.accept().ok().map(|(upstream, _)| upstream));
        let is_refused = client.set_nonblocking(true).is_ok() && client.peek(&mut [0]).is_ok();
        client.set_nonblocking(false).unwrap();
        if is_refused {
            break;
        }
        upstreams.last_mut().unwrap().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
        assert_eq!(read_head(&mut client).unwrap().get(9..12), Some("200"));
        answered += 1;
    }
    drop(client);
    attack.await_end();
    let left = queued_bytes(|row| toward(row) && row.is_orphan);
    assert!(left < QUEUED_MIN, "{left} bytes have no permit after {answered} uploads");
    drop((listener, upstreams));
    attack.gateway.await_metric("tollgate_connections_closing", 0.0);
}

#[test]
fn unreceived_bytes_hold_their_user_permit() {
    let (origin, echo) = (Origin::responding(ok("hello")), Destination::echo());
    let user = format!(
        "[[user]]\nname = \"bad\"\nfrom = [\"{ATTACKER}/32\"]\nallow = [\"127.0.0.0/8\"]\n\
         connections = {CONNECTIONS}\n"
    );
    let gateway = Gateway::start(&format!("{LOCAL_USER}{user}[threads]\nreactors = 2\n"));
    let mut valid_user = ValidUser::new(&gateway, &origin, &echo);
    valid_user.check_served(10);
    eventually("the ledger has its files open", || {
        gateway.metric("tollgate_ledger_records_total").unwrap() > 0.0
    });
    let before = Footprint::measure(&gateway);
    let mut attack = Attack { gateway: &gateway, valid_user, held: Vec::new() };

    end_tunnels(&mut attack);
    leave_responses_unread(&mut attack);
    leave_uploads_unread(&mut attack);
    leave_refusals_unread(&mut attack);
    leave_small_uploads_unread(&mut attack);

    drop(attack);
    before.await_return(&gateway);
}
