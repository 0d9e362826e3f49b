//! The plan of `lab quota`: its options, its parts, and how much of everything a run does.

use std::path::PathBuf;
use std::time::Duration;

use super::rates;
use crate::kit::options::{CommonOptions, Scale};
use crate::kit::relays::installed::InstalledTarget;
use crate::kit::relays::target::Target;

/// The options of `lab quota`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) common: CommonOptions<Part>,
    /// The tollgate executable [default: the one beside this lab]
    #[arg(long, value_name = "PATH")]
    pub(super) tollgate: Option<PathBuf>,
    /// Leave these relays out, with commas between them
    #[arg(long, value_delimiter = ',', value_name = "RELAY")]
    pub(super) without: Vec<Target>,
}

/// A part of the experiment.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// A quota that 64 tunnels use up at the same time, each way: the bytes beyond it
    Overshoot,
    /// Rates from 64 kbit/s to 10 Gbit/s, on one tunnel and on 64: the rate in each second, and how evenly
    /// the tunnels share it
    Rate,
    /// The CPU time of a gigabyte at a cap of 1 Gbit/s, beside that of one without a cap
    RateCpu,
}

impl Part {
    /// The targets that can do this part of the work.
    pub(super) fn targets(self) -> &'static [Target] {
        match self {
            Self::Overshoot => &[Target::BareQuota, Target::Tollgate, Target::ThreeProxy],
            Self::Rate => &[Target::Tollgate],
            Self::RateCpu => &[Target::Tollgate, Target::TollgateLimited],
        }
    }
}

/// How much of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Effort {
    pub(super) rounds: usize,
    /// The CPU time is judged by ratios, and one round of it is short.
    pub(super) cost_rounds: usize,
    pub(super) quota_mebibytes: u32,
    /// After this long the lab ends tunnels that a relay does not end.
    pub(super) tunnels_time_max: Duration,
    /// Whole seconds of each rate.
    pub(super) seconds: u32,
    pub(super) stream: Duration,
}

impl Effort {
    pub(super) fn of(options: &Options) -> Self {
        let usual = Self {
            rounds: 5,
            cost_rounds: 11,
            quota_mebibytes: 100,
            // 3proxy lets 64 times the limit pass, at some 15 Gbit/s.
            tunnels_time_max: Duration::from_secs(8),
            seconds: 5,
            stream: Duration::from_secs(2),
        };
        let effort = match options.common.scale() {
            Scale::Quick => Self {
                rounds: 1,
                cost_rounds: 1,
                quota_mebibytes: 4,
                tunnels_time_max: Duration::from_millis(500),
                seconds: 1,
                stream: Duration::from_millis(200),
            },
            Scale::Usual => usual,
            Scale::Long => Self { rounds: 15, cost_rounds: 31, ..usual },
        };
        Self {
            rounds: options.common.rounds_or(effort.rounds),
            cost_rounds: options.common.rounds_or(effort.cost_rounds),
            ..effort
        }
    }
}

pub(super) fn steps(parts: &[Part], candidates: &[InstalledTarget], effort: &Effort) -> u64 {
    let of = |part: &Part| {
        let targets = candidates.iter().filter(|it| part.targets().contains(&it.target)).count();
        targets
            * match part {
                Part::Overshoot => effort.rounds,
                Part::Rate => effort.rounds * rates::CASES.len(),
                Part::RateCpu => effort.cost_rounds,
            }
    };
    parts.iter().map(of).sum::<usize>() as u64
}
