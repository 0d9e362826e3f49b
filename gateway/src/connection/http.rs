//! What a client asks by HTTP before it is known, and its credentials.

use ledger::record::Protocol;
use proto::credentials::basic_credentials;
use proto::http_connect::Connect;
use proto::http_head::{RequestHead, Room};

use super::Request;
use crate::client::{Asked, Client, End};
use crate::session::Wanted;

/// Awaits a request by which the client is known: a client that is asked for credentials sends its request
/// again, on the same connection.
pub(super) async fn await_request(client: &mut Client) -> Result<Request, End> {
    client.protocol = Some(Protocol::HttpConnect);
    loop {
        let length = client.await_head().await?;
        // The head may have taken its time, over a reload that gave the user another password.
        client.adopt_current();
        if client.asks_for_tunnel() {
            client.protocol = Some(Protocol::HttpConnect);
            client.asked = Some(read_tunnel(client, length).await?);
            return Ok(Request::Tunnel);
        }
        client.protocol = Some(Protocol::Http);
        let mut wanted = Box::new(Wanted::read(client, length)?);
        let known = client.authenticate(wanted.presented.take()).await;
        match known.map_err(|end| end.aimed(wanted.target)) {
            Ok(user) => {
                wanted.user = Some(user);
                return Ok(Request::Plain(wanted));
            }
            Err(End::Refused(refusal)) if may_ask_again(client) => {
                client.note_refusal(&refusal);
                client.tell(&refusal).await?;
                client.drop_body(wanted.drainable()).await?;
                client.begin_request();
            }
            Err(end) => return Err(end),
        }
    }
}

/// Counts a refusal. Answers whether the connection goes on behind it.
fn may_ask_again(client: &mut Client) -> bool {
    client.count_refusal();
    !client.speaks.closes()
}

/// The tunnel for which the whole head asks that has arrived. Behind a refusal the connection ends: what a
/// client sends on, hoping for a tunnel, must not be read as a request.
pub(super) async fn await_tunnel(client: &mut Client) -> Result<Asked, End> {
    client.protocol = Some(Protocol::HttpConnect);
    let length = client.await_head().await?;
    client.adopt_current();
    read_tunnel(client, length).await
}

async fn read_tunnel(client: &mut Client, length: usize) -> Result<Asked, End> {
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
    let user = client.authenticate(credentials).await.map_err(|end| end.aimed(target))?;
    Ok(Asked { user, target })
}
