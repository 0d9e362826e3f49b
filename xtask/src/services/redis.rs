//! Redis, in memory only.

use std::process::Command;

use anyhow::Result;

use super::{Endpoints, Instance, daemon::Daemon};

/// Needs no files: nothing is saved.
pub(super) fn prepare(instance: &Instance) -> Result<Daemon> {
    let mut command = Command::new("redis-server");
    command.args(["--bind", "127.0.0.1", "--port", &instance.port.to_string(), "--dir", &instance.path("")]);
    command.args(["--save", "", "--appendonly", "no", "--daemonize", "no"]);
    Ok(Daemon::new(command))
}

/// Its port is all.
pub(super) fn endpoints(instance: &Instance) -> Result<Endpoints> {
    Ok(vec![("REDIS_PORT", instance.port.to_string())])
}
