//! HTTP requests: each client requests the same small resource, and checks every byte of the response's body.
//! It keeps its connection for the next request, or lets it be closed and connects anew.
//!
//! Guarantees: a response counts once its last byte has arrived, and on a connection that closes, once its
//! end has.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use serde_json::Value;

use super::clients::{self, Failure, Step};
use super::{Persistence, http};

/// The request, its destination, and how often it is made.
#[derive(clap::Args, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Requests {
    /// The proxy, or the origin itself.
    pub(crate) via: SocketAddr,
    pub(crate) origin: SocketAddr,
    pub(crate) persistence: Persistence,
    pub(crate) count: u32,
    pub(crate) concurrency: u32,
}

/// Makes the requests; returns what `clients::run` does.
///
/// # Errors
/// The load itself could not run; a failed request is counted instead.
pub(crate) fn run(requests: &Requests) -> Result<Value> {
    let &Requests { via, origin, persistence, count, concurrency } = requests;
    let request = http::request(origin, persistence).into();
    let client = Client { request, persistence, response: Vec::new() };
    clients::run(via, count, concurrency, client)
}

/// Makes one request; returns what is wrong with the response, if anything.
///
/// # Errors
/// No complete response arrived, each step within `time`.
pub(crate) fn probe(via: SocketAddr, origin: SocketAddr, time: Duration) -> std::io::Result<Option<String>> {
    let mut stream = TcpStream::connect_timeout(&via, time)?;
    stream.set_read_timeout(Some(time))?;
    stream.write_all(&http::request(origin, Persistence::Close))?;
    let mut response = Vec::new();
    stream.take(http::RESPONSE_BYTES_MAX as u64).read_to_end(&mut response)?;
    match http::read_response(&response) {
        Ok(Some(_)) => Ok(None),
        Ok(None) => Err(std::io::ErrorKind::UnexpectedEof.into()),
        Err(failure) => Ok(Some(failure)),
    }
}

#[derive(Clone, Debug)]
struct Client {
    request: Arc<[u8]>,
    persistence: Persistence,
    /// The received part of the response.
    response: Vec<u8>,
}

impl clients::Client for Client {
    fn request(&self) -> &[u8] {
        &self.request
    }

    fn read(&mut self, socket: &OwnedFd) -> Result<Step, Failure> {
        // One byte more than a response may have, so that a longer one is detected.
        self.response.reserve_exact((http::RESPONSE_BYTES_MAX + 1).saturating_sub(self.response.len()));
        loop {
            match rustix::net::recv(socket, spare_capacity(&mut self.response), RecvFlags::empty()) {
                Ok((0, _)) => return self.end(),
                Ok(_) => {}
                Err(Errno::AGAIN) => return Ok(Step::Wait),
                Err(error) => return Err(format!("answer: {error}")),
            }
            let is_kept = match http::read_response(&self.response)? {
                None => continue,
                Some(requested) => requested == Persistence::KeepAlive,
            };
            if self.persistence == Persistence::KeepAlive {
                self.response.clear();
                return Ok(if is_kept { Step::DoneKeptAlive } else { Step::Done });
            }
        }
    }
}

impl Client {
    /// Handles the end of the connection: an incomplete response is a failure.
    fn end(&self) -> Result<Step, Failure> {
        match http::read_response(&self.response)? {
            Some(_) => Ok(Step::Done),
            None if self.response.is_empty() => Err("the connection ended without a response".to_owned()),
            None => Err("the connection ended within a response".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Role, servers};
    use super::*;
    use serde_json::json;

    fn run_requests(via: SocketAddr, persistence: Persistence, count: u32) -> Value {
        let requests = Requests { via, origin: via, persistence, count, concurrency: 10 };
        run(&requests).expect("the load runs")
    }

    /// A server that sends `text` to the first connection, whatever it receives, and closes it.
    fn serve_text(text: &'static str) -> SocketAddr {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback binds");
        let server = listener.local_addr().expect("a bound socket has an address");
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept()?;
            let read = stream.read(&mut [0; 4_096])?;
            assert!(read > 0, "a client sends its request first");
            stream.write_all(text.as_bytes())
        });
        server
    }

    #[test]
    fn connections_are_kept_only_with_keep_alive() {
        let server = servers::start(Role::Origin).expect("loopback listens");
        let check = |persistence, connections| {
            let response = run_requests(server, persistence, 100);
            assert_eq!((&response["completed"], &response["failed"]), (&json!(100), &json!(0)), "{response}");
            assert_eq!(response["connections"], connections);
        };
        check(Persistence::KeepAlive, 10);
        check(Persistence::Close, 100);
    }

    #[test]
    fn failed_requests_are_counted_by_kind() {
        let check = |text, expected: &str| {
            for persistence in [Persistence::KeepAlive, Persistence::Close] {
                assert_eq!(
                    run_requests(serve_text(text), persistence, 1)["failures"],
                    json!({ expected: 1 })
                );
            }
        };
        check("", "the connection ended without a response");
        check("HTTP/1.1 200 OK\r\n", "the connection ended within a response");
        check("HTTP/1.1 501 Not Implemented\r\nContent-Length: 0\r\n\r\n", "status 501");
        let closed = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let response = run_requests(closed.expect("loopback binds"), Persistence::Close, 5);
        assert_eq!((&response["completed"], &response["failed"]), (&json!(0), &json!(5)));
    }

    #[test]
    fn probe_distinguishes_wrong_response_from_none() {
        let time = Duration::from_secs(10);
        let server = servers::start(Role::Origin).expect("loopback listens");
        assert_eq!(probe(server, server, time).expect("the origin responds"), None);
        let wrong = serve_text("HTTP/1.1 501 Not Implemented\r\nConnection: close\r\n\r\n");
        assert_eq!(probe(wrong, wrong, time).expect("the server responds"), Some("status 501".to_owned()));
        let silent = serve_text("");
        assert!(probe(silent, silent, time).is_err());
    }
}
