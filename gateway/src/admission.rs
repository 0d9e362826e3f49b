//! Admission: whether a user may connect to a target, by which rule, to which addresses, and what its flow
//! needs.
//!
//! Guarantees: every kind of ingress is judged here and nowhere else; a name is resolved once, and only
//! judged addresses are dialled; what belongs to all users is acquired last, so that a request which the
//! policy or the user's own bounds deny has held none of it.
//!
//! ```text
//!   name judged --> user's permit --> name resolved --> addresses judged --> global permit, ledger --> dial
//! ```

pub(crate) mod judgement;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use engine::deadline::within;
use engine::net::TcpStream;
use policy::{UserIndex, Verdict};
use proto::target::Host;
use sys::clock::{self, Nanos};
use sys::socket::SpeaksFirst;

use self::judgement::{Candidates, Judgement};
use crate::account::ConnectionPermit;
use crate::budget::FlowPermit;
use crate::client::{ConnectRequest, Route};
use crate::context::WorkerContext;
use crate::denial::Denial;
use crate::dial::{DialFailure, dial};
use crate::dns::{DNS_GRACE, ResolveError};
use crate::flow::meter::Reservation;
use crate::snapshot::Snapshot;

/// An admitted request: the addresses that may be dialled, and all that its flow needs.
pub(crate) struct Admission {
    candidates: Candidates,
    /// How long the name's lookup took, in microseconds, if there was one.
    pub(crate) dns_us: Option<u32>,
    /// One of the user's connections.
    pub(crate) permit: ConnectionPermit,
    /// One of all users' flows.
    pub(crate) global_permit: FlowPermit,
    /// A slot of the ledger.
    pub(crate) reservation: Reservation,
}

impl Admission {
    /// The verdict on `address`.
    ///
    /// # Panics
    /// If it is not one of the candidates.
    pub(crate) fn verdict(&self, address: SocketAddr) -> &Verdict {
        self.candidates.verdict(address).expect("only candidates are dialled")
    }

    /// The route of a flow to `address`.
    ///
    /// # Panics
    /// If it is not one of the candidates.
    pub(crate) fn route<'a>(&self, snapshot: &'a Snapshot, address: SocketAddr) -> Route<'a> {
        let verdict = self.verdict(address);
        let class = snapshot.destination(verdict).class;
        let set_of = |rule| snapshot.numbers.set_of(&snapshot.config.policy, rule);
        let set = verdict.rule.map_or(0, set_of);
        Route { address: Some(address.ip()), rule: rule_text(snapshot, verdict), class, set }
    }
}

/// Denies a request of which a quota is spent, or not known yet.
fn check_quotas(snapshot: &Snapshot, user: UserIndex, verdict: &Verdict) -> Result<(), Denial> {
    let Some(limits) = snapshot.limits(user) else { return Ok(()) };
    let now = clock::steady_wall();
    for quota in limits.quotas_of(snapshot.destination(verdict)) {
        let period = quota.period(now);
        if !period.is_known() {
            let text = "What was used of a quota is not known yet.";
            return Err(Denial::overload("overload_quota", text));
        }
        if period.allowance.is_spent() {
            return Err(Denial::quota(quota, now));
        }
    }
    Ok(())
}

/// Judges the name, resolves it once, judges each address, and acquires what the flow needs. `is_socks5` adds
/// to a denial that a client which resolves names itself bypasses rules by name.
///
/// # Errors
/// A denial, which holds nothing.
pub(crate) async fn admit(
    context: &WorkerContext,
    snapshot: &Snapshot,
    request: &ConnectRequest,
    is_socks5: bool,
) -> Result<Admission, Denial> {
    let judgement = judgement(snapshot, request);
    let name_verdict = judgement.judge_name().map_err(|denial| {
        let has_rules_by_name = || snapshot.config.policy.has_rules_by_name(request.user);
        if is_socks5 && has_rules_by_name() { denial.with_name_hint() } else { denial }
    })?;
    let permit = acquire_user_permit(snapshot, request.user)?;
    let (candidates, dns_us) = match &request.target.host {
        Host::Address(address) => (judgement.judge_addresses(&name_verdict, &[*address])?, None),
        Host::Name(name) => {
            let started = clock::monotonic();
            let deadline = context.reactor.now() + context.names.deadline() + DNS_GRACE;
            let lookup = context.names.lookup(permit.account().id(), name.as_str());
            let answer = within(&context.reactor, deadline, lookup).await;
            let elapsed = clock::monotonic().since(started);
            context.stats.dns.add(elapsed);
            let answer = answer.unwrap_or(Err(ResolveError::Timeout)).map_err(Denial::from)?;
            (judgement.judge_addresses(&name_verdict, answer.addresses())?, Some(micros(elapsed)))
        }
    };
    check_quotas(snapshot, request.user, &candidates.first.1)?;
    acquire_global_permits(context, snapshot, candidates, dns_us, permit)
}

/// Judges the name of another request, and the one address that a kept connection leads to. `None` if the
/// policy denies it: [`admit`] then gives the reason.
///
/// # Errors
/// A denial, which holds nothing.
pub(crate) fn readmit(
    context: &WorkerContext,
    snapshot: &Snapshot,
    request: &ConnectRequest,
    address: SocketAddr,
) -> Result<Option<Admission>, Denial> {
    let judgement = judgement(snapshot, request);
    let candidates: Result<Candidates, Denial> =
        judgement.judge_name().and_then(|verdict| judgement.judge_addresses(&verdict, &[address.ip()]));
    let Ok(candidates) = candidates else { return Ok(None) };
    check_quotas(snapshot, request.user, &candidates.first.1)?;
    let permit = acquire_user_permit(snapshot, request.user)?;
    acquire_global_permits(context, snapshot, candidates, None, permit).map(Some)
}

fn judgement<'a>(snapshot: &'a Snapshot, request: &'a ConnectRequest) -> Judgement<'a> {
    Judgement { policy: &snapshot.config.policy, user: request.user, target: &request.target }
}

fn acquire_user_permit(snapshot: &Snapshot, user: UserIndex) -> Result<ConnectionPermit, Denial> {
    let account = snapshot.account(user);
    let denial = || if account.is_revoked() { Denial::revoked() } else { Denial::connection_cap() };
    account.try_acquire().ok_or_else(denial)
}

/// Acquires what belongs to all users: a permit of the budget, and a slot of the ledger.
fn acquire_global_permits(
    context: &WorkerContext,
    snapshot: &Snapshot,
    candidates: Candidates,
    dns_us: Option<u32>,
    permit: ConnectionPermit,
) -> Result<Admission, Denial> {
    let budget = &snapshot.budget;
    let Some(global_permit) = budget.acquire_flow() else {
        let text = "The gateway has as many connections open as it may.";
        return Err(Denial::overload("overload_connections", text));
    };
    // The new flow precedes connections without one.
    if budget.is_exceeded() && (!context.evictor.free_permit() || budget.is_exceeded()) {
        budget.request_reclaim();
    }
    match context.meter.borrow_mut().reserve() {
        Some(reservation) => Ok(Admission { candidates, dns_us, permit, global_permit, reservation }),
        None => {
            let text = "The ledger is behind or fails: no further flow can be recorded.";
            Err(Denial::overload("overload_ledger", text))
        }
    }
}

/// Connects to one of the admitted addresses. Returns the connection, its address, and how long the dial
/// took, in microseconds.
///
/// # Errors
/// A denial.
pub(crate) async fn connect(
    context: &WorkerContext,
    snapshot: &Snapshot,
    admission: &Admission,
    speaks_first: SpeaksFirst,
    deadline: Nanos,
) -> Result<(TcpStream, SocketAddr, u32), Denial> {
    let started = clock::monotonic();
    let Candidates { first: (first, _), .. } = admission.candidates;
    let others = admission.candidates.other_addresses();
    let account = admission.permit.account();
    let dialled = dial(context, account.id(), first, others, speaks_first, deadline).await;
    let elapsed = clock::monotonic().since(started);
    let (stream, address) =
        dialled.map_err(|failure| connect_denial(snapshot, admission, failure, elapsed))?;
    context.stats.connect.add(elapsed);
    if account.is_revoked() {
        // The user was revoked during the dial; the sweep could not see this flow.
        return Err(Denial::revoked());
    }
    Ok((stream, address, micros(elapsed)))
}

/// The denial of a request whose destination was not reached; the log gets the addresses that were tried.
fn connect_denial(
    snapshot: &Snapshot,
    admission: &Admission,
    failure: DialFailure,
    elapsed: Duration,
) -> Denial {
    let DialFailure { error, tried } = failure;
    let mut denial = Denial::from(error);
    denial.details.tried = tried.iter().map(SocketAddr::ip).collect::<Vec<IpAddr>>();
    denial.details.rule = rule_text(snapshot, &admission.candidates.first.1).into();
    (denial.details.dns_us, denial.details.connect_us) = (admission.dns_us, Some(micros(elapsed)));
    denial
}

/// The text of the rule that gave `verdict`; empty if none did.
fn rule_text<'a>(snapshot: &'a Snapshot, verdict: &Verdict) -> &'a str {
    verdict.rule.map_or("", |rule| snapshot.config.policy.rule_text(rule))
}

/// A span as records and logs hold it.
fn micros(span: Duration) -> u32 {
    u32::try_from(span.as_micros()).unwrap_or(u32::MAX)
}
