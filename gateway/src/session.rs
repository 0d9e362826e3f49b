//! A session: one client connection over which plain HTTP requests come, one after another.
//!
//! Promises: each request is a flow of its own, authenticated, judged, metered and closed in the ledger;
//! requests are served in the order in which they came, however many were sent at once; a connection to a
//! destination is this client's alone, and serves this client's next request if that goes to the same place
//! for the same user; no answer of ours leaves a body behind that could be taken for a request; between two
//! requests a connection holds nothing but a place among its user's own. Leaves to others: what the messages
//! mean (`proto::http_forward`), admission (`admission`), the bytes of one request and its answer
//! (`session/exchange.rs`), and waiting between requests (`session/resting.rs`).
//!
//! ```text
//!   handshake --> Session::new --> [ request -> exchange ]* --> rest --> ... --> close
//!   (client known)   (a task)                |                 (no task)
//!                                            '--> relay, if the two agree to change protocols
//! ```

mod begun;
mod exchange;
mod held_flow;
mod request;
mod resting;
mod transfer;
mod upstream;

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use engine::timer::within;
use ledger::record::{CloseReason, Legs, Protocol};
use policy::UserIndex;
use proto::http_forward::write_own_options;
use sys::clock;
use sys::socket::FirstWord;

pub(crate) use self::begun::Begun;
pub(crate) use self::request::Wanted;
pub(crate) use self::resting::Resting;

use self::exchange::{Exchange, Outcome};
use self::held_flow::HeldFlow;
use self::upstream::Upstream;
use crate::admission::{Admission, admit, admit_again, reach};
use crate::budget::SessionPlace;
use crate::client::{Asked, Client, End};
use crate::closing::Hold;
use crate::limits::DRAIN_BYTES_MAX;
use crate::local::{Local, Phase};
use crate::meter::Opening;
use crate::refusal::Refusal;

/// See the file's header.
pub(crate) struct Session {
    client: Client,
    /// The request by which the client became known.
    first: Option<Box<Wanted>>,
    /// Where the last request went, for the next one.
    upstream: Option<Upstream>,
    /// The connection's place among its user's, from its first authenticated request on. Without one it
    /// ends behind the next answer.
    place: Option<SessionPlace>,
    /// What the last request had of the bounds, where the client has not taken its answer.
    untaken: Option<Rc<Hold>>,
}

/// What becomes of the connection behind a request.
enum After {
    /// The next request may come.
    Next,
    /// The next request has begun to come, or nothing of it has.
    Rest,
    /// It ends.
    Close,
    /// It ends, and the client may still be sending: it has to be let finish, or a reset would take our
    /// answer away.
    Linger,
    /// It ends so that nobody takes what was sent for whole.
    Reset,
    /// It asks for a tunnel now.
    Tunnel,
    /// It changed protocols, and is a relay's.
    Relay(Box<Upgraded>),
}

/// What has arrived of a next request.
#[expect(clippy::large_enum_variant, reason = "it is taken apart where it is made")]
enum Next {
    /// A head, which was read.
    Request(Wanted),
    /// A head that asks for a tunnel, unread.
    Tunnel,
    /// Nothing, or a part of a head.
    Incomplete,
}

/// A connection that changed protocols: what its relay needs.
struct Upgraded {
    flow: HeldFlow,
    upstream: Upstream,
    /// What the destination sent behind its answer.
    rest: Vec<u8>,
}

/// A destination that is connected, and all that a flow to it needs.
struct Way {
    upstream: Upstream,
    admission: Admission,
    connect_us: Option<u32>,
}

impl Session {
    /// The session of a client whose first request, `wanted`, has made it known.
    pub(crate) fn new(client: Client, wanted: Box<Wanted>) -> Session {
        Session { client, first: Some(wanted), upstream: None, place: None, untaken: None }
    }

    /// Serves what has arrived, and lets the connection rest or end behind it. Gives back a client that asks
    /// for a tunnel now, its request unread.
    pub(crate) async fn serve(mut self: Box<Session>) -> Option<Client> {
        loop {
            match self.serve_request().await {
                // Requests that need to wait for nothing would keep other tasks from their turn.
                After::Next if self.has_more() => {
                    self.client.begin_request();
                    self.client.renew_deadline();
                    others_turn().await;
                    continue;
                }
                After::Next | After::Rest => self.rest(),
                After::Close => self.end(),
                After::Linger => {
                    self.client.linger().await;
                    self.end();
                }
                After::Reset => self.client.reset(),
                After::Tunnel => return Some(self.client),
                After::Relay(upgraded) => self.relay(*upgraded),
            }
            return None;
        }
    }

    /// Ends the connection in order. What its client has not taken keeps a place: that of the request which
    /// was answered, or else the connection's own.
    fn end(self) {
        let Session { client, place, untaken, .. } = self;
        client.close_with(|| untaken.or_else(|| Some(Rc::new(Hold::of_session(place?)?))));
    }

    /// Whether some of another request, or the end, has arrived already.
    fn has_more(&mut self) -> bool {
        // What cannot be read is the end too, which the next request finds.
        !self.client.unread().is_empty() || self.client.fill_now().unwrap_or(true)
    }

    async fn serve_request(&mut self) -> After {
        self.set_idle(true);
        let mut wanted = match self.read_request() {
            Ok(Next::Request(wanted)) => wanted,
            Ok(Next::Tunnel) => return After::Tunnel,
            Ok(Next::Incomplete) => return After::Rest,
            Err(End::Refused(refusal)) => return self.refuse(&refusal, 0).await,
            // Between two requests a client may leave.
            Err(_) if self.client.unread().is_empty() => return After::Close,
            Err(_) => {
                self.client.note_left();
                return After::Close;
            }
        };
        match self.admit(&mut wanted).await {
            Ok(Some(way)) => match self.open(way, wanted.asked.method) {
                Some((flow, upstream)) => self.exchange(wanted, flow, upstream).await,
                None => After::Reset,
            },
            Ok(None) => self.answer_options(&wanted).await,
            Err(End::Refused(refusal)) => self.refuse(&refusal, wanted.drainable()).await,
            Err(_) => After::Close,
        }
    }

    /// Reads the next request, as far as it has arrived.
    fn read_request(&mut self) -> Result<Next, End> {
        if let Some(first) = self.first.take() {
            return Ok(Next::Request(*first));
        }
        let Some(length) = self.client.head_now()? else {
            let is_late = self.client.asked_by <= self.client.local.reactor.now();
            return if is_late { Err(Refusal::greeting_timeout().into()) } else { Ok(Next::Incomplete) };
        };
        if self.client.asks_for_tunnel() {
            return Ok(Next::Tunnel);
        }
        Ok(Next::Request(Wanted::read(&mut self.client, length)?))
    }

    /// Authenticates and judges the request, and gets a connection to its destination; `None` if the request
    /// is for the gateway itself.
    async fn admit(&mut self, wanted: &mut Wanted) -> Result<Option<Way>, End> {
        let user = self.identify(wanted).await?;
        let asked = Asked { user, target: wanted.target };
        self.client.asked = Some(asked);
        self.untaken = None;
        self.count_for(user, wanted);
        if wanted.is_for_us {
            return Ok(None);
        }
        // What the request holds now is bounded by the user's connections.
        self.set_idle(false);
        match self.reuse(wanted, &asked)? {
            Some(way) => Ok(Some(way)),
            None => self.reach(&asked).await.map(Some),
        }
    }

    /// The request's user.
    async fn identify(&mut self, wanted: &mut Wanted) -> Result<UserIndex, End> {
        let user = match wanted.user {
            Some(user) => Ok(user),
            None => {
                let reactor = Rc::clone(&self.client.local.reactor);
                let known = self.client.authenticate(wanted.presented.take());
                let user = within(&reactor, self.client.asked_by, known).await;
                user.map_err(|_| Refusal::greeting_timeout())?
            }
        };
        match user {
            Ok(_) => self.client.forget_refusals(),
            Err(_) => self.client.count_refusal(),
        }
        user.map_err(|end| end.aimed(wanted.target))
    }

    /// Counts the connection among those of `user`. Where they have as many as they may, or the gateway has,
    /// it ends behind the answer to what is `wanted`.
    fn count_for(&mut self, user: UserIndex, wanted: &mut Wanted) {
        let snapshot = self.client.snapshot();
        let account = snapshot.account(user);
        if self.place.as_ref().is_some_and(|place| place.is_of(account)) {
            return;
        }
        // First, so that a connection that changes its user does not count twice.
        self.place = None;
        self.place = snapshot.budget.take_session(account);
        if self.place.is_none() {
            wanted.asked.keeps_alive = false;
            self.client.speaks.close();
            self.client.local.stats.sessions_unkept.add(1);
        }
    }

    /// Notes whether the connection waits for a request, or for a client that takes its time behind one.
    fn set_idle(&mut self, is_idle: bool) {
        if let Some(place) = &mut self.place {
            place.set_idle(is_idle);
        }
    }

    /// The way by the connection that stands already, if the request may take it.
    fn reuse(&mut self, wanted: &Wanted, asked: &Asked) -> Result<Option<Way>, End> {
        let Some(upstream) = self.upstream.take() else { return Ok(None) };
        let account = self.client.snapshot().account(asked.user);
        let now = self.client.local.reactor.now();
        if !upstream.may_serve(&asked.target, account, wanted.asked.is_repeatable, now) {
            return Ok(None);
        }
        let admission = admit_again(&self.client, asked, upstream.purpose.address)?;
        Ok(admission.map(|admission| Way { upstream, admission, connect_us: None }))
    }

    async fn reach(&mut self, asked: &Asked) -> Result<Way, End> {
        let admission = admit(&self.client, asked).await?;
        let Admission { admitted, seat, .. } = &admission;
        let dial_by = self.client.dial_by();
        let (stream, address, connect_us) =
            reach(&self.client, admitted, seat, FirstWord::Ours, dial_by).await?;
        let upstream = Upstream::new(stream, asked.target, address, seat.account());
        Ok(Way { upstream, admission, connect_us: Some(connect_us) })
    }

    /// Opens the request's flow; `None` if memory was damaged.
    fn open(&mut self, way: Way, method: &'static str) -> Option<(HeldFlow, Upstream)> {
        let Way { upstream, admission, connect_us } = way;
        let Admission { admitted, seat, place, reservation } = admission;
        let opening = Opening {
            record: admitted.record(&self.client, upstream.purpose.address),
            at: clock::wall(),
            protocol: Protocol::Http,
            seat,
            place,
            reservation,
            listener: self.client.arrival.address,
            dns_us: admitted.dns_us,
            connect_us,
            method: Some(method),
            path: self.client.path.take(),
        };
        let flow = HeldFlow::open(&self.client.local, opening)?;
        Some((flow, upstream))
    }

    /// Sends the request and passes its answer on.
    async fn exchange(&mut self, wanted: Wanted, flow: HeldFlow, mut upstream: Upstream) -> After {
        let mut exchange = Exchange::new(&mut self.client, wanted, &flow, &mut upstream);
        let outcome = exchange.run().await;
        let sent = exchange.legs();
        drop(exchange);
        self.client.arrival.sent.add(sent.client_tx);
        match outcome {
            Outcome::Answered { client_may_go_on, upstream_lives_on, client_is_sending } => {
                let upstream_lives_on = upstream_lives_on && client_may_go_on;
                self.complete(flow, upstream, sent, upstream_lives_on);
                match (client_may_go_on, client_is_sending) {
                    (_, true) => After::Linger,
                    (true, false) => After::Next,
                    (false, false) => self.ended(),
                }
            }
            Outcome::Upgraded { rest } => After::Relay(Box::new(Upgraded { flow, upstream, rest })),
            Outcome::Unanswered { reason, refusal, sent_whole } => {
                upstream.give_up(sent.upstream_tx);
                self.client.local.meter.borrow_mut().note_status(flow.key(), refusal.status);
                flow.close(reason);
                if !sent_whole {
                    self.client.speaks.close();
                }
                self.tell(&refusal, 0).await
            }
            Outcome::Broken(reason) => {
                upstream.give_up(sent.upstream_tx);
                flow.close(reason);
                After::Reset
            }
        }
    }

    /// Closes the flow of a request that was answered. What either peer has not taken keeps its place.
    fn complete(&mut self, flow: HeldFlow, mut upstream: Upstream, sent: Legs, upstream_lives_on: bool) {
        let local = &self.client.local;
        let upstream_is_behind = upstream.is_behind(sent.upstream_tx);
        let client_is_behind = self.client.arrival.sent.is_queued(self.client.stream.socket());
        let hold = flow.close(CloseReason::Completed).map(Rc::new);
        match &hold {
            Some(hold) if upstream_is_behind => local.closing.add(upstream.stream.into_parts(), hold),
            _ => {
                upstream.note_use(local.reactor.now());
                self.upstream = Some(upstream).filter(|_| upstream_lives_on);
            }
        }
        self.untaken = hold.filter(|_| client_is_behind);
    }

    /// How a connection ends whose last answer was passed on: bytes that nobody has read would make the close
    /// a reset, which might overtake the answer.
    fn ended(&mut self) -> After {
        if self.has_more() { After::Linger } else { After::Close }
    }

    async fn answer_options(&mut self, wanted: &Wanted) -> After {
        let mut answer = Vec::new();
        let closes = self.client.speaks.closes();
        self.client.local.date.with(|now| write_own_options(&mut answer, now, closes));
        match self.client.send_soon(&answer).await {
            Ok(()) => self.behind_our_answer(closes, wanted.drainable()).await,
            Err(_) => After::Close,
        }
    }

    /// Notes and answers a refusal, behind which `body_bytes` of the request are still to come.
    async fn refuse(&mut self, refusal: &Refusal, body_bytes: u64) -> After {
        self.client.note_refusal(refusal);
        self.tell(refusal, body_bytes).await
    }

    async fn tell(&mut self, refusal: &Refusal, body_bytes: u64) -> After {
        self.set_idle(true);
        let closes = self.client.speaks.closes();
        match self.client.tell(refusal).await {
            Ok(()) => self.behind_our_answer(closes, body_bytes).await,
            Err(_) => After::Close,
        }
    }

    /// Drops the body that came with a request to which the answer is our own.
    async fn behind_our_answer(&mut self, closes: bool, body_bytes: u64) -> After {
        if closes || body_bytes > DRAIN_BYTES_MAX {
            return After::Linger;
        }
        let (reactor, drained_by) = (Rc::clone(&self.client.local.reactor), self.client.asked_by);
        match within(&reactor, drained_by, self.client.drop_body(body_bytes)).await {
            Ok(Ok(())) => After::Next,
            Ok(Err(_)) => After::Close,
            Err(_) => After::Linger,
        }
    }

    /// Makes the connection a relay's: from here on its bytes mean nothing to us.
    fn relay(self, Upgraded { flow, upstream, rest }: Upgraded) {
        let had_answers = self.client.had_answers();
        self.client.hand_over(|local, stream, early| {
            let mut meter = local.meter.borrow_mut();
            let flow = flow.pass_on();
            let client = (stream.into_parts(), early, had_answers);
            let upstream = (upstream.stream.into_parts(), &*rest);
            local.relays.borrow_mut().start(client, upstream, flow, &mut meter);
        });
    }

    /// Waits for the next request without a task.
    fn rest(mut self) {
        self.set_idle(true);
        let local = Rc::clone(&self.client.local);
        let may_wait = local.phase.get() == Phase::Serving || !self.client.unread().is_empty();
        let Some(place) = self.place.take_if(|place| may_wait && !place.is_revoked()) else {
            return self.end();
        };
        let upstream = self.upstream.filter(|upstream| !upstream.has_ended());
        let budget = Arc::clone(&self.client.snapshot().budget);
        let mut resting = local.resting.borrow_mut();
        resting.add(self.client, upstream, place);
        // A call of another thread may have come while this one had a request.
        budget.relieve(|| resting.end_heavy());
    }

    /// The next connection that has rested and has a request to be served.
    pub(crate) fn woken(local: &Rc<Local>) -> Option<Session> {
        let (client, upstream, place) = local.resting.borrow_mut().take_woken(local)?;
        Some(Session { client, first: None, upstream, place: Some(place), untaken: None })
    }
}

/// Lets the thread's other tasks have their turn.
async fn others_turn() {
    let mut was_polled = false;
    poll_fn(|context| {
        if std::mem::replace(&mut was_polled, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_fits_its_place() {
        // As for handshakes: what it grows by is memory that stays.
        fn future_size<F>(_: fn(Box<Session>) -> F) -> usize {
            size_of::<F>()
        }
        let size = future_size(Session::serve);
        assert!(size <= 4096, "the session's future has {size} bytes");
    }
}
