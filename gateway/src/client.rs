//! The client of a handshake or a session: its connection, its unread bytes and its current request.
//!
//! ```text
//!   client/input.rs    reads heads, drops bodies           client/identify.rs   finds the user
//!   client/reply.rs    sends denials, lingers, resets      client/log.rs        records and log lines
//! ```
//!
//! Not handled here: what the bytes mean (crate `proto`), and the deadlines (`handshake`, `http`, `tunnel`).

mod identify;
mod input;
mod log;
mod reply;
mod reply_protocol;

use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use engine::net::{Parts, TcpStream};
use ledger::record::{Class, Protocol};
use policy::UserIndex;
use proto::credentials::{Credentials, CredentialsError};
use proto::target::Target;
use sys::clock::{self, Nanos, WallNanos};

pub(crate) use self::reply_protocol::ReplyProtocol;

use crate::buffers::ReadBuffer;
use crate::config::Ingress;
use crate::connection::{Accepted, ConnectionInfo};
use crate::context::WorkerContext;
use crate::denial::Denial;
use crate::flow::closing::HeldPermits;
use crate::idle::PartialHead;
use crate::snapshot::Snapshot;

/// How long a denied client may take to read the response before its connection is reset.
const LINGER: Duration = Duration::from_secs(2);

/// Why a handshake or a request ends without a flow.
#[derive(Debug)]
pub(crate) enum HandshakeError {
    /// The client is sent the denial.
    Denied(Box<Denial>),
    /// The client closed its connection, or it failed.
    ClientClosed,
}

impl HandshakeError {
    /// With the target that the client requested, for the log.
    pub(crate) fn with_target(mut self, target: Target) -> HandshakeError {
        if let HandshakeError::Denied(denial) = &mut self {
            denial.details.target = Some(target);
        }
        self
    }
}

impl<D: Into<Denial>> From<D> for HandshakeError {
    fn from(denial: D) -> HandshakeError {
        HandshakeError::Denied(Box::new(denial.into()))
    }
}

/// The credentials that a client presented, if any.
pub(crate) type PresentedCredentials = Option<Result<Credentials, CredentialsError>>;

/// A request for a target, by a user.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectRequest {
    /// An index of the connection's snapshot.
    pub user: UserIndex,
    pub target: Target,
}

/// Where a request was routed, for its record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route<'a> {
    /// The address that was dialled, if any.
    pub address: Option<IpAddr>,
    /// The rule that decided; empty if none did.
    pub rule: &'a str,
    /// The class by which the flow is billed.
    pub class: Class,
    /// The number of the named set that has the rule; 0 if none has it.
    pub set: u16,
}

/// A client's connection while a task serves it.
pub(crate) struct Client {
    pub(crate) context: Rc<WorkerContext>,
    pub(crate) stream: TcpStream,
    pub(crate) info: ConnectionInfo,
    /// What the client has sent and no parser has consumed.
    pub(crate) input: ReadBuffer,
    /// When the request has to be complete.
    pub(crate) request_deadline: Nanos,
    pub(crate) reply_protocol: ReplyProtocol,
    /// The protocol of the request, once that is known.
    pub(crate) protocol: Option<Protocol>,
    /// The request, once it is read and its user is identified.
    pub(crate) request: Option<ConnectRequest>,
    /// The path of a plain HTTP request, where the configuration has it logged.
    pub(crate) path: Option<Box<str>>,
    /// Whether a request has proved its user: until then the connection is a handshake's.
    pub(crate) is_identified: bool,
    /// The id of the connection or request in responses, log and ledger.
    id: u128,
    accepted: WallNanos,
}

impl Client {
    /// The client of a new connection.
    pub(crate) fn new(context: &Rc<WorkerContext>, accepted: Accepted) -> Client {
        let (info, socket) = ConnectionInfo::of(accepted);
        let request_deadline = context.reactor.now() + info.snapshot.config.timeouts.greeting;
        let stream = TcpStream::new(&context.reactor, socket);
        let input = ReadBuffer::new(context.read_buffers.take());
        Client::of(context, stream, info, input, request_deadline)
    }

    /// The client of an idle connection whose next request has begun.
    pub(crate) fn resumed(
        context: &Rc<WorkerContext>,
        stream: TcpStream,
        info: ConnectionInfo,
        head: PartialHead,
    ) -> Client {
        let request_deadline = head.deadline();
        let input = ReadBuffer::new(head.into_bytes());
        let mut client = Client::of(context, stream, info, input, request_deadline);
        client.use_current_snapshot();
        let (reply_protocol, protocol) = (ReplyProtocol::HTTP, Some(Protocol::Http));
        Client { reply_protocol, protocol, is_identified: true, ..client }
    }

    fn of(
        context: &Rc<WorkerContext>,
        stream: TcpStream,
        info: ConnectionInfo,
        input: ReadBuffer,
        request_deadline: Nanos,
    ) -> Client {
        let accepted = clock::steady_wall();
        Client {
            context: Rc::clone(context),
            stream,
            info,
            input,
            request_deadline,
            reply_protocol: ReplyProtocol::None,
            protocol: None,
            request: None,
            path: None,
            is_identified: false,
            id: context.flow_ids.next(accepted),
            accepted,
        }
    }

    /// The id of the current request.
    pub(crate) fn id(&self) -> u128 {
        self.id
    }

    /// When the current request, or for the first one its connection, arrived.
    pub(crate) fn arrived(&self) -> WallNanos {
        self.accepted
    }

    /// The configuration that serves the current request.
    pub(crate) fn snapshot(&self) -> &Snapshot {
        &self.info.snapshot
    }

    /// Which protocols the listener speaks.
    pub(crate) fn ingress(&self) -> &Ingress {
        let listeners = &self.snapshot().config.listeners;
        self.info.listener.map_or(&Ingress::Http, |listener| &listeners[listener].ingress)
    }

    /// Begins the connection's next request: another id, the current configuration, and the whole buffer for
    /// its head. The deadline stays, unless it is renewed.
    pub(crate) fn begin_request(&mut self) {
        self.use_current_snapshot();
        self.accepted = clock::steady_wall();
        self.id = self.context.flow_ids.next(self.accepted);
        (self.request, self.path) = (None, None);
        self.reply_protocol = ReplyProtocol::HTTP;
        self.protocol = Some(Protocol::Http);
        self.input.begin_request();
    }

    /// Serves the rest of the request by the current configuration. The protocol is known, the user is not.
    pub(crate) fn use_current_snapshot(&mut self) {
        self.info.snapshot = self.context.snapshot();
        // The position belongs to the earlier configuration.
        self.info.listener = None;
    }

    /// Gives the request that begins now its whole time.
    pub(crate) fn renew_deadline(&mut self) {
        self.request_deadline = self.context.reactor.now() + self.snapshot().config.timeouts.greeting;
    }

    /// When a dial that begins now has to have succeeded.
    pub(crate) fn connect_deadline(&self) -> Nanos {
        self.context.reactor.now() + self.snapshot().config.timeouts.connect
    }

    /// Closes the connection; by a reset if many bytes are queued, for which no permit is held.
    pub(crate) fn close(self) {
        self.close_with(|| None);
    }

    /// Closes the connection. If many bytes are queued, it holds what `permits` returns until the peer has
    /// acknowledged them.
    pub(crate) fn close_with(mut self, permits: impl FnOnce() -> Option<Rc<HeldPermits>>) {
        self.context.read_buffers.put(self.input.into_bytes());
        if !self.info.sent.is_queued(self.stream.socket()) {
            return;
        }
        match permits() {
            Some(permits) => self.context.closing.add(self.stream.into_parts(), &permits),
            None => self.stream.reset(),
        }
    }

    /// Closes the connection with RST, so that the peer can detect a truncated response.
    pub(crate) fn reset(self) {
        self.context.read_buffers.put(self.input.into_bytes());
        self.stream.reset();
    }

    /// Takes the client apart for a relay: its connection, the unread bytes, and whether it was sent so many
    /// bytes, in responses, that some may be queued.
    pub(crate) fn into_relay(self) -> (Parts, ReadBuffer, bool) {
        (self.stream.into_parts(), self.input, self.info.sent.are_many())
    }

    /// Takes the client apart for the table of idle connections.
    ///
    /// # Panics
    /// If bytes of the previous request are left in front of the next one's.
    pub(crate) fn into_idle(self) -> (Parts, ConnectionInfo, Option<PartialHead>) {
        let head = if self.input.unread().is_empty() {
            self.context.read_buffers.put(self.input.into_bytes());
            None
        } else {
            assert!(self.input.is_untouched(), "an awaited request has the buffer from its beginning");
            Some(PartialHead::new(self.input.into_bytes(), self.request_deadline))
        };
        (self.stream.into_parts(), self.info, head)
    }
}
