//! iperf3's server: the other end of a measured stream, one at a time.

use std::process::Command;

use anyhow::Result;

use super::{Endpoints, Instance, daemon::Daemon};

/// Needs no files.
pub(super) fn prepare(instance: &Instance) -> Result<Daemon> {
    let mut command = Command::new("iperf3");
    command.args(["--server", "--bind", "127.0.0.1", "--port", &instance.port.to_string()]);
    Ok(Daemon::new(command))
}

/// Its port is all.
pub(super) fn endpoints(instance: &Instance) -> Result<Endpoints> {
    Ok(vec![("IPERF_PORT", instance.port.to_string())])
}
