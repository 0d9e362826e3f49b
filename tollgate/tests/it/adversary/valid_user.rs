//! The valid user beside an attack: sends requests of every kind, one after another, and counts how many
//! succeed.
//!
//! Guarantees: a request fails where a client without retries would see a failure.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::harness::Gateway;
use crate::origin::{Origin, read_head, request_to};
use crate::peers::{Destination, connect_request};

/// A user that sends requests while an attack lasts.
pub(super) struct ValidUser<'a> {
    gateway: &'a Gateway,
    origin: &'a Origin,
    echo: &'a Destination,
    /// The host in the request with this number.
    host: Box<dyn Fn(usize) -> String + 'a>,
    /// A connection that carries one request after another.
    kept: Option<TcpStream>,
}

impl<'a> ValidUser<'a> {
    /// A user of `gateway` with the address 127.0.0.1 that may reach both destinations.
    pub(super) fn new(gateway: &'a Gateway, origin: &'a Origin, echo: &'a Destination) -> ValidUser<'a> {
        ValidUser { gateway, origin, echo, host: Box::new(|_| "127.0.0.1".into()), kept: None }
    }

    /// Sends requests for the host that `host` returns for a number.
    pub(super) fn with_hosts(self, host: impl Fn(usize) -> String + 'a) -> ValidUser<'a> {
        ValidUser { host: Box::new(host), ..self }
    }

    /// Sends `count` requests, and expects that 99 of 100 succeed.
    #[track_caller]
    pub(super) fn check_served(&mut self, count: usize) {
        let failures: Vec<String> = (0..count).filter_map(|number| self.request(number).err()).collect();
        assert!(failures.len() * 100 <= count, "{} of {count}: {failures:?}", failures.len());
    }

    fn request(&mut self, number: usize) -> Result<(), String> {
        let host = (self.host)(number);
        let get = request_to(format!("{host}:{}", self.origin.address.port()), "GET", "/", "");
        match number % 3 {
            0 => self.tunnel(&host),
            1 => ask(&mut self.gateway.connect(), &get),
            _ => {
                let mut stream = self.kept.take().unwrap_or_else(|| self.gateway.connect());
                ask(&mut stream, &get)?;
                self.kept = Some(stream);
                Ok(())
            }
        }
    }

    fn tunnel(&self, host: &str) -> Result<(), String> {
        let mut stream = self.gateway.connect();
        ask(&mut stream, &connect_request(&format!("{host}:{}", self.echo.address.port())))?;
        stream.write_all(b"echo").map_err(|error| error.to_string())?;
        let mut echoed = [0; 4];
        stream.read_exact(&mut echoed).map_err(|error| error.to_string())?;
        assert_eq!(&echoed, b"echo");
        Ok(())
    }
}

/// Ends an attack on drop, also in a failing test: the attack's threads check the flag.
pub(super) struct StopOnDrop<'a>(pub(super) &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends a request; the error is the response's head, if its status is not 200, or that of the connection.
fn ask(stream: &mut TcpStream, request: &str) -> Result<(), String> {
    stream.write_all(request.as_bytes()).map_err(|error| error.to_string())?;
    let head = read_head(stream).ok_or("the connection ended before a response")?;
    if !head.starts_with("HTTP/1.1 200 ") {
        return Err(head);
    }
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).map_err(|error| error.to_string())
}
