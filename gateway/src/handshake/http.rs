//! HTTP before the client is identified: the request, and its credentials.

use ledger::record::Protocol;

use super::ClientRequest;
use super::slots::HandshakeSlot;
use crate::client::{Client, HandshakeError};
use crate::http::{PendingRequest, read_connect};

/// Waits for a request that proves its user. A client that was sent a 407 repeats its request on the same
/// connection.
pub(super) async fn await_request(
    client: &mut Client,
    slot: &HandshakeSlot,
) -> Result<ClientRequest, HandshakeError> {
    client.protocol = Some(Protocol::HttpConnect);
    loop {
        let length = client.await_head().await?;
        // A reload may have given the user another password while the head arrived.
        client.use_current_snapshot();
        if client.requests_tunnel() {
            client.protocol = Some(Protocol::HttpConnect);
            client.request = Some(slot.checking(read_connect(client, length)).await?);
            return Ok(ClientRequest::Tunnel);
        }
        client.protocol = Some(Protocol::Http);
        let mut request = Box::new(PendingRequest::read(client, length)?);
        let user = slot.checking(client.authenticate(request.credentials.take())).await;
        match user.map_err(|error| error.with_target(request.target)) {
            Ok(user) => {
                request.user = Some(user);
                return Ok(ClientRequest::Plain(request));
            }
            Err(HandshakeError::Denied(denial)) if may_retry(client) => {
                client.log_denial(&denial);
                client.send_denial(&denial).await?;
                client.discard_body(request.discardable_body()).await?;
                client.begin_request();
            }
            Err(error) => return Err(error),
        }
    }
}

/// Counts an authentication failure. Returns whether the connection goes on behind the 407.
fn may_retry(client: &mut Client) -> bool {
    client.count_auth_failure();
    !client.reply_protocol.closes()
}
