//! A connection, from its accept to the start of its relay.
//!
//! Promises: every kind of tunnel takes this one path: who asks, whether he may go there, which address,
//! dialled, answered, metered; the address that was judged is the address that is dialled; each wait has a
//! deadline. Leaves to others: the bytes of the two protocols (`connection/http.rs`, `connection/socks5.rs`),
//! judging (`admission`), the relay itself, and a client that asks for no tunnel but for one HTTP request
//! after another (`session`).

mod http;
mod socks5;

use std::rc::Rc;

use engine::net::TcpStream;
use engine::timer::within;
use ledger::record::{CloseReason, Protocol, Record};
use sys::clock;
use sys::socket::FirstWord;

use crate::account::Seat;
use crate::admission::{Admission, admit, reach};
use crate::budget::FlowPlace;
use crate::client::{Asked, Client, End, Speaks};
use crate::config::Ingress;
use crate::meter::{Opening, Reservation};
use crate::refusal::Refusal;
use crate::session::Session;
use crate::stats::Denied;

/// A way that stands: all that a relay needs besides the client.
struct Way {
    upstream: TcpStream,
    record: Record,
    seat: Seat,
    place: FlowPlace,
    reservation: Reservation,
    dns_us: Option<u32>,
    connect_us: u32,
}

/// Serves one connection until its relay begins, until it is refused, or until it turns out to be a session.
pub(crate) async fn serve(mut client: Client) {
    match establish(&mut client).await {
        Ok(way) => begin_relay(client, way),
        Err(End::Refused(refusal)) => client.refuse(&refusal).await,
        Err(End::Left) => client.left(),
        Err(End::AsksForRequests) => Session::begin(client),
    }
}

async fn establish(client: &mut Client) -> Result<Way, End> {
    let reactor = Rc::clone(&client.local.reactor);
    let asked_by = client.asked_by;
    let asked = match within(&reactor, asked_by, await_request(client)).await {
        Ok(asked) => asked?,
        Err(_) => return Err(Refusal::greeting_timeout().into()),
    };
    client.asked = Some(asked);
    let Admission { admitted, seat, place, reservation } = admit(client, &asked).await?;

    let dial_by = client.dial_by();
    let first_word = first_word(client)?;
    let (upstream, address, connect_us) = reach(client, &admitted, &seat, first_word, dial_by).await?;

    let record = admitted.record(client, address);
    within(&reactor, asked_by.max(dial_by), answer_established(client, &upstream))
        .await
        .map_err(|_| End::Left)??;
    Ok(Way { upstream, record, seat, place, reservation, dns_us: admitted.dns_us, connect_us })
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
    if client.unread().is_empty() {
        client.fill().await?;
    }
    match proto::detect(client.unread()[0]) {
        Some(proto::Protocol::Http) => {
            client.speaks = Speaks::HTTP;
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

async fn answer_established(client: &mut Client, upstream: &TcpStream) -> Result<(), End> {
    match client.speaks {
        Speaks::Nothing => Ok(()),
        Speaks::Http { .. } => client.send_written(proto::http_connect::write_established).await,
        _ => {
            let bound = upstream.socket().local().ok();
            let reply = proto::socks5::Reply::Succeeded;
            client.send_written(|out| proto::socks5::write_reply(out, reply, bound)).await
        }
    }
}

/// Hands the connection over: from here on it is a relay, and this task ends.
fn begin_relay(client: Client, way: Way) {
    let opening = Opening {
        record: way.record,
        at: clock::wall(),
        protocol: client.protocol.expect("whoever asked did so in a protocol"),
        seat: way.seat,
        place: way.place,
        reservation: way.reservation,
        listener: client.arrival.address,
        dns_us: way.dns_us,
        connect_us: Some(way.connect_us),
        method: None,
    };
    client.hand_over(|local, stream, early| {
        let mut meter = local.meter.borrow_mut();
        let Some(flow) = meter.open(opening) else {
            // Memory was damaged. What the answer said cannot be taken back.
            local.stats.denied(Denied::Overload);
            return stream.reset();
        };
        if meter.account(flow).is_some_and(|account| account.is_revoked()) {
            // Removed while the answer was on its way. He is cut off as a moment later he would have been.
            meter.close(flow, CloseReason::PolicyChanged);
            return stream.reset();
        }
        let (client, upstream) = (stream.into_parts(), way.upstream.into_parts());
        local.relays.borrow_mut().start((client, early), (upstream, &[]), flow, &mut meter);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of the future that a function returns.
    fn future_size<F>(_: fn(Client) -> F) -> usize {
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
