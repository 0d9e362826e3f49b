//! Short connections: each client connects anew, opens a tunnel through a proxy where there is one, sends one
//! request, and reads the reply to its end. A connection takes some eight system calls, and two for each
//! message to a proxy.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::Result;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use serde_json::Value;

use super::arrivals::Arrivals;
use super::clients::{self, Failure, Step};
use super::handshake::Handshake;
use super::tunnel::Tunnel;
use super::{REPLY_BYTES, REQUEST_BYTES};

/// Makes `connections`, `concurrency` of them at a time; returns what `clients::run` does.
///
/// # Errors
/// The load itself could not run; a failed connection is counted instead.
pub(crate) fn run(tunnel: &Tunnel, connections: u32, concurrency: u32) -> Result<Value> {
    let client = Client { handshake: tunnel.handshake(), received_bytes: 0 };
    clients::run(tunnel.connect_address(), connections, concurrency, client)
}

/// Makes `rate_per_s` connections for `time`, however many earlier ones are unfinished; returns what
/// `clients::run` does.
///
/// # Errors
/// As `run`.
pub(crate) fn arrive(to: SocketAddr, rate_per_s: u32, time: Duration) -> Result<Value> {
    clients::run_open(to, Arrivals::new(rate_per_s, time), Client { handshake: None, received_bytes: 0 })
}

#[derive(Clone, Debug)]
struct Client {
    /// The handshake that comes first where there is a proxy.
    handshake: Option<Handshake>,
    received_bytes: usize,
}

impl clients::Client for Client {
    fn request(&self) -> &[u8] {
        let message = self.handshake.as_ref().and_then(Handshake::message);
        message.unwrap_or(&[b'q'; REQUEST_BYTES])
    }

    fn read(&mut self, socket: &OwnedFd) -> Result<Step, Failure> {
        let mut buffer = [0; 4_096];
        if let Some(handshake) = self.handshake.as_mut().filter(|handshake| handshake.message().is_some()) {
            return continue_handshake(handshake, socket, &mut buffer);
        }
        loop {
            match rustix::net::recv(socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((0, _)) if self.received_bytes == REPLY_BYTES => return Ok(Step::Done),
                Ok((0, _)) => return Err(format!("the reply had {} bytes", self.received_bytes)),
                Ok((received, _)) => self.received_bytes += received,
                Err(Errno::AGAIN) => return Ok(Step::Wait),
                Err(error) => return Err(format!("reply: {error}")),
            }
        }
    }
}

/// Reads on in a proxy's reply.
fn continue_handshake(
    handshake: &mut Handshake,
    socket: &OwnedFd,
    buffer: &mut [u8],
) -> Result<Step, Failure> {
    loop {
        match rustix::net::recv(socket, &mut *buffer, RecvFlags::empty()) {
            Ok((0, _)) => return Err("the proxy closed the connection".to_owned()),
            Ok((received, _)) if handshake.receive(&buffer[..received])? => return Ok(Step::SendNext),
            Ok(_) => {}
            Err(Errno::AGAIN) => return Ok(Step::Wait),
            Err(error) => return Err(format!("handshake: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::handshake::Protocol;
    use super::super::{Role, servers, tunnel};
    use super::*;
    use serde_json::json;
    use std::net::SocketAddr;

    fn run(to: SocketAddr, connections: u32, concurrency: u32) -> Result<Value> {
        super::run(&Tunnel::from(to), connections, concurrency)
    }

    #[test]
    fn short_connection_does_the_proxy_handshake_first() {
        let to = servers::start(Role::Reply).expect("loopback listens");
        for protocol in [Protocol::Connect, Protocol::Socks5] {
            let check = |accepts, expected| {
                let proxy = Some(tunnel::tests::proxy(protocol, accepts));
                let answer = super::run(&Tunnel { to, proxy }, 1, 1).expect("the load runs");
                assert_eq!(answer["completed"], expected, "{answer}");
            };
            check(true, 1);
            check(false, 0);
        }
    }

    #[test]
    fn every_connection_is_counted() {
        let server = servers::start(Role::Reply).expect("loopback listens");
        let answer = run(server, 100, 10).expect("the load runs");
        assert_eq!((answer["completed"].as_u64(), answer["failed"].as_u64()), (Some(100), Some(0)));
    }

    #[test]
    fn every_arrival_is_counted() {
        let server = servers::start(Role::Reply).expect("loopback listens");
        let time = Duration::from_millis(200);
        let answer = arrive(server, 500, time).expect("the load runs");
        let mut arrivals = Arrivals::new(500, time);
        let expected = std::iter::from_fn(|| arrivals.until_next(time)).count();
        assert_eq!((&answer["failed"], &answer["completed"]), (&json!(0), &json!(expected)));
        let first_byte = answer["first_byte_p50_ns"].as_u64();
        assert!(first_byte > Some(0) && first_byte <= answer["p50_ns"].as_u64(), "{answer}");
    }

    #[test]
    fn refused_connections_are_counted_by_kind() {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let answer = run(closed.expect("loopback binds"), 5, 2).expect("the load runs");
        assert_eq!((answer["completed"].as_u64(), answer["failed"].as_u64()), (Some(0), Some(5)));
        let kinds = answer["failures"].as_object().expect("failures are counted by kind");
        assert!(kinds.keys().all(|kind| kind.contains("refused")), "{kinds:?}");
    }

    #[test]
    fn wrong_reply_is_a_failure() {
        use std::io::{Read, Write};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback binds");
        let server = listener.local_addr().expect("a bound socket has an address");
        let server_thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept()?;
            stream.read_exact(&mut [0; REQUEST_BYTES])?;
            stream.write_all(b"no")
        });
        let answer = run(server, 1, 1).expect("the load runs");
        server_thread.join().expect("the server does not panic").expect("loopback serves");
        assert_eq!(answer["failures"], json!({ "the reply had 2 bytes": 1 }));
    }
}
