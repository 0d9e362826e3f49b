//! A client's path to a server: direct, or through a forward proxy that opens a tunnel.
//!
//! Guarantees: a path survives being written as text and read again, as load processes exchange it.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Error, Result};
use clap::ValueEnum;

use super::handshake::{Handshake, Protocol};

/// One read of a proxy's reply.
const REPLY_READ_BYTES: usize = 1_024;

/// The destination, and the proxy if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tunnel {
    pub(crate) to: SocketAddr,
    pub(crate) proxy: Option<Proxy>,
}

/// A forward proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    pub(crate) protocol: Protocol,
}

impl Tunnel {
    /// The address to which the client connects.
    pub(super) fn connect_address(&self) -> SocketAddr {
        self.proxy.map_or(self.to, |proxy| proxy.address)
    }

    /// The handshake that comes first.
    pub(super) fn handshake(&self) -> Option<Handshake> {
        self.proxy.map(|proxy| Handshake::new(proxy.protocol, self.to))
    }

    /// Connects and waits until the tunnel is open; no single wait of the connection lasts longer than
    /// `wait_max`, then or later.
    ///
    /// # Errors
    /// The connection failed, or the proxy refused.
    pub(crate) fn open(&self, wait_max: Duration) -> std::io::Result<TcpStream> {
        let mut stream = TcpStream::connect_timeout(&self.connect_address(), wait_max)?;
        stream.set_read_timeout(Some(wait_max))?;
        stream.set_write_timeout(Some(wait_max))?;
        let Some(mut handshake) = self.handshake() else { return Ok(stream) };
        while let Some(message) = handshake.message() {
            stream.write_all(message)?;
            let mut piece = [0; REPLY_READ_BYTES];
            loop {
                let read = stream.read(&mut piece)?;
                if read == 0 {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
                if handshake.receive(&piece[..read]).map_err(io::Error::other)? {
                    break;
                }
            }
        }
        Ok(stream)
    }
}

/// A direct path.
impl From<SocketAddr> for Tunnel {
    fn from(to: SocketAddr) -> Self {
        Self { to, proxy: None }
    }
}

impl fmt::Display for Tunnel {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.proxy {
            Some(Proxy { address, protocol }) => write!(text, "{protocol}/{address}/{}", self.to),
            None => write!(text, "{}", self.to),
        }
    }
}

impl FromStr for Tunnel {
    type Err = anyhow::Error;

    fn from_str(word: &str) -> Result<Self> {
        let Some((proxy, to)) = word.rsplit_once('/') else {
            return Ok(Self::from(word.parse::<SocketAddr>()?));
        };
        let (protocol, address) = proxy.split_once('/').context("a proxy has a protocol and an address")?;
        let proxy = Proxy {
            address: address.parse()?,
            protocol: Protocol::from_str(protocol, false).map_err(Error::msg)?,
        };
        Ok(Self { to: to.parse()?, proxy: Some(proxy) })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::net::TcpListener;

    /// A proxy for one client: refuses it, or connects it to its destination, in one direction after the
    /// other, which is enough for a request and its reply.
    pub(in crate::kit::load) fn proxy(protocol: Protocol, accepts: bool) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback binds");
        let address = listener.local_addr().expect("a bound socket has an address");
        std::thread::spawn(move || {
            let (mut client, _) = listener.accept()?;
            let mut received = [0; REPLY_READ_BYTES];
            let to = match protocol {
                Protocol::Connect => {
                    let length = client.read(&mut received)?;
                    let text = String::from_utf8_lossy(&received[..length]).into_owned();
                    let to = text.split(' ').nth(1).and_then(|to| to.parse::<SocketAddr>().ok());
                    client.write_all(match accepts {
                        true => b"HTTP/1.1 200 OK\r\n\r\n",
                        false => b"HTTP/1.1 403 Forbidden\r\n\r\n",
                    })?;
                    to.expect("the second word is the destination")
                }
                Protocol::Socks5 => {
                    client.read_exact(&mut received[..3])?;
                    client.write_all(&[5, 0])?;
                    client.read_exact(&mut received[..10])?;
                    client.write_all(&[5, u8::from(!accepts), 0, 1, 0, 0, 0, 0, 0, 0])?;
                    let octets: [u8; 4] =
                        received[4..8].try_into().expect("the words are destination, proxy or nothing");
                    SocketAddr::from((octets, u16::from_be_bytes([received[8], received[9]])))
                }
            };
            let mut server = TcpStream::connect(to)?;
            let length = client.read(&mut received)?;
            server.write_all(&received[..length])?;
            std::io::copy(&mut server, &mut client)
        });
        Proxy { address, protocol }
    }

    #[test]
    fn tunnel_opens_when_the_proxy_accepts() {
        use super::super::{Role, servers};
        let to = servers::start(Role::Echo).expect("loopback listens");
        for protocol in [Protocol::Connect, Protocol::Socks5] {
            let tunnel = Tunnel { to, proxy: Some(proxy(protocol, true)) };
            let mut stream = tunnel.open(Duration::from_secs(10)).expect("the proxy opens the tunnel");
            stream.write_all(b"?").and_then(|()| stream.read_exact(&mut [0])).expect("the echo answers");
            let tunnel = Tunnel { to, proxy: Some(proxy(protocol, false)) };
            assert!(tunnel.open(Duration::from_secs(10)).is_err());
        }
        assert!(Tunnel::from(to).open(Duration::from_secs(10)).is_ok());
    }

    #[test]
    fn incomplete_path_is_refused() {
        for word in ["", "/", "connect/127.0.0.1:1", "tea/127.0.0.1:1/127.0.0.1:2", "connect/x/127.0.0.1:2"] {
            assert!(word.parse::<Tunnel>().is_err(), "{word:?}");
        }
    }
}
