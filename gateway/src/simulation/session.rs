//! A client of plain HTTP: its requests on one connection, and the responses to them.

use std::net::SocketAddr;
use std::time::Duration;

use ledger::simulation::Random;
use sys::socket::{Socket, SpeaksFirst};

use super::connection::{Connection, Pace};
use super::message::{Framing, Message, framed};
use super::peer::{Seen, stream_byte};

/// One request, and the response that the origin gives to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestPlan {
    pub(super) method: &'static str,
    /// Identifies the contents of both bodies.
    pub(super) key: u64,
    pub(super) body_bytes: usize,
    pub(super) framing: Framing,
    pub(super) response_bytes: usize,
    pub(super) response_framing: Framing,
    /// The origin resets the connection after so many bytes of its response.
    pub(super) cut_at: Option<usize>,
    /// The origin closes the connection behind the response, without a word about it.
    pub(super) closes: bool,
}

/// What a session does.
#[derive(Clone, Debug)]
pub(super) struct SessionPlan {
    pub(super) gateway: SocketAddr,
    pub(super) target: SocketAddr,
    pub(super) requests: Vec<RequestPlan>,
    /// Whether it sends each request without waiting for the response to the one before.
    pub(super) is_pipelined: bool,
    pub(super) pace: Pace,
    /// It resets its connection after so many acts.
    pub(super) resets_after: Option<u32>,
}

/// A session that runs.
pub(super) struct Session {
    pub(super) plan: SessionPlan,
    pub(super) local: SocketAddr,
    /// `None` once it is closed.
    connection: Option<Connection>,
    sent: usize,
    /// Responses of the origin that are complete.
    pub(super) completed: usize,
    /// Whether the gateway responded itself.
    pub(super) was_refused: bool,
    /// Whether a response seemed complete, and was not.
    pub(super) was_cut: bool,
    acts: u32,
}

impl RequestPlan {
    /// The request's body, as the origin must receive it.
    pub(super) fn body(&self) -> Vec<u8> {
        (0..self.body_bytes as u64).map(|at| stream_byte(self.key, at)).collect()
    }

    /// The response's body, as the client must receive it.
    pub(super) fn response_body(&self) -> Vec<u8> {
        (0..self.response_bytes as u64).map(|at| stream_byte(!self.key, at)).collect()
    }

    /// Whether its response has a body.
    pub(super) fn response_has_body(&self) -> bool {
        self.method != "HEAD"
    }

    fn written(&self, target: SocketAddr) -> Vec<u8> {
        let (announced, body) = match self.method {
            "POST" => framed(&self.body(), self.framing),
            _ => (String::new(), Vec::new()),
        };
        let key = self.key;
        let method = self.method;
        let mut request = format!(
            "{method} http://{target}/{key:x} HTTP/1.1\r\nHost: {target}\r\nX-Key: {key:x}\r\n{announced}\r\n"
        )
        .into_bytes();
        request.extend(body);
        request
    }
}

impl Session {
    /// Starts to connect to the gateway.
    pub(super) fn connect(plan: SessionPlan) -> Session {
        let socket = Socket::connect(plan.gateway, SpeaksFirst::Unknown).expect("a peer's call has no fault");
        let local = socket.local().expect("a peer's call has no fault");
        let connection = Some(Connection::new(socket, plan.pace));
        Session {
            plan,
            local,
            connection,
            sent: 0,
            completed: 0,
            was_refused: false,
            was_cut: false,
            acts: 0,
        }
    }

    /// Whether its connection is closed.
    pub(super) fn is_over(&self) -> bool {
        self.connection.is_none()
    }

    /// When it acts next, unless bytes arrive before.
    pub(super) fn next_act(&self, now: Duration) -> Option<Duration> {
        self.connection.as_ref()?.next_act(now)
    }

    /// Sends and receives once each. Returns whether anything moved.
    ///
    /// # Errors
    /// A response that the origin has not given.
    pub(super) fn act(&mut self, now: Duration, random: &mut Random) -> Result<bool, String> {
        let Some(connection) = &mut self.connection else { return Ok(false) };
        let may_send = self.sent < self.plan.requests.len()
            && connection.is_sent()
            && (self.plan.is_pipelined || self.completed == self.sent);
        if may_send && !self.was_refused {
            connection.queue(&self.plan.requests[self.sent].written(self.plan.target));
            self.sent += 1;
        }
        let did = connection.act(now, random);
        self.acts += u32::from(did);
        if did {
            self.read_responses()?;
        }
        self.close_if_done();
        Ok(did)
    }

    fn read_responses(&mut self) -> Result<(), String> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        while self.completed < self.sent && !self.was_refused {
            let request = &self.plan.requests[self.completed];
            let Some(message) = Message::read(&connection.received, request.response_has_body())? else {
                break;
            };
            if message.field("x-key") != Some(format!("{:x}", request.key)) {
                // Each response of an origin has the key of its request.
                self.was_refused = message.status().is_some_and(|status| status >= 400);
                if !self.was_refused {
                    return Err(format!("a response to another request: {}", message.head));
                }
                break;
            }
            let expected = if request.response_has_body() { request.response_body() } else { Vec::new() };
            if !expected.starts_with(&message.body) {
                return Err(format!("a response of {} bytes differs", message.body.len()));
            }
            let is_complete =
                message.bytes.is_some() || message.ends_with_connection && connection.seen == Seen::End;
            if !is_complete {
                break;
            }
            self.was_cut |= message.body != expected;
            connection.received.drain(..message.bytes.unwrap_or(connection.received.len()));
            self.completed += 1;
        }
        Ok(())
    }

    fn close_if_done(&mut self) {
        let Some(connection) = &self.connection else { return };
        let is_done = self.completed == self.plan.requests.len() || connection.seen != Seen::Open;
        if self.plan.resets_after.is_some_and(|after| self.acts >= after) {
            self.connection.take().into_iter().for_each(Connection::reset);
        } else if is_done {
            self.connection = None;
        }
    }
}
