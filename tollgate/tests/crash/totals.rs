//! The totals of a run of kill tests: kills, flows, bytes.
//!
//! Guarantees: the last line is complete by itself, to be quoted.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use crate::bill::Row;
use crate::oracle::{Facts, Fate};

/// Counters of a run.
#[derive(Default)]
pub(crate) struct Totals {
    /// A note if this was not the ledger as configured: printed ahead of the numbers.
    caveat: &'static str,
    /// By crash point: processes that died there, and those that missed it and were killed elsewhere.
    points: BTreeMap<String, (u64, u64)>,
    random: u64,
    stops: u64,
    /// Power failures, by situation.
    failures: BTreeMap<&'static str, u64>,
    failed: Failed,
    checks: u64,
    flows: BTreeMap<&'static str, u64>,
    rows: u64,
    killed: u64,
    bytes: u128,
    uncertain_calls: u64,
    uncertain_bytes: u64,
    uncertain_bytes_max: u64,
}

/// Losses by power failures.
#[derive(Clone, Copy, Debug, Default)]
struct Failed {
    /// Flows of gateways under a power failure.
    flows: u64,
    /// Of these, flows that are billed with less than they moved.
    short: u64,
    /// Of these, flows that moved bytes and have no row.
    missing: u64,
    /// The largest loss of one flow.
    bytes_max: u64,
    /// Of these, flows whose final was seen as durable.
    finals: u64,
    /// Of these, flows that must have an interim.
    due: u64,
}

impl Totals {
    /// Empty totals for these crash points.
    pub(crate) fn new(points: impl Iterator<Item = String>, caveat: &'static str) -> Totals {
        Totals { points: points.map(|name| (name, (0, 0))).collect(), caveat, ..Totals::default() }
    }

    /// Counts a kill: at a random instant without a target, else by whether the target was hit.
    pub(crate) fn aimed(&mut self, target: Option<&str>, hit: bool) {
        let Some(target) = target else {
            self.random += 1;
            return;
        };
        let name = target.rsplit_once(':').map_or(target, |(name, _)| name);
        let (hits, misses) = self.points.entry(name.to_owned()).or_default();
        *if hit { hits } else { misses } += 1;
    }

    pub(crate) fn failed(&mut self, at: &'static str) {
        *self.failures.entry(at).or_default() += 1;
    }

    pub(crate) fn stopped(&mut self) {
        self.stops += 1;
    }

    pub(crate) fn checked(&mut self) {
        self.checks += 1;
    }

    pub(crate) fn traffic(&mut self, name: &'static str) {
        *self.flows.entry(name).or_default() += 1;
    }

    /// Adds the bill of a finished history.
    pub(crate) fn bill(&mut self, facts: &[Facts], rows: &[Row]) {
        debug_assert!(rows.len() <= facts.len(), "the oracle accepts no row without a flow");
        self.rows += rows.len() as u64;
        self.losses(facts, rows);
        for row in rows {
            self.killed += u64::from(row.reason == "killed");
            self.bytes += u128::from(row.up) + u128::from(row.down);
            for bytes in [row.uncertain_up, row.uncertain_down].into_iter().filter(|bytes| *bytes > 0) {
                self.uncertain_calls += 1;
                self.uncertain_bytes += bytes;
                self.uncertain_bytes_max = self.uncertain_bytes_max.max(bytes);
            }
        }
    }

    fn losses(&mut self, facts: &[Facts], rows: &[Row]) {
        let billed: HashMap<_, _> = rows.iter().map(|row| (row.client, row.up + row.down)).collect();
        for fact in facts.iter().filter(|fact| matches!(fact.fate, Fate::Failed | Fate::KilledThenFailed)) {
            let moved = fact.up.audited + fact.down.audited;
            let row = billed.get(&fact.client).copied();
            let lost = moved.saturating_sub(row.unwrap_or(0));
            self.failed.flows += 1;
            self.failed.finals += u64::from(fact.is_final);
            self.failed.due += u64::from(fact.is_due());
            self.failed.short += u64::from(lost > 0 && row.is_some());
            self.failed.missing += u64::from(row.is_none() && moved > 0);
            self.failed.bytes_max = self.failed.bytes_max.max(lost);
        }
    }

    /// Crash points at which no process died.
    pub(crate) fn unreached(&self) -> Vec<&str> {
        self.points.iter().filter(|(_, (hits, _))| *hits == 0).map(|(name, _)| name.as_str()).collect()
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "kills at a random instant: {}", self.random)?;
        for (name, (hits, misses)) in &self.points {
            writeln!(out, "kills at {name}: {hits}, and {misses} that missed it")?;
        }
        for (at, count) in &self.failures {
            writeln!(out, "power failures {at}: {count}")?;
        }
        if !self.failures.is_empty() {
            let Failed { flows, short, missing, bytes_max, finals, due } = self.failed;
            writeln!(
                out,
                "of {flows} flows under a power failure: {short} billed as last recorded, {missing} that \
                 moved bytes not recorded yet, {bytes_max} bytes of one lost at most; {finals} had to be \
                 exact, and {due} to have an interim"
            )?;
        }
        for (name, flows) in &self.flows {
            writeln!(out, "flows, {name}: {flows}")?;
        }
        let unreached = self.unreached();
        if !unreached.is_empty() {
            writeln!(out, "crash points that were not reached: {}", unreached.join("; "))?;
        }
        let (hits, misses) = self.points.values().fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        let flows: u64 = self.flows.values().sum();
        write!(
            out,
            "crash{}: {} kills ({} random, {hits} at a point, {misses} beside it), {} power failures and {} \
             orderly stops, {} bills read; {flows} flows, {} rows ({} killed) of {} bytes: none missing, \
             none twice, none wrong; {} calls uncertain, {} bytes together, {} at most",
            self.caveat,
            self.random + hits + misses,
            self.random,
            self.failures.values().sum::<u64>(),
            self.stops,
            self.checks,
            self.rows,
            self.killed,
            self.bytes,
            self.uncertain_calls,
            self.uncertain_bytes,
            self.uncertain_bytes_max,
        )
    }
}
