//! What a client asks by HTTP before it is known, and its credentials.

use ledger::record::Protocol;
use proto::credentials::basic_credentials;
use proto::http_connect::Connect;
use proto::http_head::{HeaderStorage, RequestHead};

use super::ClientRequest;
use crate::client::{Client, ConnectRequest, HandshakeError};
use crate::http::PendingRequest;

/// Awaits a request by which the client is known: a client that is asked for credentials sends its request
/// again, on the same connection.
pub(super) async fn await_request(client: &mut Client) -> Result<ClientRequest, HandshakeError> {
    client.protocol = Some(Protocol::HttpConnect);
    loop {
        let length = client.await_head().await?;
        // The head may have taken its time, over a reload that gave the user another password.
        client.use_current_snapshot();
        if client.asks_for_tunnel() {
            client.protocol = Some(Protocol::HttpConnect);
            client.request = Some(read_tunnel(client, length).await?);
            return Ok(ClientRequest::Tunnel);
        }
        client.protocol = Some(Protocol::Http);
        let mut wanted = Box::new(PendingRequest::read(client, length)?);
        let known = client.authenticate(wanted.credentials.take()).await;
        match known.map_err(|end| end.with_target(wanted.target)) {
            Ok(user) => {
                wanted.user = Some(user);
                return Ok(ClientRequest::Plain(wanted));
            }
            Err(HandshakeError::Denied(denial)) if may_ask_again(client) => {
                client.log_denial(&denial);
                client.send_denial(&denial).await?;
                client.discard_body(wanted.discardable_body()).await?;
                client.begin_request();
            }
            Err(end) => return Err(end),
        }
    }
}

/// Counts a refusal. Answers whether the connection goes on behind it.
fn may_ask_again(client: &mut Client) -> bool {
    client.count_auth_failure();
    !client.reply_protocol.closes()
}

/// The tunnel for which the whole head asks that has arrived. Behind a refusal the connection ends: what a
/// client sends on, hoping for a tunnel, must not be read as a request.
pub(super) async fn await_tunnel(client: &mut Client) -> Result<ConnectRequest, HandshakeError> {
    client.protocol = Some(Protocol::HttpConnect);
    let length = client.await_head().await?;
    client.use_current_snapshot();
    read_tunnel(client, length).await
}

async fn read_tunnel(client: &mut Client, length: usize) -> Result<ConnectRequest, HandshakeError> {
    let (target, credentials, json) = {
        let mut room = HeaderStorage::new();
        let head = RequestHead::parse(&client.unread()[..length], &mut room)?;
        let connect = Connect::read(&head);
        let credentials =
            connect.as_ref().ok().and_then(|connect| connect.authorization).map(basic_credentials);
        (connect.map(|connect| connect.target), credentials, head.accepts_json())
    };
    client.reply_protocol.accept_json(json);
    let target = target?;
    client.consume(length);
    let user = client.authenticate(credentials).await.map_err(|end| end.with_target(target))?;
    Ok(ConnectRequest { user, target })
}
