//! The lab: measures the engine's claims beside naive designs and rival programs. Each experiment is a
//! command; it prints a short table, writes JSON, a page and a plot on request, and reports what it could not
//! decide.

#![forbid(unsafe_code)]

mod experiments;
mod kit;
#[cfg(test)]
mod quotes;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand, ValueEnum};
use serde_json::Value;

use crate::experiments::{accept, inserts, overload, pipeline, quota, relay, timers};
use crate::kit::options::{CommonOptions, Drawings};
use crate::kit::presentation::Presentation;
use crate::kit::relays::bare;
use crate::kit::relays::bare::quota::BareQuota;
use crate::kit::relays::bare::relay::BareRelay;
use crate::kit::relays::bare::splice::BareSplice;
use crate::kit::report::Report;
use crate::kit::verdict::Outcome;
use crate::kit::{child, load_process, report};

/// Measures the engine's claims beside naive designs and rival programs
///
/// Exits with 0 when no verdict fails, with 1 when one does or the experiment failed, with 130 when
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
    ///
    /// 15 rounds of short connections, 21 of limits and 5 of the other parts: 14 minutes on two CPUs. With
    /// --long 15, 31 and 7 rounds.
    Relay(relay::Options),
    /// One record at a time beside CPU hogs: the ledger, SQLite, PostgreSQL, and locks around a last page
    ///
    /// 5 rounds: a quarter of an hour. With --long 7 rounds of every combination: hours.
    Inserts(inserts::Options),
    /// Half to three times the load that the CPUs can do, with jobs that never return: the job pool beside a
    /// fixed pool
    ///
    /// 5 rounds: three minutes. With --long 11 rounds: a quarter of an hour.
    Overload(overload::Options),
    /// 100,000 requests that compute and wait: one thread, a thread each, batches, pools, timers
    ///
    /// 5 rounds: five minutes. With --long 11 rounds: twenty minutes.
    Pipeline(pipeline::Options),
    /// 64 tunnels that use up one quota, beside 3proxy and a naive check; and how exactly a rate is kept,
    /// from 64 kbit/s to 10 Gbit/s
    ///
    /// 5 rounds, of the CPU time at a cap 11: eight minutes. With --long 15 rounds: half an hour.
    Quota(quota::Options),
    /// A connection for each request, distributed among threads by five accept strategies
    ///
    /// 15 rounds of the case that judges the default and 5 of the others: ten minutes. With --long 15 and 7
    /// rounds: half an hour.
    Accept(accept::Options),
    /// Deadlines that are set and nearly always cancelled: the engine's timers beside six other designs
    ///
    /// 9 rounds: four minutes. With --long 15 rounds: twenty minutes.
    Timers(timers::Options),
    /// Draws the page or the main plot of a stored run again, without measuring
    Plot(Plot),
    /// Relays, and does nothing else
    #[command(hide = true)]
    BareRelay(BareRelay),
    /// Relays by splicing alone
    #[command(hide = true)]
    BareSplice(BareSplice),
    /// Relays by splicing, and checks a limit when a connection begins
    #[command(hide = true)]
    BareQuota(BareQuota),
    /// Generates load at the command of another lab
    #[command(hide = true)]
    LoadProcess,
    /// Does the pipeline's requests once, on command
    #[command(hide = true)]
    Trial(pipeline::Trial),
    /// Creates threads without end, on command
    #[command(hide = true)]
    CreateThreads(pipeline::CreateThreads),
    /// Arms and cancels timers of one implementation
    #[command(hide = true)]
    TimerTask(timers::TaskArguments),
    /// Calls and answers over loopback
    #[command(hide = true)]
    Echo(timers::Echo),
    /// Answers one request on each connection, by threads that share an address
    #[command(hide = true)]
    AcceptServer(accept::AcceptServer),
    /// Opens, counts and closes flows, whose instructions are counted
    #[command(hide = true)]
    LedgerFlows(relay::LedgerFlows),
    /// Computes without end
    #[command(hide = true)]
    Hog(inserts::Hog),
    /// Executes another program with given CPUs and priority
    #[command(hide = true)]
    Launch(child::Launch),
}

/// The arguments of `lab plot`.
#[derive(clap::Args, Debug)]
struct Plot {
    /// The file that `--json` of an experiment wrote
    run: PathBuf,
    #[command(flatten)]
    drawings: Drawings,
}

/// The exit status that a shell reports for a program ended by Ctrl-C.
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
        Command::Relay(options) => publish(&relay::PRESENTATION, &options.common, || relay::run(options)),
        Command::Inserts(options) => {
            publish(&inserts::PRESENTATION, &options.common, || inserts::run(options))
        }
        Command::Overload(options) => {
            publish(&overload::PRESENTATION, &options.common, || overload::run(options))
        }
        Command::Pipeline(options) => {
            publish(&pipeline::PRESENTATION, &options.common, || pipeline::run(options))
        }
        Command::Quota(options) => publish(&quota::PRESENTATION, &options.common, || quota::run(options)),
        Command::Timers(options) => publish(&timers::PRESENTATION, &options.common, || timers::run(options)),
        Command::Accept(options) => publish(&accept::PRESENTATION, &options.common, || accept::run(options)),
        Command::Plot(plot) => redraw(plot).map(|()| ExitCode::SUCCESS),
        Command::AcceptServer(settings) => accept::serve_requests(settings).map(|()| ExitCode::SUCCESS),
        Command::TimerTask(settings) => timers::run_task(settings).map(|()| ExitCode::SUCCESS),
        Command::Echo(settings) => timers::echo(settings).map(|()| ExitCode::SUCCESS),
        Command::Trial(trial) => pipeline::run_trial(trial).map(|()| ExitCode::SUCCESS),
        Command::CreateThreads(arguments) => pipeline::create_threads(arguments).map(|()| ExitCode::SUCCESS),
        Command::LedgerFlows(settings) => relay::run_flows(settings).map(|()| ExitCode::SUCCESS),
        Command::Hog(settings) => inserts::spin(settings).map(|()| ExitCode::SUCCESS),
        Command::BareRelay(settings) => bare::relay::relay(settings).map(|()| ExitCode::SUCCESS),
        Command::BareSplice(settings) => bare::splice::relay(settings).map(|()| ExitCode::SUCCESS),
        Command::BareQuota(settings) => bare::quota::relay(settings).map(|()| ExitCode::SUCCESS),
        Command::LoadProcess => load_process::serve_commands().map(|()| ExitCode::SUCCESS),
        Command::Launch(settings) => child::launch(settings).map(|()| ExitCode::SUCCESS),
    }
}

/// Runs an experiment, and writes its report to each requested file.
fn publish<Part: ValueEnum + PartialEq + Send + Sync + 'static>(
    presentation: &Presentation,
    options: &CommonOptions<Part>,
    run: impl FnOnce() -> Result<Report>,
) -> Result<ExitCode> {
    options.check_svg(presentation)?;
    child::stop_children_on_signals()?;
    child::raise_descriptor_limit();
    let report = &run()?;
    print!("{}", report::print(report));
    if let Some(file) = &options.json {
        let document = serde_json::to_string_pretty(&report::document(report))?;
        write(file, &(document + "\n"))?;
    }
    draw(report, &options.drawings)?;
    let is_broken = report.verdicts.iter().any(|verdict| verdict.outcome == Outcome::Fails);
    Ok(if is_broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Draws the files of a stored run.
fn redraw(plot: &Plot) -> Result<()> {
    let Plot { run, drawings } = plot;
    ensure!(drawings.html.is_some() || drawings.svg.is_some(), "name a file to draw by `--svg` or `--html`");
    let reading = || format!("reading {}", run.display());
    let document = fs::read_to_string(run).with_context(reading)?;
    let document: Value = serde_json::from_str(&document).with_context(reading)?;
    let experiment = document["experiment"].as_str().unwrap_or_default();
    let presentation = experiments::presentation(experiment);
    let presentation = presentation.context("it names no experiment of the lab").with_context(reading)?;
    draw(&report::read(&document, presentation).with_context(reading)?, drawings)
}

fn draw(report: &Report, drawings: &Drawings) -> Result<()> {
    if let Some(file) = &drawings.html {
        write(file, &report::page(report))?;
    }
    if let Some(file) = &drawings.svg {
        let figure = report.figure().context("the run has not measured what its main plot shows")?;
        write(file, &figure.file())?;
    }
    Ok(())
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("writing {}", file.display()))
}
