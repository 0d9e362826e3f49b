//! The naive quota: a relay by CONNECT that checks the limit when a connection begins, and counts bytes as
//! they move.
//!
//! Guarantees: everything but the check is as in the bare splice; no byte moves before the check.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use anyhow::{Context, Result};

use super::splice::direction;

/// The arguments of the hidden command.
#[derive(clap::Args, Debug)]
pub(crate) struct BareQuota {
    /// Where to listen
    listen: SocketAddr,
    /// Bytes of both directions of all connections, after which none begins
    limit: u64,
}

/// The name of the hidden command.
pub(crate) const COMMAND: &str = "bare-quota";

/// The longest head of a request.
const HEAD_BYTES_MAX: u64 = 4_096;

const OPEN: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n";
const SPENT: &[u8] = b"HTTP/1.1 429 Too Many Requests\r\n\r\n";

/// Relays until the process is ended.
///
/// # Errors
/// The address is in use.
pub(crate) fn relay(settings: &BareQuota) -> Result<()> {
    let listener = TcpListener::bind(settings.listen).context("listening")?;
    let (used, limit) = (Arc::new(AtomicU64::new(0)), settings.limit);
    for client in listener.incoming().flatten() {
        let used = Arc::clone(&used);
        // A connection that cannot be relayed is closed, which its client sees.
        thread::spawn(move || connection(&client, &used, limit));
    }
    Ok(())
}

fn connection(client: &TcpStream, used: &AtomicU64, limit: u64) -> io::Result<()> {
    let destination = read_destination(client)?;
    let mut answer = client;
    // It guards no other memory.
    if used.load(Ordering::Relaxed) >= limit {
        return answer.write_all(SPENT);
    }
    let upstream = &TcpStream::connect(destination)?;
    client.set_nodelay(true)?;
    upstream.set_nodelay(true)?;
    answer.write_all(OPEN)?;
    let count = |bytes: usize| _ = used.fetch_add(bytes as u64, Ordering::Relaxed);
    thread::scope(|scope| {
        scope.spawn(|| direction(client, upstream, count));
        direction(upstream, client, count);
    });
    Ok(())
}

/// Reads the head of a CONNECT, up to its empty line: the client waits for the answer before it sends more.
fn read_destination(client: &TcpStream) -> io::Result<SocketAddr> {
    let mut lines = BufReader::new(io::Read::take(client, HEAD_BYTES_MAX)).lines();
    let first = lines.next().ok_or(io::ErrorKind::UnexpectedEof)??;
    for line in lines {
        if line?.is_empty() {
            break;
        }
    }
    first.split(' ').nth(1).and_then(|word| word.parse().ok()).ok_or(io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::kit::load::handshake::Protocol;
    use crate::kit::load::tunnel::{Proxy, Tunnel};
    use crate::kit::load::{Role, servers};

    #[test]
    fn limit_refuses_the_next_connection_and_not_the_open_one() {
        let to = servers::start(Role::Echo).expect("loopback listens");
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback listens");
        let proxy =
            Proxy { address: listener.local_addr().expect("it is bound"), protocol: Protocol::Connect };
        thread::spawn(move || {
            let used = AtomicU64::new(0);
            for client in listener.incoming().flatten() {
                // The test's connections come one after the other.
                let _ = connection(&client, &used, 6);
            }
        });
        let tunnel = Tunnel { to, proxy: Some(proxy) };
        let mut open = tunnel.open(Duration::from_secs(10)).expect("nothing is used");
        for _ in 0..3 {
            open.write_all(b"1234")
                .and_then(|()| io::Read::read_exact(&mut open, &mut [0; 4]))
                .expect("echo");
        }
        drop(open);
        assert!(tunnel.open(Duration::from_secs(10)).is_err());
    }
}
