//! A connection to a destination that outlives a request.
//!
//! Guarantees: it serves one client, one destination and one user; a request that cannot be repeated is not
//! sent over a connection that may be closing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use engine::net::TcpStream;
use proto::target::Target;
use sys::clock::Nanos;
use sys::epoll::StreamEnd;
use sys::socket::Socket;

use crate::account::Account;
use crate::idle::UpstreamKey;

/// The connection to the destination of a session's last request.
pub(super) struct Upstream {
    pub(super) stream: TcpStream,
    pub(super) key: UpstreamKey,
}

impl Upstream {
    /// A new connection.
    pub(super) fn new(
        stream: TcpStream,
        target: Target,
        address: SocketAddr,
        account: &Arc<Account>,
    ) -> Upstream {
        Upstream { stream, key: UpstreamKey::new(target, address, account) }
    }

    /// A new connection to the same address, for the same user and target.
    pub(super) fn reconnected(&self, stream: TcpStream) -> Upstream {
        Upstream::new(stream, *self.key.target, self.key.address, &self.key.account)
    }

    /// Whether a request of `account` for `target` may use the connection.
    pub(super) fn may_serve(
        &self,
        target: &Target,
        account: &Arc<Account>,
        is_repeatable: bool,
        now: Nanos,
    ) -> bool {
        self.key.fits(target, account, is_repeatable, now) && !self.has_ended()
    }

    /// Whether it has served a request.
    pub(super) fn is_used(&self) -> bool {
        self.key.used_at != Nanos::NEVER
    }

    /// Adds the `bytes` of a request; returns whether the destination has not acknowledged all bytes.
    pub(super) fn is_behind(&mut self, bytes: u64) -> bool {
        self.key.sent.add(bytes);
        self.key.sent.is_queued(self.stream.socket())
    }

    /// Closes a connection that failed during a request of `bytes`; by a reset if the destination has not
    /// acknowledged them, for no permit is held for the queue.
    pub(super) fn close_failed(mut self, bytes: u64) {
        if self.is_behind(bytes) {
            self.stream.reset();
        }
    }

    /// Notes that a response has ended.
    pub(super) fn note_use(&mut self, now: Nanos) {
        self.key.used_at = now;
    }

    /// Whether the destination closed, or sent unsolicited bytes.
    pub(super) fn has_ended(&self) -> bool {
        let ready = self.stream.readiness();
        // After a read of exactly a response's last bytes, epoll does not tell whether more follow.
        let has_more = || !matches!(self.stream.read_now(&mut Vec::with_capacity(1)), Ok(None));
        ready.end != StreamEnd::Open || ready.readable && has_more()
    }

    /// Writes by `send`. TCP_NODELAY is set at the second write: Nagle's algorithm never delays the first,
    /// and a connection with a single request saves the call.
    pub(super) fn poll_write(
        &self,
        cx: &Context<'_>,
        length: usize,
        send: impl FnOnce(&Socket) -> std::io::Result<usize>,
    ) -> Poll<std::io::Result<usize>> {
        let writes = &self.key.writes;
        if writes.get() < 2 {
            writes.set(writes.get() + 1);
            if writes.get() == 2 {
                // A socket that refuses the option has failed; the write returns the error.
                let _ = self.stream.socket().set_nodelay();
            }
        }
        self.stream.poll_write(cx, length, send)
    }
}
