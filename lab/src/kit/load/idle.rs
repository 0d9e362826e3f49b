//! Tunnels that are held open without traffic.
//!
//! Guarantees: a tunnel counts as open once the echo server behind the relay has answered through it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::WAIT_MAX;

/// The byte that each tunnel sends to prove that it is open.
const PROBE_BYTE: &[u8; 1] = b"?";

/// The tunnels that are open now.
#[derive(Debug, Default)]
pub(crate) struct Tunnels {
    open: Vec<TcpStream>,
}

impl Tunnels {
    /// Opens tunnels until there are `count`; returns how many are `open`.
    ///
    /// # Errors
    /// A tunnel could not be opened; the earlier ones stay open.
    pub(crate) fn hold(&mut self, to: SocketAddr, count: u32) -> Result<Value> {
        while self.open.len() < count as usize {
            let tunnel = open(to).with_context(|| format!("opening tunnel {}", self.open.len() + 1))?;
            self.open.push(tunnel);
        }
        Ok(json!({ "open": self.open.len() }))
    }

    /// Sends one message through each tunnel; returns how many were `alive` and how many `lost`.
    pub(crate) fn touch(&mut self) -> Value {
        let alive = self.open.iter_mut().map(exchange).filter(Result::is_ok).count();
        json!({ "alive": alive, "lost": self.open.len() - alive })
    }
}

fn open(to: SocketAddr) -> Result<TcpStream> {
    let mut tunnel = TcpStream::connect_timeout(&to, WAIT_MAX)?;
    tunnel.set_read_timeout(Some(WAIT_MAX))?;
    exchange(&mut tunnel)?;
    Ok(tunnel)
}

fn exchange(tunnel: &mut TcpStream) -> std::io::Result<()> {
    tunnel.write_all(PROBE_BYTE)?;
    tunnel.read_exact(&mut [0; PROBE_BYTE.len()])
}

#[cfg(test)]
mod tests {
    use super::super::{Role, servers};
    use super::*;

    #[test]
    fn tunnels_reach_the_count_and_stay_alive() {
        let server = servers::start(Role::Echo).expect("loopback listens");
        let mut tunnels = Tunnels::default();
        for count in [3, 7, 7] {
            let answer = tunnels.hold(server, count).expect("loopback connects");
            assert_eq!(answer["open"], count);
        }
        assert_eq!(tunnels.touch(), json!({ "alive": 7, "lost": 0 }));
    }

    #[test]
    fn refused_tunnel_is_an_error() {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let mut tunnels = Tunnels::default();
        assert!(tunnels.hold(closed.expect("loopback binds"), 1).is_err());
    }
}
