//! What a client asks by HTTP CONNECT, and who it says it is.

use ledger::record::Protocol;
use proto::credentials::basic_credentials;
use proto::http_head::{HeadScanner, Request, RequestError, parse_request};

use crate::client::{Asked, Client, End, Speaks};
use crate::refusal::Refusal;

/// Awaits the whole head and authenticates who sent it.
pub(super) async fn await_request(client: &mut Client) -> Result<Asked, End> {
    client.protocol = Some(Protocol::HttpConnect);
    let mut scanner = HeadScanner::default();
    let length = loop {
        match scanner.find(client.unread()).map_err(RequestError::from)? {
            Some(length) => break length,
            None => client.fill().await?,
        }
    };
    let (target, credentials, json) = {
        let request = parse_request(&client.unread()[..length])?;
        match &request {
            Request::Connect(connect) => {
                (connect.target, connect.authorization.map(basic_credentials), connect.accepts_json)
            }
            Request::Other { accepts_json, .. } => {
                let error = request.refusal().expect("whatever is not CONNECT is refused");
                let json = *accepts_json;
                client.speaks = Speaks::Http { json };
                return Err(error.into());
            }
        }
    };
    client.consume(length);
    client.speaks = Speaks::Http { json };
    let source = client.arrival.peer.ip();
    let user = match credentials {
        Some(Ok(credentials)) => {
            let authenticator = &client.local.authenticator;
            authenticator.verify(client.snapshot(), &credentials, source).await?
        }
        Some(Err(error)) => return Err(Refusal::credentials_malformed(&error).into()),
        None => {
            let known = client.local.authenticator.from_source(client.snapshot(), source);
            known.ok_or_else(Refusal::credentials_missing)?
        }
    };
    Ok(Asked { user, target })
}
