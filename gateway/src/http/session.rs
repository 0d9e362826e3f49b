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

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use engine::timer::within;
use ledger::record::{CloseReason, Legs, Protocol};
use policy::UserIndex;
use proto::http_forward::write_own_options;
use sys::clock;
use sys::socket::SpeaksFirst;

use super::exchange::{Exchange, Outcome};
use super::request::PendingRequest;
use super::upstream::Upstream;
use crate::admission::{Admission, admit, connect, readmit};
use crate::budget::SessionPermit;
use crate::client::{Client, ConnectRequest, HandshakeError};
use crate::context::{Phase, WorkerContext};
use crate::denial::Denial;
use crate::flow::closing::HeldPermits;
use crate::flow::guard::FlowGuard;
use crate::flow::meter::FlowStart;
use crate::limits::DRAIN_BYTES_MAX;

/// See the file's header.
pub(crate) struct Session {
    client: Client,
    /// The request by which the client became known.
    first: Option<Box<PendingRequest>>,
    /// Where the last request went, for the next one.
    upstream: Option<Upstream>,
    /// The connection's place among its user's, from its first authenticated request on. Without one it
    /// ends behind the next answer.
    permit: Option<SessionPermit>,
    /// What the last request had of the bounds, where the client has not taken its answer.
    held_permits: Option<Rc<HeldPermits>>,
}

/// What becomes of the connection behind a request.
enum NextStep {
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
    Request(PendingRequest),
    /// A head that asks for a tunnel, unread.
    Tunnel,
    /// Nothing, or a part of a head.
    Incomplete,
}

/// A connection that changed protocols: what its relay needs.
struct Upgraded {
    flow: FlowGuard,
    upstream: Upstream,
    /// What the destination sent behind its answer.
    rest: Vec<u8>,
}

/// A destination that is connected, and all that a flow to it needs.
struct UpstreamLease {
    upstream: Upstream,
    admission: Admission,
    connect_us: Option<u32>,
}

impl Session {
    /// The session of a client whose first request, `wanted`, has made it known.
    pub(crate) fn new(client: Client, wanted: Box<PendingRequest>) -> Session {
        Session { client, first: Some(wanted), upstream: None, permit: None, held_permits: None }
    }

    /// Serves what has arrived, and lets the connection rest or end behind it. Gives back a client that asks
    /// for a tunnel now, its request unread.
    pub(crate) async fn serve(mut self: Box<Session>) -> Option<Client> {
        loop {
            match self.serve_request().await {
                // Requests that need to wait for nothing would keep other tasks from their turn.
                NextStep::Next if self.has_more() => {
                    self.client.begin_request();
                    self.client.renew_deadline();
                    yield_now().await;
                    continue;
                }
                NextStep::Next | NextStep::Rest => self.park_idle(),
                NextStep::Close => self.end(),
                NextStep::Linger => {
                    self.client.linger().await;
                    self.end();
                }
                NextStep::Reset => self.client.reset(),
                NextStep::Tunnel => return Some(self.client),
                NextStep::Relay(upgraded) => self.relay(*upgraded),
            }
            return None;
        }
    }

    /// Ends the connection in order. What its client has not taken keeps a place: that of the request which
    /// was answered, or else the connection's own.
    fn end(self) {
        let Session { client, permit: place, held_permits: untaken, .. } = self;
        client.close_with(|| untaken.or_else(|| Some(Rc::new(HeldPermits::of_session(place?)?))));
    }

    /// Whether some of another request, or the end, has arrived already.
    fn has_more(&mut self) -> bool {
        // What cannot be read is the end too, which the next request finds.
        !self.client.unread().is_empty() || self.client.read_available().unwrap_or(true)
    }

    async fn serve_request(&mut self) -> NextStep {
        self.set_idle(true);
        let mut wanted = match self.read_request() {
            Ok(Next::Request(wanted)) => wanted,
            Ok(Next::Tunnel) => return NextStep::Tunnel,
            Ok(Next::Incomplete) => return NextStep::Rest,
            Err(HandshakeError::Denied(denial)) => return self.deny(&denial, 0).await,
            // Between two requests a client may leave.
            Err(_) if self.client.unread().is_empty() => return NextStep::Close,
            Err(_) => {
                self.client.log_abandoned();
                return NextStep::Close;
            }
        };
        match self.admit(&mut wanted).await {
            Ok(Some(way)) => match self.open(way, wanted.traits.method) {
                Some((flow, upstream)) => self.exchange(wanted, flow, upstream).await,
                None => NextStep::Reset,
            },
            Ok(None) => self.answer_options(&wanted).await,
            Err(HandshakeError::Denied(denial)) => self.deny(&denial, wanted.discardable_body()).await,
            Err(_) => NextStep::Close,
        }
    }

    /// Reads the next request, as far as it has arrived.
    fn read_request(&mut self) -> Result<Next, HandshakeError> {
        if let Some(first) = self.first.take() {
            return Ok(Next::Request(*first));
        }
        let Some(length) = self.client.available_head()? else {
            let is_late = self.client.request_deadline <= self.client.context.reactor.now();
            return if is_late { Err(Denial::greeting_timeout().into()) } else { Ok(Next::Incomplete) };
        };
        if self.client.asks_for_tunnel() {
            return Ok(Next::Tunnel);
        }
        Ok(Next::Request(PendingRequest::read(&mut self.client, length)?))
    }

    /// Authenticates and judges the request, and gets a connection to its destination; `None` if the request
    /// is for the gateway itself.
    async fn admit(&mut self, wanted: &mut PendingRequest) -> Result<Option<UpstreamLease>, HandshakeError> {
        let user = self.identify(wanted).await?;
        let asked = ConnectRequest { user, target: wanted.target };
        self.client.request = Some(asked);
        self.held_permits = None;
        self.count_for(user, wanted);
        if wanted.targets_proxy {
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
    async fn identify(&mut self, wanted: &mut PendingRequest) -> Result<UserIndex, HandshakeError> {
        let user = match wanted.user {
            Some(user) => Ok(user),
            None => {
                let reactor = Rc::clone(&self.client.context.reactor);
                let known = self.client.authenticate(wanted.credentials.take());
                let user = within(&reactor, self.client.request_deadline, known).await;
                user.map_err(|_| Denial::greeting_timeout())?
            }
        };
        match user {
            Ok(_) => self.client.reset_auth_failures(),
            Err(_) => self.client.count_auth_failure(),
        }
        user.map_err(|end| end.with_target(wanted.target))
    }

    /// Counts the connection among those of `user`. Where they have as many as they may, or the gateway has,
    /// it ends behind the answer to what is `wanted`.
    fn count_for(&mut self, user: UserIndex, wanted: &mut PendingRequest) {
        let snapshot = self.client.snapshot();
        let account = snapshot.account(user);
        if self.permit.as_ref().is_some_and(|place| place.is_of(account)) {
            return;
        }
        // First, so that a connection that changes its user does not count twice.
        self.permit = None;
        self.permit = snapshot.budget.acquire_session(account);
        if self.permit.is_none() {
            wanted.traits.keeps_alive = false;
            self.client.reply_protocol.close();
            self.client.context.stats.sessions_unkept.add(1);
        }
    }

    /// Notes whether the connection waits for a request, or for a client that takes its time behind one.
    fn set_idle(&mut self, is_idle: bool) {
        if let Some(place) = &mut self.permit {
            place.set_idle(is_idle);
        }
    }

    /// The way by the connection that stands already, if the request may take it.
    fn reuse(
        &mut self,
        wanted: &PendingRequest,
        asked: &ConnectRequest,
    ) -> Result<Option<UpstreamLease>, HandshakeError> {
        let Some(upstream) = self.upstream.take() else { return Ok(None) };
        let account = self.client.snapshot().account(asked.user);
        let now = self.client.context.reactor.now();
        if !upstream.may_serve(&asked.target, account, wanted.traits.is_repeatable, now) {
            return Ok(None);
        }
        let admission = readmit(&self.client, asked, upstream.key.address)?;
        Ok(admission.map(|admission| UpstreamLease { upstream, admission, connect_us: None }))
    }

    async fn reach(&mut self, asked: &ConnectRequest) -> Result<UpstreamLease, HandshakeError> {
        let admission = admit(&self.client, asked).await?;
        let Admission { admitted, permit: seat, .. } = &admission;
        let dial_by = self.client.connect_deadline();
        let (stream, address, connect_us) =
            connect(&self.client, admitted, seat, SpeaksFirst::Us, dial_by).await?;
        let upstream = Upstream::new(stream, asked.target, address, seat.account());
        Ok(UpstreamLease { upstream, admission, connect_us: Some(connect_us) })
    }

    /// Opens the request's flow; `None` if memory was damaged.
    fn open(&mut self, way: UpstreamLease, method: &'static str) -> Option<(FlowGuard, Upstream)> {
        let UpstreamLease { upstream, admission, connect_us } = way;
        let Admission { admitted, permit: seat, global_permit: place, reservation } = admission;
        let opening = FlowStart {
            record: admitted.record(&self.client, upstream.key.address),
            at: clock::wall(),
            protocol: Protocol::Http,
            seat,
            place,
            reservation,
            listener: self.client.info.address,
            dns_us: admitted.dns_us,
            connect_us,
            method: Some(method),
            path: self.client.path.take(),
        };
        let flow = FlowGuard::open(&self.client.context, opening)?;
        Some((flow, upstream))
    }

    /// Sends the request and passes its answer on.
    async fn exchange(
        &mut self,
        wanted: PendingRequest,
        flow: FlowGuard,
        mut upstream: Upstream,
    ) -> NextStep {
        let mut exchange = Exchange::new(&mut self.client, wanted, &flow, &mut upstream);
        let outcome = exchange.run().await;
        let sent = exchange.legs();
        drop(exchange);
        self.client.info.sent.add(sent.client_tx);
        match outcome {
            Outcome::Answered { client_may_go_on, upstream_lives_on, client_is_sending } => {
                let upstream_lives_on = upstream_lives_on && client_may_go_on;
                self.complete(flow, upstream, sent, upstream_lives_on);
                match (client_may_go_on, client_is_sending) {
                    (_, true) => NextStep::Linger,
                    (true, false) => NextStep::Next,
                    (false, false) => self.ended(),
                }
            }
            Outcome::Upgraded { rest } => NextStep::Relay(Box::new(Upgraded { flow, upstream, rest })),
            Outcome::Unanswered { reason, denial, sent_whole } => {
                upstream.give_up(sent.upstream_tx);
                self.client.context.meter.borrow_mut().note_status(flow.key(), denial.status);
                flow.close(reason);
                if !sent_whole {
                    self.client.reply_protocol.close();
                }
                self.send_denial(&denial, 0).await
            }
            Outcome::Broken(reason) => {
                upstream.give_up(sent.upstream_tx);
                flow.close(reason);
                NextStep::Reset
            }
        }
    }

    /// Closes the flow of a request that was answered. What either peer has not taken keeps its place.
    fn complete(&mut self, flow: FlowGuard, mut upstream: Upstream, sent: Legs, upstream_lives_on: bool) {
        let context = &self.client.context;
        let upstream_is_behind = upstream.is_behind(sent.upstream_tx);
        let client_is_behind = self.client.info.sent.is_queued(self.client.stream.socket());
        let hold = flow.close(CloseReason::Completed).map(Rc::new);
        match &hold {
            Some(hold) if upstream_is_behind => context.closing.add(upstream.stream.into_parts(), hold),
            _ => {
                upstream.note_use(context.reactor.now());
                self.upstream = Some(upstream).filter(|_| upstream_lives_on);
            }
        }
        self.held_permits = hold.filter(|_| client_is_behind);
    }

    /// How a connection ends whose last answer was passed on: bytes that nobody has read would make the close
    /// a reset, which might overtake the answer.
    fn ended(&mut self) -> NextStep {
        if self.has_more() { NextStep::Linger } else { NextStep::Close }
    }

    async fn answer_options(&mut self, wanted: &PendingRequest) -> NextStep {
        let mut answer = Vec::new();
        let closes = self.client.reply_protocol.closes();
        self.client.context.date.with(|now| write_own_options(&mut answer, now, closes));
        match self.client.send_soon(&answer).await {
            Ok(()) => self.after_local_response(closes, wanted.discardable_body()).await,
            Err(_) => NextStep::Close,
        }
    }

    /// Notes and answers a refusal, behind which `body_bytes` of the request are still to come.
    async fn deny(&mut self, denial: &Denial, body_bytes: u64) -> NextStep {
        self.client.log_denial(denial);
        self.send_denial(denial, body_bytes).await
    }

    async fn send_denial(&mut self, denial: &Denial, body_bytes: u64) -> NextStep {
        self.set_idle(true);
        let closes = self.client.reply_protocol.closes();
        match self.client.send_denial(denial).await {
            Ok(()) => self.after_local_response(closes, body_bytes).await,
            Err(_) => NextStep::Close,
        }
    }

    /// Drops the body that came with a request to which the answer is our own.
    async fn after_local_response(&mut self, closes: bool, body_bytes: u64) -> NextStep {
        if closes || body_bytes > DRAIN_BYTES_MAX {
            return NextStep::Linger;
        }
        let (reactor, drained_by) = (Rc::clone(&self.client.context.reactor), self.client.request_deadline);
        match within(&reactor, drained_by, self.client.discard_body(body_bytes)).await {
            Ok(Ok(())) => NextStep::Next,
            Ok(Err(_)) => NextStep::Close,
            Err(_) => NextStep::Linger,
        }
    }

    /// Makes the connection a relay's: from here on its bytes mean nothing to us.
    fn relay(self, Upgraded { flow, upstream, rest }: Upgraded) {
        let had_answers = self.client.sent_much();
        self.client.hand_over(|context, stream, early| {
            let mut meter = context.meter.borrow_mut();
            let flow = flow.pass_on();
            let client = (stream.into_parts(), early, had_answers);
            let upstream = (upstream.stream.into_parts(), &*rest);
            context.relays.borrow_mut().start(client, upstream, flow, &mut meter);
        });
    }

    /// Waits for the next request without a task.
    fn park_idle(mut self) {
        self.set_idle(true);
        let context = Rc::clone(&self.client.context);
        let may_wait = context.phase.get() == Phase::Serving || !self.client.unread().is_empty();
        let Some(place) = self.permit.take_if(|place| may_wait && !place.is_revoked()) else {
            return self.end();
        };
        let upstream = self.upstream.filter(|upstream| !upstream.has_ended());
        let budget = Arc::clone(&self.client.snapshot().budget);
        let mut resting = context.idle.borrow_mut();
        resting.add(self.client, upstream, place);
        // A call of another thread may have come while this one had a request.
        budget.reclaim(|| resting.evict_of_heavy_user());
    }

    /// The next connection that has rested and has a request to be served.
    pub(crate) fn next_ready(context: &Rc<WorkerContext>) -> Option<Session> {
        let (client, upstream, place) = context.idle.borrow_mut().take_ready(context)?;
        Some(Session { client, first: None, upstream, permit: Some(place), held_permits: None })
    }
}

/// Lets the thread's other tasks have their turn.
async fn yield_now() {
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
