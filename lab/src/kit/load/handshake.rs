//! The client's side of a handshake with a forward proxy, until the tunnel is open: CONNECT, and SOCKS5
//! without a password.
//!
//! Guarantees: no I/O; a reply may arrive in pieces; after the last reply the next byte is the destination's.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::clients::Failure;
use super::http;

/// The protocol between client and forward proxy.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// HTTP's CONNECT
    Connect,
    /// RFC 1928, with the destination's address
    Socks5,
}

/// The state of one handshake.
#[derive(Clone, Debug)]
pub(super) struct Handshake {
    protocol: Protocol,
    /// Each is sent once the previous one was answered.
    messages: Arc<[Vec<u8>]>,
    /// Messages whose replies have arrived. 0 <= replies_received <= messages.len()
    replies_received: usize,
    /// The received part of the next reply.
    reply: Vec<u8>,
}

impl Handshake {
    /// A handshake for a tunnel to `to`.
    pub(super) fn new(protocol: Protocol, to: SocketAddr) -> Self {
        let messages = match protocol {
            Protocol::Connect => vec![http::tunnel_request(to)],
            Protocol::Socks5 => vec![GREETING.to_vec(), socks_request(to)],
        };
        Self { protocol, messages: messages.into(), replies_received: 0, reply: Vec::new() }
    }

    /// The next message to send; `None` once the tunnel is open.
    pub(super) fn message(&self) -> Option<&[u8]> {
        self.messages.get(self.replies_received).map(Vec::as_slice)
    }

    /// Takes a piece of the reply to the message; returns whether it was the last piece.
    pub(super) fn receive(&mut self, piece: &[u8]) -> Result<bool, Failure> {
        self.reply.extend_from_slice(piece);
        let length = match (self.protocol, self.replies_received) {
            (Protocol::Connect, _) => http::tunnel_response_bytes(&self.reply)?,
            (Protocol::Socks5, 0) => method_reply_bytes(&self.reply)?,
            (Protocol::Socks5, _) => socks_reply_bytes(&self.reply)?,
        };
        let Some(length) = length else { return Ok(false) };
        if self.reply.len() > length {
            return Err("the proxy sent bytes after its reply".to_owned());
        }
        self.reply.clear();
        self.replies_received += 1;
        Ok(true)
    }
}

/// Version 5, one method: no authentication.
const GREETING: [u8; 3] = [5, 1, 0];

/// CONNECT to an address.
fn socks_request(to: SocketAddr) -> Vec<u8> {
    let mut request = vec![5, 1, 0];
    match to.ip() {
        IpAddr::V4(address) => {
            request.push(IPV4);
            request.extend(address.octets());
        }
        IpAddr::V6(address) => {
            request.push(IPV6);
            request.extend(address.octets());
        }
    }
    request.extend(to.port().to_be_bytes());
    request
}

const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

/// The length of the server's choice of a method; `None` where it is incomplete.
fn method_reply_bytes(reply: &[u8]) -> Result<Option<usize>, Failure> {
    match *reply {
        [5, 0, ..] => Ok(Some(2)),
        [5] | [] => Ok(None),
        [5, method, ..] => Err(format!("the proxy chose method {method}")),
        _ => Err("the proxy speaks no SOCKS5".to_owned()),
    }
}

/// The length of the reply to a request; `None` where it is incomplete.
fn socks_reply_bytes(reply: &[u8]) -> Result<Option<usize>, Failure> {
    let address_bytes = match *reply {
        [5, 0, 0, IPV4, ..] => 4,
        [5, 0, 0, IPV6, ..] => 16,
        [5, 0, 0, NAME, length, ..] => 1 + usize::from(length),
        [5, 0, 0, NAME] | [5, 0, 0] | [5, 0] | [5] | [] => return Ok(None),
        [5, code, ..] if code != 0 => return Err(format!("the proxy replies {code}")),
        _ => return Err("the proxy's reply is malformed".to_owned()),
    };
    let length = 4 + address_bytes + 2;
    Ok((reply.len() >= length).then_some(length))
}

impl fmt::Display for Protocol {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        super::write_name(self, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passes `replies` byte by byte, one to each message; returns the messages, or the failure.
    fn talk(protocol: Protocol, to: &str, replies: &[&[u8]]) -> Result<Vec<Vec<u8>>, Failure> {
        let mut handshake = Handshake::new(protocol, to.parse().expect("the test's address is valid"));
        let mut sent = Vec::new();
        for reply in replies {
            sent.push(handshake.message().expect("there is a message for each reply").to_vec());
            let (last, front) = reply.split_last().expect("no reply is empty");
            for byte in front {
                assert!(!handshake.receive(&[*byte])?, "{byte} of {reply:?} was the last");
            }
            assert!(handshake.receive(&[*last])?, "{reply:?} is whole");
        }
        assert_eq!(handshake.message(), None);
        Ok(sent)
    }

    const CHOICE: &[u8] = &[5, 0];

    #[test]
    fn socks5_accepts_any_bound_address() {
        let request = [5, 1, 0, 1, 127, 0, 0, 1, 0x52, 0x08];
        for reply in [
            &[5, 0, 0, 1, 127, 0, 0, 1, 9, 9][..],
            &[5, 0, 0, 3, 2, b'm', b'e', 9, 9],
            &[5, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 9, 9],
        ] {
            let sent = talk(Protocol::Socks5, "127.0.0.1:21000", &[CHOICE, reply]);
            assert_eq!(sent, Ok(vec![GREETING.to_vec(), request.to_vec()]));
        }
        let sent = talk(Protocol::Socks5, "[::1]:80", &[CHOICE, &[5, 0, 0, 3, 0, 9, 9]]);
        let request = sent.expect("each reply is accepted").remove(1);
        assert_eq!((request[3], request.len()), (IPV6, 4 + 16 + 2));
    }

    #[test]
    fn connect_accepts_a_head_without_a_body() {
        for reply in [
            "HTTP/1.1 200 Connection established\r\n\r\n",
            "HTTP/1.0 200 OK\r\nProxy-agent: some/1.0\r\n\r\n",
        ] {
            let sent = talk(Protocol::Connect, "127.0.0.1:21000", &[reply.as_bytes()]);
            let request = "CONNECT 127.0.0.1:21000 HTTP/1.1\r\nHost: 127.0.0.1:21000\r\n\r\n";
            assert_eq!(sent, Ok(vec![request.as_bytes().to_vec()]));
        }
    }

    #[test]
    fn refusals_are_named_failures() {
        let check = |protocol, replies: &[&[u8]], expected: &str| {
            assert_eq!(talk(protocol, "127.0.0.1:1", replies), Err(expected.to_owned()));
        };
        check(Protocol::Socks5, &[&[4, 90]], "the proxy speaks no SOCKS5");
        check(Protocol::Socks5, &[&[5, 255]], "the proxy chose method 255");
        check(Protocol::Socks5, &[CHOICE, &[5, 2, 0, 1]], "the proxy replies 2");
        check(Protocol::Connect, &[b"HTTP/1.1 403 Forbidden\r\n\r\n"], "status 403");
        check(Protocol::Connect, &[b"SSH-2.0\r\n\r\n"], "it is not HTTP/1.1");
    }

    #[test]
    fn bytes_after_the_reply_are_a_failure() {
        let mut handshake = Handshake::new(Protocol::Socks5, SocketAddr::from(([127, 0, 0, 1], 1)));
        assert!(handshake.receive(&[5, 0, 5]).is_err());
    }
}
