//! The plan of `lab timers`: its options, its parts, and how much of everything a run does.

use std::path::PathBuf;

use crate::kit::options::{CommonOptions, Scale};

/// The options of `lab timers`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) common: CommonOptions<Part>,
    /// A program around the timer thread of a built brpc: `docs/lab-drivers.md` defines its arguments
    #[arg(long, value_name = "PATH")]
    pub(super) brpc: Option<PathBuf>,
}

/// A part of the experiment.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Schedule and cancel with 1 to 50 threads: rate, CPU time
    Pairs,
    /// Three implementations interleaved, where another thread cancels: CPU time
    Interleaved,
    /// 20,000 calls a second: wake-ups, lateness
    Calls,
    /// Timers that were cancelled: memory
    Held,
    /// Calls over loopback, with deadlines and without: rate, CPU time, instructions
    Echo,
}

/// How much of everything.
pub(super) struct Effort {
    pub(super) rounds: usize,
    /// The time of each case of schedule and cancel.
    pub(super) case_ms: u64,
    pub(super) calls_ms: u64,
    pub(super) timers: u64,
    pub(super) echo_calls: u64,
    /// How often the instructions of each echo are counted: how many calls share a pass of the loop varies.
    pub(super) counts: usize,
}

impl Effort {
    pub(super) fn of(options: &Options) -> Self {
        let usual = Self {
            rounds: 9,
            case_ms: 40,
            calls_ms: 20_000,
            timers: 1_000_000,
            echo_calls: 200_000,
            counts: 3,
        };
        let mut effort = match options.common.scale() {
            Scale::Quick => {
                Self { rounds: 1, case_ms: 2, calls_ms: 200, timers: 20_000, echo_calls: 2_000, counts: 0 }
            }
            Scale::Long => Self {
                rounds: 15,
                case_ms: 300,
                calls_ms: 60_000,
                timers: 50_000_000,
                echo_calls: 1_000_000,
                ..usual
            },
            Scale::Usual => usual,
        };
        effort.rounds = options.common.rounds_or(effort.rounds);
        effort
    }

    /// Rounds of the case that is short and decides.
    pub(super) fn interleaved_rounds(&self) -> usize {
        self.rounds * 3
    }
}
