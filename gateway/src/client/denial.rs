//! How a client is refused: its answer, the line of the log, and the end of the connection behind that.
//!
//! Guarantees: the answer reaches a client that is still sending, within bounds; each refusal is counted,
//! also where the log leaves it out. Leaves out which refusal it is (`refusal`), and the bytes of the answers
//! (crate `proto`).

use std::rc::Rc;
use std::sync::Arc;

use engine::timer::within;
use ledger::record::{Class, Record};
use proto::denial::{Denial, reason_phrase, write_denial};
use proto::socks5;
use sys::clock;
use zeroize::Zeroize;

use super::{Client, Decided, End, LINGER, Speaks};
use crate::account::AccountId;
use crate::limits::LINGER_BYTES_MAX;
use crate::log::{Decision, Details, Event, EventKind, Subject};
use crate::refusal::Refusal;
use crate::stats::Denied;

impl Client {
    /// Answers with a refusal in the client's own words and logs it. The connection is to be closed behind
    /// it.
    pub(crate) async fn refuse(&mut self, refusal: &Refusal) {
        self.note_refusal(refusal);
        // Who has no words that we know is cut off.
        if self.speaks != Speaks::Nothing && self.tell(refusal).await.is_ok() {
            self.linger().await;
        }
    }

    /// The same, of a client that is not known: it has [`LINGER`] in all, the answer and what follows it
    /// together, so that a handshake ends by its deadline and as much more.
    pub(crate) async fn refuse_soon(&mut self, refusal: &Refusal) {
        let reactor = Rc::clone(&self.local.reactor);
        // Whether the client was told all is the same: it is closed behind this.
        let _ = within(&reactor, reactor.now() + LINGER, self.refuse(refusal)).await;
    }

    /// Logs a refusal behind which the connection may go on.
    pub(crate) fn note_refusal(&mut self, refusal: &Refusal) {
        self.local.stats.denied(refusal.denied);
        let subject = match &self.asked {
            Some(asked) => Subject::User(self.snapshot().account(asked.user).name()),
            None => Subject::Source(self.arrival.peer.ip()),
        };
        if !self.local.meter.borrow_mut().may_tell(subject, refusal.code) {
            return;
        }
        let told = &refusal.undisclosed;
        let event = Event {
            kind: EventKind::Decision,
            at: clock::wall(),
            record: self.record_refused(refusal),
            is_claimed: self.asked.is_none() && told.claimed.is_some(),
            protocol: self.protocol,
            listener: self.arrival.address,
            decision: if refusal.denied.is_failure() { Decision::Failed } else { Decision::Deny },
            reason: refusal.code,
            dns_us: told.dns_us,
            connect_us: told.connect_us,
            answered: None,
        };
        let path = self.path.as_deref().unwrap_or_default();
        let details = Details { tried: &told.tried, text: refusal.log_text(), path };
        self.local.meter.borrow_mut().deny(&event, &details);
    }

    /// The record of a refused connection: with what it claimed, where nothing was proven.
    fn record_refused(&self, refusal: &Refusal) -> Record {
        let told = &refusal.undisclosed;
        let user = match &self.asked {
            Some(asked) => self.snapshot().account(asked.user).name(),
            None => told.claimed.as_deref().unwrap_or_default(),
        };
        let target = self.asked.map(|asked| asked.target).or(told.target);
        let rule = refusal.rule.as_deref().unwrap_or(&told.rule);
        self.record_of(user, target.as_ref(), &Decided { address: None, rule, class: Class::External })
    }

    /// Answers with a refusal, in the client's own words.
    ///
    /// # Errors
    /// [`End::Left`] when the client is gone.
    pub(crate) async fn tell(&mut self, refusal: &Refusal) -> Result<(), End> {
        let answer = self.answer(refusal);
        self.send_soon(&answer).await
    }

    /// Ends a handshake for which there is no time or place left. A reset leaves nothing of it in the kernel.
    pub(crate) fn cut_off(mut self, why: Denied) {
        self.note_refusal(&Refusal::unanswerable(why));
        self.reset();
    }

    /// Notes that the client went away.
    pub(crate) fn note_left(&mut self) {
        self.note_refusal(&Refusal::unanswerable(Denied::ClientGone));
    }

    /// Ends our direction, and reads on for [`LINGER`], until the client ends too: closing a socket with
    /// unread bytes would reset it, and take our answer away before it was read. A known client that is still
    /// taking an answer then is read on for as long as it takes something in each such span. A connection for
    /// which there is no place to linger does not wait.
    pub(crate) async fn linger(&mut self) {
        let local = Rc::clone(&self.local);
        let account = self.asked.map(|asked| Arc::clone(self.snapshot().account(asked.user)));
        let user = account.as_ref().map_or(AccountId::PROCESS, |account| account.id());
        let is_known = self.place.is_none();
        let place = if is_known { local.lingering.take(user) } else { None };
        if is_known && place.is_none() {
            return;
        }
        let _ = self.stream.socket().shutdown_write();
        let (mut queued, mut is_slow, mut dropped) = (self.stream.socket().unacknowledged(), false, 0);
        loop {
            let rest = self.drop_the_rest(&mut dropped);
            if within(&local.reactor, local.reactor.now() + LINGER, rest).await.is_ok() {
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
    /// [`End::Left`] when the client is gone.
    pub(crate) async fn drop_body(&mut self, mut left: u64) -> Result<(), End> {
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
            self.fill().await?;
        }
    }

    fn answer(&self, refusal: &Refusal) -> Vec<u8> {
        let mut answer = Vec::new();
        match self.speaks {
            Speaks::Nothing => {}
            Speaks::Http { json, is_head, closes } => {
                let write = |date: &str| {
                    let denial = Denial {
                        status: refusal.status,
                        title: reason_phrase(refusal.status),
                        reason: &refusal.text,
                        proxy_status_error: Some(refusal.proxy_status),
                        rule: refusal.rule.as_deref(),
                        request_id: &format!("{:032x}", self.id),
                        retry_after_s: refusal.retry_after_s,
                        challenge: (refusal.status == 407)
                            .then(|| self.snapshot().config.auth.realm.as_str()),
                        json,
                        closes,
                        head_only: is_head,
                        date: Some(date),
                    };
                    write_denial(&mut answer, &denial);
                };
                self.local.date.with(write);
            }
            Speaks::Socks5Greeting => socks5::write_method(&mut answer, socks5::Method::Unacceptable),
            Speaks::Socks5Password => socks5::write_password_status(&mut answer, false),
            Speaks::Socks5Request => socks5::write_reply(&mut answer, refusal.reply, None),
        }
        answer
    }

    /// Drops what arrives, until the client ends or [`LINGER_BYTES_MAX`] were `dropped`.
    async fn drop_the_rest(&mut self, dropped: &mut usize) -> Result<(), End> {
        while *dropped < LINGER_BYTES_MAX {
            self.buffer.zeroize();
            self.consumed = 0;
            self.fill().await?;
            *dropped += self.buffer.len();
        }
        Ok(())
    }
}
