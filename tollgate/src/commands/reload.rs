//! `tollgate reload`: has one running gateway take up its configuration, and tells what became of it.
//!
//! Guarantees: the gateway is found by the directory of its ledger, so that no other process is meant; it has
//! decided when the command ends; exit code 0 means that the new configuration is in force. Leaves out:
//! what a reload does (`gateway::server::reload`).

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::{Context, print};
use crate::control;

#[derive(Args)]
pub(crate) struct Options {
    /// The directory of the gateway's ledger; without it that of the configuration, which is checked first.
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

pub(crate) fn run(context: &Context, options: Options) -> anyhow::Result<ExitCode> {
    let directory = match options.directory {
        Some(directory) => directory,
        None => context.load()?.ledger.directory,
    };
    let outcome = control::request_reload(&std::path::absolute(directory)?)?;
    if outcome.is_done {
        print(&outcome.text)?;
        return Ok(ExitCode::SUCCESS);
    }
    anyhow::bail!("reload refused, the old configuration stays:\n{}", outcome.text)
}
