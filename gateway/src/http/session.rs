//! A session: one client connection that carries plain HTTP requests, one after another.
//!
//! Guarantees: each request is authenticated, judged and admitted by itself; the requests of a flow have
//! user, destination, address, decision and configuration in common; pipelined requests are served in order;
//! a connection to a destination belongs to one client, and serves its next request only for the same target
//! and user; no body is left behind a response of the gateway's own, where it could be parsed as a request;
//! between two requests a connection holds one permit of its user.
//!
//! ```text
//!   handshake --> Session::new --> [ request -> exchange ]* --> NextStep::Park --> idle --> Session::resume
//!                  (a task)                 |               '-> NextStep::Tunnel, NextStep::Closed
//!                                           '-----------------> NextStep::Relay, behind 101
//! ```

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use engine::deadline::within;
use ledger::record::{CloseReason, Legs, Protocol};
use policy::UserIndex;
use proto::http_forward::write_options_response;
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
use crate::flow::request::{Admitted, RequestStart};
use crate::idle::{Parked, Resumed, Run, RunKey};
use crate::limits::DISCARDED_BODY_BYTES_MAX;
use crate::relay::RelayStart;

/// A client connection that carries plain HTTP requests, while a task serves it.
pub(crate) struct Session {
    client: Client,
    /// The request that identified the client.
    first: Option<Box<PendingRequest>>,
    /// The connection of the last request, for the next one.
    upstream: Option<Upstream>,
    /// The flow of the last request, for the next one.
    run: Option<Box<Run>>,
    /// The connection's permit, from its first authenticated request on. Without one the connection closes
    /// behind the next response.
    permit: Option<SessionPermit>,
    /// The permits of the last request, while the client has not acknowledged its response.
    held_permits: Option<Rc<HeldPermits>>,
}

/// What the worker does with a connection when its session's task ends.
pub(crate) enum NextStep {
    /// Nothing: it is closed.
    Closed,
    /// Parks it until its next request.
    Park(Box<Parked>),
    /// Opens the tunnel that its unread CONNECT requests.
    Tunnel(Box<Client>),
    /// Relays its bytes: it has changed protocols.
    Relay(Box<RelayStart>),
}

/// What happens to the connection behind a request.
enum AfterRequest {
    /// It serves the next request.
    Continue,
    /// It waits: the next request is incomplete, or no byte of it has arrived.
    Park,
    Close,
    /// It lingers, then closes: the client may still be sending, and RST would drop the response.
    Linger,
    /// It closes with RST, so that truncation is detectable.
    Reset,
    /// It becomes a tunnel.
    Tunnel,
    /// It has changed protocols.
    Relay(Box<Upgraded>),
}

/// The input of a session at the beginning of a request.
#[expect(clippy::large_enum_variant, reason = "it is taken apart where it is made")]
enum NextHead {
    /// A head, which was parsed.
    Request(PendingRequest),
    /// A CONNECT head, unread.
    Tunnel,
    /// No head, or a part of one.
    Incomplete,
}

/// A connection that has changed protocols.
struct Upgraded {
    flow: FlowGuard,
    upstream: Upstream,
    /// What the destination sent behind its response.
    rest: Vec<u8>,
}

/// An upstream connection, and what a flow over it needs.
struct UpstreamLease {
    upstream: Upstream,
    admission: Admission,
    connect_us: Option<u32>,
}

impl Session {
    /// The session of a client that `request` has identified.
    pub(crate) fn new(client: Client, request: Box<PendingRequest>) -> Session {
        Session { client, first: Some(request), upstream: None, run: None, permit: None, held_permits: None }
    }

    /// The session of a connection whose next request has begun.
    pub(crate) fn resume(context: &Rc<WorkerContext>, resumed: Resumed) -> Session {
        let Resumed { client, info, partial_head, upstream, run, permit } = resumed;
        let client = Client::resumed(context, client, info, partial_head);
        let upstream = upstream.map(|(stream, key)| Upstream { stream, key });
        Session { client, first: None, upstream, run, permit: Some(permit), held_permits: None }
    }

    /// Serves the requests that have arrived.
    pub(crate) async fn serve(mut self: Box<Session>) -> NextStep {
        loop {
            match self.serve_request().await {
                // Pipelined requests that never wait would starve the thread's other tasks.
                AfterRequest::Continue if self.has_input() => {
                    self.client.begin_request();
                    self.client.renew_deadline();
                    yield_now().await;
                    continue;
                }
                AfterRequest::Continue | AfterRequest::Park => return self.park(),
                AfterRequest::Close => self.close(),
                AfterRequest::Linger => {
                    self.client.linger().await;
                    self.close();
                }
                AfterRequest::Reset => self.client.reset(),
                AfterRequest::Tunnel => return NextStep::Tunnel(Box::new(self.client)),
                AfterRequest::Relay(upgraded) => return self.relay(*upgraded),
            }
            return NextStep::Closed;
        }
    }

    /// Closes the connection in order. While the client has bytes to acknowledge, the permits of its last
    /// request are held, or else the connection's own.
    fn close(self) {
        let Session { client, run, permit, held_permits, .. } = self;
        drop(run);
        client.close_with(|| held_permits.or_else(|| Some(Rc::new(HeldPermits::of_session(permit?)?))));
    }

    /// Whether a byte of another request, or the end, has arrived.
    fn has_input(&mut self) -> bool {
        // A failed read counts as an end, which the next request finds.
        !self.client.input.unread().is_empty() || self.client.read_available().unwrap_or(true)
    }

    async fn serve_request(&mut self) -> AfterRequest {
        self.set_idle(true);
        let mut request = match self.read_head() {
            Ok(NextHead::Request(request)) => request,
            Ok(NextHead::Tunnel) => return AfterRequest::Tunnel,
            Ok(NextHead::Incomplete) => return AfterRequest::Park,
            Err(HandshakeError::Denied(denial)) => return self.deny(&denial, 0).await,
            // Between two requests a client may close.
            Err(_) if self.client.input.unread().is_empty() => return AfterRequest::Close,
            Err(_) => {
                self.client.log_abandoned();
                return AfterRequest::Close;
            }
        };
        match self.admit(&mut request).await {
            Ok(Some(lease)) => match self.begin_request(lease, request.traits.method) {
                Some((run, upstream)) => self.exchange(request, run, upstream).await,
                None => AfterRequest::Reset,
            },
            Ok(None) => self.send_options_response(&request).await,
            Err(HandshakeError::Denied(denial)) => self.deny(&denial, request.discardable_body()).await,
            Err(_) => AfterRequest::Close,
        }
    }

    /// Reads the next head, as far as it has arrived.
    fn read_head(&mut self) -> Result<NextHead, HandshakeError> {
        if let Some(first) = self.first.take() {
            return Ok(NextHead::Request(*first));
        }
        let Some(length) = self.client.available_head()? else {
            let is_late = self.client.request_deadline <= self.client.context.reactor.now();
            return if is_late { Err(Denial::greeting_timeout().into()) } else { Ok(NextHead::Incomplete) };
        };
        if self.client.requests_tunnel() {
            return Ok(NextHead::Tunnel);
        }
        Ok(NextHead::Request(PendingRequest::read(&mut self.client, length)?))
    }

    /// Authenticates and judges the request, and gets a connection to its destination; `None` if the request
    /// targets the gateway itself.
    async fn admit(&mut self, request: &mut PendingRequest) -> Result<Option<UpstreamLease>, HandshakeError> {
        let user = self.identify(request).await?;
        let connect_request = ConnectRequest { user, target: request.target };
        self.client.request = Some(connect_request);
        self.held_permits = None;
        self.acquire_permit(user, request);
        let key = RunKey { snapshot: &self.client.info.snapshot, user, target: &request.target };
        // An upgrade may become a tunnel, which has a flow of its own.
        let may_follow = !request.targets_proxy && request.traits.upgrade.is_none();
        self.run.take_if(|run| !may_follow || !run.fits(&key));
        if request.targets_proxy {
            return Ok(None);
        }
        // From here on the user's connection permits bound what the request holds.
        self.set_idle(false);
        match self.reuse(request, &connect_request)? {
            Some(lease) => Ok(Some(lease)),
            None => Ok(Some(self.connect(&connect_request).await?)),
        }
    }

    /// The request's user.
    async fn identify(&mut self, request: &mut PendingRequest) -> Result<UserIndex, HandshakeError> {
        let user = match request.user {
            Some(user) => Ok(user),
            None => {
                let reactor = Rc::clone(&self.client.context.reactor);
                let user = self.client.authenticate(request.credentials.take());
                let user = within(&reactor, self.client.request_deadline, user).await;
                user.map_err(|_| Denial::greeting_timeout())?
            }
        };
        match user {
            Ok(_) => self.client.reset_auth_failures(),
            Err(_) => self.client.count_auth_failure(),
        }
        user.map_err(|error| error.with_target(request.target))
    }

    /// Acquires a permit of `user` for the connection. Without one, the connection closes behind the response
    /// to `request`.
    fn acquire_permit(&mut self, user: UserIndex, request: &mut PendingRequest) {
        let snapshot = self.client.snapshot();
        let account = snapshot.account(user);
        if self.permit.as_ref().is_some_and(|permit| permit.belongs_to(account)) {
            return;
        }
        // Returned first, so that a connection that changes its user does not count twice.
        self.permit = None;
        self.permit = snapshot.budget.acquire_session(account);
        if self.permit.is_none() {
            request.traits.keeps_alive = false;
            self.client.reply_protocol.set_close();
            self.client.context.stats.sessions_unkept.add(1);
        }
    }

    /// Notes whether the connection waits for a request, or for a client that is slow to read a response.
    fn set_idle(&mut self, is_idle: bool) {
        if let Some(permit) = &mut self.permit {
            permit.set_idle(is_idle);
        }
    }

    /// The connection of the last request, if this one may use it.
    fn reuse(
        &mut self,
        request: &PendingRequest,
        connect_request: &ConnectRequest,
    ) -> Result<Option<UpstreamLease>, Denial> {
        let Some(upstream) = self.upstream.take() else { return Ok(None) };
        let account = self.client.snapshot().account(connect_request.user);
        let now = self.client.context.reactor.now();
        if !upstream.may_serve(&connect_request.target, account, request.traits.is_repeatable, now) {
            return Ok(None);
        }
        let address = upstream.key.address;
        let admission = readmit(&self.client.context, self.client.snapshot(), connect_request, address)?;
        Ok(admission.map(|admission| UpstreamLease { upstream, admission, connect_us: None }))
    }

    async fn connect(&mut self, connect_request: &ConnectRequest) -> Result<UpstreamLease, Denial> {
        let (context, snapshot) = (&self.client.context, self.client.snapshot());
        let admission = admit(context, snapshot, connect_request, false).await?;
        let deadline = self.client.connect_deadline();
        let connected = connect(context, snapshot, &admission, SpeaksFirst::Us, deadline);
        let (stream, address, connect_us) = connected.await?;
        let upstream = Upstream::new(stream, connect_request.target, address, admission.permit.account());
        Ok(UpstreamLease { upstream, admission, connect_us: Some(connect_us) })
    }

    /// Begins the request in the run of the one before, or in a flow that it opens; `None` if that flow's
    /// slot is damaged.
    fn begin_request(&mut self, lease: UpstreamLease, method: &'static str) -> Option<(Box<Run>, Upstream)> {
        let UpstreamLease { upstream, admission, connect_us } = lease;
        let (address, verdict) = (upstream.key.address, *admission.verdict(upstream.key.address));
        let path = self.client.path.take();
        let request = RequestStart { id: self.client.id(), begun: self.client.arrived(), method, path };
        if let Some(run) = self.run.take().filter(|run| run.leads_to(address, &verdict)) {
            let Admission { dns_us, permit, global_permit, .. } = admission;
            run.flow().begin_request(Admitted { permit, global_permit, dns_us, connect_us }, request);
            return Some((run, upstream));
        }
        let route = admission.route(self.client.snapshot(), address);
        let record = self.client.record(&route);
        let user = self.client.request.as_ref().expect("it was admitted").user;
        let destination = self.client.snapshot().destination(&verdict);
        let Admission { dns_us, permit, global_permit, reservation, .. } = admission;
        let start = FlowStart {
            record,
            at: clock::wall(),
            protocol: Protocol::Http,
            admitted: Admitted { permit, global_permit, dns_us, connect_us },
            reservation,
            listener: self.client.info.address,
            request: Some(request),
            destination,
            credit: self.client.snapshot().flow_credit(user, destination),
        };
        let flow = FlowGuard::open(&self.client.context.meter, start)?;
        let ConnectRequest { user, target } = self.client.request.as_ref().expect("it was admitted");
        let key = RunKey { snapshot: &self.client.info.snapshot, user: *user, target };
        let run = Run::new(flow, &key, (address, verdict), self.client.context.reactor.now());
        Some((Box::new(run), upstream))
    }

    /// Sends the request and forwards its response.
    async fn exchange(
        &mut self,
        request: PendingRequest,
        run: Box<Run>,
        mut upstream: Upstream,
    ) -> AfterRequest {
        let mut exchange = Exchange::new(&mut self.client, request, run.flow(), &mut upstream);
        let outcome = exchange.run().await;
        let sent = exchange.legs();
        drop(exchange);
        self.client.info.sent.add(sent.client_tx);
        match outcome {
            Outcome::Answered { client_may_go_on, upstream_lives_on, client_is_sending } => {
                self.complete(run, upstream, sent, (client_may_go_on, upstream_lives_on));
                match (client_may_go_on, client_is_sending) {
                    (_, true) => AfterRequest::Linger,
                    (true, false) => AfterRequest::Continue,
                    (false, false) => self.after_last_response(),
                }
            }
            Outcome::Upgraded { rest } => {
                let flow = run.into_flow();
                self.client.context.meter.borrow_mut().count_response(flow.key());
                AfterRequest::Relay(Box::new(Upgraded { flow, upstream, rest }))
            }
            Outcome::Unanswered { reason, denial, sent_whole } => {
                self.client.context.meter.borrow_mut().set_status(run.flow().key(), denial.status);
                if reason == CloseReason::QuotaExhausted {
                    self.end_exhausted(run, upstream, sent);
                } else {
                    upstream.close_failed(sent.upstream_tx);
                    run.close(reason);
                }
                if !sent_whole {
                    self.client.reply_protocol.set_close();
                }
                self.send_denial(&denial, 0).await
            }
            Outcome::Exhausted => {
                self.end_exhausted(run, upstream, sent);
                AfterRequest::Linger
            }
            Outcome::Broken(reason) => {
                upstream.close_failed(sent.upstream_tx);
                run.close(reason);
                AfterRequest::Reset
            }
        }
    }

    /// Ends a request for lack of credit: the destination gets what it was sent.
    fn end_exhausted(&mut self, run: Box<Run>, mut upstream: Upstream, sent: Legs) {
        let permits = run.close(CloseReason::QuotaExhausted).map(Rc::new);
        match &permits {
            Some(permits) if upstream.is_behind(sent.upstream_tx) => {
                self.client.context.closing.add(upstream.stream.into_parts(), permits);
            }
            _ => {}
        }
        self.held_permits = permits;
    }

    /// Ends a request whose response is complete. While a peer has bytes to acknowledge, the permits of the
    /// request are held.
    fn complete(
        &mut self,
        run: Box<Run>,
        mut upstream: Upstream,
        sent: Legs,
        (client_may_go_on, upstream_lives_on): (bool, bool),
    ) {
        let permits = self.end_request(run, client_may_go_on);
        let context = &self.client.context;
        let upstream_is_behind = upstream.is_behind(sent.upstream_tx);
        let client_is_behind = self.client.info.sent.is_queued(self.client.stream.socket());
        let permits = permits.filter(|_| upstream_is_behind || client_is_behind).map(Rc::new);
        match &permits {
            Some(permits) if upstream_is_behind => {
                context.closing.add(upstream.stream.into_parts(), permits);
            }
            _ => {
                upstream.note_use(context.reactor.now());
                self.upstream = Some(upstream).filter(|_| upstream_lives_on && client_may_go_on);
            }
        }
        self.held_permits = permits.filter(|_| client_is_behind);
    }

    /// Ends the request of `run`, which stays open for the next one if there may be one; returns the permits.
    fn end_request(&mut self, mut run: Box<Run>, client_may_go_on: bool) -> Option<HeldPermits> {
        let (context, now) = (&self.client.context, self.client.context.reactor.now());
        if !client_may_go_on || run.is_over(now) || !context.meter.borrow().may_idle() {
            return run.close(CloseReason::Completed);
        }
        let permits = run.end_request(now);
        self.run = Some(run);
        permits
    }

    /// The end of a connection behind its last response: close(2) with unread bytes sends RST, which may
    /// overtake the response.
    fn after_last_response(&mut self) -> AfterRequest {
        if self.has_input() { AfterRequest::Linger } else { AfterRequest::Close }
    }

    async fn send_options_response(&mut self, request: &PendingRequest) -> AfterRequest {
        let mut response = Vec::new();
        let closes = self.client.reply_protocol.closes();
        self.client.context.date.with(|now| write_options_response(&mut response, now, closes));
        match self.client.send_within_linger(&response).await {
            Ok(()) => self.after_local_response(closes, request.discardable_body()).await,
            Err(_) => AfterRequest::Close,
        }
    }

    /// Logs and sends a denial, behind which `body_bytes` of the request follow.
    async fn deny(&mut self, denial: &Denial, body_bytes: u64) -> AfterRequest {
        self.run = None;
        self.client.log_denial(denial);
        self.send_denial(denial, body_bytes).await
    }

    async fn send_denial(&mut self, denial: &Denial, body_bytes: u64) -> AfterRequest {
        self.set_idle(true);
        let closes = self.client.reply_protocol.closes();
        match self.client.send_denial(denial).await {
            Ok(()) => self.after_local_response(closes, body_bytes).await,
            Err(_) => AfterRequest::Close,
        }
    }

    /// Discards the body of a request to which the response is the gateway's own.
    async fn after_local_response(&mut self, closes: bool, body_bytes: u64) -> AfterRequest {
        if closes || body_bytes > DISCARDED_BODY_BYTES_MAX {
            return AfterRequest::Linger;
        }
        let (reactor, deadline) = (Rc::clone(&self.client.context.reactor), self.client.request_deadline);
        match within(&reactor, deadline, self.client.discard_body(body_bytes)).await {
            Ok(Ok(())) => AfterRequest::Continue,
            Ok(Err(_)) => AfterRequest::Close,
            Err(_) => AfterRequest::Linger,
        }
    }

    /// Turns the connection into a relay: its bytes are no longer HTTP.
    fn relay(self, Upgraded { flow, upstream, rest }: Upgraded) -> NextStep {
        let (client, client_bytes, sent_much) = self.client.into_relay();
        let upstream = upstream.stream.into_parts();
        NextStep::Relay(Box::new(RelayStart {
            client,
            client_bytes,
            sent_much,
            upstream,
            upstream_bytes: rest,
            flow,
        }))
    }

    /// Leaves the connection to the table of idle connections, or closes it.
    fn park(mut self) -> NextStep {
        self.set_idle(true);
        let is_serving = self.client.context.phase.get() == Phase::Serving;
        let may_wait = is_serving || !self.client.input.unread().is_empty();
        let Some(permit) = self.permit.take_if(|permit| may_wait && !permit.is_revoked()) else {
            self.close();
            return NextStep::Closed;
        };
        let upstream = self.upstream.filter(|upstream| !upstream.has_ended());
        let upstream = upstream.map(|Upstream { stream, key }| (stream.into_parts(), key));
        let (client, info, partial_head) = self.client.into_idle();
        NextStep::Park(Box::new(Parked { client, info, partial_head, upstream, run: self.run, permit }))
    }
}

/// Lets the thread's other tasks run.
async fn yield_now() {
    let mut was_polled = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut was_polled, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_future_is_bounded() {
        fn future_size<F>(_: fn(Box<Session>) -> F) -> usize {
            size_of::<F>()
        }
        // A thread keeps the memory of as many futures as it ever had at once.
        let size = future_size(Session::serve);
        assert!(size <= 4096, "the future has {size} bytes");
    }
}
