//! CONNECT requests: the head, and the user that it proves.

use proto::credentials::basic_credentials;
use proto::http_connect::Connect;
use proto::http_head::{HeaderStorage, RequestHead};

use crate::client::{Client, ConnectRequest, HandshakeError};

/// Reads the CONNECT head of `length` bytes that has arrived, and authenticates it.
///
/// # Errors
/// A denial, behind which the connection closes: bytes that a client sends ahead, for the tunnel that it
/// expects, must not be parsed as a request.
pub(crate) async fn read_connect(
    client: &mut Client,
    length: usize,
) -> Result<ConnectRequest, HandshakeError> {
    let (target, credentials, json) = {
        let mut storage = HeaderStorage::new();
        let head = RequestHead::parse(&client.input.unread()[..length], &mut storage)?;
        let connect = Connect::read(&head);
        let credentials =
            connect.as_ref().ok().and_then(|connect| connect.authorization).map(basic_credentials);
        (connect.map(|connect| connect.target), credentials, head.accepts_json())
    };
    client.reply_protocol.set_json(json);
    let target = target?;
    client.input.consume(length);
    let user = client.authenticate(credentials).await.map_err(|error| error.with_target(target))?;
    Ok(ConnectRequest { user, target })
}
