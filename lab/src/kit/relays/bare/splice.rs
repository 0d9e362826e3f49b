//! The bare splice: a relay that moves bytes by splice(2) and does nothing else, as the floor under every
//! relay that splices.
//!
//! Guarantees: each connection has two blocking threads, one for each direction, with a pipe of 1 MiB; there
//! is no policy, no deadline, no log and no count.

use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;

use anyhow::Result;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

use super::Route;

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

/// Relays one connection until both directions have ended. One that cannot be dialled is closed.
fn connection(client: &TcpStream, upstream: SocketAddr) {
    let Ok(upstream) = &TcpStream::connect(upstream) else { return };
    // They fail on a failed connection only, which the first splice finds too.
    let _ = (client.set_nodelay(true), upstream.set_nodelay(true));
    thread::scope(|scope| {
        scope.spawn(|| direction(client, upstream, |_| ()));
        direction(upstream, client, |_| ());
    });
}

/// Relays one direction and reports the bytes of each piece, and forwards its end; a failure ends both
/// directions.
pub(super) fn direction(source: &TcpStream, sink: &TcpStream, moved: impl Fn(usize)) {
    // They fail if the peer is gone, and then have no effect.
    let _ = match splice_all(source, sink, moved) {
        Ok(()) => sink.shutdown(Shutdown::Write),
        Err(_) => source.shutdown(Shutdown::Both).and(sink.shutdown(Shutdown::Both)),
    };
}

fn splice_all(source: &TcpStream, sink: &TcpStream, moved: impl Fn(usize)) -> rustix::io::Result<()> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    // Fails where the user has too many pages in pipes; the pipe then keeps its size.
    let _ = fcntl_setpipe_size(&writer, PIPE_BYTES);
    loop {
        let mut held = splice(source, None, &writer, None, PIPE_BYTES, SpliceFlags::MOVE)?;
        if held == 0 {
            return Ok(());
        }
        while held > 0 {
            let sent = splice(&reader, None, sink, None, held, SpliceFlags::MOVE)?;
            moved(sent);
            held -= sent;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::super::tests::{assert_echoes, echo_behind};
    use super::*;

    #[test]
    fn bytes_and_ends_are_relayed_both_ways() {
        let relay = TcpListener::bind("127.0.0.1:0").expect("loopback listens");
        let route = echo_behind(&relay);
        thread::spawn(move || connection(&relay.accept().expect("a client connects").0, route.upstream));
        assert_echoes(route, 2_000_000);
    }
}
