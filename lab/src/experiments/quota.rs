//! `lab quota`: 64 tunnels that use up one quota at the same time, through the programs that claim to have
//! quotas; how exactly Tollgate keeps a rate, on one tunnel and on 64; and the CPU time at a cap.
//!
//! Guarantees: everything stays on loopback, is bounded in bytes or in time, and leaves no file or process;
//! each run starts its relay anew, with nothing used.
//!
//! ```text
//!   64 clients --> relay (Tollgate | 3proxy | a naive check) --> a source or a sink
//!       |                                                             |
//!       '------------- the bytes that arrived, on both ends ----------'
//! ```

mod configuration;
mod limited_tunnels;
mod overshoot;
mod plan;
mod presentation;
mod rate_cost;
mod rates;
mod verdicts;

use std::path::Path;

use anyhow::{Context, Result};
use tempfile::TempDir;

use self::limited_tunnels::{Limit, LimitedTunnels, Load};
pub(crate) use self::plan::Options;
use self::plan::{Effort, Part};
pub(crate) use self::presentation::PRESENTATION;
use crate::kit::child::ChildSettings;
use crate::kit::kernel_setting;
use crate::kit::machine;
use crate::kit::progress::Progress;
use crate::kit::relays::installed::{self, InstalledTarget};
use crate::kit::relays::ports;
use crate::kit::relays::running::{RunningRelay, StartSettings};
use crate::kit::relays::target::Target;
use crate::kit::report::Report;
use crate::kit::rounds::{Outcome, Rounds};

/// The congestion control of new sockets.
const CONGESTION_CONTROL: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// Disturbed rounds that are repeated, in each case.
const EXTRA_ROUNDS_MAX: usize = 2;

/// Runs the experiment.
///
/// # Errors
/// The lab itself could not work, the gateway is missing, or the user interrupted; a relay that fails is left
/// out of the report instead.
pub(crate) fn run(options: &Options) -> Result<Report> {
    let parts = options.common.parts();
    let takes_part = |target: &Target| parts.iter().any(|part| part.targets().contains(target));
    let wanted: Vec<Target> = Target::ALL.into_iter().filter(takes_part).collect();
    let (candidates, skipped) = installed::find(&wanted, options.tollgate.as_deref(), &options.without)?;
    // BBR paces by timers, also on loopback, beside those of a rate.
    let congestion_control = kernel_setting::hold(Path::new(CONGESTION_CONTROL), "cubic");
    let mut machine = machine::facts();
    machine.insert("tcp_congestion_control_before".to_owned(), congestion_control.before().into());
    for installed in candidates.iter().filter(|installed| !installed.version.is_empty()) {
        machine.insert(format!("{}_version", installed.target.name()), installed.version.clone().into());
    }
    let mut warnings = options.common.warnings();
    warnings.extend(congestion_control.warning());
    if candidates.iter().any(InstalledTarget::is_unoptimised) {
        warnings.push("tollgate is a build without optimisation".to_owned());
    }
    let effort = Effort::of(options);
    let progress = Progress::new(plan::steps(&parts, &candidates, &effort));
    let mut report = Report { skipped, warnings, ..Report::new(&PRESENTATION, machine) };
    let mut bench = Bench::new(candidates, effort)?;
    for part in parts {
        let outcome = bench.part(part, &progress)?;
        report.rows.extend(outcome.rows);
        report.skipped.extend(outcome.failed);
    }
    progress.finish();
    verdicts::judge(&mut report);
    report.mark_undecided();
    Ok(report)
}

/// What all parts share.
struct Bench {
    candidates: Vec<InstalledTarget>,
    effort: Effort,
    load: Load,
    directory: TempDir,
    next_port: u16,
}

impl Bench {
    fn new(candidates: Vec<InstalledTarget>, effort: Effort) -> Result<Self> {
        let directory = TempDir::with_prefix("lab-").context("creating a temporary directory")?;
        Ok(Self { candidates, effort, load: Load::start()?, directory, next_port: ports::first_port() })
    }

    fn part(&mut self, part: Part, progress: &Progress) -> Result<Outcome> {
        let mut targets: Vec<InstalledTarget> = self.candidates.clone();
        targets.retain(|installed| part.targets().contains(&installed.target));
        match part {
            Part::Overshoot => self.overshoot(targets, progress),
            Part::Rate => self.rates(targets, progress),
            Part::RateCpu => self.rate_cost(targets, progress),
        }
    }

    fn overshoot(&mut self, mut targets: Vec<InstalledTarget>, progress: &Progress) -> Result<Outcome> {
        let effort = self.effort;
        let one = |bench: &mut Self, installed: &InstalledTarget, case: overshoot::Case| {
            let limit = Limit::Quota { mebibytes: effort.quota_mebibytes, direction: case.direction };
            let numbers = bench.through(installed, limit, |relay, load| {
                overshoot::run(relay, load, case, &effort).context(case.part)
            });
            numbers.map(|numbers| (case.part, numbers))
        };
        // The tunnels use the CPUs all the time, and bytes do not depend on how fast they are.
        let rounds =
            Rounds { what: "a quota of 64 tunnels", wanted: effort.rounds, extra_max: 0, watched: false };
        rounds.run(&mut targets, progress, |installed| {
            overshoot::CASES.into_iter().map(|case| one(self, installed, case)).collect()
        })
    }

    fn rates(&mut self, targets: Vec<InstalledTarget>, progress: &Progress) -> Result<Outcome> {
        let (mut outcome, effort) = (Outcome::default(), self.effort);
        for case in rates::CASES {
            let rounds =
                Rounds { what: case.what, wanted: effort.rounds, extra_max: EXTRA_ROUNDS_MAX, watched: true };
            let limit = Limit::Rate { bits_per_s: case.bits_per_s };
            outcome.merge(rounds.run(&mut targets.clone(), progress, |installed| {
                let run = |relay: &mut _, load: &mut _| rates::run(relay, load, case, effort.seconds);
                Ok(vec![(case.part, self.through(installed, limit, run)?)])
            })?);
        }
        Ok(outcome)
    }

    fn rate_cost(&mut self, mut targets: Vec<InstalledTarget>, progress: &Progress) -> Result<Outcome> {
        let effort = self.effort;
        let (wanted, extra_max) = (effort.cost_rounds, EXTRA_ROUNDS_MAX);
        let rounds = Rounds { what: "CPU time at a cap", wanted, extra_max, watched: true };
        rounds.run(&mut targets, progress, |installed| {
            let limit = rate_cost::limit(installed.target);
            let run = |relay: &mut _, load: &mut _| rate_cost::run(relay, load, effort.stream);
            Ok(vec![(rate_cost::PART, self.through(installed, limit, run)?)])
        })
    }

    /// Some work through a relay that is started for it, and ends with it.
    fn through<T>(
        &mut self,
        installed: &InstalledTarget,
        limit: Limit,
        work: impl FnOnce(&mut RunningRelay<LimitedTunnels>, &mut Load) -> Result<T>,
    ) -> Result<T> {
        let directory = TempDir::new_in(self.directory.path())?;
        let settings = StartSettings {
            upstream: &self.load.tunnels(limit),
            threads: machine::allowed_cpus().len(),
            settings: &ChildSettings::default(),
            directory: directory.path(),
        };
        work(&mut RunningRelay::start(installed, &settings, &mut self.next_port)?, &mut self.load)
    }
}
