//! What a client asks by SOCKS5 (RFC 1928), and its credentials (RFC 1929).

use ledger::record::Protocol;
use proto::socks5::{self, Greeting, Method, Parsed};

use policy::UserIndex;

use crate::client::{Client, ConnectRequest, HandshakeError, ReplyProtocol};
use crate::denial::Denial;

/// Awaits the greeting, the credentials where they are needed, and the request.
pub(super) async fn await_request(client: &mut Client) -> Result<ConnectRequest, HandshakeError> {
    client.reply_protocol = ReplyProtocol::Socks5Greeting;
    client.protocol = Some(Protocol::Socks5);
    let greeting = await_message(client, socks5::greeting).await?;
    let (user, is_proven) = authenticate(client, greeting).await?;
    client.reply_protocol = ReplyProtocol::Socks5Request;
    let target = await_message(client, socks5::request).await?;
    let user = if is_proven {
        client.revalidate(user)
    } else {
        client.use_current_snapshot();
        client.authenticate(None).await
    };
    Ok(ConnectRequest { user: user.map_err(|end| end.with_target(target))?, target })
}

/// Credentials come before the source's address, as in HTTP: they are asked for wherever the client offers to
/// send some, and wrong ones are refused from every address. Most clients offer that only where they were
/// given some (curl, Go, PySocks); one of Java offers it always, and then may have none to send. Says as well
/// whether the user was proven by credentials.
async fn authenticate(client: &mut Client, greeting: Greeting) -> Result<(UserIndex, bool), HandshakeError> {
    if greeting.offers_user_password {
        client.send_written(|out| socks5::write_method(out, Method::UserPassword)).await?;
        client.reply_protocol = ReplyProtocol::Socks5Password;
        let credentials = await_message(client, socks5::user_password).await?;
        client.use_current_snapshot();
        let is_proven = credentials.is_some();
        let user = client.authenticate(credentials.map(Ok)).await?;
        client.send_written(|out| socks5::write_password_status(out, true)).await?;
        return Ok((user, is_proven));
    }
    if !greeting.offers_nothing {
        return Err(Denial::credentials_missing().into());
    }
    client.use_current_snapshot();
    let user = client.authenticate(None).await?;
    client.send_written(|out| socks5::write_method(out, Method::Nothing)).await?;
    Ok((user, false))
}

async fn await_message<T>(client: &mut Client, parse: fn(&[u8]) -> Parsed<T>) -> Result<T, HandshakeError> {
    loop {
        if let Some((message, length)) = parse(client.unread())? {
            client.consume(length);
            return Ok(message);
        }
        client.read_more().await?;
    }
}
