//! `tollgate reload`: reloads the configuration of one running gateway, and prints the outcome.
//!
//! Guarantees: the gateway is found by the directory of its ledger, so no other process receives the request.
//! It has decided when the command ends; with exit code 0 the new configuration is in force.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::{Context, print};
use crate::control;

#[derive(Args)]
pub(crate) struct Options {
    /// The directory of the gateway's ledger; by default that of the configuration, which is validated first.
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
