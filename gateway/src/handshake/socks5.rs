//! SOCKS5 before the client is identified: its request (RFC 1928), and its credentials (RFC 1929).

use ledger::record::Protocol;
use policy::UserIndex;
use proto::socks5::{self, Greeting, Method, Parsed};

use super::slots::HandshakeSlot;
use crate::client::{Client, ConnectRequest, HandshakeError, ReplyProtocol};
use crate::denial::Denial;

/// Waits for the greeting, for credentials where the client offers some, and for the request.
pub(super) async fn await_request(
    client: &mut Client,
    slot: &HandshakeSlot,
) -> Result<ConnectRequest, HandshakeError> {
    client.reply_protocol = ReplyProtocol::Socks5Greeting;
    client.protocol = Some(Protocol::Socks5);
    let greeting = await_message(client, socks5::greeting).await?;
    let (user, is_proven) = authenticate(client, slot, greeting).await?;
    client.reply_protocol = ReplyProtocol::Socks5Request;
    let target = await_message(client, socks5::request).await?;
    let user = if is_proven {
        client.revalidate(user)
    } else {
        client.use_current_snapshot();
        client.authenticate(None).await
    };
    Ok(ConnectRequest { user: user.map_err(|error| error.with_target(target))?, target })
}

/// Credentials precede the source's address, as in HTTP: the gateway selects method 2 wherever the client
/// offers it, and denies wrong credentials from every address. Most clients offer it only if they were given
/// some (curl, Go, PySocks); Java offers it always, and then may send an empty password. Returns also whether
/// credentials proved the user.
async fn authenticate(
    client: &mut Client,
    slot: &HandshakeSlot,
    greeting: Greeting,
) -> Result<(UserIndex, bool), HandshakeError> {
    if greeting.offers_user_password {
        client.send_written(|out| socks5::write_method(out, Method::UserPassword)).await?;
        client.reply_protocol = ReplyProtocol::Socks5Password;
        let credentials = await_message(client, socks5::user_password).await?;
        client.use_current_snapshot();
        let is_proven = credentials.is_some();
        let user = slot.checking(client.authenticate(credentials.map(Ok))).await?;
        client.send_written(|out| socks5::write_password_status(out, true)).await?;
        return Ok((user, is_proven));
    }
    if !greeting.offers_no_authentication {
        return Err(Denial::credentials_missing().into());
    }
    client.use_current_snapshot();
    let user = client.authenticate(None).await?;
    client.send_written(|out| socks5::write_method(out, Method::NoAuthentication)).await?;
    Ok((user, false))
}

async fn await_message<T>(client: &mut Client, parse: fn(&[u8]) -> Parsed<T>) -> Result<T, HandshakeError> {
    loop {
        if let Some((message, length)) = parse(client.input.unread())? {
            client.input.consume(length);
            return Ok(message);
        }
        client.read_more().await?;
    }
}
