//! A handshake: a connection from its accept until its client is identified.
//!
//! Guarantees: the connection holds a handshake slot as long as its client is not identified; all its waits
//! share one deadline.
//!
//! ```text
//!   accept --> identify (a task) --> Identified --> tunnel, or http::Session (another task)
//!              http.rs, socks5.rs
//! ```

mod http;
pub(crate) mod slots;
mod socks5;

use std::pin::pin;
use std::rc::Rc;

use engine::deadline::within;
use ledger::record::Protocol;

use crate::client::{Client, ConnectRequest, HandshakeError, ReplyProtocol};
use crate::config::Ingress;
use crate::denial::Denial;
use crate::http::PendingRequest;

use self::slots::HandshakeSlot;

/// A connection whose client is identified.
pub(crate) enum Identified {
    /// It requests a tunnel; the client has the request.
    Tunnel(Box<Client>),
    /// It sent a plain HTTP request.
    Request(Box<Client>, Box<PendingRequest>),
}

/// The request that identified a client.
enum ClientRequest {
    Tunnel,
    Plain(Box<PendingRequest>),
}

/// Serves a connection until its client is identified; `None` if it ended before.
pub(crate) async fn identify((mut client, slot): (Box<Client>, HandshakeSlot)) -> Option<Identified> {
    let end = slot.end();
    let identified = end.or_ended(pin!(await_identity(&mut client, &slot))).await;
    match identified {
        Ok(Some(request)) => {
            client.is_identified = true;
            return Some(match request {
                ClientRequest::Tunnel => Identified::Tunnel(client),
                ClientRequest::Plain(request) => Identified::Request(client, request),
            });
        }
        Ok(None) => client.close(),
        Err(reason) => client.reset_with_reason(reason),
    }
    None
}

/// Waits for a request that identifies the client; `None` if there is none, and the client was denied.
async fn await_identity(client: &mut Client, slot: &HandshakeSlot) -> Option<ClientRequest> {
    let (reactor, deadline) = (Rc::clone(&client.context.reactor), client.request_deadline);
    match within(&reactor, deadline, await_request(client, slot)).await {
        Ok(Ok(request)) => return Some(request),
        Ok(Err(HandshakeError::Denied(denial))) => client.deny_within_linger(&denial).await,
        // The client had its response: a 407.
        Ok(Err(HandshakeError::ClientClosed)) | Err(_) if client.is_between_requests() => {}
        Ok(Err(HandshakeError::ClientClosed)) => client.log_abandoned(),
        Err(_) => client.deny_within_linger(&Denial::greeting_timeout()).await,
    }
    None
}

/// Reads a request in whichever protocol the listener speaks, and identifies its user.
async fn await_request(client: &mut Client, slot: &HandshakeSlot) -> Result<ClientRequest, HandshakeError> {
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
    if client.input.unread().is_empty() {
        client.read_more().await?;
    }
    match proto::detect(client.input.unread()[0]) {
        Some(proto::Protocol::Http) => {
            client.reply_protocol = ReplyProtocol::HTTP;
            if http {
                return http::await_request(client, slot).await;
            }
            Err(Denial::unknown_protocol("This listener speaks SOCKS5 and not HTTP.").into())
        }
        Some(proto::Protocol::Socks5) if socks5 => {
            client.request = Some(socks5::await_request(client, slot).await?);
            Ok(ClientRequest::Tunnel)
        }
        Some(other) => {
            if other == proto::Protocol::Socks4 {
                // The only reply that a SOCKS4 client understands; the connection ends whether it arrives or
                // not.
                let _ = client.send(&proto::socks5::SOCKS4_REFUSED).await;
            }
            let hint = other.unsupported_remedy().unwrap_or("This listener speaks HTTP and not SOCKS5.");
            Err(Denial::unknown_protocol(hint).into())
        }
        None => Err(Denial::unknown_protocol("The client speaks no protocol that is known here.").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshake_future_is_bounded() {
        fn future_size<T, F>(_: fn(T) -> F) -> usize {
            size_of::<F>()
        }
        // A thread keeps the memory of as many futures as it ever had at once.
        let size = future_size(identify);
        assert!(size <= 4096, "the future has {size} bytes");
    }
}
