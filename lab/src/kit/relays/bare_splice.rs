//! The bare splice: a relay that moves bytes by splice(2) and does nothing else, as the floor under every
//! relay that splices.
//!
//! Guarantees: each connection has two blocking threads, one for each direction, with a pipe of 1 MiB; there
//! is no policy, no deadline, no log and no count.

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::str::FromStr;
use std::thread;

use anyhow::{Context, Result, anyhow};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

/// The default of `fs.pipe-max-size`, beyond which only a privileged process gets a pipe.
const PIPE_BYTES: usize = 1024 * 1024;

/// The arguments of the hidden command.
#[derive(clap::Args, Debug)]
pub(crate) struct BareSplice {
    /// Where to listen and where to connect, as LISTEN=UPSTREAM
    #[arg(required = true)]
    routes: Vec<Route>,
}

/// The name of the hidden command.
pub(crate) const COMMAND: &str = "bare-splice";

/// One listener and its destination.
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

/// Relays until the process is ended.
///
/// # Errors
/// An address is in use.
pub(crate) fn relay(settings: &BareSplice) -> Result<()> {
    let listeners: Result<Vec<_>> = settings.routes.iter().map(|route| route.listener()).collect();
    thread::scope(|scope| {
        for (route, listener) in settings.routes.iter().zip(listeners?) {
            scope.spawn(move || {
                for client in listener.incoming().flatten() {
                    let upstream = route.upstream;
                    thread::spawn(move || connection(&client, upstream));
                }
            });
        }
        Ok(())
    })
}

impl Route {
    fn listener(&self) -> Result<TcpListener> {
        TcpListener::bind(self.listen).with_context(|| format!("listening on {}", self.listen))
    }
}

/// Relays one connection until both directions have ended. One that cannot be dialled is closed.
fn connection(client: &TcpStream, upstream: SocketAddr) {
    let Ok(upstream) = &TcpStream::connect(upstream) else { return };
    // They fail on a failed connection only, which the first splice finds too.
    let _ = (client.set_nodelay(true), upstream.set_nodelay(true));
    thread::scope(|scope| {
        scope.spawn(|| direction(client, upstream));
        direction(upstream, client);
    });
}

/// Relays one direction, and forwards its end; a failure ends both directions.
fn direction(source: &TcpStream, sink: &TcpStream) {
    // They fail if the peer is gone, and then have no effect.
    let _ = match splice_all(source, sink) {
        Ok(()) => sink.shutdown(Shutdown::Write),
        Err(_) => source.shutdown(Shutdown::Both).and(sink.shutdown(Shutdown::Both)),
    };
}

fn splice_all(source: &TcpStream, sink: &TcpStream) -> rustix::io::Result<()> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    // Fails where the user has too many pages in pipes; the pipe then keeps its size.
    let _ = fcntl_setpipe_size(&writer, PIPE_BYTES);
    loop {
        let mut held = splice(source, None, &writer, None, PIPE_BYTES, SpliceFlags::MOVE)?;
        if held == 0 {
            return Ok(());
        }
        while held > 0 {
            held -= splice(&reader, None, sink, None, held, SpliceFlags::MOVE)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn bytes_and_ends_are_relayed_both_ways() {
        let server = TcpListener::bind("127.0.0.1:0").expect("loopback listens");
        let relay = TcpListener::bind("127.0.0.1:0").expect("loopback listens");
        let (to, upstream) = [&relay, &server].map(|it| it.local_addr().expect("it is bound")).into();
        thread::spawn(move || connection(&relay.accept().expect("a client connects").0, upstream));
        let echo = thread::spawn(move || {
            let (mut stream, _) = server.accept().expect("the relay connects");
            let mut received = Vec::new();
            stream.read_to_end(&mut received).expect("the client ends its direction");
            stream.write_all(&received).expect("the other direction is open");
        });
        let mut client = TcpStream::connect(to).expect("the relay listens");
        let sent: Vec<u8> = (0..2_000_000).map(|at| (at / 251 + at) as u8).collect();
        client.write_all(&sent).expect("the relay reads");
        client.shutdown(Shutdown::Write).expect("the stream is open");
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).expect("the relay forwards the end");
        assert!(answer == sent);
        echo.join().expect("the server has not failed");
    }

    #[test]
    fn route_has_both_addresses() {
        let [listen, upstream] = [1, 2].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let parsed: Route = route(listen, upstream).parse().expect("its own text is a route");
        assert_eq!(parsed, Route { listen, upstream });
        assert!("127.0.0.1:1".parse::<Route>().is_err());
    }
}
