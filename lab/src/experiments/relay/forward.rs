//! Tunnels that a forward proxy opens on request, by CONNECT or SOCKS5: to the same endpoints as those of a
//! relay that knows its destination.
//!
//! Guarantees: each connection begins with a handshake of its own; a direct one has none.

mod configuration;

use std::net::SocketAddr;

use anyhow::{Result, bail};

use super::billing::Bill;
use super::bulk::Case;
use super::endpoints::{Endpoints, Transport, has_echo};
use super::short;
use crate::kit::load::Direction;
use crate::kit::load::handshake::Protocol;
use crate::kit::load::tunnel::{Proxy, Tunnel};
use crate::kit::relays::config::ConfigInputs;
use crate::kit::relays::installed::InstalledTarget;
use crate::kit::relays::ports::free_port;
use crate::kit::relays::running::{self, PROBE_TIMEOUT, Workload};
use crate::kit::relays::target::Target;

/// The names of one protocol's parts of the experiment.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProtocolCases {
    pub(super) protocol: Protocol,
    pub(super) short: &'static str,
    pub(super) bulk: [Case; 2],
    /// Their names in the progress.
    pub(super) what: [&'static str; 2],
    pub(super) bill: Bill,
    /// CPU time and rate of short connections, then of streams.
    pub(super) verdicts: [&'static str; 4],
}

pub(super) const CONNECT: ProtocolCases = ProtocolCases {
    protocol: Protocol::Connect,
    short: "connect-short",
    bulk: [
        Case { part: "connect-bulk-down", direction: Direction::Down, streams: 1 },
        Case { part: "connect-bulk-up", direction: Direction::Up, streams: 1 },
    ],
    what: ["short connections by CONNECT", "one stream each way by CONNECT"],
    bill: short::bill("billing-connect", "connect-short"),
    verdicts: ["connect-short-cpu", "connect-short-rate", "connect-bulk-cpu", "connect-bulk-rate"],
};

pub(super) const SOCKS5: ProtocolCases = ProtocolCases {
    protocol: Protocol::Socks5,
    short: "socks5-short",
    bulk: [
        Case { part: "socks5-bulk-down", direction: Direction::Down, streams: 1 },
        Case { part: "socks5-bulk-up", direction: Direction::Up, streams: 1 },
    ],
    what: ["short connections by SOCKS5", "one stream each way by SOCKS5"],
    bill: short::bill("billing-socks5", "socks5-short"),
    verdicts: ["socks5-short-cpu", "socks5-short-rate", "socks5-bulk-cpu", "socks5-bulk-rate"],
};

/// The endpoints of the tunnels, and the proxy that opens them.
#[derive(Clone, Debug)]
pub(crate) struct ForwardTunnels {
    pub(super) protocol: Protocol,
    /// `None` for a direct connection.
    pub(super) proxy: Option<SocketAddr>,
    pub(super) endpoints: Endpoints,
}

impl ForwardTunnels {
    /// Directly to the endpoints, in place of a proxy with this protocol.
    pub(super) fn to(endpoints: &Endpoints, protocol: Protocol) -> Self {
        Self { protocol, proxy: None, endpoints: endpoints.clone() }
    }

    /// The proxies that open tunnels by this protocol.
    pub(super) fn targets(protocol: Protocol) -> &'static [Target] {
        match protocol {
            Protocol::Connect => &[
                Target::Direct,
                Target::Tollgate,
                Target::Squid,
                Target::Tinyproxy,
                Target::ThreeProxy,
                Target::G3proxy,
            ],
            Protocol::Socks5 => &[
                Target::Direct,
                Target::Tollgate,
                Target::Dante,
                Target::Microsocks,
                Target::ThreeProxy,
                Target::G3proxy,
            ],
        }
    }

    fn tunnel(&self, to: SocketAddr) -> Tunnel {
        let proxy = self.proxy.map(|address| Proxy { address, protocol: self.protocol });
        Tunnel { to, proxy }
    }
}

impl Transport for ForwardTunnels {
    fn reply_tunnel(&self) -> Tunnel {
        self.tunnel(self.endpoints.reply())
    }

    fn stream_tunnel(&self, direction: Direction) -> Tunnel {
        self.tunnel(self.endpoints.stream(direction))
    }
}

/// Tunnels to all four; the echo shows that they work.
impl Workload for ForwardTunnels {
    fn through_relay(&self, next_port: &mut u16) -> Result<(Self, SocketAddr)> {
        let proxy = Some(free_port(next_port)?);
        Ok((Self { proxy, ..self.clone() }, free_port(next_port)?))
    }

    fn configuration(installed: &InstalledTarget, inputs: &ConfigInputs<'_, Self>) -> Result<String> {
        Ok(match installed.target {
            Target::Tollgate => configuration::tollgate(inputs)?,
            Target::Squid => configuration::squid(inputs)?,
            Target::Tinyproxy => configuration::tinyproxy(inputs)?,
            Target::ThreeProxy => configuration::three_proxy(inputs)?,
            Target::Dante => configuration::dante(inputs)?,
            Target::G3proxy => configuration::g3proxy(inputs)?,
            Target::Microsocks => String::new(),
            target @ (Target::Direct
            | Target::BareRelay
            | Target::BareSplice
            | Target::BareQuota
            | Target::TollgateLimited
            | Target::Haproxy
            | Target::Nginx) => bail!("{} opens no tunnels on request", target.name()),
        })
    }

    fn arguments(installed: &InstalledTarget, inputs: &ConfigInputs<'_, Self>) -> Result<Vec<String>> {
        match installed.target {
            Target::Microsocks => configuration::microsocks(inputs),
            target => Ok(running::arguments(target, inputs)),
        }
    }

    fn is_forwarding(&self) -> Result<bool> {
        Ok(has_echo(&self.tunnel(self.endpoints.echo()), PROBE_TIMEOUT))
    }
}
