//! A client that opens a tunnel: its request, the reply, and then its side of the tunnel.

use std::net::SocketAddr;

use sys::socket::{Socket, SpeaksFirst};

use super::peer::{Peer, Script, Seen};

/// How a client requests its tunnel.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Request {
    /// HTTP CONNECT.
    Connect,
    /// SOCKS5 without credentials.
    Socks5,
    /// None: the listener leads to one destination.
    Forward,
    /// The first bytes of an HTTP head, and nothing more.
    Unfinished,
}

/// The reply to the request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Reply {
    /// None yet, or not all of it.
    Missing,
    /// The tunnel is open; the reply had so many bytes.
    Opened { bytes: u64 },
    /// The gateway said no.
    Denied,
}

/// What a client does.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientPlan {
    pub(super) gateway: SocketAddr,
    pub(super) target: SocketAddr,
    pub(super) request: Request,
    /// Whether the stream follows the request without waiting for the reply.
    pub(super) is_eager: bool,
    pub(super) script: Script,
    /// The key of the stream that the destination sends.
    pub(super) expects: u64,
}

/// A client and its tunnel.
pub(super) struct Client {
    pub(super) plan: ClientPlan,
    pub(super) local: SocketAddr,
    pub(super) peer: Peer,
    pub(super) reply: Reply,
}

/// The reply of SOCKS5 to the greeting, and that to the request of an IPv4 connection.
pub(super) const SOCKS5_REPLY_BYTES: usize = 2 + 10;

impl Client {
    /// Starts to connect to the gateway.
    pub(super) fn connect(plan: ClientPlan) -> Client {
        let socket = Socket::connect(plan.gateway, SpeaksFirst::Unknown).expect("a peer's call has no fault");
        let local = socket.local().expect("a peer's call has no fault");
        let mut peer = Peer::new(socket, plan.script, request(&plan));
        let mut reply = Reply::Missing;
        if plan.is_eager || plan.request == Request::Forward {
            peer.allow_stream();
        }
        if plan.request == Request::Forward {
            reply = Reply::Opened { bytes: 0 };
            peer.expect_stream(plan.expects);
        }
        Client { plan, local, peer, reply }
    }

    /// Reads the reply, once it has arrived.
    ///
    /// # Errors
    /// As [`Peer::act`].
    pub(super) fn read_reply(&mut self) -> Result<(), String> {
        if self.reply != Reply::Missing {
            return Ok(());
        }
        let received = &self.peer.unchecked;
        let bytes = match self.plan.request {
            Request::Connect | Request::Unfinished => {
                let head = received.windows(4).position(|window| window == b"\r\n\r\n");
                let Some(head) = head else { return Ok(()) };
                received.starts_with(b"HTTP/1.1 200 ").then_some(head + 4)
            }
            Request::Socks5 if received.len() < SOCKS5_REPLY_BYTES => return Ok(()),
            Request::Socks5 => (received[..4] == [5, 0, 5, 0]).then_some(SOCKS5_REPLY_BYTES),
            Request::Forward => return Ok(()),
        };
        let Some(bytes) = bytes else {
            self.reply = Reply::Denied;
            return Ok(());
        };
        self.reply = Reply::Opened { bytes: bytes as u64 };
        self.peer.unchecked.drain(..bytes);
        self.peer.expect_stream(self.plan.expects);
        self.peer.allow_stream();
        self.peer.check()
    }

    /// Whether the client knows that its tunnel never was.
    pub(super) fn was_denied(&self) -> bool {
        self.reply == Reply::Denied || (self.reply == Reply::Missing && self.peer.seen != Seen::Open)
    }
}

fn request(plan: &ClientPlan) -> Vec<u8> {
    let SocketAddr::V4(target) = plan.target else { panic!("simulated destinations have IPv4 addresses") };
    match plan.request {
        Request::Connect => format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").into_bytes(),
        Request::Unfinished => format!("CONNECT {target} HTTP/1.1\r\nHo").into_bytes(),
        Request::Socks5 => {
            let mut request = vec![5, 1, 0, 5, 1, 0, 1];
            request.extend(target.ip().octets());
            request.extend(target.port().to_be_bytes());
            request
        }
        Request::Forward => Vec::new(),
    }
}
