//! iperf3's server, the receiver of a measured stream; it serves one client at a time.

use std::process::Command;

use anyhow::Result;

use super::{Endpoints, Instance, daemon::Daemon};

/// The command alone: the server needs no files.
pub(super) fn prepare(instance: &Instance) -> Result<Daemon> {
    let mut command = Command::new("iperf3");
    command.args(["--server", "--bind", "127.0.0.1", "--port", &instance.port.to_string()]);
    Ok(Daemon::new(command))
}

/// The port.
pub(super) fn endpoints(instance: &Instance) -> Result<Endpoints> {
    Ok(vec![("IPERF_PORT", instance.port.to_string())])
}
