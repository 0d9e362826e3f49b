//! The lab: proves the engine's claims beside the naive ways and the rivals. One command per experiment;
//! each prints a short table, writes JSON and a page with plots on request, and says what it could not
//! decide. Leaves to others: what the figures mean for a reader (`docs/performance.md`).

#![forbid(unsafe_code)]

mod experiments;
mod kit;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

use crate::experiments::{accept, inserts, overload, pipeline, relay, timers};
use crate::kit::options::Output;
use crate::kit::report::Report;
use crate::kit::verdict::Outcome;
use crate::kit::{child, load_process, report};

/// Proves the engine's claims beside the naive ways and the rivals
///
/// Exits with 0 when no promise was found broken, with 1 when one was or the experiment failed, with 130 when
/// interrupted.
#[derive(Parser, Debug)]
#[command(name = "lab", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Tollgate beside HAProxy, nginx and six forward proxies: short connections, streams, idle tunnels,
    /// small messages, tunnels by CONNECT and SOCKS5, plain requests
    Relay(relay::Options),
    /// One record at a time beside CPU hogs: the ledger, SQLite, PostgreSQL, and locks around a last page
    Inserts(inserts::Options),
    /// Half to three times of what the CPUs can do, with jobs that never return: the job pool beside the
    /// usual one
    Overload(overload::Options),
    /// 100,000 requests that compute and wait: one thread, a thread each, batches, pools, timers
    Pipeline(pipeline::Options),
    /// A connection for each request, by threads that share an address in five ways: the herd, turns, and
    /// what is better
    Accept(accept::Options),
    /// Deadlines that are set and nearly always cancelled: the engine's timers beside six other ways
    Timers(timers::Options),
    /// A process of the load, at the word of another lab
    #[command(hide = true)]
    LoadProcess,
    /// Does the pipeline's requests once, when told
    #[command(hide = true)]
    Trial(pipeline::Trial),
    /// Creates threads without end, when told
    #[command(hide = true)]
    CreateThreads(pipeline::CreateThreads),
    /// Keeps deadlines in one way
    #[command(hide = true)]
    TimerTask(timers::TaskArguments),
    /// Calls and answers over loopback
    #[command(hide = true)]
    Echo(timers::Echo),
    /// Answers one request on each connection, by threads that share an address
    #[command(hide = true)]
    AcceptServer(accept::AcceptServer),
    /// Opens, counts and closes flows, to be counted itself
    #[command(hide = true)]
    LedgerFlows(relay::LedgerFlows),
    /// Computes without end
    #[command(hide = true)]
    Hog(inserts::Hog),
    /// Becomes another program, on terms
    #[command(hide = true)]
    Launch(child::Launch),
}

/// What a shell reports for a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    match run(&Arguments::parse().command) {
        Ok(code) => code,
        Err(_) if child::interrupted() => {
            eprintln!("lab: interrupted");
            ExitCode::from(INTERRUPTED)
        }
        Err(error) => {
            eprintln!("lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> Result<ExitCode> {
    match command {
        Command::Relay(options) => publish(|| relay::run(options), &options.common.output),
        Command::Inserts(options) => publish(|| inserts::run(options), &options.common.output),
        Command::Overload(options) => publish(|| overload::run(options), &options.common.output),
        Command::Pipeline(options) => publish(|| pipeline::run(options), &options.common.output),
        Command::Timers(options) => publish(|| timers::run(options), &options.common.output),
        Command::Accept(options) => publish(|| accept::run(options), &options.common.output),
        Command::AcceptServer(settings) => accept::serve_requests(settings).map(|()| ExitCode::SUCCESS),
        Command::TimerTask(settings) => timers::run_task(settings).map(|()| ExitCode::SUCCESS),
        Command::Echo(settings) => timers::echo(settings).map(|()| ExitCode::SUCCESS),
        Command::Trial(trial) => pipeline::run_trial(trial).map(|()| ExitCode::SUCCESS),
        Command::CreateThreads(arguments) => pipeline::create_threads(arguments).map(|()| ExitCode::SUCCESS),
        Command::LedgerFlows(settings) => relay::run_flows(settings).map(|()| ExitCode::SUCCESS),
        Command::Hog(settings) => inserts::spin(settings).map(|()| ExitCode::SUCCESS),
        Command::LoadProcess => load_process::serve_commands().map(|()| ExitCode::SUCCESS),
        Command::Launch(settings) => child::launch(settings).map(|()| ExitCode::SUCCESS),
    }
}

/// Runs an experiment, and writes its report wherever it is wanted.
fn publish(run: impl FnOnce() -> Result<Report>, output: &Output) -> Result<ExitCode> {
    child::stop_children_on_signals()?;
    child::raise_descriptor_limit();
    let report = &run()?;
    print!("{}", report::print(report));
    if let Some(file) = &output.json {
        let document = serde_json::to_string_pretty(&report::document(report))?;
        write(file, &(document + "\n"))?;
    }
    if let Some(file) = &output.html {
        write(file, &report::page(report))?;
    }
    let is_broken = report.verdicts.iter().any(|verdict| verdict.outcome == Outcome::Fails);
    Ok(if is_broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("writing {}", file.display()))
}
