//! The plan of `lab overload`: its options, the offered loads, and how much of everything a run does.

use std::time::Duration;

use crate::kit::options::{CommonOptions, Scale};

/// The options of `lab overload`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) common: CommonOptions<Part>,
}

/// A load, as a multiple of the capacity.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Half of the capacity
    #[value(name = "load-0.5")]
    Half,
    /// Four fifths of it
    #[value(name = "load-0.8")]
    FourFifths,
    /// All of it
    #[value(name = "load-1")]
    Full,
    /// Half as much again
    #[value(name = "load-1.5")]
    OneAndAHalf,
    /// Twice
    #[value(name = "load-2")]
    Double,
    /// Three times, where the verdicts are reached
    #[value(name = "load-3")]
    Triple,
}

impl Part {
    /// All, in order of the load.
    pub(super) const ALL: [Self; 6] =
        [Self::Half, Self::FourFifths, Self::Full, Self::OneAndAHalf, Self::Double, Self::Triple];

    /// The multiple of the capacity that is offered.
    pub(super) fn load(self) -> f64 {
        match self {
            Self::Half => 0.5,
            Self::FourFifths => 0.8,
            Self::Full => 1.0,
            Self::OneAndAHalf => 1.5,
            Self::Double => 2.0,
            Self::Triple => 3.0,
        }
    }

    /// The name in the report.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Half => "load-0.5",
            Self::FourFifths => "load-0.8",
            Self::Full => "load-1",
            Self::OneAndAHalf => "load-1.5",
            Self::Double => "load-2",
            Self::Triple => "load-3",
        }
    }
}

/// How much of everything.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    pub(super) rounds: usize,
    /// The measured time of each load.
    pub(super) time: Duration,
}

impl Effort {
    pub(super) fn of(options: &Options) -> Self {
        let (rounds, time) = match options.common.scale() {
            Scale::Quick => (1, Duration::from_millis(200)),
            Scale::Usual => (5, Duration::from_secs(1)),
            Scale::Long => (11, Duration::from_secs(3)),
        };
        Self { rounds: options.common.rounds_or(rounds), time }
    }
}
