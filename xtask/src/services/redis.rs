//! Redis, in memory only.

use std::process::Command;

use anyhow::Result;

use super::{Endpoints, Place, daemon::Daemon};

/// Needs no files: nothing is saved.
pub(super) fn prepare(place: &Place) -> Result<Daemon> {
    let mut command = Command::new("redis-server");
    command.args(["--bind", "127.0.0.1", "--port", &place.port.to_string(), "--dir", &place.path("")]);
    command.args(["--save", "", "--appendonly", "no", "--daemonize", "no"]);
    Ok(Daemon::new(command))
}

/// Its port is all.
pub(super) fn endpoints(place: &Place) -> Result<Endpoints> {
    Ok(vec![("REDIS_PORT", place.port.to_string())])
}
