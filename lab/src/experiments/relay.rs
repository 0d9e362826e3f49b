//! `lab relay`: Tollgate beside other relays and forward proxies, and beside a direct connection, on the same
//! work in the same minutes: short connections, bulk streams each way, idle tunnels, small messages, short
//! connections beside open tunnels, tunnels by CONNECT and by SOCKS5, plain HTTP requests; and the cost of
//! its accounting.
//!
//! Guarantees: everything stays on loopback, is bounded in count and time, and leaves no file or process.
//!
//! ```text
//!   client process --> relay (Tollgate | HAProxy | Squid | Dante | ... | none) --> server processes
//!                        |  CPU, memory, log lines: read from /proc and its files by the lab
//! ```

mod accounting;
mod billing;
mod bulk;
mod configuration;
mod endpoints;
mod forward;
mod idle;
mod idle_scaling;
mod limits;
mod pingpong;
mod plan;
mod presentation;
mod requests;
mod route;
mod short;
mod spliced;
mod verdicts;

use std::path::Path;

use anyhow::{Context, Result};
use tempfile::TempDir;

pub(crate) use self::accounting::{LedgerFlows, run_flows};
use self::billing::Bill;
use self::endpoints::Endpoints;
use self::forward::{ForwardTunnels, ProtocolCases};
pub(crate) use self::plan::Options;
use self::plan::{Effort, IDLE_ROUNDS_MAX, Part};
pub(crate) use self::presentation::PRESENTATION;
use self::route::Route;
use crate::kit::child::{self, ChildSettings};
use crate::kit::kernel_setting;
use crate::kit::load::Persistence;
use crate::kit::load_process::LoadProcess;
use crate::kit::machine;
use crate::kit::measurements::{Numbers, Skipped};
use crate::kit::progress::Progress;
use crate::kit::relays::installed::{self, InstalledTarget};
use crate::kit::relays::ports;
use crate::kit::relays::running::{RunningRelay, StartSettings, Workload};
use crate::kit::relays::target::Target;
use crate::kit::report::Report;
use crate::kit::rounds::{Outcome, RoundTarget, Rounds};
use crate::kit::strace;

/// The congestion control of new sockets.
const CONGESTION_CONTROL: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// Disturbed rounds that are repeated, in each part.
const EXTRA_ROUNDS_MAX: usize = 2;

/// The higher priority of both ends of small messages, where it is allowed.
const INSTRUMENT_NICENESS: i32 = -10;

/// The bills of all parts.
const BILLS: [Bill; 5] =
    [short::BILL, forward::CONNECT.bill, forward::SOCKS5.bill, requests::KEPT.bill, requests::CLOSED.bill];

/// Runs the experiment.
///
/// # Errors
/// The lab itself could not work, the gateway is missing, or the user interrupted; a relay that fails is left
/// out of the report instead.
pub(crate) fn run(options: &Options) -> Result<Report> {
    let chosen = options.common.parts();
    let wanted =
        Target::ALL.into_iter().filter(|target| chosen.iter().any(|part| part.targets().contains(target)));
    let wanted: Vec<Target> = wanted.collect();
    let (candidates, skipped) = installed::find(&wanted, options.tollgate.as_deref(), &options.without)?;
    // BBR paces by timers, also on loopback, where that costs HAProxy and Tollgate more than to relay.
    let congestion_control = kernel_setting::hold(Path::new(CONGESTION_CONTROL), "cubic");
    let mut machine = machine::facts();
    machine.insert("tcp_congestion_control_before".to_owned(), congestion_control.before().into());
    for installed in candidates.iter().filter(|installed| !installed.version.is_empty()) {
        machine.insert(format!("{}_version", installed.target.name()), installed.version.clone().into());
    }
    let mut warnings = warnings(options, &candidates);
    warnings.extend(congestion_control.warning());
    let mut report = Report { skipped, warnings, ..Report::new(&PRESENTATION, machine) };
    let effort = Effort::of(options);
    let progress = Progress::new(plan::steps(&chosen, &candidates, &effort));
    let directory = TempDir::with_prefix("lab-").context("creating a temporary directory")?;
    let mut bench = Bench { candidates, effort, progress, directory, next_port: ports::first_port() };
    for part in chosen {
        let outcome = bench.part(part)?;
        report.rows.extend(outcome.rows);
        report.skipped.extend(outcome.failed);
    }
    bench.progress.finish();
    report.warnings.extend(billing::warning(&BILLS, &report.rows));
    verdicts::judge(&mut report);
    report.mark_undecided();
    Ok(report)
}

/// Reasons why every figure of this run is weak.
fn warnings(options: &Options, candidates: &[InstalledTarget]) -> Vec<String> {
    let mut warnings = options.common.warnings();
    if candidates.iter().any(InstalledTarget::is_unoptimised) {
        warnings.push("tollgate is a build without optimisation".to_owned());
    }
    warnings
}

/// Where small messages run: a relay on one CPU, the other load, and both ends of the messages.
fn message_settings() -> Result<[ChildSettings; 3]> {
    let cpus = machine::allowed_cpus();
    let (relay_cpu, others) = cpus.split_last().context("a process may use at least one CPU")?;
    let others = if others.is_empty() { cpus.clone() } else { others.to_vec() };
    let niceness = if machine::may_raise_priority() { INSTRUMENT_NICENESS } else { 0 };
    let relay = ChildSettings { cpus: vec![*relay_cpu], niceness: 0 };
    Ok([relay, ChildSettings { cpus: others.clone(), niceness: 0 }, ChildSettings { cpus: others, niceness }])
}

/// What all parts share.
struct Bench {
    candidates: Vec<InstalledTarget>,
    effort: Effort,
    progress: Progress,
    directory: TempDir,
    next_port: u16,
}

/// The load's processes; they end with it.
struct LoadProcesses {
    /// Replies, sources and sinks.
    server: LoadProcess,
    /// Only echoes, so it receives no further command once it serves.
    _echo: LoadProcess,
    client: LoadProcess,
    upstream: Endpoints,
}

impl LoadProcesses {
    fn start(settings: &ChildSettings, instrument: &ChildSettings) -> Result<Self> {
        let mut server = LoadProcess::start(settings)?;
        let mut echo = LoadProcess::start(instrument)?;
        let client = LoadProcess::start(settings)?;
        let upstream = Endpoints::serve(&mut server, &mut echo)?;
        Ok(Self { server, _echo: echo, client, upstream })
    }
}

/// A relay that is started for each run, and ends with the next one's start or its own drop.
struct RestartedRelay {
    installed: InstalledTarget,
    running: Option<RunningRelay<Endpoints>>,
}

impl RoundTarget for RestartedRelay {
    fn name(&self) -> &'static str {
        self.installed.target.name()
    }
}

impl Bench {
    fn part(&mut self, part: Part) -> Result<Outcome> {
        match part {
            Part::Short => self.short(),
            Part::Bulk => self.bulk(),
            Part::Idle => self.idle(),
            Part::Pingpong => self.pingpong(),
            Part::Growth => self.idle_scaling(),
            Part::Connect => self.tunnels(&forward::CONNECT),
            Part::Socks5 => self.tunnels(&forward::SOCKS5),
            Part::Requests => self.requests(),
            Part::Limits => self.limits(),
            Part::Accounting => self.accounting(),
        }
    }

    fn short(&mut self) -> Result<Outcome> {
        let mut load = LoadProcesses::start(&ChildSettings::default(), &ChildSettings::default())?;
        let cpus = machine::allowed_cpus().len();
        let (mut relays, failed) =
            self.start_all(short::TARGETS, &load.upstream, cpus, &ChildSettings::default())?;
        let effort = self.effort;
        let before = billing::settled_totals(&relays);
        let rounds = Rounds { wanted: effort.short_rounds, ..self.rounds("short connections") };
        let outcome = rounds.run(&mut relays, &self.progress, |relay| {
            let numbers = short::run(relay, &mut load.client, effort.connections, effort.concurrency)?;
            Ok(vec![(short::PART, numbers)])
        })?;
        let mut outcome = outcome.with_failed(failed);
        short::BILL.add(&mut outcome, before, &relays, effort.connections);
        Ok(outcome)
    }

    fn bulk(&mut self) -> Result<Outcome> {
        let mut load = LoadProcesses::start(&ChildSettings::default(), &ChildSettings::default())?;
        let cpus = machine::allowed_cpus().len();
        let (mut relays, mut failed) =
            self.start_all(bulk::TARGETS, &load.upstream, cpus, &ChildSettings::default())?;
        let effort = self.effort;
        let rounds = self.rounds("streams each way");
        let outcome = rounds.run(&mut relays, &self.progress, |relay| {
            bulk::run(relay, &mut load.client, &mut load.server, &bulk::CASES, effort.stream)
        })?;
        let traced = self.traced(relays, &mut load.client)?;
        failed.extend(traced.failed);
        let mut outcome = outcome.with_failed(failed);
        outcome.rows.extend(traced.rows);
        Ok(outcome)
    }

    /// One traced stream each way through each relay.
    fn traced(&mut self, relays: Vec<RunningRelay<Endpoints>>, client: &mut LoadProcess) -> Result<Outcome> {
        if !strace::is_installed() {
            let reason = "strace is not installed".to_owned();
            let skipped = Skipped { name: "counting spliced bytes by strace".to_owned(), reason };
            return Ok(Outcome::default().with_failed(vec![skipped]));
        }
        let mut relays: Vec<RunningRelay<Endpoints>> =
            relays.into_iter().filter(|relay| relay.target != Target::Direct).collect();
        self.progress.expect_more(relays.len() as u64);
        let rounds = Rounds { what: "a traced stream each way", wanted: 1, extra_max: 0, watched: false };
        let directory = self.directory.path();
        rounds.run(&mut relays, &self.progress, |relay| spliced::run(relay, client, directory))
    }

    fn idle(&mut self) -> Result<Outcome> {
        let mut load = LoadProcesses::start(&ChildSettings::default(), &ChildSettings::default())?;
        let takes_part = |target| target != Target::Direct && Endpoints::TARGETS.contains(&target);
        let relays = self.candidates.iter().filter(|installed| takes_part(installed.target));
        let mut relays: Vec<RestartedRelay> =
            relays.map(|installed| RestartedRelay { installed: installed.clone(), running: None }).collect();
        let wanted = self.effort.rounds.min(IDLE_ROUNDS_MAX);
        let rounds = Rounds { what: "idle tunnels", wanted, extra_max: 0, watched: false };
        let (directory, next_port) = (self.directory.path(), &mut self.next_port);
        let mut starts = 0;
        rounds.run(&mut relays, &self.progress, |relay| {
            starts += 1;
            let settings = StartSettings {
                upstream: &load.upstream,
                threads: machine::allowed_cpus().len(),
                settings: &ChildSettings::default(),
                directory: &directory.join(format!("idle-{starts}")),
            };
            let running = RunningRelay::start(&relay.installed, &settings, next_port)?;
            let running = relay.running.insert(running);
            let cases = idle::run(running, &mut load.client);
            relay.running = None;
            cases
        })
    }

    fn pingpong(&mut self) -> Result<Outcome> {
        let [relay_terms, settings, instrument] = message_settings()?;
        let mut load = LoadProcesses::start(&settings, &instrument)?;
        let mut pinger = LoadProcess::start(&instrument)?;
        let (mut relays, failed) = self.start_all(Endpoints::TARGETS, &load.upstream, 1, &relay_terms)?;
        let effort = self.effort;
        let outcome = self.rounds("small messages").run(&mut relays, &self.progress, |relay| {
            pingpong::run(relay, &mut pinger, &mut load.client, &effort)
        })?;
        let mut outcome = outcome.with_failed(failed);
        pingpong::add_excess_over_direct(&mut outcome.rows);
        Ok(outcome)
    }

    fn idle_scaling(&mut self) -> Result<Outcome> {
        let mut load = LoadProcesses::start(&ChildSettings::default(), &ChildSettings::default())?;
        let cpus = machine::allowed_cpus().len();
        let (mut relays, failed) =
            self.start_all(Endpoints::TARGETS, &load.upstream, cpus, &ChildSettings::default())?;
        relays.retain(|relay| relay.target != Target::Direct);
        let connections = self.effort.beside_idle;
        let outcome = self.rounds("beside open tunnels").run(&mut relays, &self.progress, |relay| {
            idle_scaling::run(relay, &mut load.client, connections)
        })?;
        Ok(outcome.with_failed(failed))
    }

    /// Short connections and then streams, through the same proxies.
    fn tunnels(&mut self, protocol_cases: &ProtocolCases) -> Result<Outcome> {
        let mut load = LoadProcesses::start(&ChildSettings::default(), &ChildSettings::default())?;
        let straight = ForwardTunnels::to(&load.upstream, protocol_cases.protocol);
        let (targets, cpus) =
            (ForwardTunnels::targets(protocol_cases.protocol), machine::allowed_cpus().len());
        let (mut relays, failed) = self.start_all(targets, &straight, cpus, &ChildSettings::default())?;
        let effort = self.effort;
        let [short, bulk] = protocol_cases.what;
        let before = billing::settled_totals(&relays);
        let outcome = self.rounds(short).run(&mut relays, &self.progress, |relay| {
            let numbers = short::run(relay, &mut load.client, effort.tunnels, effort.concurrency)?;
            Ok(vec![(protocol_cases.short, numbers)])
        })?;
        let mut outcome = outcome.with_failed(failed);
        protocol_cases.bill.add(&mut outcome, before, &relays, effort.tunnels);
        outcome.merge(self.rounds(bulk).run(&mut relays, &self.progress, |relay| {
            bulk::run(relay, &mut load.client, &mut load.server, &protocol_cases.bulk, effort.stream)
        })?);
        Ok(outcome)
    }

    fn requests(&mut self) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        for case in &requests::CASES {
            let of_case = self.requests_of(case)?;
            outcome.rows.extend(of_case.rows);
            outcome.failed.extend(of_case.failed);
        }
        Ok(outcome)
    }

    /// The proxies are started for each case, since they are configured for it.
    fn requests_of(&mut self, case: &requests::Case) -> Result<Outcome> {
        let (mut server, mut client) =
            (LoadProcess::start(&ChildSettings::default())?, LoadProcess::start(&ChildSettings::default())?);
        let route = Route::serve(&mut server, case.persistence)?;
        let cpus = machine::allowed_cpus().len();
        let (mut relays, failed) = self.start_all(Route::TARGETS, &route, cpus, &ChildSettings::default())?;
        let failed =
            failed.into_iter().map(|it| Skipped { name: format!("{} in {}", it.name, case.what), ..it });
        let requests = self.effort.requests(case.persistence);
        let before = billing::settled_totals(&relays);
        let outcome = self.rounds(case.what).run(&mut relays, &self.progress, |relay| {
            Ok(vec![(case.part, requests::run(relay, &mut client, &mut server, requests)?)])
        })?;
        let mut outcome = outcome.with_failed(failed.collect());
        case.bill.add(&mut outcome, before, &relays, requests.0);
        Ok(outcome)
    }

    fn limits(&mut self) -> Result<Outcome> {
        let ([tunnels, messages, requests], effort) = (limits::WHAT, self.effort);
        let usual = ChildSettings::default();
        let mut load = LoadProcesses::start(&usual, &usual)?;
        let (upstream, cpus) = (load.upstream.clone(), machine::allowed_cpus().len());
        let mut outcome = self.restarted(tunnels, &upstream, cpus, &usual, |relay| {
            limits::tunnels(relay, &mut load.client, &mut load.server, &effort)
        })?;
        let [relay_terms, settings, instrument] = message_settings()?;
        let load = LoadProcesses::start(&settings, &instrument)?;
        let mut pinger = LoadProcess::start(&instrument)?;
        outcome.merge(self.restarted(messages, &load.upstream, 1, &relay_terms, |relay| {
            limits::messages(relay, &mut pinger, effort.ping)
        })?);
        let (mut server, mut client) = (LoadProcess::start(&usual)?, LoadProcess::start(&usual)?);
        let route = Route::serve(&mut server, Persistence::KeepAlive)?;
        outcome.merge(self.restarted(requests, &route, cpus, &usual, |relay| {
            limits::kept_requests(relay, &mut client, &mut server, &effort)
        })?);
        Ok(outcome)
    }

    /// Rounds of gateways with and without limits, each of which is started for each run.
    fn restarted<W: Workload>(
        &mut self,
        what: &'static str,
        upstream: &W,
        threads: usize,
        settings: &ChildSettings,
        mut work: impl FnMut(&mut RunningRelay<W>) -> Result<Vec<(&'static str, Numbers)>>,
    ) -> Result<Outcome> {
        let gateways = self.candidates.iter().filter(|it| limits::TARGETS.contains(&it.target)).cloned();
        let mut gateways: Vec<InstalledTarget> = gateways.collect();
        let rounds = Rounds { wanted: self.effort.limits_rounds, ..self.rounds(what) };
        let (directory, next_port) = (self.directory.path(), &mut self.next_port);
        rounds.run(&mut gateways, &self.progress, |installed| {
            let directory = TempDir::new_in(directory)?;
            let settings = StartSettings { upstream, threads, settings, directory: directory.path() };
            work(&mut RunningRelay::start(installed, &settings, next_port)?)
        })
    }

    fn accounting(&mut self) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        let is_tollgate = |installed: &&InstalledTarget| installed.target == Target::Tollgate;
        let Some(installed) = self.candidates.iter().find(is_tollgate).cloned() else { return Ok(outcome) };
        let directory = self.directory.path().to_owned();
        let mut target = vec![RestartedRelay { installed: installed.clone(), running: None }];
        outcome.merge(self.rounds("accounting").run(&mut target, &self.progress, |_| {
            let directory = TempDir::new_in(&directory)?;
            Ok(vec![(accounting::PART, accounting::time(&directory.path().join("ledger"))?)])
        })?);
        if !self.effort.counts_instructions {
            return Ok(outcome);
        }
        let mut load = LoadProcesses::start(&ChildSettings::default(), &ChildSettings::default())?;
        self.progress.expect_more(1);
        let rounds = Rounds { what: "instructions", wanted: 1, extra_max: 0, watched: false };
        let next_port = &mut self.next_port;
        outcome.merge(rounds.run(&mut target, &self.progress, |_| {
            let (client, endpoints) = (&mut load.client, &load.upstream);
            let numbers = accounting::instructions(&installed, endpoints, client, &directory, next_port)?;
            Ok(vec![(accounting::INSTRUCTIONS, numbers)])
        })?);
        Ok(outcome)
    }

    fn rounds(&self, what: &'static str) -> Rounds {
        Rounds { what, wanted: self.effort.rounds, extra_max: EXTRA_ROUNDS_MAX, watched: true }
    }

    /// Starts every relay of `targets`; one that does not start is skipped with its reason.
    fn start_all<W: Workload>(
        &mut self,
        targets: &[Target],
        upstream: &W,
        threads: usize,
        settings: &ChildSettings,
    ) -> Result<(Vec<RunningRelay<W>>, Vec<Skipped>)> {
        let (mut relays, mut failed) = (Vec::new(), Vec::new());
        for installed in self.candidates.iter().filter(|installed| targets.contains(&installed.target)) {
            let directory = TempDir::new_in(self.directory.path())?.keep();
            let settings = StartSettings { upstream, threads, settings, directory: &directory };
            match RunningRelay::start(installed, &settings, &mut self.next_port) {
                Ok(relay) => relays.push(relay),
                Err(error) => {
                    child::fail_if_interrupted()?;
                    let name = installed.target.name().to_owned();
                    failed.push(Skipped { name, reason: format!("{error:#}") });
                }
            }
        }
        Ok((relays, failed))
    }
}
