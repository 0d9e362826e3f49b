//! The strategies by name, as reports and child processes call them. A name contains everything that
//! distinguishes one variant from another.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Error, Result, ensure};

use super::Strategy;
use super::batches::Batches;
use super::event::Event;
use super::io_aware::IoAware;
use super::pool::Pool;
use super::sequential::Sequential;
use super::thread_per_request::ThreadPerRequest;
use super::work::REQUESTS;

/// The most threads of one variant, and the widest window.
const COUNT_MAX: u32 = 1_000_000;

/// A strategy with its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Sequential,
    ThreadPerRequest,
    /// This many threads at a time.
    Batches(u32),
    /// This many threads.
    Pool(u32),
    /// At most eight threads a CPU.
    IoAware,
    /// This many requests admitted at a time; `None` for all.
    Event(Option<u32>),
}

impl Target {
    /// The strategy on this number of CPUs.
    pub(super) fn strategy(self, cpus: usize) -> Box<dyn Strategy> {
        match self {
            Self::Sequential => Box::new(Sequential),
            Self::ThreadPerRequest => Box::new(ThreadPerRequest),
            Self::Batches(threads) => Box::new(Batches { threads }),
            Self::Pool(threads) => Box::new(Pool { threads: threads as usize }),
            Self::IoAware => Box::new(IoAware { cpus }),
            Self::Event(window) => Box::new(Event { window: window.unwrap_or(COUNT_MAX), threads: cpus }),
        }
    }

    /// How many requests it may begin before the first is done, beyond one for each free thread: see
    /// `bounds.rs`.
    pub(super) fn ahead(self) -> u32 {
        match self {
            Self::Event(window) => window.unwrap_or(REQUESTS),
            _ => 0,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sequential => write!(text, "sequential"),
            Self::ThreadPerRequest => write!(text, "thread-per-request"),
            Self::Batches(threads) => write!(text, "batches-{threads}"),
            Self::Pool(threads) => write!(text, "pool-{threads}"),
            Self::IoAware => write!(text, "io-aware"),
            Self::Event(Some(window)) => write!(text, "event-{window}"),
            Self::Event(None) => write!(text, "event-all"),
        }
    }
}

impl FromStr for Target {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "sequential" => return Ok(Self::Sequential),
            "thread-per-request" => return Ok(Self::ThreadPerRequest),
            "io-aware" => return Ok(Self::IoAware),
            "event-all" => return Ok(Self::Event(None)),
            _ => {}
        }
        let (family, count) = name.rsplit_once('-').context("no strategy has this name")?;
        let count: u32 = count.parse().context("a strategy's name ends in a number")?;
        ensure!((1..=COUNT_MAX).contains(&count), "{count} is not between 1 and {COUNT_MAX}");
        match family {
            "batches" => Ok(Self::Batches(count)),
            "pool" => Ok(Self::Pool(count)),
            "event" => Ok(Self::Event(Some(count))),
            _ => Err(Error::msg("no strategy has this name")),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::experiments::pipeline::work::Work;

    /// One of each.
    pub(in crate::experiments::pipeline) const TARGETS: [Target; 9] = [
        Target::Sequential,
        Target::ThreadPerRequest,
        Target::Batches(1),
        Target::Batches(7),
        Target::Pool(1),
        Target::Pool(5),
        Target::IoAware,
        Target::Event(Some(1)),
        Target::Event(None),
    ];

    #[test]
    fn strategy_names_are_parsed_as_written() {
        for target in TARGETS {
            assert_eq!(target.to_string().parse::<Target>().ok(), Some(target), "{target}");
        }
        for name in ["", "pool", "pool-", "pool-0", "pool-x", "pool-1000001", "event-none", "swarm-3"] {
            assert!(name.parse::<Target>().is_err(), "{name:?}");
        }
    }

    /// Every strategy does every request once, whatever the number of CPUs and requests.
    #[test]
    fn all_strategies_reach_the_same_controls() {
        for requests in [0, 1, 65, 1_501] {
            let expected = {
                let work = Work::with_short_waits(requests, "very vivid");
                Sequential.run(&work).expect("one thread does all requests");
                work.controls()
            };
            assert_eq!(expected.requests, u64::from(requests));
            for target in TARGETS {
                for cpus in [1, 3] {
                    let work = Work::with_short_waits(requests, "very vivid");
                    target.strategy(cpus).run(&work).expect("threads can be created");
                    assert_eq!(work.controls(), expected, "{target} on {cpus} CPUs, {requests} requests");
                }
            }
        }
    }
}
