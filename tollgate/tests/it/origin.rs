//! An origin server for plain HTTP that keeps what it was sent, byte for byte, and says what it is told
//! to; and a client that reads answers by their framing.

use std::fmt::Display;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, channel};

use crate::harness::{Gateway, TIMEOUT};
use crate::peers::Destination;

/// A request as it arrived: the head with its empty line, and the body as it was framed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Request {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// The number of the connection over which it came.
    pub(crate) connection: u64,
}

/// What an origin does with a request.
pub(crate) enum Reply {
    /// Answers, and waits for the next one.
    Respond(Vec<u8>),
    /// Answers and closes.
    RespondAndClose(Vec<u8>),
}

/// See the file's header.
pub(crate) struct Origin {
    pub(crate) address: SocketAddr,
    destination: Destination,
    requests: Receiver<Request>,
}

impl Origin {
    /// Replies to each request with what `reply` makes of it.
    pub(crate) fn start(reply: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Origin {
        let (sender, requests) = channel();
        let numbers = std::sync::atomic::AtomicU64::new(1);
        let destination = Destination::start(move |mut stream| {
            let connection = numbers.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            while let Some(request) = read_request(&mut stream, connection) {
                let reply = reply(&request);
                // A test that has seen enough asks no more.
                let _ = sender.send(request);
                let (Reply::Respond(bytes) | Reply::RespondAndClose(bytes)) = &reply;
                if stream.write_all(bytes).is_err() || matches!(reply, Reply::RespondAndClose(_)) {
                    return;
                }
            }
        });
        Origin { address: destination.address, destination, requests }
    }

    /// Says `answer` to everything.
    pub(crate) fn responding(response: impl Into<Vec<u8>>) -> Origin {
        let response = response.into();
        Origin::start(move |_| Reply::Respond(response.clone()))
    }

    /// The next request that arrived.
    #[track_caller]
    pub(crate) fn next(&self) -> Request {
        self.requests.recv_timeout(TIMEOUT).expect("a request arrives")
    }

    /// Whether no request has arrived since the last one that was looked at.
    pub(crate) fn has_no_request(&self) -> bool {
        self.requests.try_recv().is_err()
    }

    /// Connections so far.
    pub(crate) fn accepted(&self) -> u64 {
        self.destination.accepted()
    }

    /// A request for `/path` here, with these lines behind `Host`.
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

/// An answer of this body, whose length it says.
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

/// A head with its empty line; none if the stream ends before it.
pub(crate) fn read_head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    Some(String::from_utf8(head).unwrap())
}

/// A chunked body as it is framed, trailers included.
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

/// An answer as a client reads it.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    /// As it is framed.
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

/// Reads one answer, to the end that its head announces; one to HEAD has no body.
#[track_caller]
pub(crate) fn read_response_to(method: &str, stream: &mut TcpStream) -> Response {
    let head = read_head(stream).expect("an answer has a whole head");
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

/// Sends a request on a connection that may have carried others, and reads its answer.
#[track_caller]
pub(crate) fn exchange(stream: &mut TcpStream, request: impl AsRef<[u8]>) -> Response {
    let request = request.as_ref();
    stream.write_all(request).unwrap();
    let method = request.split(|&byte| byte == b' ').next().unwrap();
    read_response_to(str::from_utf8(method).unwrap(), stream)
}

/// The same on a connection of its own.
#[track_caller]
pub(crate) fn ask_once(gateway: &Gateway, request: impl AsRef<[u8]>) -> Response {
    exchange(&mut gateway.connect(), request)
}
