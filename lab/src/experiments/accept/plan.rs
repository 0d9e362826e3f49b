//! The plan of `lab accept`: its options, its parts, and how much of everything a run does.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::strategy::Strategy;
use super::{CONCURRENCY, WORKERS};
use crate::kit::load_process::LoadCommand;
use crate::kit::options::{CommonOptions, Scale};

/// The options of `lab accept`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) common: CommonOptions<Part>,
    /// The tollgate executable [default: the one beside this lab]
    #[arg(long, value_name = "PATH")]
    pub(super) tollgate: Option<PathBuf>,
    /// Only these strategies, with commas between them
    #[arg(long, value_delimiter = ',', value_name = "STRATEGY")]
    pub(super) strategies: Vec<Strategy>,
    /// Threads in the crowd's cases, with commas between them [default: 1, 2, 4, 8, 24 and one for each CPU]
    #[arg(long, value_delimiter = ',', value_name = "COUNT")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=256))]
    workers: Vec<u32>,
    /// Connections of each crowd [default: 8,000, with --long 50,000]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    connections: Option<u32>,
    /// Write where the CPU time of the herd and of the default goes as a flame graph, and report its shares;
    /// it needs perf
    #[arg(long, value_name = "FILE")]
    pub(super) flame: Option<PathBuf>,
}

/// A part of the experiment.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// 500 clients at a time, a new connection for each request
    Crowd,
    /// 200 connections a second
    Light,
    /// 2,000 connections that stay
    LongLived,
    /// A crowd while listeners come and go
    Reload,
    /// One thread busy for 500 us with each event
    Busy,
    /// The system calls of the herd and of the gateway's default
    Calls,
}

/// How much of everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Effort {
    pub(super) rounds: usize,
    /// Of the crowd with a thread for each CPU, where the default is judged to the percent.
    pub(super) judged_rounds: usize,
    pub(super) cpus: u32,
    pub(super) workers: Vec<u32>,
    pub(super) connections: u32,
    pub(super) light: Duration,
    pub(super) tunnels: u32,
    pub(super) busy: Duration,
}

impl Effort {
    /// 8,000 connections are a second or two of each crowd, so that the matrix of five strategies and five
    /// counts of threads takes five of the ten minutes.
    pub(super) fn of(options: &Options, cpus: u32) -> Self {
        let matrix = vec![1, 2, 4, WORKERS, 24, cpus];
        let (rounds, connections, ms, tunnels, workers) = match options.common.scale() {
            Scale::Quick => ([1, 1], 300, 300, 40, vec![cpus, 3]),
            Scale::Long => ([7, 15], 50_000, 6_000, 2_000, matrix),
            Scale::Usual => ([5, 15], 8_000, 2_000, 2_000, matrix),
        };
        let mut workers = if options.workers.is_empty() { workers } else { options.workers.clone() };
        workers.sort_unstable();
        workers.dedup();
        let [rounds, judged_rounds] = rounds.map(|usual| options.common.rounds_or(usual));
        Self {
            rounds,
            judged_rounds,
            cpus,
            workers,
            connections: options.connections.unwrap_or(connections),
            light: Duration::from_millis(ms),
            tunnels,
            busy: Duration::from_millis(ms),
        }
    }

    pub(super) fn rounds(&self, case: (Part, u32)) -> usize {
        if case == (Part::Crowd, self.cpus) { self.judged_rounds } else { self.rounds }
    }

    pub(super) fn crowd(&self, to: SocketAddr) -> LoadCommand {
        LoadCommand::Short { tunnel: to.into(), connections: self.connections, concurrency: CONCURRENCY }
    }
}

pub(super) fn steps(cases: &[(Part, u32)], strategies: &[Strategy], effort: &Effort) -> u64 {
    let of = |&case: &(Part, u32)| match case.0 {
        Part::Calls => inspected_strategies(strategies).len(),
        _ => strategies.len() * effort.rounds(case),
    };
    cases.iter().map(of).sum::<usize>() as u64
}

/// Each part with its numbers of threads.
pub(super) fn cases(parts: &[Part], effort: &Effort) -> Vec<(Part, u32)> {
    let of = |&part: &Part| match part {
        Part::Crowd => effort.workers.iter().map(|workers| (part, *workers)).collect(),
        _ => vec![(part, WORKERS)],
    };
    parts.iter().flat_map(of).collect()
}

/// The herd and the gateway's default: before and after, as in the published measurement.
pub(super) fn inspected_strategies(strategies: &[Strategy]) -> Vec<Strategy> {
    [Strategy::Shared, Strategy::DEFAULT].into_iter().filter(|one| strategies.contains(one)).collect()
}

#[cfg(test)]
mod tests {
    use clap::{Parser, ValueEnum};

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn options(words: &[&str]) -> Options {
        Line::parse_from([&["accept"], words].concat()).options
    }

    #[test]
    fn matrix_includes_a_thread_per_cpu() {
        let check = |words: &[&str], cpus, expected: &[u32]| {
            assert_eq!(Effort::of(&options(words), cpus).workers, expected, "{words:?}");
        };
        check(&[], 2, &[1, 2, 4, 8, 24]);
        check(&["--long"], 6, &[1, 2, 4, 6, 8, 24]);
        check(&["--workers", "5,3"], 6, &[3, 5]);
    }

    #[test]
    fn crowd_has_a_case_per_thread_count() {
        let effort = Effort::of(&options(&["--quick", "--rounds", "2"]), 2);
        assert_eq!(effort.rounds, 2);
        assert_eq!(cases(Part::value_variants(), &effort).len(), effort.workers.len() + 5);
        assert_eq!(cases(&[Part::Busy], &effort), [(Part::Busy, WORKERS)]);
    }
}
