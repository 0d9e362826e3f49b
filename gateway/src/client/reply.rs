//! Responses of the gateway's own, and the end of a connection behind them.
//!
//! Guarantees: a client that is still sending can read the response, within bounds of bytes and time.

use std::rc::Rc;
use std::sync::Arc;

use engine::deadline::within;

use super::{Client, HandshakeError, LINGER, ReplyProtocol};
use crate::account::AccountId;
use crate::denial::Denial;
use crate::observe::stats::DenialKind;

impl Client {
    /// Sends `bytes`.
    ///
    /// # Errors
    /// [`HandshakeError::ClientClosed`] if the connection failed.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> Result<(), HandshakeError> {
        self.info.sent.add(bytes.len() as u64);
        self.stream.write_all(bytes).await.map_err(|_| HandshakeError::ClientClosed)
    }

    /// Sends what `write` writes into a buffer of the thread's pool.
    ///
    /// # Errors
    /// [`HandshakeError::ClientClosed`] if the connection failed.
    pub(crate) async fn send_written(
        &mut self,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), HandshakeError> {
        let mut buffer = self.context.write_buffers.take();
        write(&mut buffer);
        let sent = self.send(&buffer).await;
        self.context.write_buffers.put(buffer);
        sent
    }

    /// Sends `bytes` within [`LINGER`].
    ///
    /// # Errors
    /// [`HandshakeError::ClientClosed`] if the connection failed, or the client took too long.
    pub(crate) async fn send_within_linger(&mut self, bytes: &[u8]) -> Result<(), HandshakeError> {
        let reactor = Rc::clone(&self.context.reactor);
        let sent = within(&reactor, reactor.now() + LINGER, self.send(bytes)).await;
        sent.map_err(|_| HandshakeError::ClientClosed)?
    }

    /// Sends a denial in the client's protocol.
    ///
    /// # Errors
    /// [`HandshakeError::ClientClosed`] if the connection failed.
    pub(crate) async fn send_denial(&mut self, denial: &Denial) -> Result<(), HandshakeError> {
        let realm = self.info.snapshot.config.auth.realm.as_str();
        let response =
            self.context.date.with(|date| self.reply_protocol.encode(denial, self.id, realm, date));
        self.send_within_linger(&response).await
    }

    /// Logs and sends a denial, and lingers; the caller closes the connection behind it.
    pub(crate) async fn deny(&mut self, denial: &Denial) {
        self.log_denial(denial);
        // Unknown protocol: close without a reply.
        if self.reply_protocol != ReplyProtocol::None && self.send_denial(denial).await.is_ok() {
            self.linger().await;
        }
    }

    /// The same for a client that is not identified: response and linger share one [`LINGER`], so that a
    /// handshake outlives its deadline by no more than that.
    pub(crate) async fn deny_within_linger(&mut self, denial: &Denial) {
        let reactor = Rc::clone(&self.context.reactor);
        // The connection is closed behind this, whether the response was sent or not.
        let _ = within(&reactor, reactor.now() + LINGER, self.deny(denial)).await;
    }

    /// Ends a handshake that has run out of time or slots. RST frees the kernel's buffers at once.
    pub(crate) fn reset_with_reason(mut self, reason: DenialKind) {
        self.log_denial(&Denial::without_response(reason));
        self.reset();
    }

    /// Shuts the sending direction down and reads on for [`LINGER`], until the client closes too: close(2)
    /// with unread bytes sends RST, and the client's kernel then drops the response. While an identified
    /// client acknowledges bytes in each such span, the next one follows. An identified client needs a permit
    /// for this; without one its connection is closed at once.
    pub(crate) async fn linger(&mut self) {
        let context = Rc::clone(&self.context);
        let account = self.request.map(|request| Arc::clone(self.snapshot().account(request.user)));
        let user = account.as_ref().map_or(AccountId::PROCESS, |account| account.id());
        let permit = if self.is_identified { context.lingering.take(user) } else { None };
        if self.is_identified && permit.is_none() {
            return;
        }
        let _ = self.stream.socket().shutdown_write();
        let (mut queued, mut is_slow) = (self.stream.socket().unacknowledged_bytes(), false);
        let mut discarded = 0;
        loop {
            let input = self.discard_input(&mut discarded);
            if within(&context.reactor, context.reactor.now() + LINGER, input).await.is_ok() {
                break;
            }
            let before = std::mem::replace(&mut queued, self.stream.socket().unacknowledged_bytes());
            // A slow client has one more span to read what its kernel has received.
            is_slow |= queued > 1;
            let is_revoked = account.as_ref().is_some_and(|account| account.is_revoked());
            if !self.is_identified || is_revoked || !is_slow || queued >= before {
                break;
            }
        }
        drop(permit);
    }
}
