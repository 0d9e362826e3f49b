//! The gateway's configuration for this experiment: a `forward` listener under load, whose connections reach
//! a number of threads by one strategy.
//!
//! Guarantees: gateways differ in strategy and threads alone.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Result, ensure};

use super::strategy::Strategy;
use crate::kit::load::REQUEST_BYTES;
use crate::kit::relays::config::{ConfigInputs, TUNNELS_MAX, USER, tollgate_tables};
use crate::kit::relays::installed::InstalledTarget;
use crate::kit::relays::ports::free_port;
use crate::kit::relays::running::{PROBE_TIMEOUT, Workload};
use crate::kit::relays::target::Target;

/// The addresses to which clients connect, and the servers behind.
#[derive(Clone, Debug)]
pub(super) struct GatewayListeners {
    pub(super) address: SocketAddr,
    /// The addresses at which a reload opens a listener, and a later one closes it.
    spares: [SocketAddr; 2],
    pub(super) admin: SocketAddr,
    upstream: SocketAddr,
    strategy: Strategy,
}

impl GatewayListeners {
    /// The destination of a gateway, reached directly.
    pub(super) fn before(upstream: SocketAddr, strategy: Strategy) -> Self {
        Self { address: upstream, spares: [upstream; 2], admin: upstream, upstream, strategy }
    }

    /// The configuration of the gateway, without the spare listeners or with the one of that number.
    pub(super) fn text(&self, inputs: &ConfigInputs<'_, Self>, spare: Option<usize>) -> String {
        let upstream = self.upstream;
        let listener = |address| {
            format!(
                "[[listener]]\naddress = \"{address}\"\nkind = \"forward\"\nto = \"{upstream}\"\nuser = \
                 \"{USER}\"\n\n"
            )
        };
        let spare = spare.map_or_else(String::new, |number| listener(self.spares[number]));
        format!(
            "{}{spare}[[user]]\nname = \"{USER}\"\nallow = [\"{upstream}\"]\nconnections = \
             {TUNNELS_MAX}\n{}\n[accept]\nstrategy = \"{}\"\n",
            listener(self.address),
            tollgate_tables(inputs),
            self.strategy.setting(),
        )
    }
}

impl Workload for GatewayListeners {
    fn through_relay(&self, next_port: &mut u16) -> Result<(Self, SocketAddr)> {
        let mut one = || free_port(next_port);
        let (address, spares, admin) = (one()?, [one()?, one()?], one()?);
        Ok((Self { address, spares, admin, ..self.clone() }, admin))
    }

    fn configuration(installed: &InstalledTarget, inputs: &ConfigInputs<'_, Self>) -> Result<String> {
        ensure!(
            installed.target == Target::Tollgate,
            "{} cannot be configured with an accept strategy",
            installed.target.name()
        );
        Ok(inputs.listen.text(inputs, None))
    }

    fn is_forwarding(&self) -> Result<bool> {
        Ok(has_response(self.address).is_ok())
    }
}

/// Whether a reply came back: both a reply and an echo are longer than a byte.
fn has_response(address: SocketAddr) -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, PROBE_TIMEOUT)?;
    stream.set_read_timeout(Some(PROBE_TIMEOUT))?;
    stream.write_all(&[b'?'; REQUEST_BYTES])?;
    stream.read_exact(&mut [0])
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn configuration_has_strategy_threads_and_one_spare() {
        let end = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let upstream = GatewayListeners::before(end(22_000), Strategy::Mutex);
        let (address, spares, admin) = (end(21_000), [end(21_001), end(21_002)], end(21_003));
        let listeners = GatewayListeners { address, spares, admin, ..upstream.clone() };
        let directory = Path::new("/tmp/lab");
        let inputs = ConfigInputs { listen: &listeners, upstream: &upstream, admin, threads: 24, directory };
        let check = |spare, ports: &[u16]| {
            let text = listeners.text(&inputs, spare);
            for line in ["strategy = \"mutex\"\n", "reactors = 24\n", "to = \"127.0.0.1:22000\"\n"] {
                assert!(text.contains(line), "{line:?} is missing from:\n{text}");
            }
            let listeners: Vec<String> =
                ports.iter().map(|port| format!("address = \"127.0.0.1:{port}\"\nkind")).collect();
            assert_eq!(text.matches("[[listener]]").count(), listeners.len());
            assert!(listeners.iter().all(|listener| text.contains(listener)), "{text}");
        };
        check(None, &[21_000]);
        check(Some(0), &[21_000, 21_001]);
        check(Some(1), &[21_000, 21_002]);
        let compared = GatewayListeners { strategy: Strategy::Shared, ..listeners.clone() };
        assert!(compared.text(&inputs, None).contains("strategy = \"lab:shared\"\n"));
    }
}
