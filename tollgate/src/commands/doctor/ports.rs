//! Listening ports that the kernel may give to an outgoing connection first.
//!
//! Guarantees: JSON and text have the same facts.

use gateway::config::Config;
use serde_json::{Value, json};
use sys::limits::{LocalPorts, ProcRoot};

/// Listening ports in `ip_local_port_range` that no reservation protects.
pub(super) struct ListeningPorts {
    /// Ports at risk, in ascending order.
    pub(super) unreserved: Vec<u16>,
    /// `None` if the kernel's range cannot be read.
    pub(super) local: Option<LocalPorts>,
}

impl ListeningPorts {
    /// Filters `ports` by the ranges of the machine at `root`.
    pub(super) fn read(root: &ProcRoot, mut ports: Vec<u16>) -> ListeningPorts {
        let local = LocalPorts::read(root).ok();
        ports.sort_unstable();
        ports.dedup();
        // For port 0 the kernel chooses a free port.
        ports.retain(|port| *port != 0 && local.as_ref().is_some_and(|local| local.contains(*port)));
        ListeningPorts { unreserved: ports, local }
    }

    /// Sentences, and the command that reserves the ports.
    pub(super) fn finding(&self) -> Option<(String, String)> {
        let local = self.local.as_ref().filter(|_| !self.unreserved.is_empty())?;
        let ports: Vec<String> = self.unreserved.iter().map(u16::to_string).collect();
        let text = format!(
            "narrow: listening ports: {} in net.ipv4.ip_local_port_range ({}). An outgoing connection of \
             this machine may take one, and keeps it for a minute after its end (TIME_WAIT): then a start \
             fails with \"Address already in use\", though no process listens there.",
            ports.join(", "),
            local.range()
        );
        Some((text, local.reservation(&self.unreserved)))
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "unreserved": self.unreserved,
            "range": self.local.as_ref().map(LocalPorts::range),
            "command": self.finding().map(|(_, command)| command),
        })
    }
}

/// The ports that `config` listens on.
pub(super) fn listening_ports(config: &Config) -> Vec<u16> {
    let listeners = config.listeners.iter().map(|listener| listener.address);
    listeners.chain([config.admin.address]).map(|address| address.port()).collect()
}
