//! The four endpoints of a setup: the addresses for short connections, echoes and the streams of either
//! direction.
//!
//! Guarantees: the listeners of a relay and the servers behind it are paired by position.

pub(super) mod configuration;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::kit::load::{Direction, Role, tunnel::Tunnel};
use crate::kit::load_process::LoadProcess;
use crate::kit::relays::config::{ConfigInputs, UserLimits};
use crate::kit::relays::installed::InstalledTarget;
use crate::kit::relays::ports::free_port;
use crate::kit::relays::running::{self, PROBE_TIMEOUT, Workload};
use crate::kit::relays::target::Target;

/// The most streams at a time.
pub(super) const STREAMS_MAX: u32 = 100;

/// One address for each kind of load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoints {
    addresses: [SocketAddr; 4],
}

impl Endpoints {
    /// The name of each endpoint, by position.
    pub(crate) const NAMES: [&'static str; 4] = ["reply", "echo", "source", "sink"];

    /// The relays that forward to destinations known beforehand.
    pub(super) const TARGETS: &'static [Target] =
        &[Target::Direct, Target::Tollgate, Target::Haproxy, Target::Nginx];

    const ROLES: [Role; 4] = [Role::Reply, Role::Echo, Role::Source, Role::Sink];

    /// The endpoints in the order of `NAMES`.
    pub(crate) fn new(addresses: [SocketAddr; 4]) -> Self {
        Self { addresses }
    }

    /// Starts the four servers, the echo in a load process of its own so that streams do not delay it.
    ///
    /// # Errors
    /// A load process could not listen.
    pub(crate) fn serve(server: &mut LoadProcess, echo: &mut LoadProcess) -> Result<Self> {
        let mut serve = |role| if role == Role::Echo { echo.serve(role) } else { server.serve(role) };
        let [reply, echo, source, sink] = Self::ROLES;
        Ok(Self { addresses: [serve(reply)?, serve(echo)?, serve(source)?, serve(sink)?] })
    }

    /// Whether the endpoint of this name carries bulk streams.
    pub(crate) fn is_stream(name: &str) -> bool {
        matches!(name, "source" | "sink")
    }

    /// Each address beside the other's of the same position.
    pub(crate) fn pairs<'a>(
        &'a self,
        other: &'a Self,
    ) -> impl Iterator<Item = (SocketAddr, SocketAddr)> + 'a {
        self.addresses.into_iter().zip(other.addresses)
    }

    pub(crate) fn all(&self) -> &[SocketAddr] {
        &self.addresses
    }

    pub(super) fn reply(&self) -> SocketAddr {
        self.addresses[0]
    }

    pub(crate) fn echo(&self) -> SocketAddr {
        self.addresses[1]
    }

    /// The address for a stream of this direction.
    pub(super) fn stream(&self, direction: Direction) -> SocketAddr {
        match direction {
            Direction::Down => self.addresses[2],
            Direction::Up => self.addresses[3],
        }
    }
}

/// The clients' path to the endpoints, direct or through a relay.
pub(crate) trait Transport: Workload {
    /// For short connections.
    fn reply_tunnel(&self) -> Tunnel;

    /// For a stream of this direction.
    fn stream_tunnel(&self, direction: Direction) -> Tunnel;
}

impl Transport for Endpoints {
    fn reply_tunnel(&self) -> Tunnel {
        self.reply().into()
    }

    fn stream_tunnel(&self, direction: Direction) -> Tunnel {
        self.stream(direction).into()
    }
}

/// Tunnels to all four; the echo shows that they work.
impl Workload for Endpoints {
    fn through_relay(&self, next_port: &mut u16) -> Result<(Self, SocketAddr)> {
        let mut one = || free_port(next_port);
        Ok((Self::new([one()?, one()?, one()?, one()?]), one()?))
    }

    fn configuration(installed: &InstalledTarget, inputs: &ConfigInputs<'_, Self>) -> Result<String> {
        Ok(match installed.target {
            Target::Tollgate => configuration::tollgate(inputs, &UserLimits::default()),
            Target::TollgateLimited => configuration::tollgate(inputs, &UserLimits::never_reached()),
            Target::Haproxy => configuration::haproxy(inputs),
            Target::Nginx => configuration::nginx(inputs, installed.module.as_deref()),
            Target::BareRelay | Target::BareSplice => String::new(),
            target => bail!("{} forwards no connection without a handshake", target.name()),
        })
    }

    fn arguments(installed: &InstalledTarget, inputs: &ConfigInputs<'_, Self>) -> Result<Vec<String>> {
        Ok(match installed.target {
            Target::BareRelay => configuration::bare_relay(inputs),
            Target::BareSplice => configuration::bare_splice(inputs),
            target => running::arguments(target, inputs),
        })
    }

    fn is_forwarding(&self) -> Result<bool> {
        Ok(has_echo(&self.echo().into(), PROBE_TIMEOUT))
    }
}

/// Whether an echo answers through this tunnel, each step within `time`.
pub(super) fn has_echo(tunnel: &Tunnel, time: Duration) -> bool {
    let exchange = || {
        let mut stream = tunnel.open(time)?;
        stream.write_all(b"?")?;
        stream.read_exact(&mut [0])
    };
    exchange().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::relays::ports::PORTS;

    #[test]
    fn free_ports_are_distinct() {
        let mut next = PORTS.end - 3;
        let servers = Endpoints::new([SocketAddr::from(([127, 0, 0, 1], 1)); 4]);
        let (first, spare) = servers.through_relay(&mut next).expect("some ports are free");
        let (second, _) = servers.through_relay(&mut next).expect("some ports are free");
        let mut ports: Vec<u16> = first.all().iter().chain(second.all()).map(SocketAddr::port).collect();
        ports.push(spare.port());
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 9);
        assert!(ports.iter().all(|port| PORTS.contains(port)));
    }

    #[test]
    fn stream_direction_selects_the_endpoint() {
        let end = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let endpoints = Endpoints::new([end(1), end(2), end(3), end(4)]);
        assert_eq!((endpoints.reply(), endpoints.echo()), (end(1), end(2)));
        assert_eq!((endpoints.stream(Direction::Down), endpoints.stream(Direction::Up)), (end(3), end(4)));
    }
}
