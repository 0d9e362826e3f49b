//! Redis without persistence.

use std::process::Command;

use anyhow::Result;

use super::{Endpoints, Instance, daemon::Daemon};

/// The command alone: without persistence the server needs no files.
pub(super) fn prepare(instance: &Instance) -> Result<Daemon> {
    let mut command = Command::new("redis-server");
    command.args(["--bind", "127.0.0.1", "--port", &instance.port.to_string(), "--dir", &instance.path("")]);
    command.args(["--save", "", "--appendonly", "no", "--daemonize", "no"]);
    Ok(Daemon::new(command))
}

/// The port.
pub(super) fn endpoints(instance: &Instance) -> Result<Endpoints> {
    Ok(vec![("REDIS_PORT", instance.port.to_string())])
}
