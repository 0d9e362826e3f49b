//! A connection, from its accept to the start of its relay, in two tasks.
//!
//! Guarantees: a connection whose client is not known is a handshake's, under the bound on handshakes, for as
//! long as the client is not known; every kind of tunnel takes one path: the user, whether they may go there,
//! which address, dialled, answered, metered; the address that was judged is the address that is dialled;
//! each wait has a deadline, and a handshake has one in all. Leaves out: the bytes of the two protocols
//! (`connection/http.rs`, `connection/socks5.rs`), judging (`admission`), the relay itself, and a client that
//! sends one HTTP request after another (`session`).
//!
//! ```text
//!   accept --> identify --> Known --> serve: establish --> relay
//!              (handshake)            (exchange)  '--> Session::serve, for plain HTTP requests
//! ```

mod http;
mod socks5;

use std::pin::pin;
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
use crate::handshakes::Place;
use crate::limits::KNOWN_WAITING_MAX;
use crate::local::ClientRoom;
use crate::meter::{Opening, Reservation};
use crate::refusal::Refusal;
use crate::session::{Session, Wanted};
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

/// A connection whose client is known. Boxed, because a future that is handed it has room for it twice.
pub(crate) enum Known {
    /// It asks for a tunnel.
    Tunnel(ClientRoom),
    /// It sends plain HTTP requests.
    Requests(Box<Session>),
}

/// What made a client known.
enum Request {
    /// A request for a tunnel, of which the client knows where to.
    Tunnel,
    /// A plain HTTP request, with its user.
    Plain(Box<Wanted>),
}

/// Serves one connection until its client is known, or until it ends.
pub(crate) async fn identify(mut client: Client) {
    let ending = client.place.as_ref().map(Place::ending).expect("a new connection has a place");
    let met = ending.unless_told(pin!(meet(&mut client))).await;
    match met {
        Ok(Some(request)) => pass_on(client, request),
        Ok(None) => client.close(),
        Err(why) => client.cut_off(why),
    }
}

/// Awaits a request that makes the client known; `None` if there is none, and all is said.
async fn meet(client: &mut Client) -> Option<Request> {
    let (reactor, asked_by) = (Rc::clone(&client.local.reactor), client.asked_by);
    match within(&reactor, asked_by, await_request(client)).await {
        Ok(Ok(request)) => return Some(request),
        Ok(Err(End::Refused(refusal))) => client.refuse_soon(&refusal).await,
        // A client that was asked for credentials has its answer.
        Ok(Err(End::Left)) | Err(_) if client.is_between_requests() => {}
        Ok(Err(End::Left)) => client.note_left(),
        Err(_) => client.refuse_soon(&Refusal::greeting_timeout()).await,
    }
    None
}

/// Hands a connection whose client is known to a task of its own.
fn pass_on(mut client: Client, request: Request) {
    client.place = None;
    let local = Rc::clone(&client.local);
    let mut waiting = local.known.borrow_mut();
    if waiting.len() == KNOWN_WAITING_MAX {
        client.note_refusal(&Refusal::overload("overload_requests", "Too many requests wait."));
        return client.close();
    }
    waiting.push_back(match request {
        Request::Tunnel => Known::Tunnel(local.client_rooms.fill(client)),
        Request::Plain(wanted) => Known::Requests(Box::new(Session::new(client, wanted))),
    });
}

/// Serves a connection whose client is known until its relay begins, or until it ends or rests.
pub(crate) async fn serve(known: Known) {
    match known {
        Known::Tunnel(client) => open_tunnel(client).await,
        Known::Requests(session) => {
            if let Some(client) = session.serve().await {
                let local = Rc::clone(&client.local);
                let room = local.client_rooms.fill(client);
                // Boxed, because every exchange has room for this future, and few get here.
                Box::pin(open_tunnel(room)).await;
            }
        }
    }
}

/// Opens the tunnel that the client has asked for, or for which its unread request asks.
async fn open_tunnel(mut room: ClientRoom) {
    let client = Option::as_mut(&mut room).expect("it is filled where it is handed on");
    let local = Rc::clone(&client.local);
    let _opening = local.opening.enter();
    match establish(client).await {
        Ok(way) => return begin_relay(local.client_rooms.empty(room), way),
        Err(End::Refused(refusal)) => client.refuse(&refusal).await,
        Err(End::Left) => client.note_left(),
    }
    local.client_rooms.empty(room).close();
}

async fn establish(client: &mut Client) -> Result<Way, End> {
    let reactor = Rc::clone(&client.local.reactor);
    let asked_by = client.asked_by;
    let asked = match client.asked {
        Some(asked) => asked,
        None => {
            let known = within(&reactor, asked_by, http::await_tunnel(client)).await;
            *client.asked.insert(known.map_err(|_| Refusal::greeting_timeout())??)
        }
    };
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
async fn await_request(client: &mut Client) -> Result<Request, End> {
    let (http, socks5) = match client.ingress() {
        Ingress::Forward { to, user } => {
            client.asked = Some(Asked { user: *user, target: *to });
            client.protocol = Some(Protocol::Forward);
            return Ok(Request::Tunnel);
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
        Some(proto::Protocol::Socks5) if socks5 => {
            client.asked = Some(socks5::await_request(client).await?);
            Ok(Request::Tunnel)
        }
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
        protocol: client.protocol.expect("a client that asked did so in a protocol"),
        seat: way.seat,
        place: way.place,
        reservation: way.reservation,
        listener: client.arrival.address,
        dns_us: way.dns_us,
        connect_us: Some(way.connect_us),
        method: None,
        path: None,
    };
    let had_answers = client.had_answers();
    client.hand_over(|local, stream, early| {
        let mut meter = local.meter.borrow_mut();
        let Some(flow) = meter.open(opening) else {
            // Memory was damaged. What the answer said cannot be taken back.
            local.stats.denied(Denied::Overload);
            return stream.reset();
        };
        if meter.account(flow).is_some_and(|account| account.is_revoked()) {
            // Removed while the answer was on its way: the tunnel ends as it would have a moment later.
            meter.close(flow, CloseReason::PolicyChanged);
            return stream.reset();
        }
        let client = (stream.into_parts(), early, had_answers);
        let upstream = (way.upstream.into_parts(), &[][..]);
        local.relays.borrow_mut().start(client, upstream, flow, &mut meter);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of the future that a function returns.
    fn future_size<T, F>(_: fn(T) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn handshakes_and_exchanges_fit_their_places() {
        // A thread keeps a place for as many of each as it ever had at once, so growth here is memory that
        // stays. Looked at when it fails; raised only for a reason.
        let sizes = [future_size(identify), future_size(serve)];
        assert!(sizes.iter().all(|size| *size <= 4096), "the futures have {sizes:?} bytes");
    }
}
