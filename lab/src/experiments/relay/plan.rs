//! The plan of `lab relay`: its options, its parts, and how much of everything a run does.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::RangedI64ValueParser;

use super::bulk;
use super::endpoints::Endpoints;
use super::forward::{self, ForwardTunnels};
use super::limits;
use super::requests;
use super::route::Route;
use super::short;
use crate::kit::load::Persistence;
use crate::kit::options::{CommonOptions, Scale};
use crate::kit::relays::installed::InstalledTarget;
use crate::kit::relays::target::Target;

/// Memory hardly varies, so fewer runs are enough.
pub(super) const IDLE_ROUNDS_MAX: usize = 3;

/// More would need descriptors that the load's own processes may not have.
const CONNECTIONS_MAX: i64 = 1_000_000;

/// Clients that keep their connections.
const KEPT_CLIENTS: u32 = 100;

/// The options of `lab relay`.
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
    /// Short connections in each run [default: 10,000, 4,000 through forward proxies and 3,000 beside open
    /// tunnels; with --long 50,000, 50,000 and 20,000]
    #[arg(long, value_name = "COUNT", value_parser = up_to(CONNECTIONS_MAX))]
    connections: Option<u32>,
    /// Requests in each run [default: 20,000 on kept connections and 10,000 on a connection each, with --long
    /// 100,000 and 50,000]
    #[arg(long, value_name = "COUNT", value_parser = up_to(CONNECTIONS_MAX))]
    requests: Option<u32>,
}

/// A count from 1 to `most`.
fn up_to(most: i64) -> RangedI64ValueParser<u32> {
    RangedI64ValueParser::new().range(1..=most)
}

/// A part of the experiment.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Short connections: rate, CPU time, latency
    Short,
    /// Streams each way, one and a hundred at a time: rate, CPU time, splicing
    Bulk,
    /// Idle tunnels: memory
    Idle,
    /// Small messages on up to 1,000 connections, and beside a stream: latency
    Pingpong,
    /// Short connections beside 100 and 9,000 open tunnels: CPU time
    Growth,
    /// Tunnels by CONNECT through forward proxies: short connections, and one stream each way
    Connect,
    /// The same by SOCKS5
    Socks5,
    /// Plain HTTP requests through forward proxies: rate, CPU time, latency
    Requests,
    /// What quotas and rates cost that are never reached: short connections, a stream each way, small
    /// messages, requests on kept connections, each beside a Tollgate without limits
    Limits,
    /// What Tollgate's accounting costs: time for each read and write, with --long instructions for each
    /// connection
    Accounting,
}

impl Part {
    /// The targets that can do this part of the work.
    pub(super) fn targets(self) -> &'static [Target] {
        match self {
            Self::Bulk => bulk::TARGETS,
            Self::Short => short::TARGETS,
            Self::Idle | Self::Pingpong | Self::Growth => Endpoints::TARGETS,
            Self::Connect => ForwardTunnels::targets(forward::CONNECT.protocol),
            Self::Socks5 => ForwardTunnels::targets(forward::SOCKS5.protocol),
            Self::Requests => Route::TARGETS,
            Self::Limits => limits::TARGETS,
            Self::Accounting => &[Target::Tollgate],
        }
    }
}

/// How much of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Effort {
    pub(super) rounds: usize,
    /// Short connections are judged to the percent, and one round of them is short.
    pub(super) short_rounds: usize,
    /// Limits are judged to the percent, too.
    pub(super) limits_rounds: usize,
    /// Whether instructions are counted as well, which takes a minute.
    pub(super) counts_instructions: bool,
    pub(super) connections: u32,
    /// Short connections beside open ones.
    pub(super) beside_idle: u32,
    /// Short connections through forward proxies, of which there are more, and slower ones.
    pub(super) tunnels: u32,
    pub(super) concurrency: u32,
    pub(super) kept_requests: u32,
    pub(super) closed_requests: u32,
    pub(super) stream: Duration,
    pub(super) ping: Duration,
}

impl Effort {
    /// Some fourteen minutes with all rivals on two CPUs that nothing disturbs; a repeated round is more.
    const USUAL: Self = Self {
        rounds: 5,
        short_rounds: 15,
        limits_rounds: 21,
        counts_instructions: false,
        connections: 10_000,
        beside_idle: 3_000,
        tunnels: 4_000,
        concurrency: 500,
        kept_requests: 20_000,
        closed_requests: 10_000,
        stream: Duration::from_millis(800),
        ping: Duration::from_millis(1_000),
    };

    const QUICK: Self = Self {
        rounds: 1,
        short_rounds: 1,
        limits_rounds: 1,
        counts_instructions: false,
        connections: 300,
        beside_idle: 200,
        tunnels: 200,
        concurrency: 50,
        kept_requests: 500,
        closed_requests: 300,
        stream: Duration::from_millis(100),
        ping: Duration::from_millis(200),
    };

    const LONG: Self = Self {
        rounds: 7,
        short_rounds: 15,
        limits_rounds: 31,
        counts_instructions: true,
        connections: 50_000,
        beside_idle: 20_000,
        tunnels: 50_000,
        concurrency: 500,
        kept_requests: 100_000,
        closed_requests: 50_000,
        stream: Duration::from_millis(4_000),
        ping: Duration::from_millis(6_000),
    };

    pub(super) fn of(options: &Options) -> Self {
        let usual = match options.common.scale() {
            Scale::Quick => Self::QUICK,
            Scale::Usual => Self::USUAL,
            Scale::Long => Self::LONG,
        };
        let connections = |usual| options.connections.unwrap_or(usual);
        let requests = |usual| options.requests.unwrap_or(usual);
        Self {
            rounds: options.common.rounds_or(usual.rounds),
            short_rounds: options.common.rounds_or(usual.short_rounds),
            limits_rounds: options.common.rounds_or(usual.limits_rounds),
            connections: connections(usual.connections),
            beside_idle: connections(usual.beside_idle),
            tunnels: connections(usual.tunnels),
            kept_requests: requests(usual.kept_requests),
            closed_requests: requests(usual.closed_requests),
            ..usual
        }
    }

    /// How many requests, and how many of them at once. Clients that keep their connections are fewer, and
    /// each makes more requests.
    pub(super) fn requests(&self, persistence: Persistence) -> (u32, u32) {
        match persistence {
            Persistence::KeepAlive => (self.kept_requests, KEPT_CLIENTS),
            Persistence::Close => (self.closed_requests, self.concurrency),
        }
    }
}

pub(super) fn steps(parts: &[Part], candidates: &[InstalledTarget], effort: &Effort) -> u64 {
    let of = |part: &Part| {
        let targets = candidates.iter().map(|installed| installed.target);
        let targets = targets.filter(|target| part.targets().contains(target));
        match part {
            Part::Idle => {
                targets.filter(|&target| target != Target::Direct).count()
                    * effort.rounds.min(IDLE_ROUNDS_MAX)
            }
            Part::Growth => targets.filter(|&target| target != Target::Direct).count() * effort.rounds,
            Part::Short => targets.count() * effort.short_rounds,
            Part::Bulk | Part::Pingpong | Part::Accounting => targets.count() * effort.rounds,
            Part::Connect | Part::Socks5 => targets.count() * effort.rounds * 2,
            Part::Requests => targets.count() * effort.rounds * requests::CASES.len(),
            Part::Limits => targets.count() * effort.limits_rounds * limits::WHAT.len(),
        }
    };
    parts.iter().map(of).sum::<usize>() as u64
}
