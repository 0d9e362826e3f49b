//! Findings: compares the load with each limit, and finds the limit that is met first.
//!
//! Guarantees: pure functions of readings and needs; a limit that could not be read is never called fine.

use std::cmp::Ordering;

use sys::limits::{Footprint, Limit, LimitValue, threads_within};

use super::load::Load;

/// A limit, judged.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    pub(super) reading: LimitValue,
    /// The amount that the configured load needs.
    pub(super) needed: u64,
    /// The amount that other processes use.
    pub(super) in_use: u64,
    /// The remaining amount for Tollgate; `None` without a limit, or if the amount is unknown.
    pub(super) available: Option<u64>,
    pub(super) capacity: Option<Capacity>,
    pub(super) state: State,
}

/// The load that a limit suffices for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Capacity {
    /// That many connections at a time.
    Connections(u64),
    /// That many threads.
    Threads(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Fine,
    /// The load is carried, at a cost that the remedy names.
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
        // The command is another process than the gateway, whose own usage starts at zero.
        let in_use = if is_per_process(reading.limit) { 0 } else { reading.used.unwrap_or(0) };
        let free = LimitValue { used: Some(in_use), ..reading.clone() };
        let available = free.free();
        let capacity = available.and_then(|available| match need.each {
            0 => threads_within(&free, footprint).map(Capacity::Threads),
            each => Some(Capacity::Connections(available.saturating_sub(need.once) / each)),
        });
        let state = match available {
            Some(available) if available < needed && only_degrades(reading.limit) => State::Narrow,
            Some(available) if available < needed => State::Fails,
            Some(_) => State::Fine,
            None if reading.error.is_some() => State::Unknown,
            None => State::Fine,
        };
        Finding { reading: reading.clone(), needed, in_use, available, capacity, state }
    }

    pub(super) fn limit(&self) -> Limit {
        self.reading.limit
    }

    /// The carried part of the configured load: in connections where the limit bounds them, else in the
    /// limit's unit.
    pub(super) fn share(&self, load: &Load) -> Option<f64> {
        let available = self.available?;
        match self.capacity {
            Some(Capacity::Connections(carried)) => Some(carried as f64 / load.connections.max(1) as f64),
            _ => Some(available as f64 / self.needed.max(1) as f64),
        }
    }

    /// The order for [`first`]: limits that fail the load, limits that degrade it, then those that would fail
    /// or degrade it with more connections. A limit whose need is met and does not grow is never met.
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

/// The limits that the load meets first: the one with the smallest share of the need, and all limits with the
/// same share. Empty if the load meets no limit.
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

/// Beyond these limits the load is carried, at a cost.
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
