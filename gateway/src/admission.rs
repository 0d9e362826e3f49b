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

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use engine::net::TcpStream;
use engine::timer::within;
use ledger::record::{Class, Protocol, Record};
use policy::{BillingClass, NameVerdict, UserIndex};
use proto::target::Host;
use sys::clock::{self, Nanos};
use sys::socket::FirstWord;

use crate::account::Seat;
use crate::budget::FlowPlace;
use crate::client::{Asked, Client, Decided, End};
use crate::dial::{Undialled, dial};
use crate::judgement::{Candidates, Judgement};
use crate::meter::Reservation;
use crate::refusal::Refusal;
use crate::resolve::{DNS_GRACE, ResolveError};

/// A request that may go on to its destination, with all that its flow takes.
pub(crate) struct Admission {
    /// Where it may go.
    pub(crate) admitted: Admitted,
    /// The flow's place in its user's account.
    pub(crate) seat: Seat,
    /// The flow's place in the budget of all users.
    pub(crate) place: FlowPlace,
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
        client.record(&Decided { address: Some(address.ip()), rule, class })
    }
}

/// Judges the name, resolves it once, judges each address, and takes what the flow needs.
///
/// # Errors
/// A refusal, behind which nothing is held.
pub(crate) async fn admit(client: &Client, asked: &Asked) -> Result<Admission, End> {
    let name_verdict = judge_name(client, asked)?;
    let seat = take_seat(client, asked.user)?;
    let admitted = match &asked.target.host {
        Host::Address(address) => judge_addresses(client, asked, &name_verdict, &[*address], None)?,
        Host::Name(name) => {
            let began = clock::monotonic();
            let (local, asker) = (&client.local, seat.account().id());
            let answer_by = local.reactor.now() + local.names.deadline() + DNS_GRACE;
            let lookup = within(&local.reactor, answer_by, local.names.lookup(asker, name.as_str())).await;
            let took = clock::monotonic().since(began);
            local.stats.dns.add(took);
            let answer = lookup.unwrap_or(Err(ResolveError::Timeout)).map_err(Refusal::from)?;
            judge_addresses(client, asked, &name_verdict, answer.addresses(), Some(micros(took)))?
        }
    };
    take_place(client, admitted, seat)
}

/// Judges anew, for another request, the name and the one address to which a connection stands already.
/// `None` where the request has to take the long way, which gives the reason.
///
/// # Errors
/// A refusal, behind which nothing is held.
pub(crate) fn admit_again(
    client: &Client,
    asked: &Asked,
    address: SocketAddr,
) -> Result<Option<Admission>, End> {
    let admitted = judge_name(client, asked)
        .and_then(|verdict| judge_addresses(client, asked, &verdict, &[address.ip()], None));
    let Ok(admitted) = admitted else { return Ok(None) };
    take_place(client, admitted, take_seat(client, asked.user)?).map(Some)
}

fn judge_name<'a>(client: &'a Client, asked: &'a Asked) -> Result<NameVerdict<'a>, End> {
    let judged = judgement(client, asked).judge_name();
    Ok(judged.map_err(|refusal| match client.protocol {
        Some(Protocol::Socks5) if client.snapshot().config.policy.has_rules_by_name(asked.user) => {
            refusal.hinting_at_names()
        }
        _ => refusal,
    })?)
}

fn judge_addresses(
    client: &Client,
    asked: &Asked,
    name_verdict: &NameVerdict<'_>,
    found: &[IpAddr],
    dns_us: Option<u32>,
) -> Result<Admitted, End> {
    let candidates = judgement(client, asked).judge_addresses(name_verdict, found)?;
    Ok(Admitted { candidates, dns_us })
}

fn judgement<'a>(client: &'a Client, asked: &'a Asked) -> Judgement<'a> {
    let policy = &client.snapshot().config.policy;
    Judgement { policy, user: asked.user, target: &asked.target }
}

/// Takes a place in the user's account.
fn take_seat(client: &Client, user: UserIndex) -> Result<Seat, End> {
    let account = client.snapshot().account(user);
    account.seat().ok_or_else(|| {
        let refusal = if account.is_revoked() { Refusal::revoked() } else { Refusal::connection_cap() };
        refusal.into()
    })
}

/// Takes what belongs to all users: a place in the budget, and a slot of the ledger.
fn take_place(client: &Client, admitted: Admitted, seat: Seat) -> Result<Admission, End> {
    let budget = &client.snapshot().budget;
    let Some(place) = budget.take_flow() else {
        let text = "The gateway has as many connections open as it may.";
        return Err(Refusal::overload("overload_connections", text).into());
    };
    // The new flow goes before connections that have none.
    if budget.is_exceeded() && !client.local.resting.borrow_mut().end_heavy() {
        budget.call();
    }
    match client.local.meter.borrow_mut().reserve() {
        Some(reservation) => Ok(Admission { admitted, seat, place, reservation }),
        None => {
            let text = "The ledger is behind or fails: no further flow can be recorded.";
            Err(Refusal::overload("overload_ledger", text).into())
        }
    }
}

/// Connects to one of the admitted addresses, for the user who has this `seat`; says how long it took, in
/// microseconds.
///
/// # Errors
/// A refusal.
pub(crate) async fn reach(
    client: &Client,
    admitted: &Admitted,
    seat: &Seat,
    first_word: FirstWord,
    dial_by: Nanos,
) -> Result<(TcpStream, SocketAddr, u32), End> {
    let began = clock::monotonic();
    let Candidates { first: (first, _), .. } = admitted.candidates;
    let others = admitted.candidates.other_addresses();
    let dialled = dial(&client.local, seat.account().id(), first, others, first_word, dial_by).await;
    let took = clock::monotonic().since(began);
    let (stream, address) = dialled.map_err(|failure| undialled(client, admitted, failure, took))?;
    client.local.stats.connect.add(took);
    if seat.account().is_revoked() {
        // He was removed while we dialled: too late to be cut off with his flows, too early to have one.
        return Err(Refusal::revoked().into());
    }
    Ok((stream, address, micros(took)))
}

/// The refusal of a client whose destination was not reached; the log is told what was tried.
fn undialled(client: &Client, admitted: &Admitted, failure: Undialled, took: Duration) -> Refusal {
    let Undialled { error, tried } = failure;
    let mut refusal = Refusal::from(error);
    refusal.undisclosed.tried = tried.iter().map(SocketAddr::ip).collect();
    let rule =
        admitted.candidates.first.1.rule.map_or("", |rule| client.snapshot().config.policy.rule_text(rule));
    refusal.undisclosed.rule = rule.into();
    (refusal.undisclosed.dns_us, refusal.undisclosed.connect_us) = (admitted.dns_us, Some(micros(took)));
    refusal
}

/// A span as records and logs hold it.
fn micros(span: Duration) -> u32 {
    u32::try_from(span.as_micros()).unwrap_or(u32::MAX)
}
