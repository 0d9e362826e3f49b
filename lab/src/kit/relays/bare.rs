//! Relays that relay and do nothing else, as floors under the others: commands of the lab itself.

pub(crate) mod quota;
pub(crate) mod relay;
pub(crate) mod splice;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::str::FromStr;

use anyhow::{Context, Result, anyhow};
use socket2::{Domain, Socket, Type};

/// Connections that wait to be accepted: with the standard library's 128, a burst of clients has to wait a
/// second for the retransmission of its SYN.
const BACKLOG: i32 = 4096;

/// One listener and its destination, as LISTEN=UPSTREAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    listen: SocketAddr,
    upstream: SocketAddr,
}

/// The argument for a listener and its destination.
pub(crate) fn route(listen: SocketAddr, upstream: SocketAddr) -> String {
    format!("{listen}={upstream}")
}

impl FromStr for Route {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (listen, upstream) = text.split_once('=').ok_or_else(|| anyhow!("{text} has no `=`"))?;
        Ok(Self { listen: listen.parse()?, upstream: upstream.parse()? })
    }
}

impl Route {
    fn listener(&self) -> Result<TcpListener> {
        let listen = || {
            let socket = Socket::new(Domain::for_address(self.listen), Type::STREAM, None)?;
            socket.set_reuse_address(true)?;
            socket.bind(&self.listen.into())?;
            socket.listen(BACKLOG)?;
            Ok::<_, io::Error>(socket.into())
        };
        listen().with_context(|| format!("listening on {}", self.listen))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpStream};
    use std::thread;

    use super::*;

    /// The addresses of a listener for a relay, and of a server that sends everything back at the end.
    pub(super) fn echo_behind(relay: &TcpListener) -> Route {
        let server = TcpListener::bind("127.0.0.1:0").expect("loopback listens");
        let [listen, upstream] = [relay, &server].map(|it| it.local_addr().expect("it is bound"));
        thread::spawn(move || {
            for stream in server.incoming() {
                thread::spawn(move || {
                    let mut stream = stream.expect("the relay connects");
                    let mut received = Vec::new();
                    stream.read_to_end(&mut received).expect("the client ends its direction");
                    stream.write_all(&received).expect("the other direction is open");
                });
            }
        });
        Route { listen, upstream }
    }

    /// Bytes and ends are relayed both ways.
    pub(super) fn assert_echoes(route: Route, bytes: usize) {
        let mut client = TcpStream::connect(route.listen).expect("the relay listens");
        let sent: Vec<u8> = (0..bytes).map(|at| (at / 251 + at) as u8).collect();
        client.write_all(&sent).expect("the relay reads");
        client.shutdown(Shutdown::Write).expect("the stream is open");
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).expect("the relay forwards the end");
        assert!(answer == sent, "{} of {bytes} bytes came back", answer.len());
    }

    #[test]
    fn route_has_both_addresses() {
        let [listen, upstream] = [1, 2].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let parsed: Route = route(listen, upstream).parse().expect("its own text is a route");
        assert_eq!(parsed, Route { listen, upstream });
        assert!("127.0.0.1:1".parse::<Route>().is_err());
    }
}
