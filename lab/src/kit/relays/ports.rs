//! Ports for relays to listen on.

use std::net::{SocketAddr, TcpListener};

use anyhow::{Result, bail};

/// Ports below the kernel's usual range for outgoing connections, so that none of 50,000 of those occupies
/// one on which a relay is about to listen.
pub(crate) const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// A port without a listener now, different from those that earlier calls returned.
///
/// # Errors
/// The whole range is in use.
pub(crate) fn free_port(next: &mut u16) -> Result<SocketAddr> {
    for _ in PORTS {
        let port = if PORTS.contains(next) { *next } else { PORTS.start };
        *next = port + 1;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        if TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    bail!("no port is free for a relay to listen on")
}

/// The first port to try; spread by process, so that two labs seldom meet.
pub(crate) fn first_port() -> u16 {
    let width = u32::from(PORTS.end - PORTS.start);
    let offset = std::process::id().wrapping_mul(97) % width;
    PORTS.start + u16::try_from(offset).unwrap_or(0)
}
