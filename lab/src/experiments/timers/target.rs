//! The timer implementations by name, as reports and child processes call them.

use std::path::{Path, PathBuf};

use super::bucketed::Bucketed;
use super::heap::Heap;
use super::local::LocalService;
use super::no_timers::NoTimers;
use super::own_wheel::OwnWheel;
use super::shared::SharedService;
use super::threads::Threads;
use super::tick::Tick;
use super::timerfd::Timerfd;
use super::tokio::Tokio;
use crate::kit::rounds::RoundTarget;

/// An implementation that the lab has built in. `tollgate-*` are the engine's.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BuiltIn {
    /// Any thread arms, any thread cancels
    TollgateShared,
    /// A thread with a loop of its own arms, any thread cancels
    TollgateLocal,
    /// Timers that never leave their thread, as a reactor has them
    TollgateOwnWheel,
    /// One mutex around one heap
    Heap,
    /// The design of brpc up to 1.17.0: 13 buckets, and one thread with a heap
    Bucketed,
    /// A timer descriptor for each call
    Timerfd,
    /// A timer thread for each caller
    Threads,
    /// A wheel that turns every millisecond
    Tick,
    /// tokio's timer
    Tokio,
    /// No timers: what the experiment itself costs
    Nothing,
}

/// A measurement that runs with any implementation.
pub(super) trait TimerWork {
    type Output;

    fn with<F: super::timer_impl::TimerImpl>(self) -> Self::Output;
}

impl BuiltIn {
    /// The name in the report.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::TollgateShared => "tollgate-shared",
            Self::TollgateLocal => "tollgate-local",
            Self::TollgateOwnWheel => "tollgate-own-wheel",
            Self::Heap => "heap",
            Self::Bucketed => "bucketed",
            Self::Timerfd => "timerfd",
            Self::Threads => "threads",
            Self::Tick => "tick",
            Self::Tokio => "tokio",
            Self::Nothing => "nothing",
        }
    }

    /// Whether it is the engine's.
    pub(super) fn is_ours(self) -> bool {
        matches!(self, Self::TollgateShared | Self::TollgateLocal | Self::TollgateOwnWheel)
    }

    /// Whether it keeps any timer.
    pub(super) fn has_timers(self) -> bool {
        self != Self::Nothing
    }

    /// Whether a thread can cancel a timer of another.
    pub(super) fn is_shared(self) -> bool {
        self != Self::TollgateOwnWheel
    }

    /// Runs `work` with the implementation.
    pub(super) fn with<W: TimerWork>(self, work: W) -> W::Output {
        match self {
            Self::TollgateShared => work.with::<SharedService>(),
            Self::TollgateLocal => work.with::<LocalService>(),
            Self::TollgateOwnWheel => work.with::<OwnWheel>(),
            Self::Heap => work.with::<Heap>(),
            Self::Bucketed => work.with::<Bucketed>(),
            Self::Timerfd => work.with::<Timerfd>(),
            Self::Threads => work.with::<Threads>(),
            Self::Tick => work.with::<Tick>(),
            Self::Tokio => work.with::<Tokio>(),
            Self::Nothing => work.with::<NoTimers>(),
        }
    }
}

/// A measured implementation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    BuiltIn(BuiltIn),
    /// An external program, named by `--brpc`.
    Brpc(PathBuf),
}

impl Target {
    /// Whether it keeps any timer.
    pub(super) fn has_timers(&self) -> bool {
        !matches!(self, Self::BuiltIn(built_in) if !built_in.has_timers())
    }

    /// The program that does its work, if it is not the lab.
    pub(super) fn program(&self) -> Option<&Path> {
        match self {
            Self::BuiltIn(_) => None,
            Self::Brpc(path) => Some(path),
        }
    }
}

impl RoundTarget for Target {
    fn name(&self) -> &'static str {
        match self {
            Self::BuiltIn(built_in) => built_in.name(),
            Self::Brpc(_) => "brpc",
        }
    }
}
