//! Tunnels by CONNECT to a source and to a sink, and the limit under which a relay opens them.
//!
//! Guarantees: a relay counts as running once it opens a tunnel, and no byte of a limit is used by then.

use std::net::SocketAddr;

use anyhow::{Result, bail};

use super::configuration;
use crate::kit::child::ChildSettings;
use crate::kit::load::handshake::Protocol;
use crate::kit::load::tunnel::{Proxy, Tunnel};
use crate::kit::load::{Direction, Role};
use crate::kit::load_process::{LoadCommand, LoadProcess, number_in};
use crate::kit::relays::bare;
use crate::kit::relays::config::ConfigInputs;
use crate::kit::relays::installed::InstalledTarget;
use crate::kit::relays::ports::free_port;
use crate::kit::relays::running::{self, PROBE_TIMEOUT, Workload};
use crate::kit::relays::target::Target;

/// What a relay limits, for all tunnels together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    None,
    /// Bytes of a day. The direction is that of the streams, where a relay counts one direction alone.
    Quota {
        mebibytes: u32,
        direction: Direction,
    },
    /// Bytes to clients over time.
    Rate {
        bits_per_s: u64,
    },
}

/// The ends of the tunnels, and the relay that opens them.
#[derive(Clone, Debug)]
pub(crate) struct LimitedTunnels {
    /// `None` for a direct connection.
    pub(super) proxy: Option<SocketAddr>,
    pub(super) source: SocketAddr,
    pub(super) sink: SocketAddr,
    pub(super) limit: Limit,
}

impl LimitedTunnels {
    /// The path of a stream of this direction.
    pub(super) fn tunnel(&self, direction: Direction) -> Tunnel {
        let proxy = self.proxy.map(|address| Proxy { address, protocol: Protocol::Connect });
        let to = match direction {
            Direction::Down => self.source,
            Direction::Up => self.sink,
        };
        Tunnel { to, proxy }
    }
}

impl Workload for LimitedTunnels {
    fn through_relay(&self, next_port: &mut u16) -> Result<(Self, SocketAddr)> {
        let proxy = Some(free_port(next_port)?);
        Ok((Self { proxy, ..self.clone() }, free_port(next_port)?))
    }

    fn configuration(installed: &InstalledTarget, inputs: &ConfigInputs<'_, Self>) -> Result<String> {
        match installed.target {
            Target::Tollgate | Target::TollgateLimited => configuration::tollgate(inputs),
            Target::ThreeProxy => configuration::three_proxy(inputs),
            Target::BareQuota => Ok(String::new()),
            target => bail!("{} has no limits", target.name()),
        }
    }

    fn arguments(installed: &InstalledTarget, inputs: &ConfigInputs<'_, Self>) -> Result<Vec<String>> {
        match (installed.target, inputs.listen.proxy, inputs.listen.limit) {
            (Target::BareQuota, Some(listen), Limit::Quota { mebibytes, .. }) => {
                let limit = u64::from(mebibytes) << 20;
                Ok(vec![bare::quota::COMMAND.to_owned(), listen.to_string(), limit.to_string()])
            }
            (target, ..) => Ok(running::arguments(target, inputs)),
        }
    }

    fn is_forwarding(&self) -> Result<bool> {
        Ok(self.tunnel(Direction::Down).open(PROBE_TIMEOUT).is_ok())
    }
}

/// Both ends of the tunnels.
pub(super) struct Load {
    pub(super) client: LoadProcess,
    server: LoadProcess,
    source: SocketAddr,
    sink: SocketAddr,
}

impl Load {
    /// Starts both ends.
    ///
    /// # Errors
    /// A process could not be created, or could not listen.
    pub(super) fn start() -> Result<Self> {
        let settings = ChildSettings::default();
        let (client, mut server) = (LoadProcess::start(&settings)?, LoadProcess::start(&settings)?);
        let (source, sink) = (server.serve(Role::Source)?, server.serve(Role::Sink)?);
        Ok(Self { client, server, source, sink })
    }

    /// Direct tunnels, which a relay under this limit is to open.
    pub(super) fn tunnels(&self, limit: Limit) -> LimitedTunnels {
        LimitedTunnels { proxy: None, source: self.source, sink: self.sink, limit }
    }

    /// The bytes that the servers have received so far.
    ///
    /// # Errors
    /// The load process has ended.
    pub(super) fn received_by_servers(&mut self) -> Result<f64> {
        number_in(&self.server.call(&LoadCommand::Totals)?, "received_bytes")
    }
}
