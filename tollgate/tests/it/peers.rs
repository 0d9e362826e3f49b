//! Both ends of a tunnel: clients of HTTP and SOCKS5, and destinations that count their connections.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::harness::{Gateway, with_timeouts};

/// An HTTP response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    /// Empty for 200: what follows belongs to the tunnel.
    pub(crate) body: String,
}

/// A CONNECT request without credentials.
pub(crate) fn connect_request(target: &str) -> String {
    format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n")
}

/// Sends an HTTP request and reads the response.
pub(crate) fn ask(gateway: &Gateway, request: impl AsRef<[u8]>) -> (TcpStream, Response) {
    let mut stream = gateway.connect();
    stream.write_all(request.as_ref()).unwrap();
    let response = read_response(&mut stream);
    (stream, response)
}

/// Reads a response; unless it is 200, until the end of the connection.
pub(crate) fn read_response(stream: &mut TcpStream) -> Response {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "the response ends in {:?}", head.escape_ascii());
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.starts_with("HTTP/1.1 "), "{head}");
    let status = head[9..12].parse().unwrap();
    let mut body = String::new();
    if status != 200 {
        stream.read_to_string(&mut body).unwrap();
    }
    Response { status, head, body }
}

/// Opens a tunnel to `target` by HTTP CONNECT.
pub(crate) fn tunnel(gateway: &Gateway, target: impl ToString) -> TcpStream {
    let (stream, response) = ask(gateway, connect_request(&target.to_string()));
    assert_eq!(response.status, 200, "{response:?}");
    stream
}

/// A SOCKS5 request for `host`, an address or a name.
pub(crate) fn socks_request(host: &str, port: u16) -> Vec<u8> {
    let mut request = vec![5, 1, 0];
    match host.parse() {
        Ok(IpAddr::V4(address)) => {
            request.push(1);
            request.extend(address.octets());
        }
        Ok(IpAddr::V6(address)) => {
            request.push(4);
            request.extend(address.octets());
        }
        Err(_) => {
            request.extend([3, u8::try_from(host.len()).unwrap()]);
            request.extend(host.as_bytes());
        }
    }
    request.extend(port.to_be_bytes());
    request
}

/// Sends a greeting without authentication and `request`, and reads the reply code.
pub(crate) fn ask_socks(gateway: &Gateway, request: &[u8]) -> (TcpStream, u8) {
    let mut stream = send_socks(gateway, request);
    let reply = read_reply(&mut stream);
    (stream, reply)
}

fn send_socks(gateway: &Gateway, request: &[u8]) -> TcpStream {
    let mut stream = gateway.connect();
    stream.write_all(&[5, 1, 0]).unwrap();
    assert_eq!(read_exactly(&mut stream, 2), [5, 0], "the method is chosen");
    stream.write_all(request).unwrap();
    stream
}

/// How a client opens its tunnel to an IPv4 destination, with the host in its request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ingress {
    /// By the gateway's second listener, which is a `forward` to the destination.
    Forward,
    /// By HTTP CONNECT.
    Connect(&'static str),
    /// By SOCKS5 without authentication.
    Socks5(&'static str),
}

impl Ingress {
    /// Opens a tunnel to `to`, and waits for the response where there is one.
    pub(crate) fn open(self, gateway: &Gateway, to: SocketAddr) -> TcpStream {
        match self {
            Ingress::Forward => with_timeouts(TcpStream::connect(gateway.listeners[1]).unwrap()),
            Ingress::Connect(host) => tunnel(gateway, format!("{host}:{}", to.port())),
            Ingress::Socks5(host) => {
                let mut stream = send_socks(gateway, &socks_request(host, to.port()));
                // The gateway dials from an IPv4 address too.
                assert_eq!(read_exactly(&mut stream, 10)[..4], [5, 0, 0, 1], "{host}");
                stream
            }
        }
    }
}

/// Reads the whole reply to a SOCKS5 request; returns its code.
pub(crate) fn read_reply(stream: &mut TcpStream) -> u8 {
    let head = read_exactly(stream, 4);
    assert_eq!((head[0], head[2]), (5, 0), "{head:?}");
    read_exactly(stream, if head[3] == 4 { 18 } else { 6 });
    head[1]
}

pub(crate) fn read_exactly(stream: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// Reads until the end of the stream.
pub(crate) fn read_all(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}

/// Reads until a reset, which is expected.
#[track_caller]
pub(crate) fn read_until_reset(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let ended = stream.read_to_end(&mut bytes);
    let is_reset = ended.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionReset);
    assert!(is_reset, "{ended:?} after {}", bytes.escape_ascii());
    bytes
}

/// Sends some bytes and expects their echo.
#[track_caller]
pub(crate) fn check_echo(stream: &mut TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).unwrap();
    assert_eq!(read_exactly(stream, bytes.len()), bytes);
}

/// Expects that the peer has closed: in order, or by a reset if `reset`.
#[track_caller]
pub(crate) fn check_ended(stream: &mut TcpStream, reset: bool) {
    match stream.read(&mut [0; 16]) {
        Ok(count) => assert_eq!((count, reset), (0, false), "bytes read, and whether a reset was expected"),
        Err(error) => {
            assert!(reset && error.kind() == ErrorKind::ConnectionReset, "{error}, reset expected: {reset}");
        }
    }
}

/// Closes with a reset instead of a FIN.
pub(crate) fn reset(stream: TcpStream) {
    sockopt::set_socket_linger(&stream, Some(std::time::Duration::ZERO)).unwrap();
}

/// An IPv4 TCP socket with CLOEXEC, so that no concurrently started gateway inherits it.
pub(crate) fn socket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap()
}

/// Connects from a given address of this machine.
pub(crate) fn connect_from(source: Ipv4Addr, to: SocketAddr) -> TcpStream {
    let socket = socket();
    rustix::net::bind(&socket, &SocketAddr::from((source, 0))).unwrap();
    rustix::net::connect(&socket, &to).unwrap();
    with_timeouts(TcpStream::from(socket))
}

/// A listener with a full queue: connections to it get no response. The returned streams fill the queue.
pub(crate) fn silent_destination() -> (TcpListener, Vec<TcpStream>) {
    silent_at((Ipv4Addr::LOCALHOST, 0).into()).unwrap()
}

/// A silent listener at this address; `None` if its port is taken.
pub(crate) fn silent_at(address: SocketAddr) -> Option<(TcpListener, Vec<TcpStream>)> {
    let socket = socket();
    rustix::net::bind(&socket, &address).ok()?;
    rustix::net::listen(&socket, 0).unwrap();
    let listener = TcpListener::from(socket);
    let address = listener.local_addr().unwrap();
    let second = std::time::Duration::from_millis(500);
    let held = std::iter::from_fn(|| TcpStream::connect_timeout(&address, second).ok()).collect();
    Some((listener, held))
}

/// A destination that serves each connection on a thread of its own, and counts them.
pub(crate) struct Destination {
    pub(crate) address: SocketAddr,
    accepted: Arc<AtomicU64>,
}

impl Destination {
    /// Serves with `serve` on 127.0.0.1.
    pub(crate) fn start(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Destination {
        Destination::on(TcpListener::bind("127.0.0.1:0").unwrap(), serve)
    }

    /// Serves with `serve` at `listener`.
    pub(crate) fn on(
        listener: TcpListener,
        serve: impl Fn(TcpStream) + Send + Sync + 'static,
    ) -> Destination {
        let address = listener.local_addr().unwrap();
        let accepted = Arc::new(AtomicU64::new(0));
        let (counter, serve) = (Arc::clone(&accepted), Arc::new(serve));
        // The thread lives as long as the test's process.
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                counter.fetch_add(1, Ordering::SeqCst);
                let serve = Arc::clone(&serve);
                thread::spawn(move || serve(with_timeouts(stream)));
            }
        });
        Destination { address, accepted }
    }

    /// Echoes.
    pub(crate) fn echo() -> Destination {
        Destination::start(echo)
    }

    /// Connections so far.
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::SeqCst)
    }
}

/// Sends back what it receives, until the end.
pub(crate) fn echo(mut stream: TcpStream) {
    let mut buffer = vec![0; 16 * 1024];
    // A client that resets, or has closed its receiving side, ends it too.
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
    let _ = stream.shutdown(Shutdown::Write);
}

/// Pseudorandom bytes, different for each seed and position.
pub(crate) fn pattern(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = std::iter::from_fn(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        Some(state.to_le_bytes())
    });
    words.flatten().take(count).collect()
}

/// The value of `Proxy-Authorization` for this user.
pub(crate) fn basic(user: &str, secret: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let pair = format!("{user}:{secret}");
    let mut encoded = String::from("Basic ");
    for chunk in pair.as_bytes().chunks(3) {
        let bits = chunk.iter().chain([&0; 2]).take(3).fold(0, |bits, &byte| bits << 8 | usize::from(byte));
        let digit = |index: usize| char::from(DIGITS[bits >> (18 - 6 * index) & 63]);
        encoded.extend((0..4).map(|index| if index <= chunk.len() { digit(index) } else { '=' }));
    }
    encoded
}
