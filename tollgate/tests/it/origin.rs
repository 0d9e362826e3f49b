//! An origin server for plain HTTP that records requests byte for byte and sends given responses; and a
//! client that reads responses by their framing.

use std::fmt::Display;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, channel};

use crate::harness::{Gateway, TIMEOUT};
use crate::peers::Destination;

/// A received request: the head with its empty line, and the body with its framing.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Request {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// The number of its connection.
    pub(crate) connection: u64,
}

/// How an origin handles a request.
pub(crate) enum Reply {
    /// Sends the response, and waits for the next request.
    Respond(Vec<u8>),
    /// Sends the response and closes.
    RespondAndClose(Vec<u8>),
}

/// An HTTP server that records its requests.
pub(crate) struct Origin {
    pub(crate) address: SocketAddr,
    destination: Destination,
    requests: Receiver<Request>,
}

impl Origin {
    /// Replies to each request with the result of `reply`.
    pub(crate) fn start(reply: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Origin {
        let (sender, requests) = channel();
        let numbers = std::sync::atomic::AtomicU64::new(1);
        let destination = Destination::start(move |mut stream| {
            let connection = numbers.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            while let Some(request) = read_request(&mut stream, connection) {
                let reply = reply(&request);
                // A test that needs no more requests has dropped the receiver.
                let _ = sender.send(request);
                let (Reply::Respond(bytes) | Reply::RespondAndClose(bytes)) = &reply;
                if stream.write_all(bytes).is_err() || matches!(reply, Reply::RespondAndClose(_)) {
                    return;
                }
            }
        });
        Origin { address: destination.address, destination, requests }
    }

    /// Sends `response` to every request.
    pub(crate) fn responding(response: impl Into<Vec<u8>>) -> Origin {
        let response = response.into();
        Origin::start(move |_| Reply::Respond(response.clone()))
    }

    /// Waits for the next request.
    #[track_caller]
    pub(crate) fn next(&self) -> Request {
        self.requests.recv_timeout(TIMEOUT).expect("the origin gets a request")
    }

    /// Whether there is no further request.
    pub(crate) fn has_no_request(&self) -> bool {
        self.requests.try_recv().is_err()
    }

    /// Connections so far.
    pub(crate) fn accepted(&self) -> u64 {
        self.destination.accepted()
    }

    /// A request for `/path` at this origin, with these lines behind `Host`.
    pub(crate) fn ask(&self, method: &str, path: &str, lines: &str) -> String {
        request_to(self.address, method, path, lines)
    }

    /// GET `/path`.
    pub(crate) fn get(&self, path: &str) -> String {
        self.ask("GET", path, "")
    }
}

/// The head of a request for `/path` at `address`, with these lines behind `Host`.
pub(crate) fn request_to(address: impl Display, method: &str, path: &str, lines: &str) -> String {
    format!("{method} http://{address}{path} HTTP/1.1\r\nHost: {address}\r\n{lines}\r\n")
}

/// A response with this body and its length.
pub(crate) fn ok(body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

fn read_request(stream: &mut TcpStream, connection: u64) -> Option<Request> {
    let head = read_head(stream)?;
    let body = if has_line(&head, "transfer-encoding: chunked") {
        read_chunks(stream)?
    } else {
        let mut body = vec![0; length(&head).unwrap_or(0)];
        stream.read_exact(&mut body).ok()?;
        body
    };
    Some(Request { head, body, connection })
}

/// A head with its empty line; `None` if the stream ends before it.
pub(crate) fn read_head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    Some(String::from_utf8(head).unwrap())
}

/// A chunked body with its framing, trailers included.
pub(crate) fn read_chunks(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line = read_line(stream)?;
        let size = usize::from_str_radix(str::from_utf8(&line).unwrap().trim_end(), 16).unwrap();
        body.extend(line);
        if size == 0 {
            loop {
                let line = read_line(stream)?;
                body.extend(&line);
                if line == b"\r\n" {
                    return Some(body);
                }
            }
        }
        let mut chunk = vec![0; size + 2];
        stream.read_exact(&mut chunk).ok()?;
        body.extend(chunk);
    }
}

fn read_line(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        line.push(byte[0]);
    }
    Some(line)
}

fn has_line(head: &str, line: &str) -> bool {
    head.lines().any(|candidate| candidate.eq_ignore_ascii_case(line))
}

fn length(head: &str) -> Option<usize> {
    let value = |line: &str| line.to_ascii_lowercase().strip_prefix("content-length: ").map(str::to_owned);
    head.lines().find_map(value).map(|value| value.parse().unwrap())
}

/// A response, as a client reads it.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    /// With its framing.
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn text(&self) -> &str {
        str::from_utf8(&self.body).unwrap()
    }

    /// The value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(candidate, _)| candidate.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

/// Reads one response, until the end that its head defines; one to HEAD has no body.
#[track_caller]
pub(crate) fn read_response_to(method: &str, stream: &mut TcpStream) -> Response {
    let head = read_head(stream).expect("a response has a complete head");
    let status = head[9..12].parse().unwrap();
    let has_body = method != "HEAD" && !(100..200).contains(&status) && status != 204 && status != 304;
    let body = match length(&head) {
        _ if !has_body => Vec::new(),
        Some(length) => {
            let mut body = vec![0; length];
            stream.read_exact(&mut body).unwrap();
            body
        }
        None if has_line(&head, "transfer-encoding: chunked") => read_chunks(stream).expect("a last chunk"),
        None => {
            let mut body = Vec::new();
            stream.read_to_end(&mut body).unwrap();
            body
        }
    };
    Response { status, head, body }
}

/// Sends a request on a connection that may have carried others, and reads its response.
#[track_caller]
pub(crate) fn exchange(stream: &mut TcpStream, request: impl AsRef<[u8]>) -> Response {
    let request = request.as_ref();
    stream.write_all(request).unwrap();
    let method = request.split(|&byte| byte == b' ').next().unwrap();
    read_response_to(str::from_utf8(method).unwrap(), stream)
}

/// Sends a request on a connection of its own, and reads its response.
#[track_caller]
pub(crate) fn ask_once(gateway: &Gateway, request: impl AsRef<[u8]>) -> Response {
    exchange(&mut gateway.connect(), request)
}
