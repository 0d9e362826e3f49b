//! The plan: which strategies run in which round.
//!
//! Guarantees: the strategies that verdicts compare are in every round, in an order that begins elsewhere
//! each time; slow strategies have fewer trials, spread over the rounds. The usual plan takes four minutes
//! and a half on two CPUs.

use std::path::PathBuf;
use std::time::Duration;

use super::profiles::ProfileOptions;
use super::target::Target;
use super::waits::Wait;
use super::work::REQUESTS;
use crate::kit::options::{CommonOptions, Scale};

/// A strategy with longer trials has fewer of them.
const BRISK_MAX: Duration = Duration::from_millis(4_500);

/// The CPU time of all requests on the machine of the published program's figures here, to tell slow
/// strategies from others.
const CPU_EXPECTED: Duration = Duration::from_millis(3_600);

/// Threads of a fixed pool that stands for "enough", and of the published batches.
const MANY: u32 = 100;

/// The options of `lab pipeline`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) common: CommonOptions<Part>,
    /// The text that responses quote, up to 16,384 bytes of it [default: one that the lab makes]
    #[arg(long, value_name = "FILE")]
    pub(super) text: Option<PathBuf>,
    /// The published program: an executable that does the 100,000 requests once
    #[arg(long, value_name = "PATH")]
    pub(super) article: Option<PathBuf>,
    /// Test the limit that stopped thread-per-request: raise vm.max_map_count for some seconds, and let
    /// living threads use up the machine's process ids; both need root and a machine without other users
    #[arg(long)]
    pub(super) confirm: bool,
    #[command(flatten)]
    pub(super) profiles: ProfileOptions,
    /// Requests of a trial, for tests
    #[arg(long, hide = true, value_name = "COUNT")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(super) requests: Option<u32>,
}

/// A part of the experiment.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// One thread
    Sequential,
    /// A thread for each request, until the kernel refuses one
    ThreadPerRequest,
    /// Batches of 100, 50, 16 and as many threads as CPUs
    Batches,
    /// Fixed pools of 1/2, 1, 2, 4 and 8 times the CPUs, 16 and 100 threads
    Pool,
    /// The engine's pool: a wait gives the permit to another
    IoAware,
    /// Waits as timers, with 1,000 requests admitted at a time and with all
    Event,
    /// System calls, counted by strace
    Calls,
}

/// How much of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Effort {
    pub(super) requests: u32,
    pub(super) rounds: usize,
    /// Trials of slow strategies; at most `rounds`.
    pub(super) slow_trials: usize,
}

impl Effort {
    pub(super) fn of(options: &Options) -> Self {
        let effort = match options.common.scale() {
            Scale::Quick => Self::QUICK,
            Scale::Usual => Self::USUAL,
            Scale::Long => Self::LONG,
        };
        let rounds = options.common.rounds_or(effort.rounds);
        let requests = options.requests.unwrap_or(effort.requests);
        Self { requests, rounds, slow_trials: effort.slow_trials.min(rounds) }
    }

    /// Minutes: enough for verdicts.
    pub(super) const USUAL: Self = Self { requests: REQUESTS, rounds: 5, slow_trials: 1 };

    /// Twenty minutes.
    pub(super) const LONG: Self = Self { requests: REQUESTS, rounds: 11, slow_trials: 5 };

    /// Seconds: shows that the experiment works.
    pub(super) const QUICK: Self = Self { requests: 2_000, rounds: 1, slow_trials: 1 };
}

/// The strategies of these parts on `cpus` CPUs, in the order of the report.
pub(super) fn targets(parts: &[Part], cpus: u32) -> Vec<Target> {
    let mut targets = Vec::new();
    for part in parts {
        match part {
            Part::Sequential => targets.push(Target::Sequential),
            Part::Batches => targets.extend(distinct(vec![cpus, 16, 50, MANY]).map(Target::Batches)),
            Part::Pool => {
                let by_cpus = [(cpus / 2).max(1), cpus, 2 * cpus, 4 * cpus, 8 * cpus];
                let sizes = by_cpus.into_iter().chain([16, MANY]).collect();
                targets.extend(distinct(sizes).map(Target::Pool));
            }
            Part::ThreadPerRequest | Part::Calls => {}
            Part::IoAware => targets.push(Target::IoAware),
            Part::Event => targets.extend([Target::Event(Some(1_000)), Target::Event(None)]),
        }
    }
    targets
}

/// The strategies of these parts whose system calls are counted: one of each, and both ends of the pools.
pub(super) fn traced(parts: &[Part], cpus: u32) -> Vec<Target> {
    let traced = |part: &Part| match part {
        Part::Sequential => vec![Target::Sequential],
        Part::ThreadPerRequest => vec![Target::ThreadPerRequest],
        Part::Batches => vec![Target::Batches(MANY)],
        Part::Pool => vec![Target::Pool(cpus), Target::Pool(MANY)],
        Part::IoAware => vec![Target::IoAware],
        Part::Event => vec![Target::Event(None)],
        Part::Calls => Vec::new(),
    };
    parts.iter().flat_map(traced).collect()
}

fn distinct(mut counts: Vec<u32>) -> impl Iterator<Item = u32> {
    counts.sort_unstable();
    counts.dedup();
    counts.into_iter()
}

/// The trials of each round, in order.
pub(super) fn rounds(targets: &[Target], effort: &Effort, cpus: u32) -> Vec<Vec<Target>> {
    let (slow, fast): (Vec<Target>, Vec<Target>) = targets.iter().partition(|target| is_slow(**target, cpus));
    let mut rounds = vec![Vec::new(); effort.rounds];
    for (index, target) in slow.into_iter().enumerate() {
        (0..effort.slow_trials).for_each(|trial| rounds[(index + trial) % effort.rounds].push(target));
    }
    for (number, round) in rounds.iter_mut().enumerate() {
        let begin = if fast.is_empty() { 0 } else { number % fast.len() };
        round.extend(fast[begin..].iter().chain(&fast[..begin]));
    }
    rounds
}

/// Whether a trial takes so long that a few must suffice.
pub(super) fn is_slow(target: Target, cpus: u32) -> bool {
    expected(target, cpus) > BRISK_MAX
}

/// About how long a trial of all requests takes.
fn expected(target: Target, cpus: u32) -> Duration {
    let waits: Duration = (0..REQUESTS).map(|request| Wait::of_request(request).planned()).sum();
    let of_threads = |threads: u32| waits / threads + CPU_EXPECTED / threads.min(cpus);
    match target {
        Target::Sequential => of_threads(1),
        // A batch is as long as its longest wait, and most of its other threads are done by then.
        Target::ThreadPerRequest | Target::Batches(_) => waits + CPU_EXPECTED,
        Target::Pool(threads) => of_threads(threads),
        Target::IoAware => of_threads(8 * cpus),
        Target::Event(_) => CPU_EXPECTED / cpus,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: [Part; 5] = [Part::Sequential, Part::Batches, Part::Pool, Part::IoAware, Part::Event];

    fn names(targets: &[Target]) -> Vec<String> {
        targets.iter().map(Target::to_string).collect()
    }

    #[test]
    fn variants_are_unique() {
        let check = |cpus, expected: &[&str]| assert_eq!(names(&targets(&[Part::Pool], cpus)), expected);
        check(1, &["pool-1", "pool-2", "pool-4", "pool-8", "pool-16", "pool-100"]);
        check(2, &["pool-1", "pool-2", "pool-4", "pool-8", "pool-16", "pool-100"]);
        check(4, &["pool-2", "pool-4", "pool-8", "pool-16", "pool-32", "pool-100"]);
        assert_eq!(names(&targets(&[Part::Batches], 16)), ["batches-16", "batches-50", "batches-100"]);
    }

    #[test]
    fn slow_trials_are_spread_over_rounds() {
        let effort = Effort { requests: 1, rounds: 5, slow_trials: 3 };
        let rounds = rounds(&targets(&PARTS, 2), &effort, 2);
        let trials = |target| rounds.iter().filter(|round| round.contains(&target)).count();
        assert_eq!([Target::Sequential, Target::Batches(100), Target::Pool(4)].map(trials), [3, 3, 3]);
        assert_eq!([Target::Pool(8), Target::Pool(16), Target::Event(None)].map(trials), [5, 5, 5]);
        let fast = |round: &Vec<Target>| round.iter().copied().find(|target| !is_slow(*target, 2));
        assert_eq!(rounds.iter().map(fast).collect::<Vec<_>>(), {
            let order = [Target::Pool(8), Target::Pool(16), Target::Pool(100), Target::IoAware];
            order.into_iter().chain([Target::Event(Some(1_000))]).map(Some).collect::<Vec<_>>()
        });
    }

    /// The probes of the thread limit and the traced trials take half a minute more.
    #[test]
    fn usual_plan_takes_under_5_minutes_on_2_cpus() {
        let rounds = rounds(&targets(&PARTS, 2), &Effort::USUAL, 2).concat();
        let time: Duration = rounds.into_iter().map(|target| expected(target, 2)).sum();
        assert!(time <= Duration::from_secs(270), "{time:?}");
    }

    #[test]
    fn plan_of_only_slow_strategies_works() {
        let rounds = rounds(&[Target::Sequential], &Effort::USUAL, 2);
        assert_eq!(rounds.concat(), [Target::Sequential]);
    }
}
