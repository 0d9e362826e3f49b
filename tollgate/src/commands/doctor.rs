//! `tollgate doctor`: whether this machine carries the configured load, and which limit is met first.
//!
//! Guarantees: every limit has its available and needed amount and a remedy; exit code 1 if the load is not
//! carried.
//!
//! ```text
//!   load.rs     what the configuration needs   finding.rs  judges limits, and orders them
//!   remedy.rs   errors and commands            report.rs   text and JSON
//!   ports.rs    listening ports at risk        space.rs    space for the live table
//!   cpus.rs     CPUs, quota, losses            probe.rs    measures two siblings on a core
//! ```

use std::process::ExitCode;

use clap::Args;
use gateway::config::Config;
use gateway::server::ledger_settings;
use sys::limits::{self, ProcRoot, ThreadBudget};

use super::{Context, print, print_json};
use cpus::Cpus;
use load::Load;
use ports::ListeningPorts;
use report::MachineReport;
use space::LiveTableSpace;

mod cpus;
mod finding;
mod load;
mod ports;
mod probe;
mod remedy;
mod report;
mod space;
#[cfg(test)]
mod tests;

#[derive(Args)]
pub(crate) struct Options {
    /// Print for a program.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(context: &Context, options: &Options) -> anyhow::Result<ExitCode> {
    let config = context.load()?;
    let load = Load::from_config(&config);
    let root = ProcRoot::machine();
    // Before Tollgate starts threads, which would be counted as those of other processes.
    let readings = limits::read_all(&root);
    let footprint = limits::footprint();
    let mut cpus = Cpus::read(&root);
    cpus.siblings = probe::measure_smt_scaling(&cpus.cores);
    let report = MachineReport {
        load,
        findings: finding::examine(&load, &readings, footprint),
        footprint,
        budget: ThreadBudget::from_values(readings.iter(), footprint),
        space: LiveTableSpace::read(&ledger_settings(&config, load.reactors as usize)),
        ports: ListeningPorts::read(&root, ports::listening_ports(&config)),
        cpus,
    };
    if options.json {
        print_json(&report.json())?;
    } else {
        print(&report.text())?;
    }
    Ok(if report.is_carried() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The limit that `config` meets first on this machine, in one line. Takes some milliseconds.
pub(crate) fn first_limit_line(config: &Config) -> String {
    let load = Load::from_config(config);
    let readings = limits::read_all_quickly(&ProcRoot::machine());
    report::first_limit_line(&load, &finding::examine(&load, &readings, limits::footprint()))
}
