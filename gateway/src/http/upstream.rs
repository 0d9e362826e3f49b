//! A connection to a destination that outlives a request.
//!
//! Promises: it serves one client alone, one destination and one user; a request that cannot be sent twice is
//! not sent over a connection that may be ending. Leaves to others: whether the request may go there.

use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use engine::net::TcpStream;
use proto::target::Target;
use sys::clock::Nanos;
use sys::epoll::StreamEnd;
use sys::socket::Socket;

use crate::account::Account;
use crate::flow::closing::SentBytes;

/// How long a connection may have been silent to be trusted with a request that cannot be repeated. Servers
/// keep silent connections for 2 s and more; within a second the end and the request hardly ever cross.
const FRESH: Duration = Duration::from_secs(1);

/// See the file's header.
pub(crate) struct Upstream {
    pub(crate) stream: TcpStream,
    pub(crate) key: UpstreamKey,
}

/// What a connection to a destination is for, and how far it has come.
pub(crate) struct UpstreamKey {
    target: Box<Target>,
    /// The address that was judged and dialled.
    pub(crate) address: SocketAddr,
    account: Arc<Account>,
    /// When its last answer ended; never, before the first one.
    used_at: Nanos,
    /// What was sent on it.
    sent: SentBytes,
    /// Writes so far, as far as they matter for TCP_NODELAY: 0, 1 or 2.
    writes: Cell<u8>,
}

impl UpstreamKey {
    /// Whether the user was removed or disabled.
    pub(crate) fn is_revoked(&self) -> bool {
        self.account.is_revoked()
    }
}

impl Upstream {
    /// A new connection.
    pub(crate) fn new(
        stream: TcpStream,
        target: Target,
        address: SocketAddr,
        account: &Arc<Account>,
    ) -> Upstream {
        let (target, account) = (Box::new(target), Arc::clone(account));
        let (used_at, sent, writes) = (Nanos::NEVER, SentBytes::default(), Cell::new(0));
        let purpose = UpstreamKey { target, address, account, used_at, sent, writes };
        Upstream { stream, key: purpose }
    }

    /// For the same purpose, a new connection to the same address.
    pub(crate) fn connected_again(&self, stream: TcpStream) -> Upstream {
        Upstream::new(stream, *self.key.target, self.key.address, &self.key.account)
    }

    /// Whether a request of this user may go over it.
    pub(crate) fn may_serve(
        &self,
        target: &Target,
        account: &Arc<Account>,
        is_repeatable: bool,
        now: Nanos,
    ) -> bool {
        let is_fresh = now.since(self.key.used_at) < FRESH;
        *self.key.target == *target
            && Arc::ptr_eq(&self.key.account, account)
            && (is_repeatable || is_fresh)
            && !self.has_ended()
    }

    /// Whether it has answered before.
    pub(crate) fn is_used(&self) -> bool {
        self.key.used_at != Nanos::NEVER
    }

    /// Notes that a request had `bytes`; whether the destination has not taken all that was sent to it.
    pub(crate) fn is_behind(&mut self, bytes: u64) -> bool {
        self.key.sent.add(bytes);
        self.key.sent.is_queued(self.stream.socket())
    }

    /// Ends a connection that has failed behind a request of `bytes`; by a reset if the destination has not
    /// taken all of it, for nothing would hold a place for what is queued.
    pub(crate) fn give_up(mut self, bytes: u64) {
        if self.is_behind(bytes) {
            self.stream.reset();
        }
    }

    /// Notes that an answer has ended.
    pub(crate) fn note_use(&mut self, now: Nanos) {
        self.key.used_at = now;
    }

    /// Whether its end, or something that nobody asked for, has arrived.
    pub(crate) fn has_ended(&self) -> bool {
        let ready = self.stream.readiness();
        // A read that got exactly what was left of an answer does not tell whether anything follows.
        let has_more = || !matches!(self.stream.read_now(&mut Vec::with_capacity(1)), Ok(None));
        ready.end != StreamEnd::Open || ready.readable && has_more()
    }

    /// Writes by `send`, small writes at once: Nagle's algorithm never delays the first of a connection, and
    /// one that carries a single request saves the call.
    pub(crate) fn poll_write(
        &self,
        cx: &Context<'_>,
        length: usize,
        send: impl FnOnce(&Socket) -> std::io::Result<usize>,
    ) -> Poll<std::io::Result<usize>> {
        let writes = &self.key.writes;
        if writes.get() < 2 {
            writes.set(writes.get() + 1);
            if writes.get() == 2 {
                // A socket that refuses it is dead, which the write will tell.
                let _ = self.stream.socket().set_nodelay();
            }
        }
        self.stream.poll_write(cx, length, send)
    }
}
