//! The plan: which strategies take a turn in which round. Promises: what verdicts compare is in every round,
//! in an order that begins elsewhere each time; what takes long has fewer turns, spread over the rounds.
//! The usual plan takes four minutes and a half on two CPUs. Leaves to others: turns that fail.

use std::time::Duration;

use super::kind::Kind;
use super::waits::Wait;
use super::work::REQUESTS;

/// A turn that is expected to take longer has fewer turns.
const BRISK_MAX: Duration = Duration::from_millis(4_500);

/// The CPU time of all requests on the machine of the published program's figures here, to tell turns that
/// take long from others.
const CPU_EXPECTED: Duration = Duration::from_millis(3_600);

/// Threads of a fixed pool that stands for "enough", and of the published batches.
const MANY: u32 = 100;

/// What `--only` chooses from.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// One thread
    Sequential,
    /// The death of a thread for each request
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
    /// Turns of what takes long; at most `rounds`.
    pub(super) slow_turns: usize,
}

impl Effort {
    /// Minutes: what verdicts need.
    pub(super) const USUAL: Self = Self { requests: REQUESTS, rounds: 5, slow_turns: 1 };

    /// Twenty minutes.
    pub(super) const LONG: Self = Self { requests: REQUESTS, rounds: 11, slow_turns: 5 };

    /// Seconds: whether it works at all.
    pub(super) const QUICK: Self = Self { requests: 2_000, rounds: 1, slow_turns: 1 };
}

/// The strategies of these parts on so many CPUs, in the order of the report.
pub(super) fn kinds(parts: &[Part], cpus: u32) -> Vec<Kind> {
    let mut kinds = Vec::new();
    for part in parts {
        match part {
            Part::Sequential => kinds.push(Kind::Sequential),
            Part::Batches => kinds.extend(distinct(vec![cpus, 16, 50, MANY]).map(Kind::Batches)),
            Part::Pool => {
                let by_cpus = [(cpus / 2).max(1), cpus, 2 * cpus, 4 * cpus, 8 * cpus];
                let sizes = by_cpus.into_iter().chain([16, MANY]).collect();
                kinds.extend(distinct(sizes).map(Kind::Pool));
            }
            Part::ThreadPerRequest | Part::Calls => {}
            Part::IoAware => kinds.push(Kind::IoAware),
            Part::Event => kinds.extend([Kind::Event(Some(1_000)), Kind::Event(None)]),
        }
    }
    kinds
}

/// The strategies of these parts whose system calls are counted: one of each, and both ends of the pools.
pub(super) fn traced(parts: &[Part], cpus: u32) -> Vec<Kind> {
    let traced = |part: &Part| match part {
        Part::Sequential => vec![Kind::Sequential],
        Part::ThreadPerRequest => vec![Kind::ThreadPerRequest],
        Part::Batches => vec![Kind::Batches(MANY)],
        Part::Pool => vec![Kind::Pool(cpus), Kind::Pool(MANY)],
        Part::IoAware => vec![Kind::IoAware],
        Part::Event => vec![Kind::Event(None)],
        Part::Calls => Vec::new(),
    };
    parts.iter().flat_map(traced).collect()
}

fn distinct(mut counts: Vec<u32>) -> impl Iterator<Item = u32> {
    counts.sort_unstable();
    counts.dedup();
    counts.into_iter()
}

/// Who takes a turn in each round, in order.
pub(super) fn rounds(kinds: &[Kind], effort: &Effort, cpus: u32) -> Vec<Vec<Kind>> {
    let (slow, brisk): (Vec<Kind>, Vec<Kind>) = kinds.iter().partition(|kind| is_slow(**kind, cpus));
    let mut rounds = vec![Vec::new(); effort.rounds];
    for (place, kind) in slow.into_iter().enumerate() {
        (0..effort.slow_turns).for_each(|turn| rounds[(place + turn) % effort.rounds].push(kind));
    }
    for (number, round) in rounds.iter_mut().enumerate() {
        let begin = if brisk.is_empty() { 0 } else { number % brisk.len() };
        round.extend(brisk[begin..].iter().chain(&brisk[..begin]));
    }
    rounds
}

/// Whether a turn takes so long that a few must do.
pub(super) fn is_slow(kind: Kind, cpus: u32) -> bool {
    expected(kind, cpus) > BRISK_MAX
}

/// About how long a turn of all requests takes.
fn expected(kind: Kind, cpus: u32) -> Duration {
    let waits: Duration = (0..REQUESTS).map(|request| Wait::of(request).planned()).sum();
    let of_threads = |threads: u32| waits / threads + CPU_EXPECTED / threads.min(cpus);
    match kind {
        Kind::Sequential => of_threads(1),
        // A batch is as long as its longest wait, and most of its other threads are done by then.
        Kind::ThreadPerRequest | Kind::Batches(_) => waits + CPU_EXPECTED,
        Kind::Pool(threads) => of_threads(threads),
        Kind::IoAware => of_threads(8 * cpus),
        Kind::Event(_) => CPU_EXPECTED / cpus,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: [Part; 5] = [Part::Sequential, Part::Batches, Part::Pool, Part::IoAware, Part::Event];

    fn names(kinds: &[Kind]) -> Vec<String> {
        kinds.iter().map(Kind::to_string).collect()
    }

    #[test]
    fn no_variant_is_there_twice() {
        let check = |cpus, expected: &[&str]| assert_eq!(names(&kinds(&[Part::Pool], cpus)), expected);
        check(1, &["pool-1", "pool-2", "pool-4", "pool-8", "pool-16", "pool-100"]);
        check(2, &["pool-1", "pool-2", "pool-4", "pool-8", "pool-16", "pool-100"]);
        check(4, &["pool-2", "pool-4", "pool-8", "pool-16", "pool-32", "pool-100"]);
        assert_eq!(names(&kinds(&[Part::Batches], 16)), ["batches-16", "batches-50", "batches-100"]);
    }

    #[test]
    fn what_takes_long_has_its_turns_in_different_rounds() {
        let effort = Effort { requests: 1, rounds: 5, slow_turns: 3 };
        let rounds = rounds(&kinds(&PARTS, 2), &effort, 2);
        let turns = |kind| rounds.iter().filter(|round| round.contains(&kind)).count();
        assert_eq!([Kind::Sequential, Kind::Batches(100), Kind::Pool(4)].map(turns), [3, 3, 3]);
        assert_eq!([Kind::Pool(8), Kind::Pool(16), Kind::Event(None)].map(turns), [5, 5, 5]);
        let brisk = |round: &Vec<Kind>| round.iter().copied().find(|kind| !is_slow(*kind, 2));
        assert_eq!(rounds.iter().map(brisk).collect::<Vec<_>>(), {
            let order = [Kind::Pool(8), Kind::Pool(16), Kind::Pool(100), Kind::IoAware];
            order.into_iter().chain([Kind::Event(Some(1_000))]).map(Some).collect::<Vec<_>>()
        });
    }

    /// The deaths and the traced turns take half a minute more.
    #[test]
    fn the_usual_plan_takes_less_than_five_minutes_on_two_cpus() {
        let rounds = rounds(&kinds(&PARTS, 2), &Effort::USUAL, 2).concat();
        let time: Duration = rounds.into_iter().map(|kind| expected(kind, 2)).sum();
        assert!(time <= Duration::from_secs(270), "{time:?}");
    }

    #[test]
    fn a_round_without_brisk_turns_is_no_trouble() {
        let rounds = rounds(&[Kind::Sequential], &Effort::USUAL, 2);
        assert_eq!(rounds.concat(), [Kind::Sequential]);
    }
}
