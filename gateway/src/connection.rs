//! A connection, from its accept to the start of its relay.
//!
//! Promises: every kind of ingress takes this one path: who asks, whether he may go there, which address,
//! dialled, answered, metered; the address that was judged is the address that is dialled, and the name is
//! resolved once; each wait has a deadline. Leaves to others: the bytes of the two protocols
//! (`connection/http.rs`, `connection/socks5.rs`) and the relay itself.

mod http;
mod socks5;

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use engine::net::TcpStream;
use engine::timer::within;
use ledger::record::{Class, CloseReason, Protocol, Record};
use policy::{BillingClass, NameVerdict, UserIndex, Verdict};
use proto::target::Host;
use sys::clock;
use sys::socket::FirstWord;

use crate::account::Seat;
use crate::client::{Arrival, Asked, Client, Decided, End, Speaks};
use crate::config::Ingress;
use crate::dial::dial;
use crate::local::Local;
use crate::meter::{Opening, Reservation};
use crate::refusal::Refusal;
use crate::relay::Pending;
use crate::resolve::ResolveError;
use crate::stats::Denied;

/// How much longer than planned an answer of the DNS thread may take.
const DNS_GRACE: Duration = Duration::from_secs(1);

/// A way that stands: all that a relay needs besides the client.
struct Way {
    upstream: TcpStream,
    record: Record,
    seats: [Seat; 2],
    reservation: Reservation,
    dns_us: Option<u32>,
    connect_us: u32,
}

/// The addresses that may be dialled, each with the verdict that allows it.
struct Admitted {
    addresses: Vec<(SocketAddr, Verdict)>,
    dns_us: Option<u32>,
}

/// Serves one accepted connection until its relay begins, or until it is refused.
pub(crate) async fn serve(local: Rc<Local>, arrival: Arrival) {
    let mut client = Client::new(&local, arrival);
    match establish(&mut client).await {
        Ok(way) => begin_relay(client, way),
        Err(End::Refused(refusal)) => client.refuse(&refusal).await,
        Err(End::Left) => client.left(),
    }
}

async fn establish(client: &mut Client) -> Result<Way, End> {
    let timeouts = client.snapshot().config.timeouts.clone();
    let reactor = Rc::clone(&client.local.reactor);
    let asked_by = reactor.now() + timeouts.greeting;
    let asked = match within(&reactor, asked_by, await_request(client)).await {
        Ok(asked) => asked?,
        Err(_) => return Err(Refusal::greeting_timeout().into()),
    };
    client.asked = Some(asked);
    let admitted = admit(client, &asked).await?;
    let (seats, reservation) = take_seats(client, asked.user)?;

    let began = clock::monotonic();
    let dial_by = reactor.now() + timeouts.connect;
    let candidates: Vec<SocketAddr> = admitted.addresses.iter().map(|(address, _)| *address).collect();
    let first_word = first_word(client)?;
    let dialled = dial(&reactor, &candidates, first_word, dial_by).await;
    let (upstream, address) = dialled.map_err(Refusal::from)?;
    let took = clock::monotonic().since(began);
    client.local.stats.connect.add(took);
    if seats[0].account().is_revoked() {
        // He was removed while we dialled: too late to be cut off with his relays, too early to have one.
        return Err(Refusal::revoked().into());
    }

    let record = record_of(client, &admitted, address);
    within(&reactor, asked_by.max(dial_by), answer_established(client, &upstream))
        .await
        .map_err(|_| End::Left)??;
    Ok(Way { upstream, record, seats, reservation, dns_us: admitted.dns_us, connect_us: micros(took) })
}

/// Who will speak first to the destination. A client that is answered waits for that; one at a `forward`
/// listener may have spoken by now, and what it said goes ahead of the relay.
fn first_word(client: &mut Client) -> Result<FirstWord, End> {
    if client.protocol == Some(Protocol::Forward) {
        client.fill_now()?;
    }
    Ok(if client.unread().is_empty() { FirstWord::Unknown } else { FirstWord::Ours })
}

/// Awaits what the client wants, and learns who it is.
async fn await_request(client: &mut Client) -> Result<Asked, End> {
    let (http, socks5) = match client.ingress() {
        Ingress::Forward { to, user } => {
            let asked = Asked { user: *user, target: *to };
            client.protocol = Some(Protocol::Forward);
            return Ok(asked);
        }
        Ingress::Mixed => (true, true),
        Ingress::Http => (true, false),
        Ingress::Socks5 => (false, true),
    };
    client.fill().await?;
    match proto::detect(client.unread()[0]) {
        Some(proto::Protocol::Http) => {
            client.speaks = Speaks::Http { json: false };
            if http {
                return http::await_request(client).await;
            }
            Err(Refusal::not_spoken("This listener speaks SOCKS5 and not HTTP.").into())
        }
        Some(proto::Protocol::Socks5) if socks5 => socks5::await_request(client).await,
        Some(other) => {
            if other == proto::Protocol::Socks4 {
                // The only words that such a client knows; whether they arrive makes no difference.
                let _ = client.send(&proto::socks5::SOCKS4_REFUSED).await;
            }
            Err(Refusal::not_spoken(other.hint().unwrap_or("This listener speaks HTTP and not SOCKS5."))
                .into())
        }
        None => Err(Refusal::not_spoken("The client speaks no protocol that is known here.").into()),
    }
}

/// Judges the name, resolves it once, and judges each address.
async fn admit(client: &Client, asked: &Asked) -> Result<Admitted, End> {
    let policy = &client.snapshot().config.policy;
    let port = asked.target.port.get();
    let host = match &asked.target.host {
        Host::Name(name) => policy::Host::Name(name.as_str()),
        Host::Address(address) => policy::Host::Address(*address),
    };
    let name_verdict = policy.judge_name(asked.user, host, port);
    if let NameVerdict::Denied(verdict) = name_verdict {
        return Err(Refusal::policy(policy, &verdict).into());
    }
    let judge = |address: &IpAddr| {
        let verdict = policy.judge_address(asked.user, &name_verdict, *address, port);
        (SocketAddr::new(*address, port), verdict)
    };
    let mut dns_us = None;
    let mut addresses: Vec<(SocketAddr, Verdict)> = match &asked.target.host {
        Host::Address(address) => vec![judge(address)],
        Host::Name(name) => {
            let began = clock::monotonic();
            let local = &client.local;
            let answer_by = local.reactor.now() + local.names.deadline() + DNS_GRACE;
            let lookup = within(&local.reactor, answer_by, local.names.lookup(name.as_str())).await;
            let took = clock::monotonic().since(began);
            client.local.stats.dns.add(took);
            let answer = lookup.unwrap_or(Err(ResolveError::Timeout)).map_err(Refusal::from)?;
            dns_us = Some(micros(took));
            answer.addresses().iter().map(judge).collect()
        }
    };
    let denied = addresses.iter().find(|(_, verdict)| !verdict.is_allowed()).map(|(_, verdict)| *verdict);
    addresses.retain(|(_, verdict)| verdict.is_allowed());
    match denied {
        Some(verdict) if addresses.is_empty() => Err(Refusal::policy(policy, &verdict).into()),
        _ => Ok(Admitted { addresses, dns_us }),
    }
}

/// Takes a place in the user's account and in everybody's, and makes sure that the flow can be metered.
fn take_seats(client: &Client, user: UserIndex) -> Result<([Seat; 2], Reservation), End> {
    let snapshot = client.snapshot();
    let Some(everybody) = snapshot.everybody.seat() else {
        return Err(Refusal::overload("The gateway has as many connections open as it may.").into());
    };
    let account = snapshot.account(user);
    let Some(own) = account.seat() else {
        let refusal = if account.is_revoked() { Refusal::revoked() } else { Refusal::connection_cap() };
        return Err(refusal.into());
    };
    match client.local.meter.borrow_mut().reserve() {
        Some(reservation) => Ok(([own, everybody], reservation)),
        None => {
            Err(Refusal::overload("The ledger is behind or fails: no further flow can be recorded.").into())
        }
    }
}

async fn answer_established(client: &mut Client, upstream: &TcpStream) -> Result<(), End> {
    let mut answer = Vec::new();
    match client.speaks {
        Speaks::Nothing => return Ok(()),
        Speaks::Http { .. } => proto::http_connect::write_established(&mut answer),
        _ => {
            let bound = upstream.socket().local().ok();
            proto::socks5::write_reply(&mut answer, proto::socks5::Reply::Succeeded, bound);
        }
    }
    client.send(&answer).await
}

/// Hands the connection over: from here on it is a relay, and this task ends.
fn begin_relay(client: Client, way: Way) {
    let opening = Opening {
        record: way.record,
        at: clock::wall(),
        protocol: client.protocol.expect("whoever asked did so in a protocol"),
        seats: way.seats,
        reservation: way.reservation,
        listener: client.arrival.address,
        dns_us: way.dns_us,
        connect_us: Some(way.connect_us),
    };
    let (local, stream, early) = client.into_parts();
    let mut meter = local.meter.borrow_mut();
    let Some(flow) = meter.open(opening) else {
        // Memory was damaged. What the answer said cannot be taken back.
        local.stats.denied(Denied::Overload);
        stream.reset();
        return;
    };
    if meter.account(flow).is_some_and(|account| account.is_revoked()) {
        // Removed while the answer was on its way. He is cut off as a moment later he would have been.
        meter.close(flow, CloseReason::PolicyChanged);
        stream.reset();
        return;
    }
    let early = early.map(Pending::new);
    local.relays.borrow_mut().start(stream.into_parts(), way.upstream.into_parts(), early, flow, &mut meter);
}

/// The record of a flow that goes to `address`.
fn record_of(client: &Client, admitted: &Admitted, address: SocketAddr) -> Record {
    let verdict = admitted.addresses.iter().find(|(candidate, _)| *candidate == address);
    let (_, verdict) = verdict.expect("only candidates are dialled");
    let class = match verdict.class {
        BillingClass::External => Class::External,
        BillingClass::Internal => Class::Internal,
    };
    let rule = verdict.rule.map_or("", |rule| client.snapshot().config.policy.rule_text(rule));
    client.record(&Decided { address: Some(address.ip()), rule, class })
}

fn micros(span: Duration) -> u32 {
    u32::try_from(span.as_micros()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of the future that a function returns.
    fn future_size<F>(_: fn(Rc<Local>, Arrival) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_handshake_fits_its_place() {
        // A thread keeps a place for as many handshakes as it ever had at once, so growth here is memory
        // that stays. Looked at when it fails; raised only for a reason.
        let size = future_size(serve);
        assert!(size <= 4096, "the handshake's future has {size} bytes");
    }
}
