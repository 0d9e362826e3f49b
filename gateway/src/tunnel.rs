//! A tunnel, from its request to the start of its relay.
//!
//! Guarantees: every kind of tunnel takes the same path: user, admission, dial, reply, meter; the address
//! that was judged is the address that is dialled; each wait has a deadline.

use std::rc::Rc;

use engine::deadline::within;
use engine::net::TcpStream;
use ledger::record::{CloseReason, Protocol};
use sys::clock;
use sys::socket::SpeaksFirst;

use crate::admission::{Admission, admit, connect};
use crate::client::{Client, ConnectRequest, HandshakeError, ReplyProtocol};
use crate::denial::Denial;
use crate::flow::guard::FlowGuard;
use crate::flow::meter::FlowStart;
use crate::flow::request::Admitted;
use crate::http::read_connect;
use crate::observe::stats::DenialKind;
use crate::relay::RelayStart;

/// An upstream connection, and what opens its flow.
struct Established {
    upstream: TcpStream,
    flow: FlowStart,
}

/// Opens the tunnel that the client has requested, or that its unread CONNECT requests. `None` if the
/// connection was closed instead.
pub(crate) async fn open(mut client: Box<Client>) -> Option<RelayStart> {
    let context = Rc::clone(&client.context);
    let _opening = context.opening.enter();
    match establish(&mut client).await {
        Ok(established) => return start_relay(*client, established),
        Err(HandshakeError::Denied(denial)) => client.deny(&denial).await,
        Err(HandshakeError::ClientClosed) => client.log_abandoned(),
    }
    client.close();
    None
}

async fn establish(client: &mut Client) -> Result<Established, HandshakeError> {
    let reactor = Rc::clone(&client.context.reactor);
    let request_deadline = client.request_deadline;
    let request = match client.request {
        Some(request) => request,
        None => {
            let request = within(&reactor, request_deadline, await_connect(client)).await;
            *client.request.insert(request.map_err(|_| Denial::greeting_timeout())??)
        }
    };
    let is_socks5 = client.protocol == Some(Protocol::Socks5);
    let admission = admit(&client.context, client.snapshot(), &request, is_socks5).await?;

    let connect_deadline = client.connect_deadline();
    let speaks_first = speaks_first(client)?;
    let connected = connect(&client.context, client.snapshot(), &admission, speaks_first, connect_deadline);
    let (upstream, address, connect_us) = connected.await?;

    let reply = send_established(client, &upstream);
    within(&reactor, request_deadline.max(connect_deadline), reply)
        .await
        .map_err(|_| HandshakeError::ClientClosed)??;
    let record = client.record(&admission.route(client.snapshot(), address));
    let destination = client.snapshot().destination(admission.verdict(address));
    let credit = client.snapshot().flow_credit(request.user, destination);
    let Admission { dns_us, permit, global_permit, reservation, .. } = admission;
    let flow = FlowStart {
        record,
        at: clock::wall(),
        protocol: client.protocol.expect("a client with a request has a protocol"),
        admitted: Admitted { permit, global_permit, dns_us, connect_us: Some(connect_us) },
        reservation,
        listener: client.info.address,
        request: None,
        destination,
        credit,
    };
    Ok(Established { upstream, flow })
}

/// Waits for the CONNECT head of a client that is identified already.
async fn await_connect(client: &mut Client) -> Result<ConnectRequest, HandshakeError> {
    client.protocol = Some(Protocol::HttpConnect);
    let length = client.await_head().await?;
    client.use_current_snapshot();
    read_connect(client, length).await
}

/// Which side of the upstream connection speaks first. A client that is sent a reply waits for it; the client
/// of a `forward` listener may have spoken by now, and its bytes precede the relay's.
fn speaks_first(client: &mut Client) -> Result<SpeaksFirst, HandshakeError> {
    if client.protocol == Some(Protocol::Forward) {
        client.read_available()?;
    }
    Ok(if client.input.unread().is_empty() { SpeaksFirst::Unknown } else { SpeaksFirst::Us })
}

async fn send_established(client: &mut Client, upstream: &TcpStream) -> Result<(), HandshakeError> {
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

/// Opens the flow; the relay starts once the task has returned.
fn start_relay(client: Client, Established { upstream, flow }: Established) -> Option<RelayStart> {
    let Some(flow) = FlowGuard::open(&client.context.meter, flow) else {
        // The slot's memory is damaged. The reply cannot be taken back.
        client.context.stats.denied(DenialKind::Overload);
        client.reset();
        return None;
    };
    if flow.is_revoked() {
        // The user was removed after the reply was sent, and the sweep could not find this flow.
        flow.close(CloseReason::PolicyChanged);
        client.reset();
        return None;
    }
    let (client, client_bytes, sent_much) = client.into_relay();
    let upstream = upstream.into_parts();
    Some(RelayStart { client, client_bytes, sent_much, upstream, upstream_bytes: Vec::new(), flow })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunnel_future_is_bounded() {
        fn future_size<T, F>(_: fn(T) -> F) -> usize {
            size_of::<F>()
        }
        // A thread keeps the memory of as many futures as it ever had at once.
        let size = future_size(open);
        assert!(size <= 4096, "the future has {size} bytes");
    }
}
