//! Findings: the load held against each limit, and which limit is met first.
//!
//! Promises: pure: what was read and what is needed go in, judgements come out; a limit that could not be
//! read is never called fine. Leaves to others: reading (`sys::limits`), needs (`load`), words for a remedy
//! (`remedy`).

use std::cmp::Ordering;

use sys::limits::{Footprint, Limit, LimitValue, threads_in};

use super::load::Load;

/// A limit, judged.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    pub(super) reading: LimitValue,
    /// What the configured load takes of it.
    pub(super) needed: u64,
    /// What others use of it.
    pub(super) in_use: u64,
    /// What is left for us; none where nothing bounds us, or nobody knows.
    pub(super) available: Option<u64>,
    pub(super) capacity: Option<Capacity>,
    pub(super) state: State,
}

/// What a limit has room for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Capacity {
    /// So many connections at a time.
    Connections(u64),
    /// So many threads.
    Threads(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Fine,
    /// It is carried, with a loss that the remedy names.
    Narrow,
    /// The configured load is not carried.
    Fails,
    Unknown,
}

impl State {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            State::Fine => "fine",
            State::Narrow => "narrow",
            State::Fails => "fails",
            State::Unknown => "unknown",
        }
    }
}

/// Judges every limit.
pub(super) fn examine(load: &Load, readings: &[LimitValue], footprint: Footprint) -> Vec<Finding> {
    readings.iter().map(|reading| Finding::judge(load, reading, footprint)).collect()
}

impl Finding {
    fn judge(load: &Load, reading: &LimitValue, footprint: Footprint) -> Finding {
        let need = load.need(reading.limit, footprint);
        let needed = need.total_for(load.connections);
        // Who asks is another process than the one that will serve.
        let in_use = if is_per_process(reading.limit) { 0 } else { reading.used.unwrap_or(0) };
        let free = LimitValue { used: Some(in_use), ..reading.clone() };
        let available = free.free();
        let capacity = available.and_then(|available| match need.each {
            0 => threads_in(&free, footprint).map(Capacity::Threads),
            each => Some(Capacity::Connections(available.saturating_sub(need.once) / each)),
        });
        let state = match available {
            Some(available) if available < needed && only_degrades(reading.limit) => State::Narrow,
            Some(available) if available < needed => State::Fails,
            Some(_) => State::Fine,
            None if reading.trouble.is_some() => State::Unknown,
            None => State::Fine,
        };
        Finding { reading: reading.clone(), needed, in_use, available, capacity, state }
    }

    pub(super) fn limit(&self) -> Limit {
        self.reading.limit
    }

    /// What is carried of what is configured: connections where it bounds those, else what it counts.
    pub(super) fn share(&self, load: &Load) -> Option<f64> {
        let available = self.available?;
        match self.capacity {
            Some(Capacity::Connections(carried)) => Some(carried as f64 / load.connections.max(1) as f64),
            _ => Some(available as f64 / self.needed.max(1) as f64),
        }
    }

    /// Who comes first in [`first`]: what ends the load, what costs, then what would end it with more
    /// connections, what would cost with more. A limit whose need is met and does not grow is never met.
    fn rank(&self) -> Option<u8> {
        match (self.state, self.capacity) {
            (State::Fails, _) => Some(0),
            (State::Narrow, _) => Some(1),
            (State::Fine, Some(Capacity::Connections(_))) => {
                Some(if only_degrades(self.limit()) { 3 } else { 2 })
            }
            _ => None,
        }
    }
}

/// The limits that the load meets first: the one with the smallest share of what is needed, and those that
/// are met together with it. Empty where no limit is in sight.
pub(super) fn first<'a>(load: &Load, findings: &'a [Finding]) -> Vec<&'a Finding> {
    let key = |finding: &&Finding| Some((finding.rank()?, finding.share(load)?));
    let least = findings.iter().filter_map(|finding| key(&finding)).min_by(|one, other| {
        one.0.cmp(&other.0).then(one.1.partial_cmp(&other.1).unwrap_or(Ordering::Equal))
    });
    findings.iter().filter(|finding| key(finding).is_some() && key(finding) == least).collect()
}

/// Limits that each process has for itself.
fn is_per_process(limit: Limit) -> bool {
    matches!(
        limit,
        Limit::Descriptors
            | Limit::Mappings
            | Limit::AddressSpace
            | Limit::Data
            | Limit::Stack
            | Limit::LockedMemory
    )
}

/// Beyond these the load is carried, with a loss.
fn only_degrades(limit: Limit) -> bool {
    matches!(
        limit,
        Limit::LockedMemory
            | Limit::ListenQueue
            | Limit::SynQueue
            | Limit::LocalPorts
            | Limit::TcpMemory
            | Limit::Orphans
            | Limit::TimeWait
            | Limit::PipePages
    )
}
