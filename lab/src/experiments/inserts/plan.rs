//! The plan: which cases a round has.
//!
//! Guarantees: every plan but the quick one has the cases of all verdicts, and a round of the usual plan
//! takes some two and a half minutes on two CPUs.

use std::path::PathBuf;
use std::time::Duration;

use super::case::{Case, Load};
use super::placement::Placement;
use super::target::Target;
use crate::kit::options::{CommonOptions, Scale};

/// The writers of the published experiment, and of every case that does not vary them.
pub(super) const WRITERS: usize = 4;

/// Hogs beside them.
pub(super) const HOGS: [usize; 9] = [0, 1, 2, 3, 4, 5, 6, 8, 16];

/// The rate of the open loop: far more flows than any gateway closes.
pub(super) const OFFERED_PER_S: u64 = 100_000;

/// Rows in flight where syncs are compared.
pub(super) const IN_FLIGHT: u64 = 256;

/// Most writers where there is one for each CPU, as each needs a flow writer of the ledger.
const WRITERS_MAX: usize = 64;

/// The options of `lab inserts`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) common: CommonOptions<Part>,
    /// Leave these stores out, with commas between them
    #[arg(long, value_delimiter = ',', value_name = "STORE")]
    pub(super) without: Vec<Target>,
    /// Where stores keep their files: the disk that is measured [default: the system's temporary directory]
    #[arg(long, value_name = "PATH")]
    pub(super) directory: Option<PathBuf>,
    /// The file in which `cargo xtask services` writes where PostgreSQL is [default: target/services.env here
    /// or in a directory above]
    #[arg(long, value_name = "FILE")]
    pub(super) services: Option<PathBuf>,
}

/// A part of the experiment.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Every store beside 0 to 16 hogs
    Hogs,
    /// Writers and hogs pinned to the same CPUs
    Pinned,
    /// Hogs pinned to the writers' siblings, where CPUs have some
    Siblings,
    /// 1, 2 and 8 writers
    Writers,
    /// A writer pinned to each CPU, with and without hogs: the collapse of a ticket lock
    OnePerCpu,
    /// 100,000 rows a second, whatever the store does
    OpenLoop,
    /// Rows until a query finds them
    Visible,
    /// 256 rows in flight, each synced
    InFlight,
}

/// How much of everything.
#[derive(Clone, Debug)]
pub(super) struct Effort {
    pub(super) rounds: usize,
    /// Of one case.
    time: Duration,
    hogs: Vec<usize>,
    is_whole: bool,
    visible_rows: u64,
}

impl Effort {
    pub(super) fn of(options: &Options) -> Self {
        let effort = match options.common.scale() {
            Scale::Quick => Self::quick(),
            Scale::Usual => Self::usual(),
            Scale::Long => Self::long(),
        };
        Self { rounds: options.common.rounds_or(effort.rounds), ..effort }
    }

    /// Minutes: enough for verdicts.
    fn usual() -> Self {
        let time = Duration::from_millis(600);
        Self { rounds: 5, time, hogs: HOGS.to_vec(), is_whole: false, visible_rows: 200_000 }
    }

    /// Hours: every store with every number of writers beside every number of hogs.
    fn long() -> Self {
        let time = Duration::from_secs(3);
        Self { rounds: 7, time, hogs: HOGS.to_vec(), is_whole: true, visible_rows: 1_000_000 }
    }

    /// Seconds: shows that the experiment works.
    fn quick() -> Self {
        let time = Duration::from_millis(60);
        Self { rounds: 1, time, hogs: vec![0, 2], is_whole: false, visible_rows: 20_000 }
    }

    /// `some` of the hogs, or all of them in the whole plan.
    fn some_hogs(&self, some: &[usize]) -> Vec<usize> {
        let is_some = |hogs: &&usize| self.is_whole || some.contains(hogs);
        self.hogs.iter().filter(is_some).copied().collect()
    }
}

/// The name of a part with a count, and the lifetime that reports need: the program's. There are as many as
/// cases in one round.
pub(super) fn name(family: &str, count: usize) -> &'static str {
    String::leak(format!("{family}-{count}"))
}

/// The cases of a round with these stores. `cpus` is how many the lab may use.
pub(super) fn cases(parts: &[Part], targets: &[Target], effort: &Effort, cpus: usize) -> Vec<Case> {
    let plan = Plan { effort, cpus };
    let cases = parts.iter().flat_map(|part| plan.part(*part));
    cases.filter(|case| targets.contains(&case.target)).collect()
}

struct Plan<'a> {
    effort: &'a Effort,
    cpus: usize,
}

impl Plan<'_> {
    fn part(&self, part: Part) -> Vec<Case> {
        match part {
            Part::Hogs => self.beside_hogs("hogs", Placement::Free, &HOGS, &Target::ALL),
            Part::Pinned => self.beside_hogs("pinned", Placement::Pinned, &[0, 2, 8], &BRIEF),
            Part::Siblings => self.beside_hogs("siblings", Placement::Siblings, &[0, 2, 8], &BRIEF),
            Part::Writers => self.writers(),
            Part::OnePerCpu => self.one_per_cpu(),
            Part::OpenLoop => self.open_loop(),
            Part::Visible => vec![self.visible()],
            Part::InFlight => self.in_flight(),
        }
    }

    fn beside_hogs(
        &self,
        family: &str,
        placement: Placement,
        some: &[usize],
        targets: &[Target],
    ) -> Vec<Case> {
        let mut cases = Vec::new();
        for hogs in self.effort.some_hogs(some) {
            let part = name(family, hogs);
            cases.extend(targets.iter().map(|&target| Case {
                hogs,
                placement,
                ..self.case(part, target, WRITERS)
            }));
        }
        cases
    }

    fn writers(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for writers in [1, 2, 8] {
            let part = name("writers", writers);
            let targets: &[Target] = if self.effort.is_whole { &Target::ALL } else { &BRIEF };
            cases.extend(targets.iter().map(|&target| self.case(part, target, writers)));
            if !self.effort.is_whole {
                continue;
            }
            for &hogs in self.effort.hogs.iter().filter(|hogs| **hogs > 0) {
                let part = name(&format!("writers-{writers}-hogs"), hogs);
                cases.extend(targets.iter().map(|&target| Case { hogs, ..self.case(part, target, writers) }));
            }
        }
        cases
    }

    /// Pinned, since two writers that the scheduler places on one CPU collapse before any hog runs.
    fn one_per_cpu(&self) -> Vec<Case> {
        let (mut cases, placement) = (Vec::new(), Placement::Pinned);
        for hogs in self.effort.some_hogs(&[0, 2, 16]) {
            let part = name("one-per-cpu", hogs);
            let case =
                |target| Case { hogs, placement, ..self.case(part, target, self.cpus.min(WRITERS_MAX)) };
            cases.extend([Target::Ours, Target::Latch, Target::Ticket, Target::Turnstile].map(case));
        }
        cases
    }

    fn open_loop(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for hogs in self.effort.some_hogs(&[0, 2, 4, 8, 16]) {
            let (part, load) = (name("open-loop", hogs), Load::Open { rows_per_s: OFFERED_PER_S });
            let case = |target| Case { hogs, load, ..self.case(part, target, WRITERS) };
            cases.extend([Target::Ours, Target::Latch, Target::SqliteNormal].map(case));
        }
        cases
    }

    fn visible(&self) -> Case {
        let load = Load::UntilVisible { rows: self.effort.visible_rows };
        Case { load, ..self.case("visible", Target::Ours, WRITERS) }
    }

    /// In ours the writers go on while rows wait for the disk; in PostgreSQL each row in flight has a
    /// connection, so that one sync serves them all.
    fn in_flight(&self) -> Vec<Case> {
        let part = name("in-flight", IN_FLIGHT as usize);
        let load = Load::Closed { in_flight_max: Some(IN_FLIGHT) };
        vec![
            Case { load, ..self.case(part, Target::OursSync, WRITERS) },
            self.case(part, Target::PostgresSync, IN_FLIGHT as usize),
        ]
    }

    /// A case without hogs.
    fn case(&self, part: &'static str, target: Target, writers: usize) -> Case {
        // A writer whose rows sync has one in flight in every store.
        let in_flight_max = (target == Target::OursSync).then_some(writers as u64);
        let load = Load::Closed { in_flight_max };
        Case { part, target, writers, hogs: 0, placement: Placement::Free, load, time: self.effort.time }
    }
}

/// The stores where not all are measured.
const BRIEF: [Target; 5] =
    [Target::Ours, Target::Latch, Target::Turnstile, Target::SqliteNormal, Target::PostgresAsync];

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: [Part; 8] = [
        Part::Hogs,
        Part::Pinned,
        Part::Siblings,
        Part::Writers,
        Part::OnePerCpu,
        Part::OpenLoop,
        Part::Visible,
        Part::InFlight,
    ];

    #[test]
    fn case_names_are_unique() {
        for effort in [Effort::quick(), Effort::usual(), Effort::long()] {
            let cases = cases(&PARTS, &Target::ALL, &effort, 2);
            let names: std::collections::BTreeSet<_> =
                cases.iter().map(|case| (case.part, case.target.name())).collect();
            assert_eq!(names.len(), cases.len());
        }
    }

    #[test]
    fn usual_plan_serves_all_verdicts_in_15_minutes() {
        let effort = Effort::usual();
        // Two CPUs without siblings, for which the time is specified.
        let parts: Vec<Part> = PARTS.into_iter().filter(|part| *part != Part::Siblings).collect();
        let cases = cases(&parts, &Target::ALL, &effort, 2);
        for part in ["hogs-0", "hogs-16", "one-per-cpu-0", "one-per-cpu-16", "visible", "in-flight-256"] {
            assert!(cases.iter().any(|case| case.part == part), "{part}");
        }
        // Opening, hogs and the disk take about half as long again.
        let time: Duration = cases.iter().map(|case| case.time * 3 / 2).sum();
        assert!(time * effort.rounds as u32 <= Duration::from_secs(900), "{time:?}");
    }

    #[test]
    fn skipped_store_has_no_cases() {
        let cases = cases(&PARTS, &[Target::Latch], &Effort::usual(), 2);
        assert!(!cases.is_empty() && cases.iter().all(|case| case.target == Target::Latch));
    }
}
