//! What a client asks by SOCKS5 (RFC 1928), and who it says it is (RFC 1929).

use ledger::record::Protocol;
use proto::socks5::{self, Greeting, Method, Parsed};

use policy::UserIndex;

use crate::client::{Asked, Client, End, Speaks};
use crate::refusal::Refusal;

/// Awaits the greeting, the credentials where they are needed, and the request.
pub(super) async fn await_request(client: &mut Client) -> Result<Asked, End> {
    client.speaks = Speaks::Socks5Greeting;
    client.protocol = Some(Protocol::Socks5);
    let greeting = await_message(client, socks5::greeting).await?;
    let user = authenticate(client, greeting).await?;
    client.speaks = Speaks::Socks5Request;
    let target = await_message(client, socks5::request).await?;
    Ok(Asked { user, target })
}

/// A source address that is a user's needs no password; everybody else does.
async fn authenticate(client: &mut Client, greeting: Greeting) -> Result<UserIndex, End> {
    let source = client.arrival.peer.ip();
    let known = client.local.authenticator.from_source(client.snapshot(), source);
    if let Some(user) = known.filter(|_| greeting.offers_nothing) {
        client.send_written(|out| socks5::write_method(out, Method::Nothing)).await?;
        return Ok(user);
    }
    if !greeting.offers_user_password {
        return Err(Refusal::credentials_missing().into());
    }
    client.send_written(|out| socks5::write_method(out, Method::UserPassword)).await?;
    client.speaks = Speaks::Socks5Password;
    let credentials = await_message(client, socks5::user_password).await?;
    let user = client.local.authenticator.verify(client.snapshot(), &credentials, source).await?;
    client.send_written(|out| socks5::write_password_status(out, true)).await?;
    Ok(user)
}

async fn await_message<T>(client: &mut Client, parse: fn(&[u8]) -> Parsed<T>) -> Result<T, End> {
    loop {
        if let Some((message, length)) = parse(client.unread())? {
            client.consume(length);
            return Ok(message);
        }
        client.fill().await?;
    }
}
