//! The system calls of a gateway while it serves many clients, as strace counts them.
//!
//! Guarantees: no other figure comes from a traced run.

use std::path::Path;

use anyhow::{Result, ensure};

use super::gateway::Gateway;
use super::losses::Losses;
use crate::kit::load_process::{LoadCommand, LoadProcess};
use crate::kit::strace::{self, SyscallCounts, Tracer};

/// Connections of a traced run; with more it would take minutes.
pub(super) const CONNECTIONS_MAX: u32 = 2_000;

/// The calls of the gateway while the load lasts.
///
/// # Errors
/// strace may not trace the gateway, or the load failed.
pub(super) fn count(
    gateway: &Gateway,
    client: &mut LoadProcess,
    load: &LoadCommand,
    directory: &Path,
    losses: &mut Losses,
) -> Result<SyscallCounts> {
    let file = directory.join(format!("{}.calls", gateway.strategy.name()));
    let tracer = Tracer::attach(&gateway.running.processes(), &["-c"], &file)?;
    let answer = client.call(load);
    let file = tracer.stop();
    let answer = answer?;
    losses.record(&format!("traced/{}", gateway.strategy.name()), &answer);
    let calls = strace::read_counts(&file)?;
    ensure!(!calls.is_empty(), "strace counted no call");
    Ok(calls)
}
