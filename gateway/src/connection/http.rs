//! What a client asks by HTTP CONNECT, and who it says it is; anything but CONNECT is a session's.

use ledger::record::Protocol;
use proto::credentials::basic_credentials;
use proto::http_connect::Connect;
use proto::http_head::{RequestHead, Room};

use crate::client::{Asked, Client, End};

/// Awaits the whole head and authenticates who sent it. A request for anything but a tunnel is left where it
/// is.
pub(super) async fn await_request(client: &mut Client) -> Result<Asked, End> {
    client.protocol = Some(Protocol::HttpConnect);
    let length = client.await_head().await?;
    if !client.asks_for_tunnel() {
        return Err(End::AsksForRequests);
    }
    let (target, credentials, json) = {
        let mut room = Room::new();
        let head = RequestHead::parse(&client.unread()[..length], &mut room)?;
        let connect = Connect::read(&head);
        let credentials =
            connect.as_ref().ok().and_then(|connect| connect.authorization).map(basic_credentials);
        (connect.map(|connect| connect.target), credentials, head.accepts_json())
    };
    client.speaks.accept_json(json);
    let target = target?;
    client.consume(length);
    let user = client.authenticate(credentials).await?;
    Ok(Asked { user, target })
}
