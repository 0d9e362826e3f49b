//! Admission: whether a client may go where it asks to, by which rule, to which addresses, whether there is
//! room for one more flow, and the way there.
//!
//! Promises: every kind of ingress is judged here and nowhere else; a name is resolved once, and only
//! addresses that were judged are dialled; what belongs to all users is taken last, so that a request which
//! the policy or the user's own bounds refuse has held none of it. Leaves to others: who the client is
//! (`auth`), judging without a client (`judgement`), which address answers first (`dial`).
//!
//! ```text
//!   name judged --> user's connections --> name resolved --> addresses judged --> budget, ledger --> dial
//! ```

pub(crate) mod dial;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use engine::net::TcpStream;
use engine::timer::within;
use ledger::record::{Class, Protocol, Record};
use policy::{BillingClass, NameVerdict, UserIndex};
use proto::target::Host;
use sys::clock::{self, Nanos};
use sys::socket::SpeaksFirst;

use crate::account::ConnectionPermit;
use crate::admission::dial::{DialFailure, dial};
use crate::budget::FlowPermit;
use crate::client::{Client, ConnectRequest, HandshakeError, Route};
use crate::denial::Denial;
use crate::flow::meter::Reservation;
use crate::judgement::{Candidates, Judgement};
use crate::resolve::{DNS_GRACE, ResolveError};

/// A request that may go on to its destination, with all that its flow takes.
pub(crate) struct Admission {
    /// Where it may go.
    pub(crate) admitted: Admitted,
    /// The flow's place in its user's account.
    pub(crate) permit: ConnectionPermit,
    /// The flow's place in the budget of all users.
    pub(crate) global_permit: FlowPermit,
    /// The slot that is kept for it in the ledger.
    pub(crate) reservation: Reservation,
}

/// The addresses that may be dialled.
pub(crate) struct Admitted {
    candidates: Candidates,
    /// How long the name's lookup took, in microseconds, if there was one.
    pub(crate) dns_us: Option<u32>,
}

impl Admitted {
    /// The record of the flow of `client` that goes to `address`.
    ///
    /// # Panics
    /// If it is none of ours.
    pub(crate) fn record(&self, client: &Client, address: SocketAddr) -> Record {
        let verdict = self.candidates.verdict(address).expect("only candidates are dialled");
        let class = match verdict.class {
            BillingClass::External => Class::External,
            BillingClass::Internal => Class::Internal,
        };
        let rule = verdict.rule.map_or("", |rule| client.snapshot().config.policy.rule_text(rule));
        client.record(&Route { address: Some(address.ip()), rule, class })
    }
}

/// Judges the name, resolves it once, judges each address, and takes what the flow needs.
///
/// # Errors
/// A refusal, behind which nothing is held.
pub(crate) async fn admit(client: &Client, asked: &ConnectRequest) -> Result<Admission, HandshakeError> {
    let name_verdict = judge_name(client, asked)?;
    let seat = acquire_user_slot(client, asked.user)?;
    let admitted = match &asked.target.host {
        Host::Address(address) => judge_addresses(client, asked, &name_verdict, &[*address], None)?,
        Host::Name(name) => {
            let began = clock::monotonic();
            let (context, asker) = (&client.context, seat.account().id());
            let answer_by = context.reactor.now() + context.names.deadline() + DNS_GRACE;
            let lookup =
                within(&context.reactor, answer_by, context.names.lookup(asker, name.as_str())).await;
            let took = clock::monotonic().since(began);
            context.stats.dns.add(took);
            let answer = lookup.unwrap_or(Err(ResolveError::Timeout)).map_err(Denial::from)?;
            judge_addresses(client, asked, &name_verdict, answer.addresses(), Some(micros(took)))?
        }
    };
    acquire_global_slot(client, admitted, seat)
}

/// Judges anew, for another request, the name and the one address to which a connection stands already.
/// `None` where the request has to take the long way, which gives the reason.
///
/// # Errors
/// A refusal, behind which nothing is held.
pub(crate) fn readmit(
    client: &Client,
    asked: &ConnectRequest,
    address: SocketAddr,
) -> Result<Option<Admission>, HandshakeError> {
    let admitted = judge_name(client, asked)
        .and_then(|verdict| judge_addresses(client, asked, &verdict, &[address.ip()], None));
    let Ok(admitted) = admitted else { return Ok(None) };
    acquire_global_slot(client, admitted, acquire_user_slot(client, asked.user)?).map(Some)
}

fn judge_name<'a>(client: &'a Client, asked: &'a ConnectRequest) -> Result<NameVerdict<'a>, HandshakeError> {
    let judged = judgement(client, asked).judge_name();
    Ok(judged.map_err(|denial| match client.protocol {
        Some(Protocol::Socks5) if client.snapshot().config.policy.has_rules_by_name(asked.user) => {
            denial.hinting_at_names()
        }
        _ => denial,
    })?)
}

fn judge_addresses(
    client: &Client,
    asked: &ConnectRequest,
    name_verdict: &NameVerdict<'_>,
    found: &[IpAddr],
    dns_us: Option<u32>,
) -> Result<Admitted, HandshakeError> {
    let candidates = judgement(client, asked).judge_addresses(name_verdict, found)?;
    Ok(Admitted { candidates, dns_us })
}

fn judgement<'a>(client: &'a Client, asked: &'a ConnectRequest) -> Judgement<'a> {
    let policy = &client.snapshot().config.policy;
    Judgement { policy, user: asked.user, target: &asked.target }
}

/// Takes a place in the user's account.
fn acquire_user_slot(client: &Client, user: UserIndex) -> Result<ConnectionPermit, HandshakeError> {
    let account = client.snapshot().account(user);
    account.try_acquire().ok_or_else(|| {
        let denial = if account.is_revoked() { Denial::revoked() } else { Denial::connection_cap() };
        denial.into()
    })
}

/// Takes what belongs to all users: a place in the budget, and a slot of the ledger.
fn acquire_global_slot(
    client: &Client,
    admitted: Admitted,
    seat: ConnectionPermit,
) -> Result<Admission, HandshakeError> {
    let budget = &client.snapshot().budget;
    let Some(place) = budget.acquire_flow() else {
        let text = "The gateway has as many connections open as it may.";
        return Err(Denial::overload("overload_connections", text).into());
    };
    // The new flow goes before connections that have none.
    if budget.is_exceeded() && !client.context.idle.borrow_mut().evict_of_heavy_user() {
        budget.request_reclaim();
    }
    match client.context.meter.borrow_mut().reserve() {
        Some(reservation) => Ok(Admission { admitted, permit: seat, global_permit: place, reservation }),
        None => {
            let text = "The ledger is behind or fails: no further flow can be recorded.";
            Err(Denial::overload("overload_ledger", text).into())
        }
    }
}

/// Connects to one of the admitted addresses, for the user who has this `seat`; says how long it took, in
/// microseconds.
///
/// # Errors
/// A refusal.
pub(crate) async fn connect(
    client: &Client,
    admitted: &Admitted,
    seat: &ConnectionPermit,
    first_word: SpeaksFirst,
    dial_by: Nanos,
) -> Result<(TcpStream, SocketAddr, u32), HandshakeError> {
    let began = clock::monotonic();
    let Candidates { first: (first, _), .. } = admitted.candidates;
    let others = admitted.candidates.other_addresses();
    let dialled = dial(&client.context, seat.account().id(), first, others, first_word, dial_by).await;
    let took = clock::monotonic().since(began);
    let (stream, address) = dialled.map_err(|failure| connect_denial(client, admitted, failure, took))?;
    client.context.stats.connect.add(took);
    if seat.account().is_revoked() {
        // He was removed while we dialled: too late to be cut off with his flows, too early to have one.
        return Err(Denial::revoked().into());
    }
    Ok((stream, address, micros(took)))
}

/// The refusal of a client whose destination was not reached; the log is told what was tried.
fn connect_denial(client: &Client, admitted: &Admitted, failure: DialFailure, took: Duration) -> Denial {
    let DialFailure { error, tried } = failure;
    let mut denial = Denial::from(error);
    denial.details.tried = tried.iter().map(SocketAddr::ip).collect();
    let rule =
        admitted.candidates.first.1.rule.map_or("", |rule| client.snapshot().config.policy.rule_text(rule));
    denial.details.rule = rule.into();
    (denial.details.dns_us, denial.details.connect_us) = (admitted.dns_us, Some(micros(took)));
    denial
}

/// A span as records and logs hold it.
fn micros(span: Duration) -> u32 {
    u32::try_from(span.as_micros()).unwrap_or(u32::MAX)
}
