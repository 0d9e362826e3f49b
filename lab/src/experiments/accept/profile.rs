//! Samples a gateway's stacks with perf while it serves the crowd.
//!
//! Guarantees: no other figure comes from a sampled run.

use std::path::Path;

use anyhow::{Context, Result};

use super::gateway::Gateway;
use super::losses::Losses;
use crate::kit::load_process::{LoadCommand, LoadProcess};
use crate::kit::stacks::{Profile, SampleScope};

/// The gateway's stacks while the load lasts.
///
/// # Errors
/// perf may not sample the gateway, or the load failed.
pub(super) fn sample(
    gateway: &Gateway,
    client: &mut LoadProcess,
    load: &LoadCommand,
    directory: &Path,
    losses: &mut Losses,
    scope: SampleScope,
) -> Result<Profile> {
    let name = gateway.strategy.name();
    let process = gateway.running.processes().first().copied().context("a running gateway has a process")?;
    Profile::sample_running(name.to_owned(), scope, directory, u32::try_from(process)?, || {
        losses.record(&format!("sampled/{name}"), &client.call(load)?);
        Ok(())
    })
}
