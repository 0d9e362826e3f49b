//! How a client is refused: its answer, the line of the log, and the end of the connection behind that.
//!
//! Guarantees: the answer reaches a client that is still sending, within bounds; each refusal is counted,
//! also where the log leaves it out. Leaves out which refusal it is (`refusal`), and the bytes of the answers
//! (crate `proto`).

use std::rc::Rc;
use std::sync::Arc;

use engine::timer::within;
use ledger::record::{Class, Record};
use proto::denial::{DenialResponse, reason_phrase, write_denial};
use proto::socks5;
use sys::clock;
use zeroize::Zeroize;

use super::{Client, HandshakeError, LINGER, ReplyProtocol, Route};
use crate::account::AccountId;
use crate::denial::Denial;
use crate::limits::LINGER_BYTES_MAX;
use crate::log::{Decision, Details, Event, EventKind, Subject};
use crate::stats::DenialKind;

impl Client {
    /// Answers with a refusal in the client's own words and logs it. The connection is to be closed behind
    /// it.
    pub(crate) async fn deny(&mut self, denial: &Denial) {
        self.log_denial(denial);
        // Who has no words that we know is cut off.
        if self.reply_protocol != ReplyProtocol::None && self.send_denial(denial).await.is_ok() {
            self.linger().await;
        }
    }

    /// The same, of a client that is not known: it has [`LINGER`] in all, the answer and what follows it
    /// together, so that a handshake ends by its deadline and as much more.
    pub(crate) async fn deny_within_linger(&mut self, denial: &Denial) {
        let reactor = Rc::clone(&self.context.reactor);
        // Whether the client was told all is the same: it is closed behind this.
        let _ = within(&reactor, reactor.now() + LINGER, self.deny(denial)).await;
    }

    /// Logs a refusal behind which the connection may go on.
    pub(crate) fn log_denial(&mut self, denial: &Denial) {
        self.context.stats.denied(denial.denied);
        let subject = match &self.request {
            Some(asked) => Subject::User(self.snapshot().account(asked.user).name()),
            None => Subject::Source(self.info.peer.ip()),
        };
        if !self.context.meter.borrow_mut().admits_line(subject, denial.code) {
            return;
        }
        let told = &denial.details;
        let event = Event {
            kind: EventKind::Decision,
            at: clock::wall(),
            record: self.denied_record(denial),
            is_claimed: self.request.is_none() && told.claimed.is_some(),
            protocol: self.protocol,
            listener: self.info.address,
            decision: if denial.denied.is_failure() { Decision::Failed } else { Decision::Deny },
            reason: denial.code,
            dns_us: told.dns_us,
            connect_us: told.connect_us,
            answered: None,
        };
        let path = self.path.as_deref().unwrap_or_default();
        let details = Details { tried: &told.tried, text: denial.log_text(), path };
        self.context.meter.borrow_mut().deny(&event, &details);
    }

    /// The record of a refused connection: with what it claimed, where nothing was proven.
    fn denied_record(&self, denial: &Denial) -> Record {
        let told = &denial.details;
        let user = match &self.request {
            Some(asked) => self.snapshot().account(asked.user).name(),
            None => told.claimed.as_deref().unwrap_or_default(),
        };
        let target = self.request.map(|asked| asked.target).or(told.target);
        let rule = denial.rule.as_deref().unwrap_or(&told.rule);
        self.record_of(user, target.as_ref(), &Route { address: None, rule, class: Class::External })
    }

    /// Answers with a refusal, in the client's own words.
    ///
    /// # Errors
    /// [`HandshakeError::ClientClosed`] when the client is gone.
    pub(crate) async fn send_denial(&mut self, denial: &Denial) -> Result<(), HandshakeError> {
        let answer = self.encode_denial(denial);
        self.send_soon(&answer).await
    }

    /// Ends a handshake for which there is no time or place left. A reset leaves nothing of it in the kernel.
    pub(crate) fn reset_with_reason(mut self, why: DenialKind) {
        self.log_denial(&Denial::unanswerable(why));
        self.reset();
    }

    /// Notes that the client went away.
    pub(crate) fn log_abandoned(&mut self) {
        self.log_denial(&Denial::unanswerable(DenialKind::ClientGone));
    }

    /// Ends our direction, and reads on for [`LINGER`], until the client ends too: closing a socket with
    /// unread bytes would reset it, and take our answer away before it was read. A known client that is still
    /// taking an answer then is read on for as long as it takes something in each such span. A connection for
    /// which there is no place to linger does not wait.
    pub(crate) async fn linger(&mut self) {
        let context = Rc::clone(&self.context);
        let account = self.request.map(|asked| Arc::clone(self.snapshot().account(asked.user)));
        let user = account.as_ref().map_or(AccountId::PROCESS, |account| account.id());
        let is_known = self.slot.is_none();
        let place = if is_known { context.lingering.take(user) } else { None };
        if is_known && place.is_none() {
            return;
        }
        let _ = self.stream.socket().shutdown_write();
        let (mut queued, mut is_slow, mut dropped) = (self.stream.socket().unacknowledged(), false, 0);
        loop {
            let rest = self.discard_input(&mut dropped);
            if within(&context.reactor, context.reactor.now() + LINGER, rest).await.is_ok() {
                // Whether the client has read it all or is gone is all the same now.
                break;
            }
            let before = std::mem::replace(&mut queued, self.stream.socket().unacknowledged());
            // A slow client has a last span to read what its kernel has taken.
            is_slow |= queued > 1;
            let is_welcome = is_known && !account.as_ref().is_some_and(|account| account.is_revoked());
            if !is_welcome || !is_slow || queued >= before {
                break;
            }
        }
        drop(place);
    }

    /// Drops the `left` bytes of a body that nobody wants.
    ///
    /// # Errors
    /// [`HandshakeError::ClientClosed`] when the client is gone.
    pub(crate) async fn discard_body(&mut self, mut left: u64) -> Result<(), HandshakeError> {
        loop {
            let there = self.unread().len();
            let count = usize::try_from(left).map_or(there, |left| left.min(there));
            self.consume(count);
            left -= count as u64;
            if left == 0 {
                return Ok(());
            }
            self.buffer.clear();
            self.consumed = 0;
            self.read_more().await?;
        }
    }

    fn encode_denial(&self, denial: &Denial) -> Vec<u8> {
        let mut answer = Vec::new();
        match self.reply_protocol {
            ReplyProtocol::None => {}
            ReplyProtocol::Http { json, is_head, closes } => {
                let write = |date: &str| {
                    let denial = DenialResponse {
                        status: denial.status,
                        title: reason_phrase(denial.status),
                        reason: &denial.text,
                        proxy_status_error: Some(denial.proxy_status),
                        rule: denial.rule.as_deref(),
                        request_id: &format!("{:032x}", self.id),
                        retry_after_s: denial.retry_after_s,
                        challenge: (denial.status == 407).then(|| self.snapshot().config.auth.realm.as_str()),
                        json,
                        closes,
                        head_only: is_head,
                        date: Some(date),
                    };
                    write_denial(&mut answer, &denial);
                };
                self.context.date.with(write);
            }
            ReplyProtocol::Socks5Greeting => socks5::write_method(&mut answer, socks5::Method::Unacceptable),
            ReplyProtocol::Socks5Password => socks5::write_password_status(&mut answer, false),
            ReplyProtocol::Socks5Request => socks5::write_reply(&mut answer, denial.reply, None),
        }
        answer
    }

    /// Drops what arrives, until the client ends or [`LINGER_BYTES_MAX`] were `dropped`.
    async fn discard_input(&mut self, dropped: &mut usize) -> Result<(), HandshakeError> {
        while *dropped < LINGER_BYTES_MAX {
            self.buffer.zeroize();
            self.consumed = 0;
            self.read_more().await?;
            *dropped += self.buffer.len();
        }
        Ok(())
    }
}
