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
pub(crate) mod slots;
mod socks5;

use std::pin::pin;
use std::rc::Rc;

use engine::net::TcpStream;
use engine::timer::within;
use ledger::record::{CloseReason, Protocol, Record};
use sys::clock;
use sys::socket::SpeaksFirst;

use crate::account::ConnectionPermit;
use crate::admission::{Admission, admit, connect};
use crate::budget::FlowPermit;
use crate::client::{Client, ConnectRequest, HandshakeError, ReplyProtocol};
use crate::config::Ingress;
use crate::context::ClientBox;
use crate::denial::Denial;
use crate::flow::meter::{FlowStart, Reservation};
use crate::handshake::slots::HandshakeSlot;
use crate::http::{PendingRequest, Session};
use crate::limits::KNOWN_WAITING_MAX;
use crate::stats::DenialKind;

/// A way that stands: all that a relay needs besides the client.
struct Established {
    upstream: TcpStream,
    record: Record,
    seat: ConnectionPermit,
    place: FlowPermit,
    reservation: Reservation,
    dns_us: Option<u32>,
    connect_us: u32,
}

/// A connection whose client is known. Boxed, because a future that is handed it has room for it twice.
pub(crate) enum Identified {
    /// It asks for a tunnel.
    Tunnel(ClientBox),
    /// It sends plain HTTP requests.
    Requests(Box<Session>),
}

/// What made a client known.
enum ClientRequest {
    /// A request for a tunnel, of which the client knows where to.
    Tunnel,
    /// A plain HTTP request, with its user.
    Plain(Box<PendingRequest>),
}

/// Serves one connection until its client is known, or until it ends.
pub(crate) async fn identify(mut client: Client) {
    let ending = client.slot.as_ref().map(HandshakeSlot::ending).expect("a new connection has a place");
    let met = ending.or_ended(pin!(await_identity(&mut client))).await;
    match met {
        Ok(Some(request)) => enqueue_identified(client, request),
        Ok(None) => client.close(),
        Err(why) => client.reset_with_reason(why),
    }
}

/// Awaits a request that makes the client known; `None` if there is none, and all is said.
async fn await_identity(client: &mut Client) -> Option<ClientRequest> {
    let (reactor, asked_by) = (Rc::clone(&client.context.reactor), client.request_deadline);
    match within(&reactor, asked_by, await_request(client)).await {
        Ok(Ok(request)) => return Some(request),
        Ok(Err(HandshakeError::Denied(denial))) => client.deny_within_linger(&denial).await,
        // A client that was asked for credentials has its answer.
        Ok(Err(HandshakeError::ClientClosed)) | Err(_) if client.is_between_requests() => {}
        Ok(Err(HandshakeError::ClientClosed)) => client.log_abandoned(),
        Err(_) => client.deny_within_linger(&Denial::greeting_timeout()).await,
    }
    None
}

/// Hands a connection whose client is known to a task of its own.
fn enqueue_identified(mut client: Client, request: ClientRequest) {
    client.slot = None;
    let context = Rc::clone(&client.context);
    let mut waiting = context.identified.borrow_mut();
    if waiting.len() == KNOWN_WAITING_MAX {
        client.log_denial(&Denial::overload("overload_requests", "Too many requests wait."));
        return client.close();
    }
    waiting.push_back(match request {
        ClientRequest::Tunnel => Identified::Tunnel(context.client_boxes.fill(client)),
        ClientRequest::Plain(wanted) => Identified::Requests(Box::new(Session::new(client, wanted))),
    });
}

/// Serves a connection whose client is known until its relay begins, or until it ends or rests.
pub(crate) async fn serve(known: Identified) {
    match known {
        Identified::Tunnel(client) => open_tunnel(client).await,
        Identified::Requests(session) => {
            if let Some(client) = session.serve().await {
                let context = Rc::clone(&client.context);
                let room = context.client_boxes.fill(client);
                // Boxed, because every exchange has room for this future, and few get here.
                Box::pin(open_tunnel(room)).await;
            }
        }
    }
}

/// Opens the tunnel that the client has asked for, or for which its unread request asks.
async fn open_tunnel(mut room: ClientBox) {
    let client = Option::as_mut(&mut room).expect("it is filled where it is handed on");
    let context = Rc::clone(&client.context);
    let _opening = context.opening.enter();
    match establish(client).await {
        Ok(way) => return begin_relay(context.client_boxes.empty(room), way),
        Err(HandshakeError::Denied(denial)) => client.deny(&denial).await,
        Err(HandshakeError::ClientClosed) => client.log_abandoned(),
    }
    context.client_boxes.empty(room).close();
}

async fn establish(client: &mut Client) -> Result<Established, HandshakeError> {
    let reactor = Rc::clone(&client.context.reactor);
    let asked_by = client.request_deadline;
    let asked = match client.request {
        Some(asked) => asked,
        None => {
            let known = within(&reactor, asked_by, http::await_tunnel(client)).await;
            *client.request.insert(known.map_err(|_| Denial::greeting_timeout())??)
        }
    };
    let Admission { admitted, permit: seat, global_permit: place, reservation } =
        admit(client, &asked).await?;

    let dial_by = client.connect_deadline();
    let first_word = speaks_first(client)?;
    let (upstream, address, connect_us) = connect(client, &admitted, &seat, first_word, dial_by).await?;

    let record = admitted.record(client, address);
    within(&reactor, asked_by.max(dial_by), answer_established(client, &upstream))
        .await
        .map_err(|_| HandshakeError::ClientClosed)??;
    Ok(Established { upstream, record, seat, place, reservation, dns_us: admitted.dns_us, connect_us })
}

/// Who will speak first to the destination. A client that is answered waits for that; one at a `forward`
/// listener may have spoken by now, and what it said goes ahead of the relay.
fn speaks_first(client: &mut Client) -> Result<SpeaksFirst, HandshakeError> {
    if client.protocol == Some(Protocol::Forward) {
        client.read_available()?;
    }
    Ok(if client.unread().is_empty() { SpeaksFirst::Unknown } else { SpeaksFirst::Us })
}

/// Awaits what the client wants, and learns who it is.
async fn await_request(client: &mut Client) -> Result<ClientRequest, HandshakeError> {
    let (http, socks5) = match client.ingress() {
        Ingress::Forward { to, user } => {
            client.request = Some(ConnectRequest { user: *user, target: *to });
            client.protocol = Some(Protocol::Forward);
            return Ok(ClientRequest::Tunnel);
        }
        Ingress::Mixed => (true, true),
        Ingress::Http => (true, false),
        Ingress::Socks5 => (false, true),
    };
    if client.unread().is_empty() {
        client.read_more().await?;
    }
    match proto::detect(client.unread()[0]) {
        Some(proto::Protocol::Http) => {
            client.reply_protocol = ReplyProtocol::HTTP;
            if http {
                return http::await_request(client).await;
            }
            Err(Denial::not_spoken("This listener speaks SOCKS5 and not HTTP.").into())
        }
        Some(proto::Protocol::Socks5) if socks5 => {
            client.request = Some(socks5::await_request(client).await?);
            Ok(ClientRequest::Tunnel)
        }
        Some(other) => {
            if other == proto::Protocol::Socks4 {
                // The only words that such a client knows; whether they arrive makes no difference.
                let _ = client.send(&proto::socks5::SOCKS4_REFUSED).await;
            }
            Err(Denial::not_spoken(other.hint().unwrap_or("This listener speaks HTTP and not SOCKS5."))
                .into())
        }
        None => Err(Denial::not_spoken("The client speaks no protocol that is known here.").into()),
    }
}

async fn answer_established(client: &mut Client, upstream: &TcpStream) -> Result<(), HandshakeError> {
    match client.reply_protocol {
        ReplyProtocol::None => Ok(()),
        ReplyProtocol::Http { .. } => client.send_written(proto::http_connect::write_established).await,
        _ => {
            let bound = upstream.socket().local().ok();
            let reply = proto::socks5::Reply::Succeeded;
            client.send_written(|out| proto::socks5::write_reply(out, reply, bound)).await
        }
    }
}

/// Hands the connection over: from here on it is a relay, and this task ends.
fn begin_relay(client: Client, way: Established) {
    let opening = FlowStart {
        record: way.record,
        at: clock::wall(),
        protocol: client.protocol.expect("a client that asked did so in a protocol"),
        seat: way.seat,
        place: way.place,
        reservation: way.reservation,
        listener: client.info.address,
        dns_us: way.dns_us,
        connect_us: Some(way.connect_us),
        method: None,
        path: None,
    };
    let had_answers = client.sent_much();
    client.hand_over(|context, stream, early| {
        let mut meter = context.meter.borrow_mut();
        let Some(flow) = meter.open(opening) else {
            // Memory was damaged. What the answer said cannot be taken back.
            context.stats.denied(DenialKind::Overload);
            return stream.reset();
        };
        if meter.account(flow).is_some_and(|account| account.is_revoked()) {
            // Removed while the answer was on its way: the tunnel ends as it would have a moment later.
            meter.close(flow, CloseReason::PolicyChanged);
            return stream.reset();
        }
        let client = (stream.into_parts(), early, had_answers);
        let upstream = (way.upstream.into_parts(), &[][..]);
        context.relays.borrow_mut().start(client, upstream, flow, &mut meter);
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
