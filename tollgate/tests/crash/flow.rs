//! A flow: a client's connection through the gateway and, at the other end, the origin's.
//!
//! Guarantees: every flow has a client address and a destination address that no other flow of the run has,
//! so ledger, send audit and origin can be matched. Each end counts the payload that its own calls sent and
//! received. `load` polls it, and `oracle` judges the counts.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::rng::Rng;
use crate::traffic::{Finish, Side, Traffic};

/// Small, so that a slow reader is one for the gateway too.
pub(crate) const RECEIVE_BUFFER_BYTES: usize = 64 * 1024;

/// How often an end has the segment size of a wide area network. With 64 KiB segments of the loopback, the
/// gateway's kernel takes megabytes before a short write, which few flows would live to see.
pub(crate) const SMALL_SEGMENTS_PERCENT: u64 = 70;
const SMALL_SEGMENT_BYTES: u32 = 1_400;

/// Limits the segments of the peer. To be called before the handshake, which negotiates them.
pub(crate) fn set_small_segments(socket: impl AsFd) -> std::io::Result<()> {
    socket2::SockRef::from(&socket).set_tcp_mss(SMALL_SEGMENT_BYTES)
}

/// Addresses of clients are 127.128.0.0/9, those of destinations 127.0.0.0/9 without its first 65,536.
const CLIENTS: u32 = 0x7f80_0000;
const DESTINATIONS: u32 = 0x7f01_0000;
/// Flows that can have an address of their own.
pub(crate) const FLOWS_MAX: u32 = 0x7e_0000;

/// The source address of a flow's client.
pub(crate) fn client_address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(CLIENTS + 1 + number)
}

/// The destination address of a flow.
pub(crate) fn destination_address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(DESTINATIONS + number)
}

/// The flow whose client has this address.
pub(crate) fn number_of_client(address: IpAddr) -> Option<u32> {
    number_from(address, CLIENTS + 1)
}

/// The flow with this destination.
pub(crate) fn number_of_destination(address: IpAddr) -> Option<u32> {
    number_from(address, DESTINATIONS)
}

fn number_from(address: IpAddr, first: u32) -> Option<u32> {
    let IpAddr::V4(address) = address else { return None };
    u32::from(address).checked_sub(first).filter(|number| *number < FLOWS_MAX)
}

/// One end of a flow, and its counts.
pub(crate) struct Endpoint {
    /// `None` once it is closed.
    stream: Option<TcpStream>,
    side: Side,
    /// Sent before the payload: a client's request, or the head of an origin's response.
    request: Vec<u8>,
    /// Bytes that may come out at the other end for it: the gateway rewrites an HTTP head.
    head_bytes_max: u64,
    /// Bytes of the gateway's response that have not arrived yet.
    response_left: usize,
    /// The part of the response that has arrived.
    response: Vec<u8>,
    next_write: Instant,
    next_read: Instant,
    /// Payload.
    sent: u64,
    /// Payload.
    pub(crate) received: u64,
    /// The peer has ended in order: all that it ever sent was received.
    pub(crate) is_whole: bool,
    reads: bool,
    writes: bool,
}

impl Endpoint {
    fn new(
        stream: TcpStream,
        side: Side,
        kind: RequestKind,
        request: Vec<u8>,
        response_left: usize,
    ) -> Endpoint {
        let now = Instant::now();
        let head_bytes_max = if kind == RequestKind::Request { request.len() + HEAD_GROWTH_MAX } else { 0 };
        Endpoint {
            stream: Some(stream),
            side,
            head_bytes_max: head_bytes_max as u64,
            request,
            response_left,
            response: Vec::new(),
            next_write: now,
            next_read: now,
            sent: 0,
            received: 0,
            is_whole: false,
            reads: true,
            writes: true,
        }
    }

    /// The origin's end of a flow with this traffic.
    fn origin(stream: TcpStream, traffic: &Traffic, kind: RequestKind) -> Endpoint {
        Endpoint::new(stream, traffic.origin, kind, kind.response(traffic), 0)
    }

    /// Payload that may have gone in at this end, with its head where that goes through the gateway too.
    pub(crate) fn offered(&self) -> u64 {
        self.sent + self.head_bytes_max
    }

    pub(crate) fn stream(&self) -> Option<&TcpStream> {
        self.stream.as_ref()
    }

    /// Whether it is closed, in order or not.
    pub(crate) fn is_over(&self) -> bool {
        self.stream.is_none()
    }

    /// Whether more may arrive.
    pub(crate) fn reads(&self) -> bool {
        self.reads
    }

    /// Whether the gateway's response has arrived, or never will.
    pub(crate) fn is_answered(&self) -> bool {
        let has_response = self.head_bytes_max == 0 || self.received > 0;
        self.response_left == 0 && has_response || !self.reads
    }

    /// Whether it wants to read, and to write, now.
    pub(crate) fn wants(&self, now: Instant) -> (bool, bool) {
        let has_more = self.sent < self.side.bytes || self.side.finish != Finish::Stay;
        let may_write = !self.request.is_empty() || (has_more && self.may_send());
        (self.reads && now >= self.next_read, self.writes && may_write && now >= self.next_write)
    }

    /// Reads once; with `all`, everything that is available.
    pub(crate) fn read(&mut self, scratch: &mut [u8], all: bool) {
        while let Some(stream) = self.stream.as_mut().filter(|_| self.reads) {
            let limit = if all { scratch.len() } else { self.side.read_bytes.min(scratch.len()) };
            let limit = if self.response_left > 0 { self.response_left } else { limit };
            match stream.read(&mut scratch[..limit]) {
                Ok(0) => {
                    self.is_whole = true;
                    self.direction_ended(false);
                }
                Ok(count) => self.receive(&scratch[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.close(),
            }
            if !all {
                self.next_read = Instant::now() + self.side.read_pause;
                return;
            }
        }
    }

    fn receive(&mut self, bytes: &[u8]) {
        if self.response_left == 0 {
            self.received += bytes.len() as u64;
            return;
        }
        self.response.extend_from_slice(bytes);
        self.response_left -= bytes.len();
        if self.response_left == 0 {
            assert_established(&self.response);
        }
    }

    /// Writes once, and finishes behind the last byte.
    pub(crate) fn write(&mut self, payload: &[u8]) {
        let Some(mut stream) = self.stream.as_ref().filter(|_| self.writes) else { return };
        if !self.request.is_empty() {
            match stream.write(&self.request) {
                Ok(count) => drop(self.request.drain(..count)),
                Err(error) if is_retryable(error.kind()) => return,
                Err(_) => return self.close(),
            }
        }
        let left = usize::try_from(self.side.bytes - self.sent).unwrap_or(usize::MAX);
        if self.may_send() && left > 0 {
            match stream.write(&payload[..self.side.write_bytes.min(left)]) {
                Ok(count) => self.sent += count as u64,
                Err(error) if is_retryable(error.kind()) => return,
                Err(_) => return self.close(),
            }
            self.next_write = Instant::now() + self.side.write_pause;
        }
        if self.sent == self.side.bytes && self.request.is_empty() {
            self.finish();
        }
    }

    fn may_send(&self) -> bool {
        self.request.is_empty() && (self.response_left == 0 || self.side.is_eager)
    }

    fn finish(&mut self) {
        match (self.side.finish, &self.stream) {
            (Finish::HalfClose, Some(stream)) => {
                // It fails when the peer is gone, which the next read reports.
                let _ = stream.shutdown(Shutdown::Write);
                self.direction_ended(true);
            }
            (Finish::Reset, Some(stream)) => {
                // A socket that refuses the option is dead.
                let _ = sockopt::set_socket_linger(stream, Some(Duration::ZERO));
                self.close();
            }
            (Finish::Stay, _) | (_, None) => {}
        }
    }

    /// Records the end of this end's direction, or of the peer's; after both it is closed.
    fn direction_ended(&mut self, ours: bool) {
        if ours {
            self.writes = false;
        } else {
            self.reads = false;
        }
        if !self.reads && !self.writes {
            self.close();
        }
    }

    fn close(&mut self) {
        (self.reads, self.writes, self.stream) = (false, false, None);
    }
}

/// How a client makes its request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum RequestKind {
    Connect,
    Socks5,
    /// No tunnel but one plain HTTP request, whose body and response body are the payload. What the gateway
    /// sends to either side is payload then, heads included.
    Request,
}

/// How much a head may grow on its way: `Via`, `Date` and the like.
const HEAD_GROWTH_MAX: usize = 256;

/// A flow with both ends.
pub(crate) struct Flow {
    pub(crate) number: u32,
    /// The client's.
    pub(crate) address: SocketAddr,
    pub(crate) traffic: Traffic,
    kind: RequestKind,
    pub(crate) client: Endpoint,
    /// `None` until the gateway has connected to the origin.
    pub(crate) origin: Option<Endpoint>,
}

impl Flow {
    /// Opens the client's end of flow `number`, whose destination is the origin at `port`.
    pub(crate) fn open(
        number: u32,
        gateway: SocketAddr,
        port: u16,
        traffic: Traffic,
        rng: &mut Rng,
    ) -> std::io::Result<Flow> {
        let destination = SocketAddr::from((destination_address(number), port));
        let kind = *rng.choose(&[RequestKind::Connect, RequestKind::Socks5, RequestKind::Request]);
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_BYTES)?;
        if rng.random_percent(SMALL_SEGMENTS_PERCENT) {
            set_small_segments(&socket)?;
        }
        rustix::net::bind(&socket, &SocketAddr::from((client_address(number), 0)))?;
        match rustix::net::connect(&socket, &gateway) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let socket = TcpStream::from(socket);
        let address = socket.local_addr()?;
        let request = kind.request(destination, &traffic);
        let client = Endpoint::new(socket, traffic.client, kind, request, kind.response_bytes());
        Ok(Flow { number, address, traffic, kind, client, origin: None })
    }

    /// Bytes that the gateway sends to the client ahead of the payload.
    pub(crate) fn response_bytes(&self) -> u64 {
        self.kind.response_bytes() as u64
    }

    /// Sets the connection by which the gateway has reached the origin.
    pub(crate) fn attach_origin(&mut self, stream: TcpStream) {
        assert!(self.origin.is_none(), "one connection reaches a destination");
        self.origin = Some(Endpoint::origin(stream, &self.traffic, self.kind));
    }

    /// Whether both ends are closed.
    pub(crate) fn is_over(&self) -> bool {
        self.client.is_over() && self.origin.as_ref().is_some_and(Endpoint::is_over)
    }

    pub(crate) fn ends_mut(&mut self) -> impl Iterator<Item = &mut Endpoint> {
        std::iter::once(&mut self.client).chain(&mut self.origin)
    }

    pub(crate) fn ends(&self) -> impl Iterator<Item = &Endpoint> {
        std::iter::once(&self.client).chain(&self.origin)
    }
}

impl RequestKind {
    fn request(self, to: SocketAddr, traffic: &Traffic) -> Vec<u8> {
        let SocketAddr::V4(address) = to else { unreachable!("destinations are addresses of IPv4") };
        match self {
            RequestKind::Connect => format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").into_bytes(),
            RequestKind::Socks5 => {
                // The greeting, and the request right behind it.
                let mut request = vec![5, 1, 0, 5, 1, 0, 1];
                request.extend(address.ip().octets());
                request.extend(to.port().to_be_bytes());
                request
            }
            RequestKind::Request => {
                let length = traffic.client.bytes;
                let head =
                    format!("POST http://{to}/ HTTP/1.1\r\nHost: {to}\r\nContent-Length: {length}\r\n\r\n");
                head.into_bytes()
            }
        }
    }

    /// What the origin sends ahead of its payload.
    fn response(self, traffic: &Traffic) -> Vec<u8> {
        match self {
            RequestKind::Connect | RequestKind::Socks5 => Vec::new(),
            RequestKind::Request => {
                let length = traffic.origin.bytes;
                format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").into_bytes()
            }
        }
    }

    fn response_bytes(self) -> usize {
        match self {
            RequestKind::Connect => {
                let mut response = Vec::new();
                proto::http_connect::write_established(&mut response);
                response.len()
            }
            // The method, and the reply with an address of IPv4.
            RequestKind::Socks5 => 2 + 10,
            RequestKind::Request => 0,
        }
    }
}

fn assert_established(response: &[u8]) {
    let is_connect = response.starts_with(b"HTTP/1.1 200 ");
    let is_socks5 = response.starts_with(&[5, 0, 5, 0, 0, 1]);
    assert!(is_connect || is_socks5, "the gateway refuses the request: {}", response.escape_ascii());
}

/// A write to a socket that is not connected yet fails with `NotConnected`.
fn is_retryable(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::NotConnected)
}
