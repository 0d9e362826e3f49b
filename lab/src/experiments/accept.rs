//! `lab accept`: how the connections of one address reach threads, by five accept strategies. Through the
//! built gateway: 500 clients with a new connection for each request, the same at light load, connections
//! that stay, and many clients while listeners are added and removed. On a server of the lab's own: one busy
//! thread. Then the system calls and the CPU time of the herd and of the default.
//!
//! Guarantees: the strategies do the same work in the same minutes, in rounds; each connection that fails, in
//! any part, counts.
//!
//! ```text
//!   client process --> gateway (strategy, threads) --> server process   crowd, light, long-lived, reload
//!   client process --> lab accept-server (strategy, threads, one of them busy)                      busy
//! ```

mod background;
mod busy;
mod counts;
mod cpu_shares;
mod gateway;
mod listeners;
mod long_lived;
mod losses;
mod plan;
mod presentation;
mod profile;
mod server;
mod short;
mod strategy;
mod syscalls;
mod verdicts;

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result};
use tempfile::TempDir;

use self::gateway::Gateway;
use self::losses::Losses;
pub(crate) use self::plan::Options;
use self::plan::{Effort, Part, inspected_strategies};
pub(crate) use self::presentation::PRESENTATION;
pub(crate) use self::server::{AcceptServer, serve_requests};
use self::strategy::Strategy;
use crate::kit::child::{self, ChildSettings};
use crate::kit::flame;
use crate::kit::load::Role;
use crate::kit::load_process::{LoadCommand, LoadProcess};
use crate::kit::machine;
use crate::kit::measurements::{Numbers, Skipped};
use crate::kit::progress::Progress;
use crate::kit::relays::installed::{self, InstalledTarget};
use crate::kit::relays::ports;
use crate::kit::relays::target::Target;
use crate::kit::report::Report;
use crate::kit::rounds::{Outcome, RoundTarget, Rounds};
use crate::kit::stacks::{Profile, SampleScope};
use crate::kit::strace;

/// Disturbed rounds that are repeated, in each case.
const EXTRA_ROUNDS_MAX: usize = 2;

/// Threads in the parts other than the crowd: the herd of the published figures.
const WORKERS: u32 = 8;

/// Clients at a time in the crowd.
const CONCURRENCY: u32 = 500;

/// Connections per second at light load: each finds every thread asleep.
const LIGHT_PER_S: u32 = 200;

/// Connections per second beside the busy thread. Where a hash distributes them, an eighth are its own, with
/// some three events each, so that it is busy for a fifth of its time: slow, and not overloaded.
const BUSY_PER_S: u32 = 1_000;

/// Connections through a gateway before it is measured: its pages are mapped, its threads have slept.
const WARM_UP: u32 = 200;

/// The names of the report's parts, in front of the number of threads.
const CROWD: &str = "crowd";
const LIGHT: &str = "light";
const LONG_LIVED: &str = "long-lived";
const RELOAD: &str = "reload";
const BUSY: &str = "busy";

/// Runs the experiment.
///
/// # Errors
/// The lab itself could not work, a part needs the gateway and it is missing, or the user interrupted; a
/// strategy that fails is left out of the report instead.
pub(crate) fn run(options: &Options) -> Result<Report> {
    let mut machine = machine::facts();
    let cpus = machine::allowed_cpus().len() as u32;
    let parts = options.common.parts();
    let without: &[Target] = if parts == [Part::Busy] { &[Target::Tollgate] } else { &[] };
    let (candidates, _) = installed::find(&[Target::Tollgate], options.tollgate.as_deref(), without)?;
    let installed = candidates.into_iter().next();
    machine.extend(installed.iter().map(|it| ("tollgate_version".to_owned(), it.version.clone().into())));
    let is_taken = |one: &Strategy| options.strategies.is_empty() || options.strategies.contains(one);
    let strategies: Vec<Strategy> = Strategy::ALL.into_iter().filter(is_taken).collect();
    let effort = Effort::of(options, cpus);
    let cases = plan::cases(&parts, &effort);
    let progress = Progress::new(plan::steps(&cases, &strategies, &effort));
    let mut bench = Bench {
        warnings: warnings(options, installed.as_ref()),
        installed,
        strategies,
        effort,
        progress,
        directory: TempDir::with_prefix("lab-").context("creating a temporary directory")?,
        next_port: ports::first_port(),
        load: LoadProcesses::start()?,
        losses: Losses::default(),
    };
    let mut outcome = Outcome::default();
    for (part, workers) in cases {
        outcome.merge(bench.case(part, workers)?);
    }
    if let (Some(file), true) = (&options.flame, bench.installed.is_some()) {
        bench.progress.expect_more(inspected_strategies(&bench.strategies).len() as u64);
        outcome.merge(bench.flame(file)?);
    }
    bench.progress.finish();
    let mut report = Report {
        rows: outcome.rows,
        skipped: outcome.failed,
        warnings: bench.warnings,
        ..Report::new(&PRESENTATION, machine)
    };
    verdicts::judge(&mut report, &bench.losses, cpus);
    report.mark_undecided();
    Ok(report)
}

/// Reasons why every figure of this run is weak.
fn warnings(options: &Options, installed: Option<&InstalledTarget>) -> Vec<String> {
    let unoptimised = installed.filter(|it| it.is_unoptimised());
    let unoptimised = unoptimised.map(|_| "tollgate is a build without optimisation".to_owned());
    options.common.warnings().into_iter().chain(unoptimised).collect()
}

/// A part's name with its number of threads, and the lifetime that reports need: the program's. There are a
/// few dozen.
fn named(family: &str, workers: u32) -> &'static str {
    String::leak(format!("{family}-{workers}"))
}

/// The load's processes; they end with it.
struct LoadProcesses {
    _server: LoadProcess,
    client: LoadProcess,
    reply: SocketAddr,
    echo: SocketAddr,
}

impl LoadProcesses {
    fn start() -> Result<Self> {
        let (mut server, client) =
            (LoadProcess::start(&ChildSettings::default())?, LoadProcess::start(&ChildSettings::default())?);
        let (reply, echo) = (server.serve(Role::Reply)?, server.serve(Role::Echo)?);
        Ok(Self { _server: server, client, reply, echo })
    }
}

/// What all parts share.
struct Bench {
    installed: Option<InstalledTarget>,
    strategies: Vec<Strategy>,
    effort: Effort,
    progress: Progress,
    directory: TempDir,
    next_port: u16,
    load: LoadProcesses,
    losses: Losses,
    warnings: Vec<String>,
}

impl Bench {
    fn case(&mut self, part: Part, workers: u32) -> Result<Outcome> {
        let effort = self.effort.clone();
        let wanted = effort.rounds((part, workers));
        let rounds = |family| Rounds {
            what: named(family, workers),
            wanted,
            extra_max: EXTRA_ROUNDS_MAX,
            watched: true,
        };
        match part {
            Part::Crowd => self.short(rounds(CROWD), workers, short::run, |to| effort.crowd(to)),
            Part::Reload => self.short(rounds(RELOAD), workers, short::run_reloading, |to| effort.crowd(to)),
            Part::Light => {
                let time = effort.light;
                let arrive = |to| LoadCommand::Arrive { to, rate_per_s: LIGHT_PER_S, time };
                self.short(rounds(LIGHT), workers, short::run, arrive)
            }
            Part::LongLived => self.long_lived(rounds(LONG_LIVED), workers),
            Part::Busy => self.busy(rounds(BUSY), workers),
            Part::Calls => self.calls(),
        }
    }

    /// Short connections through the gateways of all strategies.
    fn short(
        &mut self,
        rounds: Rounds,
        workers: u32,
        run: fn(&mut Gateway, &mut LoadProcess, &LoadCommand, &str, &mut Losses) -> Result<Numbers>,
        load: impl Fn(SocketAddr) -> LoadCommand,
    ) -> Result<Outcome> {
        let case = rounds.what;
        let (mut gateways, failed) =
            self.start_all(case, &self.strategies.clone(), workers, self.load.reply, warm_up_crowd)?;
        let (client, losses) = (&mut self.load.client, &mut self.losses);
        let outcome = rounds.run(&mut gateways, &self.progress, |gateway| {
            let load = load(gateway.running.endpoints.address);
            let of = format!("{case}/{}", gateway.strategy.name());
            Ok(vec![(case, run(gateway, client, &load, &of, losses)?)])
        })?;
        Ok(outcome.with_failed(failed))
    }

    fn long_lived(&mut self, rounds: Rounds, workers: u32) -> Result<Outcome> {
        let case = rounds.what;
        let warm_up = |to| LoadCommand::Hold { to, tunnels: WARM_UP };
        let (mut gateways, failed) =
            self.start_all(case, &self.strategies.clone(), workers, self.load.echo, warm_up)?;
        let (client, losses, tunnels) = (&mut self.load.client, &mut self.losses, self.effort.tunnels);
        let outcome = rounds.run(&mut gateways, &self.progress, |gateway| {
            let of = format!("{case}/{}", gateway.strategy.name());
            Ok(vec![(case, long_lived::run(gateway, client, tunnels, &of, losses)?)])
        })?;
        Ok(outcome.with_failed(failed))
    }

    fn busy(&mut self, rounds: Rounds, workers: u32) -> Result<Outcome> {
        let case = rounds.what;
        let mut started = Outcome::default();
        let mut servers = Vec::new();
        for &strategy in &self.strategies {
            match busy::BusyServer::start(strategy, workers as usize) {
                Ok(server) => servers.push(server),
                Err(error) => started.fail(case, strategy.name(), &error),
            }
            child::fail_if_interrupted()?;
        }
        let (client, losses, time) = (&mut self.load.client, &mut self.losses, self.effort.busy);
        let outcome = rounds.run(&mut servers, &self.progress, |server| {
            let load = LoadCommand::Arrive { to: server.address, rate_per_s: BUSY_PER_S, time };
            let of = format!("{case}/{}", server.name());
            Ok(vec![(case, busy::run(server, client, &load, &of, losses)?)])
        })?;
        Ok(outcome.with_failed(started.failed))
    }

    fn calls(&mut self) -> Result<Outcome> {
        const WHAT: &str = "system calls";
        if !strace::is_installed() {
            return Ok(impossible(WHAT, "strace is not installed".to_owned()));
        }
        let connections = self.effort.connections.min(syscalls::CONNECTIONS_MAX);
        let (counted, mut outcome) = self.inspect(WHAT, connections, syscalls::count)?;
        outcome.rows.extend(strace::rows(&counted));
        Ok(outcome)
    }

    fn flame(&mut self, file: &Path) -> Result<Outcome> {
        const WHAT: &str = "flame graph and shares of CPU time";
        let scope = match SampleScope::permitted(self.directory.path()) {
            Ok(scope) => scope,
            Err(error) => return Ok(impossible(WHAT, format!("{error:#}"))),
        };
        let sample = |gateway: &Gateway,
                      client: &mut LoadProcess,
                      load: &LoadCommand,
                      directory: &Path,
                      losses: &mut Losses| {
            profile::sample(gateway, client, load, directory, losses, scope)
        };
        let (profiles, mut outcome) = self.inspect(WHAT, self.effort.connections, sample)?;
        let profiles: Vec<Profile> = profiles.into_iter().map(|profile| profile.1).collect();
        outcome.rows.extend(profiles.iter().map(cpu_shares::row));
        fs::write(file, flame::svg(&cpu_shares::PALETTE, &profiles))
            .with_context(|| format!("writing {}", file.display()))?;
        Ok(outcome)
    }

    /// Measures the herd and the default under load, each by `look`, which may use a directory for files.
    fn inspect<Found>(
        &mut self,
        what: &str,
        connections: u32,
        inspect: impl Fn(&Gateway, &mut LoadProcess, &LoadCommand, &Path, &mut Losses) -> Result<Found>,
    ) -> Result<(Vec<(String, Found)>, Outcome)> {
        let strategies = inspected_strategies(&self.strategies);
        let (gateways, failed) =
            self.start_all(what, &strategies, WORKERS, self.load.reply, warm_up_crowd)?;
        let (mut outcome, mut found) = (Outcome::default().with_failed(failed), Vec::new());
        for gateway in &gateways {
            self.progress.begin(format!("{what}, {}", gateway.name()));
            let to = gateway.running.endpoints.address;
            let load = LoadCommand::Short { tunnel: to.into(), connections, concurrency: CONCURRENCY };
            let (client, directory) = (&mut self.load.client, self.directory.path());
            match inspect(gateway, client, &load, directory, &mut self.losses) {
                Ok(one) => found.push((gateway.name().to_owned(), one)),
                // The measurement failed, and no gateway: `verdicts::lost` recognises a failed gateway by its
                // name.
                Err(error) => {
                    let name = format!("{what} of {}", gateway.name());
                    outcome.failed.push(Skipped { name, reason: format!("{error:#}") });
                }
            }
            child::fail_if_interrupted()?;
            self.progress.end();
        }
        Ok((found, outcome))
    }

    /// Starts the gateways of some strategies; one that does not start is skipped with its reason.
    fn start_all(
        &mut self,
        case: &str,
        strategies: &[Strategy],
        workers: u32,
        upstream: SocketAddr,
        warm_up: fn(SocketAddr) -> LoadCommand,
    ) -> Result<(Vec<Gateway>, Vec<Skipped>)> {
        let installed = self.installed.clone().context("every part but `busy` needs the gateway")?;
        let (mut gateways, mut failed) = (Vec::new(), Outcome::default());
        for &strategy in strategies {
            let directory = self.directory.path().join(format!("{case}-{}", strategy.name()));
            let next_port = &mut self.next_port;
            let started =
                Gateway::start(&installed, strategy, upstream, workers as usize, directory, next_port);
            let started = started.and_then(|gateway| {
                let work = warm_up(gateway.running.endpoints.address);
                gateway.warm_up(&mut self.load.client, &work, &mut self.losses)?;
                Ok(gateway)
            });
            match started {
                Ok(gateway) => gateways.push(gateway),
                Err(error) => {
                    child::fail_if_interrupted()?;
                    failed.fail(case, strategy.name(), &error);
                }
            }
        }
        Ok((gateways, failed.failed))
    }
}

fn impossible(what: &str, reason: String) -> Outcome {
    Outcome::default().with_failed(vec![Skipped { name: what.to_owned(), reason }])
}

fn warm_up_crowd(to: SocketAddr) -> LoadCommand {
    LoadCommand::Short { tunnel: to.into(), connections: WARM_UP, concurrency: WARM_UP / 4 }
}
