//! The client of a handshake: what it has sent so far, and how it is answered.
//!
//! Promises: bytes are read into one bounded buffer and consumed once; what follows the request stays for the
//! relay; a refusal reaches the client even if it is still sending. Leaves to others: what the bytes mean
//! (crate `proto`), deadlines (`connection`).

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use engine::net::TcpStream;
use engine::timer::within;
use ledger::record::{Class, CloseReason, Flow, Legs, Protocol, Record, Uncertain};
use policy::UserIndex;
use proto::denial::{Denial, reason_phrase, write_denial};
use proto::socks5;
use proto::target::{Host, Target};
use sys::clock::{self, WallNanos};
use sys::socket::Socket;
use zeroize::Zeroize;

use crate::config::Ingress;
use crate::limits::{GREETING_BYTES_MAX, LINGER_BYTES_MAX};
use crate::local::Local;
use crate::log::{Event, EventKind};
use crate::refusal::Refusal;
use crate::snapshot::{Current, Snapshot};
use crate::stats::Denied;

/// How long a refused client may take to read the answer before it is cut off.
const LINGER: Duration = Duration::from_secs(2);

/// A connection as the listener hands it over.
pub(crate) struct Arrival {
    /// The accepted socket.
    pub socket: Socket,
    /// Who connected.
    pub peer: SocketAddr,
    /// What the connection runs by.
    pub snapshot: Rc<Current>,
    /// The listener's position in the snapshot's configuration.
    pub listener: usize,
    /// The listener's address, with the port that the kernel chose.
    pub address: SocketAddr,
}

/// Why a handshake ends without a relay.
#[derive(Debug)]
pub(crate) enum End {
    /// The client is told why.
    Refused(Box<Refusal>),
    /// The client went away; nobody is there to be told.
    Left,
}

impl<R: Into<Refusal>> From<R> for End {
    fn from(refusal: R) -> End {
        End::Refused(Box::new(refusal.into()))
    }
}

/// In which words the client understands a refusal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Speaks {
    /// None that we know: it is only cut off.
    Nothing,
    /// HTTP; JSON if it asked for that.
    Http { json: bool },
    /// SOCKS5, before its methods were answered.
    Socks5Greeting,
    /// SOCKS5, while its password is looked at.
    Socks5Password,
    /// SOCKS5, at or behind its request.
    Socks5Request,
}

/// See the file's header.
pub(crate) struct Client {
    pub(crate) local: Rc<Local>,
    pub(crate) stream: TcpStream,
    pub(crate) arrival: Facts,
    pub(crate) speaks: Speaks,
    /// How the client asks, once that is known.
    pub(crate) protocol: Option<Protocol>,
    /// What it asks for, once that is known.
    pub(crate) asked: Option<Asked>,
    /// The id by which the client's answer, the log and the ledger know this connection.
    id: u128,
    accepted: WallNanos,
    buffer: Vec<u8>,
    /// Bytes of `buffer` that are dealt with. 0 <= consumed <= buffer.len()
    consumed: usize,
}

/// Who wants to go where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// Who. An index of the connection's snapshot.
    pub user: UserIndex,
    /// Where to.
    pub target: Target,
}

/// What was decided about a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decided<'a> {
    /// The address that was dialled, if it came to that.
    pub address: Option<IpAddr>,
    /// The rule that decided; empty if none did.
    pub rule: &'a str,
    /// What the flow counts as.
    pub class: Class,
}

/// An arrival without its socket.
pub(crate) struct Facts {
    pub(crate) peer: SocketAddr,
    pub(crate) snapshot: Rc<Current>,
    pub(crate) listener: usize,
    pub(crate) address: SocketAddr,
}

impl Client {
    /// The client of a new connection.
    pub(crate) fn new(local: &Rc<Local>, arrival: Arrival) -> Client {
        let Arrival { socket, peer, snapshot, listener, address } = arrival;
        let accepted = clock::wall();
        Client {
            local: Rc::clone(local),
            stream: TcpStream::new(&local.reactor, socket),
            arrival: Facts { peer, snapshot, listener, address },
            speaks: Speaks::Nothing,
            protocol: None,
            asked: None,
            id: local.flow_ids.next(accepted),
            accepted,
            buffer: local.greetings.take(),
            consumed: 0,
        }
    }

    /// What this connection runs by.
    pub(crate) fn snapshot(&self) -> &Snapshot {
        &self.arrival.snapshot
    }

    /// What is spoken at the listener.
    pub(crate) fn ingress(&self) -> &Ingress {
        &self.snapshot().config.listeners[self.arrival.listener].ingress
    }

    /// What has arrived and is not dealt with.
    pub(crate) fn unread(&self) -> &[u8] {
        &self.buffer[self.consumed..]
    }

    /// Deals with the first `count` bytes of [`Client::unread`].
    pub(crate) fn consume(&mut self, count: usize) {
        assert!(count <= self.unread().len(), "only what has arrived can be consumed");
        self.consumed += count;
    }

    /// Waits for more bytes.
    ///
    /// # Errors
    /// [`End::Left`] at the stream's end or failure.
    ///
    /// # Panics
    /// If the buffer is full: parsers give up at bounds below it.
    pub(crate) async fn fill(&mut self) -> Result<(), End> {
        if self.buffer.len() == self.buffer.capacity() {
            assert!(self.buffer.len() < GREETING_BYTES_MAX, "parsers give up before this much");
            self.grow();
        }
        match self.stream.read(&mut self.buffer).await {
            Ok(0) | Err(_) => Err(End::Left),
            Ok(_) => Ok(()),
        }
    }

    /// Takes what has arrived already, if it is anything. The stream's end stays for the relay.
    ///
    /// # Errors
    /// [`End::Left`] at the stream's failure.
    pub(crate) fn fill_now(&mut self) -> Result<(), End> {
        self.stream.read_now(&mut self.buffer).map(drop).map_err(|_| End::Left)
    }

    /// Sends `bytes`.
    ///
    /// # Errors
    /// [`End::Left`] when the client is gone.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> Result<(), End> {
        self.stream.write_all(bytes).await.map_err(|_| End::Left)
    }

    /// Answers with a refusal in the client's own words, logs it, and closes.
    pub(crate) async fn refuse(mut self, refusal: &Refusal) {
        self.note(refusal.denied, refusal.code, refusal.rule.as_deref().unwrap_or_default());
        let answer = self.answer(refusal);
        let reactor = Rc::clone(&self.local.reactor);
        let deadline = reactor.now() + LINGER;
        // Whether the client got it or is gone is all the same now.
        let _ = within(&reactor, deadline, self.send_and_linger(&answer)).await;
        self.close();
    }

    /// Notes that the client went away.
    pub(crate) fn left(mut self) {
        self.note(Denied::ClientGone, Denied::ClientGone.as_str(), "");
        self.close();
    }

    /// The record of this connection, as far as things are known.
    pub(crate) fn record(&self, decided: &Decided<'_>) -> Record {
        let literal;
        let (host, port) = match &self.asked {
            Some(Asked { target, .. }) => match &target.host {
                Host::Name(name) => (name.as_str(), target.port.get()),
                Host::Address(address) => {
                    literal = address.to_string();
                    (literal.as_str(), target.port.get())
                }
            },
            None => ("", 0),
        };
        Record::new(&Flow {
            id: self.id,
            opened: self.accepted,
            closed: WallNanos(0),
            user: self.asked.map_or("", |asked| self.snapshot().account(asked.user).name()),
            host,
            port,
            address: decided.address,
            client: self.arrival.peer,
            class: decided.class,
            // The log looks at what is known instead; the ledger sees admitted flows only, which have one.
            protocol: self.protocol.unwrap_or(Protocol::HttpConnect),
            rule: decided.rule,
            reason: CloseReason::Fault,
            legs: Legs::default(),
            uncertain: Uncertain { up: 0, down: 0 },
        })
    }

    /// Takes the client apart for the relay: its stream, and what it sent behind its request.
    pub(crate) fn into_parts(self) -> (Rc<Local>, TcpStream, Option<Vec<u8>>) {
        let Client { local, stream, buffer, consumed, .. } = self;
        let early = (consumed < buffer.len()).then(|| buffer[consumed..].to_vec());
        local.greetings.put(buffer);
        (local, stream, early)
    }

    fn note(&mut self, denied: Denied, reason: &'static str, rule: &str) {
        self.local.stats.denied(denied);
        let record = self.record(&Decided { address: None, rule, class: Class::External });
        self.local.meter.borrow_mut().deny(Event {
            kind: EventKind::Decision,
            at: clock::wall(),
            record,
            protocol: self.protocol,
            listener: self.arrival.address,
            allowed: false,
            reason,
            dns_us: None,
            connect_us: None,
        });
    }

    fn answer(&self, refusal: &Refusal) -> Vec<u8> {
        let mut answer = Vec::new();
        match self.speaks {
            Speaks::Nothing => {}
            Speaks::Http { json } => {
                let denial = Denial {
                    status: refusal.status,
                    title: reason_phrase(refusal.status),
                    reason: &refusal.text,
                    proxy_status_error: Some(refusal.proxy_status),
                    rule: refusal.rule.as_deref(),
                    request_id: &format!("{:032x}", self.id),
                    retry_after_s: refusal.retry_after_s,
                    challenge: (refusal.status == 407).then(|| self.snapshot().config.auth.realm.as_str()),
                    json,
                };
                write_denial(&mut answer, &denial);
            }
            Speaks::Socks5Greeting => socks5::write_method(&mut answer, socks5::Method::Unacceptable),
            Speaks::Socks5Password => socks5::write_password_status(&mut answer, false),
            Speaks::Socks5Request => socks5::write_reply(&mut answer, refusal.reply, None),
        }
        answer
    }

    /// Sends the answer and our end, then reads on until the client ends too: closing a socket with unread
    /// bytes would reset it, and take the answer away before it was read.
    async fn send_and_linger(&mut self, answer: &[u8]) -> Result<(), End> {
        if answer.is_empty() {
            return Ok(());
        }
        self.send(answer).await?;
        let _ = self.stream.socket().shutdown_write();
        let mut dropped = 0;
        while dropped < LINGER_BYTES_MAX {
            self.buffer.zeroize();
            self.consumed = 0;
            self.fill().await?;
            dropped += self.buffer.len();
        }
        Ok(())
    }

    fn close(self) {
        self.local.greetings.put(self.buffer);
    }

    /// Doubles the buffer. Done by hand, so that the old one is wiped: it may hold a password.
    fn grow(&mut self) {
        let mut larger = Vec::with_capacity((2 * self.buffer.capacity()).min(GREETING_BYTES_MAX));
        larger.extend_from_slice(&self.buffer);
        std::mem::replace(&mut self.buffer, larger).zeroize();
    }
}
