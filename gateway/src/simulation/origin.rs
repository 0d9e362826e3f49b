//! An origin: it accepts connections of the gateway, and responds to requests as their client has planned.

use std::net::SocketAddr;
use std::time::Duration;

use ledger::simulation::Random;
use sys::socket::{ListenOptions, Listener};

use super::connection::{Connection, Pace};
use super::message::{Message, framed};
use super::peer::Seen;
use super::session::RequestPlan;

/// An origin and its connections.
pub(super) struct Origin {
    pub(super) address: SocketAddr,
    requests: Vec<RequestPlan>,
    pace: Pace,
    listener: Listener,
    connections: Vec<Served>,
    /// Keys of the requests that were received, in their order.
    pub(super) received: Vec<u64>,
}

/// A connection, and what follows the response that it sends.
struct Served {
    connection: Connection,
    then: Then,
}

/// What follows the bytes that wait to be sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Then {
    NextRequest,
    Close,
    Reset,
}

impl Origin {
    /// Listens, for the requests of one session.
    pub(super) fn listen(address: SocketAddr, requests: Vec<RequestPlan>, pace: Pace) -> Origin {
        let listener = Listener::bind(address, ListenOptions::plain(8)).expect("each address is used once");
        Origin { address, requests, pace, listener, connections: Vec::new(), received: Vec::new() }
    }

    /// When it acts next, unless bytes arrive before.
    pub(super) fn next_act(&self, now: Duration) -> Option<Duration> {
        self.connections.iter().filter_map(|it| it.connection.next_act(now)).min()
    }

    /// Has each connection act once. Returns whether one did anything.
    ///
    /// # Errors
    /// A request that no client has sent.
    pub(super) fn act(&mut self, now: Duration, random: &mut Random) -> Result<bool, String> {
        let mut is_active = false;
        while let Ok((socket, _)) = self.listener.accept() {
            let connection = Connection::new(socket, self.pace);
            self.connections.push(Served { connection, then: Then::NextRequest });
            is_active = true;
        }
        let mut at = 0;
        while at < self.connections.len() {
            is_active |= self.connections[at].connection.act(now, random);
            self.respond(at)?;
            let served = &self.connections[at];
            let is_over = served.connection.seen != Seen::Open;
            match served.then {
                Then::NextRequest if !is_over => at += 1,
                Then::Close | Then::Reset if !served.connection.is_sent() => at += 1,
                Then::Reset => self.connections.remove(at).connection.reset(),
                Then::NextRequest | Then::Close => drop(self.connections.remove(at)),
            }
        }
        Ok(is_active)
    }

    fn respond(&mut self, at: usize) -> Result<(), String> {
        let Served { connection, then } = &mut self.connections[at];
        if *then != Then::NextRequest || !connection.is_sent() {
            return Ok(());
        }
        let Some(message) = Message::read(&connection.received, true)? else { return Ok(()) };
        let Some(bytes) = message.bytes else { return Ok(()) };
        let key = message.field("x-key").and_then(|key| u64::from_str_radix(&key, 16).ok());
        let request = self.requests.iter().find(|request| Some(request.key) == key);
        let request = request.ok_or_else(|| format!("an unknown request arrived: {}", message.head))?;
        let expected = if request.method == "POST" { request.body() } else { Vec::new() };
        if !message.head.starts_with(request.method) || message.body != expected {
            return Err(format!("a request differs: {}, {} bytes", message.head, message.body.len()));
        }
        connection.received.drain(..bytes);
        self.received.push(request.key);
        let mut response = response(request);
        if let Some(cut_at) = request.cut_at {
            response.truncate(cut_at);
            *then = Then::Reset;
        } else if request.closes || request.response_framing == super::message::Framing::Close {
            *then = Then::Close;
        }
        connection.queue(&response);
        Ok(())
    }
}

fn response(request: &RequestPlan) -> Vec<u8> {
    let (announced, body) = framed(&request.response_body(), request.response_framing);
    let mut response = format!("HTTP/1.1 200 OK\r\nX-Key: {:x}\r\n{announced}\r\n", request.key).into_bytes();
    if request.response_has_body() {
        response.extend(body);
    }
    response
}
