//! The client of a handshake or a session: what it has sent so far, and what is known of it.
//!
//! Promises: bytes are read into one bounded buffer and consumed once; what follows a request stays for the
//! relay, or for the next request. Leaves to others: what the bytes mean (crate `proto`), deadlines
//! (`connection`, `session`), and how it is refused (`client/denial.rs`).

mod denial;
mod speaks;

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

pub(crate) use self::speaks::Speaks;

use crate::auth::AuthError;
use crate::closing::{Hold, Sent};
use crate::config::Ingress;
use crate::handshakes::Place;
use crate::limits::{GREETING_BYTES_FIRST, GREETING_BYTES_MAX, REFUSALS_BEFORE_KNOWN_MAX};
use crate::local::Local;
use crate::refusal::Refusal;
use crate::session::Begun;
use crate::snapshot::{Current, Snapshot};
use crate::text::Literal;

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

/// Why a handshake or a request ends without a flow.
#[derive(Debug)]
pub(crate) enum End {
    /// The client is told why.
    Refused(Box<Refusal>),
    /// The client went away.
    Left,
}

impl End {
    /// With the destination that the client asked for, which the log is told.
    pub(crate) fn aimed(mut self, target: Target) -> End {
        if let End::Refused(refusal) = &mut self {
            refusal.undisclosed.target = Some(target);
        }
        self
    }
}

impl<R: Into<Refusal>> From<R> for End {
    fn from(refusal: R) -> End {
        End::Refused(Box::new(refusal.into()))
    }
}

/// What a client presented to say who it is, if it presented anything.
pub(crate) type Presented = Option<Result<Credentials, CredentialsError>>;

/// See the file's header.
pub(crate) struct Client {
    pub(crate) local: Rc<Local>,
    pub(crate) stream: TcpStream,
    pub(crate) arrival: Facts,
    /// When its request has to be complete.
    pub(crate) asked_by: Nanos,
    pub(crate) speaks: Speaks,
    /// How the client asks, once that is known.
    pub(crate) protocol: Option<Protocol>,
    /// What it asks for, once that is known.
    pub(crate) asked: Option<Asked>,
    /// The path of its plain HTTP request, where the log is to have it.
    pub(crate) path: Option<Box<str>>,
    /// Its place among the handshakes, until it is known.
    pub(crate) place: Option<Place>,
    /// The id by which the client's answer, the log and the ledger know this connection.
    id: u128,
    accepted: WallNanos,
    buffer: Vec<u8>,
    /// Bytes of `buffer` that are dealt with. 0 <= consumed <= buffer.len()
    consumed: usize,
}

/// What a client asks for, and as which user.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// An index of the connection's snapshot.
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
    /// Its position in the snapshot's configuration; none once the client is known to speak HTTP.
    pub(crate) listener: Option<usize>,
    pub(crate) address: SocketAddr,
    /// What the client was sent, our own answers included.
    pub(crate) sent: Sent,
    /// How many of the last requests, in a row, did not prove their user.
    refusals: u8,
}

impl Client {
    /// The client of a new connection.
    pub(crate) fn new(local: &Rc<Local>, arrival: Arrival) -> Client {
        let Arrival { socket, peer, snapshot, listener, address } = arrival;
        let facts =
            Facts { peer, snapshot, listener: Some(listener), address, sent: Sent::default(), refusals: 0 };
        let asked_by = local.reactor.now() + facts.snapshot.config.timeouts.greeting;
        let stream = TcpStream::new(&local.reactor, socket);
        let place = Some(Place::take(local, peer.ip()));
        Client { place, ..Client::of(local, stream, facts, local.greetings.take(), asked_by) }
    }

    fn of(local: &Rc<Local>, stream: TcpStream, arrival: Facts, buffer: Vec<u8>, asked_by: Nanos) -> Client {
        let accepted = clock::steady_wall();
        Client {
            local: Rc::clone(local),
            stream,
            asked_by,
            arrival,
            speaks: Speaks::Nothing,
            protocol: None,
            asked: None,
            path: None,
            place: None,
            id: local.flow_ids.next(accepted),
            accepted,
            buffer,
            consumed: 0,
        }
    }

    /// What this connection runs by.
    pub(crate) fn snapshot(&self) -> &Snapshot {
        &self.arrival.snapshot
    }

    /// What may be spoken.
    pub(crate) fn ingress(&self) -> &Ingress {
        let listeners = &self.snapshot().config.listeners;
        self.arrival.listener.map_or(&Ingress::Http, |listener| &listeners[listener].ingress)
    }

    /// The client of a connection that rested until its next request began.
    pub(crate) fn resumed(local: &Rc<Local>, stream: TcpStream, arrival: Facts, begun: Begun) -> Client {
        let asked_by = begun.asked_by();
        let mut client = Client::of(local, stream, arrival, begun.into_bytes(), asked_by);
        client.adopt_current();
        Client { speaks: Speaks::HTTP, protocol: Some(Protocol::Http), ..client }
    }

    /// Begins the next request of the connection, which runs by what holds now: another id, and room for its
    /// head. Its deadline is the one before, unless it is renewed.
    pub(crate) fn begin_request(&mut self) {
        self.adopt_current();
        self.accepted = clock::steady_wall();
        self.id = self.local.flow_ids.next(self.accepted);
        (self.asked, self.path) = (None, None);
        self.speaks = Speaks::HTTP;
        self.protocol = Some(Protocol::Http);
        self.buffer[..self.consumed].zeroize();
        self.buffer.drain(..self.consumed);
        self.consumed = 0;
    }

    /// From now on it runs by the configuration that holds now. What is spoken is known, and the user is not.
    pub(crate) fn adopt_current(&mut self) {
        self.arrival.snapshot = self.local.snapshot();
        // Its position is one of the snapshot before.
        self.arrival.listener = None;
    }

    /// Gives the request that begins now its whole time.
    pub(crate) fn renew_deadline(&mut self) {
        self.asked_by = self.local.reactor.now() + self.snapshot().config.timeouts.greeting;
    }

    /// Whether the client was asked for credentials, and nothing of another request has arrived.
    pub(crate) fn is_between_requests(&self) -> bool {
        self.arrival.refusals > 0 && self.unread().is_empty()
    }

    /// Whether the head that has arrived asks for a tunnel.
    pub(crate) fn asks_for_tunnel(&self) -> bool {
        self.unread().starts_with(b"CONNECT ")
    }

    /// Waits until a whole head has arrived; returns its length.
    ///
    /// # Errors
    /// It is too long, or the client left.
    pub(crate) async fn await_head(&mut self) -> Result<usize, End> {
        let mut scanner = HeadScanner::default();
        loop {
            match self.find_head(&mut scanner)? {
                Some(length) => return Ok(length),
                None => self.fill().await?,
            }
        }
    }

    /// The length of the head that has arrived; `None` while it is incomplete. To be asked at a request's
    /// beginning.
    ///
    /// # Errors
    /// It is too long, or the client left.
    pub(crate) fn head_now(&mut self) -> Result<Option<usize>, End> {
        let mut scanner = HeadScanner::default();
        loop {
            if let Some(length) = self.find_head(&mut scanner)? {
                return Ok(Some(length));
            }
            make_room(&mut self.buffer);
            match self.stream.read_now(&mut self.buffer) {
                Ok(None) => return Ok(None),
                Ok(Some(0)) | Err(_) => return Err(End::Left),
                Ok(Some(_)) => {}
            }
        }
    }

    /// The length of the head, if all of it has arrived.
    fn find_head(&mut self, scanner: &mut HeadScanner) -> Result<Option<usize>, RequestError> {
        // Before anything can be wrong with the head: a refusal of HEAD has no body either.
        if self.unread().starts_with(b"HEAD ") {
            self.speaks.ask_head();
        }
        scanner.find_request(self.unread())
    }

    /// Until when its destination has to be reached, if that is tried now.
    pub(crate) fn dial_by(&self) -> Nanos {
        self.local.reactor.now() + self.snapshot().config.timeouts.connect
    }

    /// The client's user: by what it presented, or by its address if it presented nothing.
    ///
    /// # Errors
    /// A refusal.
    pub(crate) async fn authenticate(&self, presented: Presented) -> Result<UserIndex, End> {
        let (authenticator, source) = (&self.local.authenticator, self.arrival.peer.ip());
        match presented {
            Some(Ok(credentials)) => {
                let check = authenticator.verify(self.snapshot(), &credentials, source);
                let verified = match &self.place {
                    Some(place) => place.checked(check).await,
                    None => check.await,
                };
                Ok(verified.map_err(|error| Refusal::from(error).claimed(&credentials.user))?)
            }
            Some(Err(error)) => Err(Refusal::credentials_malformed(&error).into()),
            None => {
                let known = authenticator.from_source(self.snapshot(), source);
                Ok(known.ok_or_else(Refusal::credentials_missing)?)
            }
        }
    }

    /// Counts a request that was refused because it did not prove its user: the connection ends behind the
    /// answer to the last of [`REFUSALS_BEFORE_KNOWN_MAX`] in a row.
    pub(crate) fn count_refusal(&mut self) {
        self.arrival.refusals += 1;
        if self.arrival.refusals >= REFUSALS_BEFORE_KNOWN_MAX {
            self.speaks.close();
        }
    }

    /// Notes that a request has proved its user.
    pub(crate) fn forget_refusals(&mut self) {
        self.arrival.refusals = 0;
    }

    /// Has the connection run by the configuration that is in force now. Gives the index there of the user
    /// with index `user` in the configuration before.
    ///
    /// # Errors
    /// The user is gone, disabled, or has other credentials.
    pub(crate) fn carry_over(&mut self, user: UserIndex) -> Result<UserIndex, End> {
        let before = Rc::clone(&self.arrival.snapshot);
        self.adopt_current();
        if Rc::ptr_eq(&before, &self.arrival.snapshot) {
            return Ok(user);
        }
        let known = &before.config.users[user.as_usize()];
        match self.snapshot().config.user(&known.name).filter(|now| !now.disabled) {
            Some(now) if now.credential == known.credential => Ok(now.index),
            Some(_) => Err(Refusal::from(AuthError::Wrong).claimed(&known.name).into()),
            None => Err(Refusal::revoked().claimed(&known.name).into()),
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
    /// [`End::Left`] at the stream's end or failure.
    ///
    /// # Panics
    /// If the buffer is full: parsers give up at bounds below it.
    pub(crate) async fn fill(&mut self) -> Result<(), End> {
        make_room(&mut self.buffer);
        match self.stream.read(&mut self.buffer).await {
            Ok(0) | Err(_) => Err(End::Left),
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
    /// [`End::Left`] at the stream's failure.
    pub(crate) fn fill_now(&mut self) -> Result<bool, End> {
        if self.consumed == self.buffer.len() {
            self.buffer.clear();
            self.consumed = 0;
        }
        let read = self.stream.read_now(&mut self.buffer).map_err(|_| End::Left)?;
        Ok(read.is_some())
    }

    /// Sends `bytes`.
    ///
    /// # Errors
    /// [`End::Left`] when the client is gone.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> Result<(), End> {
        self.arrival.sent.add(bytes.len() as u64);
        self.stream.write_all(bytes).await.map_err(|_| End::Left)
    }

    /// Sends what `write` writes, by way of a room that the thread keeps.
    ///
    /// # Errors
    /// [`End::Left`] when the client is gone.
    pub(crate) async fn send_written(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), End> {
        let mut room = self.local.answers.take();
        write(&mut room);
        let sent = self.send(&room).await;
        self.local.answers.put(room);
        sent
    }

    /// Sends `bytes` to a client that reads.
    ///
    /// # Errors
    /// [`End::Left`] when it is gone, or takes nothing for [`LINGER`].
    pub(crate) async fn send_soon(&mut self, bytes: &[u8]) -> Result<(), End> {
        let reactor = Rc::clone(&self.local.reactor);
        within(&reactor, reactor.now() + LINGER, self.send(bytes)).await.map_err(|_| End::Left)?
    }

    /// The record of this connection, as far as things are known.
    pub(crate) fn record(&self, decided: &Decided<'_>) -> Record {
        let user = self.asked.map_or("", |asked| self.snapshot().account(asked.user).name());
        self.record_of(user, self.asked.as_ref().map(|asked| &asked.target), decided)
    }

    fn record_of(&self, user: &str, target: Option<&Target>, decided: &Decided<'_>) -> Record {
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

    /// Whether the client was sent many bytes, in answers, that were not seen taken.
    pub(crate) fn had_answers(&self) -> bool {
        self.arrival.sent.are_many()
    }

    /// Hands the client over to a relay: `begin` is given its stream, and what it sent behind its request.
    pub(crate) fn hand_over(self, begin: impl FnOnce(&Local, TcpStream, &[u8])) {
        let Client { local, stream, buffer, consumed, .. } = self;
        begin(&local, stream, &buffer[consumed..]);
        local.greetings.put(buffer);
    }

    /// Closes the connection; by a reset, if many bytes are queued that nothing holds a place for.
    pub(crate) fn close(self) {
        self.close_with(|| None);
    }

    /// Closes the connection. If many bytes are queued it keeps what `hold` gives until they are taken.
    pub(crate) fn close_with(mut self, hold: impl FnOnce() -> Option<Rc<Hold>>) {
        self.local.greetings.put(self.buffer);
        if !self.arrival.sent.is_queued(self.stream.socket()) {
            return;
        }
        match hold() {
            Some(hold) => self.local.closing.add(self.stream.into_parts(), &hold),
            None => self.stream.reset(),
        }
    }

    /// Closes the connection with a reset, so that nobody takes what was sent for whole.
    pub(crate) fn reset(self) {
        self.local.greetings.put(self.buffer);
        self.stream.reset();
    }

    /// Takes the client apart to rest: its stream, what is known of it, and what has arrived of its next
    /// request.
    ///
    /// # Panics
    /// If that request was not begun: what was before it is still there.
    pub(crate) fn into_rest(self) -> (Parts, Facts, Option<Begun>) {
        let begun = if self.unread().is_empty() {
            self.local.greetings.put(self.buffer);
            None
        } else {
            assert_eq!(self.consumed, 0, "a request that is waited for was begun");
            Some(Begun::new(self.buffer, self.asked_by))
        };
        (self.stream.into_parts(), self.arrival, begun)
    }
}

/// Doubles a buffer that is full. Done by hand, so that the old one is wiped: it may hold a password.
///
/// # Panics
/// If it is as large as it may be: parsers give up at bounds below that.
pub(crate) fn make_room(buffer: &mut Vec<u8>) {
    if buffer.len() < buffer.capacity() {
        return;
    }
    assert!(buffer.len() < GREETING_BYTES_MAX, "parsers give up before this much");
    let mut larger =
        Vec::with_capacity((2 * buffer.capacity()).clamp(GREETING_BYTES_FIRST, GREETING_BYTES_MAX));
    larger.extend_from_slice(buffer);
    std::mem::replace(buffer, larger).zeroize();
}
