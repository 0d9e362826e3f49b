//! The client of a handshake or a session: what it has sent so far, and what is known of it.
//!
//! Promises: bytes are read into one bounded buffer and consumed once; what follows a request stays for the
//! relay, or for the next request. Leaves to others: what the bytes mean (crate `proto`), deadlines
//! (`connection`, `session`), and how it is refused (`client/denial.rs`).

mod reply;
mod reply_protocol;

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use engine::net::{Parts, TcpStream};
use engine::timer::within;
use ledger::record::{Class, CloseReason, Flow, Legs, Protocol, Record, Uncertain};
use policy::UserIndex;
use proto::credentials::{Credentials, CredentialsError};
use proto::http_head::{HeadScanner, RequestError};
use proto::target::{Host, Target};
use sys::clock::{self, Nanos, WallNanos};
use sys::socket::Socket;
use zeroize::Zeroize;

pub(crate) use self::reply_protocol::ReplyProtocol;

use crate::auth::AuthError;
use crate::config::Ingress;
use crate::context::WorkerContext;
use crate::denial::Denial;
use crate::flow::closing::{HeldPermits, SentBytes};
use crate::handshake::slots::HandshakeSlot;
use crate::idle::PartialHead;
use crate::limits::{GREETING_BYTES_FIRST, GREETING_BYTES_MAX, REFUSALS_BEFORE_KNOWN_MAX};
use crate::snapshot::{Snapshot, SnapshotHandle};
use crate::text::Literal;

/// How long a refused client may take to read the answer before it is cut off.
const LINGER: Duration = Duration::from_secs(2);

/// A connection as the listener hands it over.
pub(crate) struct Accepted {
    /// The accepted socket.
    pub socket: Socket,
    /// Who connected.
    pub peer: SocketAddr,
    /// What the connection runs by.
    pub snapshot: Rc<SnapshotHandle>,
    /// The listener's position in the snapshot's configuration.
    pub listener: usize,
    /// The listener's address, with the port that the kernel chose.
    pub address: SocketAddr,
}

/// Why a handshake or a request ends without a flow.
#[derive(Debug)]
pub(crate) enum HandshakeError {
    /// The client is told why.
    Denied(Box<Denial>),
    /// The client went away.
    ClientClosed,
}

impl HandshakeError {
    /// With the destination that the client asked for, which the log is told.
    pub(crate) fn with_target(mut self, target: Target) -> HandshakeError {
        if let HandshakeError::Denied(denial) = &mut self {
            denial.details.target = Some(target);
        }
        self
    }
}

impl<R: Into<Denial>> From<R> for HandshakeError {
    fn from(denial: R) -> HandshakeError {
        HandshakeError::Denied(Box::new(denial.into()))
    }
}

/// What a client presented to say who it is, if it presented anything.
pub(crate) type PresentedCredentials = Option<Result<Credentials, CredentialsError>>;

/// See the file's header.
pub(crate) struct Client {
    pub(crate) context: Rc<WorkerContext>,
    pub(crate) stream: TcpStream,
    pub(crate) info: ConnectionInfo,
    /// When its request has to be complete.
    pub(crate) request_deadline: Nanos,
    pub(crate) reply_protocol: ReplyProtocol,
    /// How the client asks, once that is known.
    pub(crate) protocol: Option<Protocol>,
    /// What it asks for, once that is known.
    pub(crate) request: Option<ConnectRequest>,
    /// The path of its plain HTTP request, where the log is to have it.
    pub(crate) path: Option<Box<str>>,
    /// Its place among the handshakes, until it is known.
    pub(crate) slot: Option<HandshakeSlot>,
    /// The id by which the client's answer, the log and the ledger know this connection.
    id: u128,
    accepted: WallNanos,
    buffer: Vec<u8>,
    /// Bytes of `buffer` that are dealt with. 0 <= consumed <= buffer.len()
    consumed: usize,
}

/// What a client asks for, and as which user.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectRequest {
    /// An index of the connection's snapshot.
    pub user: UserIndex,
    /// Where to.
    pub target: Target,
}

/// What was decided about a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route<'a> {
    /// The address that was dialled, if it came to that.
    pub address: Option<IpAddr>,
    /// The rule that decided; empty if none did.
    pub rule: &'a str,
    /// What the flow counts as.
    pub class: Class,
}

/// An arrival without its socket.
pub(crate) struct ConnectionInfo {
    pub(crate) peer: SocketAddr,
    pub(crate) snapshot: Rc<SnapshotHandle>,
    /// Its position in the snapshot's configuration; none once the client is known to speak HTTP.
    pub(crate) listener: Option<usize>,
    pub(crate) address: SocketAddr,
    /// What the client was sent, our own answers included.
    pub(crate) sent: SentBytes,
    /// How many of the last requests, in a row, did not prove their user.
    auth_failures: u8,
}

impl Client {
    /// The client of a new connection.
    pub(crate) fn new(context: &Rc<WorkerContext>, arrival: Accepted) -> Client {
        let Accepted { socket, peer, snapshot, listener, address } = arrival;
        let facts = ConnectionInfo {
            peer,
            snapshot,
            listener: Some(listener),
            address,
            sent: SentBytes::default(),
            auth_failures: 0,
        };
        let asked_by = context.reactor.now() + facts.snapshot.config.timeouts.greeting;
        let stream = TcpStream::new(&context.reactor, socket);
        let place = Some(HandshakeSlot::take(context, peer.ip()));
        Client { slot: place, ..Client::of(context, stream, facts, context.read_buffers.take(), asked_by) }
    }

    fn of(
        context: &Rc<WorkerContext>,
        stream: TcpStream,
        arrival: ConnectionInfo,
        buffer: Vec<u8>,
        asked_by: Nanos,
    ) -> Client {
        let accepted = clock::steady_wall();
        Client {
            context: Rc::clone(context),
            stream,
            request_deadline: asked_by,
            info: arrival,
            reply_protocol: ReplyProtocol::None,
            protocol: None,
            request: None,
            path: None,
            slot: None,
            id: context.flow_ids.next(accepted),
            accepted,
            buffer,
            consumed: 0,
        }
    }

    /// What this connection runs by.
    pub(crate) fn snapshot(&self) -> &Snapshot {
        &self.info.snapshot
    }

    /// What may be spoken.
    pub(crate) fn ingress(&self) -> &Ingress {
        let listeners = &self.snapshot().config.listeners;
        self.info.listener.map_or(&Ingress::Http, |listener| &listeners[listener].ingress)
    }

    /// The client of a connection that rested until its next request began.
    pub(crate) fn resumed(
        context: &Rc<WorkerContext>,
        stream: TcpStream,
        arrival: ConnectionInfo,
        begun: PartialHead,
    ) -> Client {
        let asked_by = begun.asked_by();
        let mut client = Client::of(context, stream, arrival, begun.into_bytes(), asked_by);
        client.use_current_snapshot();
        Client { reply_protocol: ReplyProtocol::HTTP, protocol: Some(Protocol::Http), ..client }
    }

    /// Begins the next request of the connection, which runs by what holds now: another id, and room for its
    /// head. Its deadline is the one before, unless it is renewed.
    pub(crate) fn begin_request(&mut self) {
        self.use_current_snapshot();
        self.accepted = clock::steady_wall();
        self.id = self.context.flow_ids.next(self.accepted);
        (self.request, self.path) = (None, None);
        self.reply_protocol = ReplyProtocol::HTTP;
        self.protocol = Some(Protocol::Http);
        self.buffer[..self.consumed].zeroize();
        self.buffer.drain(..self.consumed);
        self.consumed = 0;
    }

    /// From now on it runs by the configuration that holds now. What is spoken is known, and the user is not.
    pub(crate) fn use_current_snapshot(&mut self) {
        self.info.snapshot = self.context.snapshot();
        // Its position is one of the snapshot before.
        self.info.listener = None;
    }

    /// Gives the request that begins now its whole time.
    pub(crate) fn renew_deadline(&mut self) {
        self.request_deadline = self.context.reactor.now() + self.snapshot().config.timeouts.greeting;
    }

    /// Whether the client was asked for credentials, and nothing of another request has arrived.
    pub(crate) fn is_between_requests(&self) -> bool {
        self.info.auth_failures > 0 && self.unread().is_empty()
    }

    /// Whether the head that has arrived asks for a tunnel.
    pub(crate) fn asks_for_tunnel(&self) -> bool {
        self.unread().starts_with(b"CONNECT ")
    }

    /// Waits until a whole head has arrived; returns its length.
    ///
    /// # Errors
    /// It is too long, or the client left.
    pub(crate) async fn await_head(&mut self) -> Result<usize, HandshakeError> {
        let mut scanner = HeadScanner::default();
        loop {
            match self.find_head(&mut scanner)? {
                Some(length) => return Ok(length),
                None => self.read_more().await?,
            }
        }
    }

    /// The length of the head that has arrived; `None` while it is incomplete. To be asked at a request's
    /// beginning.
    ///
    /// # Errors
    /// It is too long, or the client left.
    pub(crate) fn available_head(&mut self) -> Result<Option<usize>, HandshakeError> {
        let mut scanner = HeadScanner::default();
        loop {
            if let Some(length) = self.find_head(&mut scanner)? {
                return Ok(Some(length));
            }
            grow_buffer(&mut self.buffer);
            match self.stream.read_now(&mut self.buffer) {
                Ok(None) => return Ok(None),
                Ok(Some(0)) | Err(_) => return Err(HandshakeError::ClientClosed),
                Ok(Some(_)) => {}
            }
        }
    }

    /// The length of the head, if all of it has arrived.
    fn find_head(&mut self, scanner: &mut HeadScanner) -> Result<Option<usize>, RequestError> {
        // Before anything can be wrong with the head: a refusal of HEAD has no body either.
        if self.unread().starts_with(b"HEAD ") {
            self.reply_protocol.ask_head();
        }
        scanner.find_request(self.unread())
    }

    /// Until when its destination has to be reached, if that is tried now.
    pub(crate) fn connect_deadline(&self) -> Nanos {
        self.context.reactor.now() + self.snapshot().config.timeouts.connect
    }

    /// The client's user: by what it presented, or by its address if it presented nothing.
    ///
    /// # Errors
    /// A refusal.
    pub(crate) async fn authenticate(
        &self,
        presented: PresentedCredentials,
    ) -> Result<UserIndex, HandshakeError> {
        let (authenticator, source) = (&self.context.authenticator, self.info.peer.ip());
        match presented {
            Some(Ok(credentials)) => {
                let check = authenticator.verify(self.snapshot(), &credentials, source);
                let verified = match &self.slot {
                    Some(place) => place.checked(check).await,
                    None => check.await,
                };
                Ok(verified.map_err(|error| Denial::from(error).claimed(&credentials.user))?)
            }
            Some(Err(error)) => Err(Denial::credentials_malformed(&error).into()),
            None => {
                let known = authenticator.from_source(self.snapshot(), source);
                Ok(known.ok_or_else(Denial::credentials_missing)?)
            }
        }
    }

    /// Counts a request that was refused because it did not prove its user: the connection ends behind the
    /// answer to the last of [`REFUSALS_BEFORE_KNOWN_MAX`] in a row.
    pub(crate) fn count_auth_failure(&mut self) {
        self.info.auth_failures += 1;
        if self.info.auth_failures >= REFUSALS_BEFORE_KNOWN_MAX {
            self.reply_protocol.close();
        }
    }

    /// Notes that a request has proved its user.
    pub(crate) fn reset_auth_failures(&mut self) {
        self.info.auth_failures = 0;
    }

    /// Has the connection run by the configuration that is in force now. Gives the index there of the user
    /// with index `user` in the configuration before.
    ///
    /// # Errors
    /// The user is gone, disabled, or has other credentials.
    pub(crate) fn revalidate(&mut self, user: UserIndex) -> Result<UserIndex, HandshakeError> {
        let before = Rc::clone(&self.info.snapshot);
        self.use_current_snapshot();
        if Rc::ptr_eq(&before, &self.info.snapshot) {
            return Ok(user);
        }
        let known = &before.config.users[user.as_usize()];
        match self.snapshot().config.user(&known.name).filter(|now| !now.disabled) {
            Some(now) if now.credential == known.credential => Ok(now.index),
            Some(_) => Err(Denial::from(AuthError::Wrong).claimed(&known.name).into()),
            None => Err(Denial::revoked().claimed(&known.name).into()),
        }
    }

    /// What has arrived and is not dealt with.
    pub(crate) fn unread(&self) -> &[u8] {
        &self.buffer[self.consumed..]
    }

    /// The same, for whom they are.
    pub(crate) fn unread_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.consumed..]
    }

    /// Deals with the first `count` bytes of [`Client::unread`].
    pub(crate) fn consume(&mut self, count: usize) {
        assert!(count <= self.unread().len(), "only what has arrived can be consumed");
        self.consumed += count;
    }

    /// Waits for more bytes.
    ///
    /// # Errors
    /// [`HandshakeError::ClientClosed`] at the stream's end or failure.
    ///
    /// # Panics
    /// If the buffer is full: parsers give up at bounds below it.
    pub(crate) async fn read_more(&mut self) -> Result<(), HandshakeError> {
        grow_buffer(&mut self.buffer);
        match self.stream.read(&mut self.buffer).await {
            Ok(0) | Err(_) => Err(HandshakeError::ClientClosed),
            Ok(_) => Ok(()),
        }
    }

    /// Keeps what was read behind a body, at most `GREETING_BYTES_MAX`: it belongs to the next request.
    ///
    /// # Panics
    /// If something that had arrived before is not dealt with: that comes first.
    pub(crate) fn keep(&mut self, bytes: &[u8]) {
        assert!(self.unread().is_empty(), "a body is read on once what had arrived before is dealt with");
        // Wiped before it may move: it may hold a password.
        self.buffer.zeroize();
        self.consumed = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// Takes what has arrived already; says whether that is anything, be it the end, which stays to be read.
    ///
    /// # Errors
    /// [`HandshakeError::ClientClosed`] at the stream's failure.
    pub(crate) fn read_available(&mut self) -> Result<bool, HandshakeError> {
        if self.consumed == self.buffer.len() {
            self.buffer.clear();
            self.consumed = 0;
        }
        let read = self.stream.read_now(&mut self.buffer).map_err(|_| HandshakeError::ClientClosed)?;
        Ok(read.is_some())
    }

    /// Sends `bytes`.
    ///
    /// # Errors
    /// [`HandshakeError::ClientClosed`] when the client is gone.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> Result<(), HandshakeError> {
        self.info.sent.add(bytes.len() as u64);
        self.stream.write_all(bytes).await.map_err(|_| HandshakeError::ClientClosed)
    }

    /// Sends what `write` writes, by way of a room that the thread keeps.
    ///
    /// # Errors
    /// [`HandshakeError::ClientClosed`] when the client is gone.
    pub(crate) async fn send_written(
        &mut self,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), HandshakeError> {
        let mut room = self.context.write_buffers.take();
        write(&mut room);
        let sent = self.send(&room).await;
        self.context.write_buffers.put(room);
        sent
    }

    /// Sends `bytes` to a client that reads.
    ///
    /// # Errors
    /// [`HandshakeError::ClientClosed`] when it is gone, or takes nothing for [`LINGER`].
    pub(crate) async fn send_soon(&mut self, bytes: &[u8]) -> Result<(), HandshakeError> {
        let reactor = Rc::clone(&self.context.reactor);
        within(&reactor, reactor.now() + LINGER, self.send(bytes))
            .await
            .map_err(|_| HandshakeError::ClientClosed)?
    }

    /// The record of this connection, as far as things are known.
    pub(crate) fn record(&self, decided: &Route<'_>) -> Record {
        let user = self.request.map_or("", |asked| self.snapshot().account(asked.user).name());
        self.record_of(user, self.request.as_ref().map(|asked| &asked.target), decided)
    }

    fn record_of(&self, user: &str, target: Option<&Target>, decided: &Route<'_>) -> Record {
        let literal;
        let (host, port) = match target {
            Some(target) => match &target.host {
                Host::Name(name) => (name.as_str(), target.port.get()),
                Host::Address(address) => {
                    literal = Literal::of(*address);
                    (literal.as_str(), target.port.get())
                }
            },
            None => ("", 0),
        };
        Record::new(&Flow {
            id: self.id,
            opened: self.accepted,
            closed: WallNanos(0),
            user,
            host,
            port,
            address: decided.address,
            client: self.info.peer,
            class: decided.class,
            // The log looks at what is known instead; the ledger sees admitted flows only, which have one.
            protocol: self.protocol.unwrap_or(Protocol::HttpConnect),
            rule: decided.rule,
            reason: CloseReason::Fault,
            legs: Legs::default(),
            uncertain: Uncertain { up: 0, down: 0 },
        })
    }

    /// Whether the client was sent many bytes, in answers, that were not seen taken.
    pub(crate) fn sent_much(&self) -> bool {
        self.info.sent.are_many()
    }

    /// Hands the client over to a relay: `begin` is given its stream, and what it sent behind its request.
    pub(crate) fn hand_over(self, begin: impl FnOnce(&WorkerContext, TcpStream, &[u8])) {
        let Client { context, stream, buffer, consumed, .. } = self;
        begin(&context, stream, &buffer[consumed..]);
        context.read_buffers.put(buffer);
    }

    /// Closes the connection; by a reset, if many bytes are queued that nothing holds a place for.
    pub(crate) fn close(self) {
        self.close_with(|| None);
    }

    /// Closes the connection. If many bytes are queued it keeps what `hold` gives until they are taken.
    pub(crate) fn close_with(mut self, hold: impl FnOnce() -> Option<Rc<HeldPermits>>) {
        self.context.read_buffers.put(self.buffer);
        if !self.info.sent.is_queued(self.stream.socket()) {
            return;
        }
        match hold() {
            Some(hold) => self.context.closing.add(self.stream.into_parts(), &hold),
            None => self.stream.reset(),
        }
    }

    /// Closes the connection with a reset, so that nobody takes what was sent for whole.
    pub(crate) fn reset(self) {
        self.context.read_buffers.put(self.buffer);
        self.stream.reset();
    }

    /// Takes the client apart to rest: its stream, what is known of it, and what has arrived of its next
    /// request.
    ///
    /// # Panics
    /// If that request was not begun: what was before it is still there.
    pub(crate) fn into_idle(self) -> (Parts, ConnectionInfo, Option<PartialHead>) {
        let begun = if self.unread().is_empty() {
            self.context.read_buffers.put(self.buffer);
            None
        } else {
            assert_eq!(self.consumed, 0, "a request that is waited for was begun");
            Some(PartialHead::new(self.buffer, self.request_deadline))
        };
        (self.stream.into_parts(), self.info, begun)
    }
}

/// Doubles a buffer that is full. Done by hand, so that the old one is wiped: it may hold a password.
///
/// # Panics
/// If it is as large as it may be: parsers give up at bounds below that.
pub(crate) fn grow_buffer(buffer: &mut Vec<u8>) {
    if buffer.len() < buffer.capacity() {
        return;
    }
    assert!(buffer.len() < GREETING_BYTES_MAX, "parsers give up before this much");
    let mut larger =
        Vec::with_capacity((2 * buffer.capacity()).clamp(GREETING_BYTES_FIRST, GREETING_BYTES_MAX));
    larger.extend_from_slice(buffer);
    std::mem::replace(buffer, larger).zeroize();
}
