//! A history: one data directory through many kills, judged again and again as it grows.
//!
//! Guarantees: a seed decides everything but the machine's timing. Every check reads the whole bill, so that
//! a later start which damages an earlier row is found. `oracle` has the rules.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::bill::{self, Live, Row};
use crate::facts::Sent;
use crate::gateway::{Exit, REACTORS, Running, StartOutcome, Watcher, Workspace, stop};
use crate::load::Load;
use crate::observer::{self, DurabilityObserver, Observed, Sources};
use crate::oracle::{self, Facts, Fate};
use crate::rng::Rng;
use crate::table;
use crate::totals::Totals;

/// Crash points of a gateway under load, each with an upper bound of the arrival that is drawn.
const POINTS: [(&str, u64); 15] = [
    ("send.before", 8_192),
    ("send.returned", 8_192),
    ("send.counted", 8_192),
    ("table.closing", 64),
    ("journal.before-write", 48),
    ("journal.half-written", 48),
    ("journal.written", 48),
    ("journal.before-sync", 24),
    ("journal.synced", 24),
    ("commit.before-free", 64),
    ("commit.freed", 64),
    ("apply.before", 3),
    ("apply.month-committed", 3),
    ("apply.committed", 3),
    ("segment.switch", 2),
];

/// Crash points of a gateway that recovers what a dead one left.
const RECOVERY_POINTS: [(&str, u64); 8] = [
    ("recover.begin", 1),
    ("recover.scanned", 1),
    ("recover.appended", 1),
    ("recover.synced", 1),
    ("recover.table-cleared", 1),
    ("journal.half-written", 1),
    ("apply.before", 1),
    ("apply.committed", 1),
];

/// Every crash point, as the totals name it.
pub(crate) fn points() -> impl Iterator<Item = String> {
    let recovery = RECOVERY_POINTS.iter().map(|(name, _)| format!("{IN_RECOVERY}{name}"));
    POINTS.iter().map(|(name, _)| (*name).to_owned()).chain(recovery)
}

/// The end of a gateway under load.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Ending {
    /// By an orderly stop.
    Stop,
    /// At a random instant.
    Random,
    /// At a crash point.
    Aimed,
    /// At a random instant, and the one that recovers at a crash point.
    Recovery,
    /// By a power failure: under load, in an orderly stop, or in the start that follows.
    Power,
}

/// How long a gateway under load lives; one that misses its crash point gets longer.
const LIFETIME_MS: std::ops::Range<u64> = 20..300;
const AIMED_LIFETIME_MS: u64 = 300;
/// How often a kill is followed by another kill instead of a check.
const UNCHECKED_PERCENT: u64 = 25;
/// How often a kill at a random instant happens during an orderly stop, and how long after its request.
const IN_STOP_PERCENT: u64 = 15;
const IN_STOP_US: std::ops::Range<u64> = 0..60_000;
/// Longer lives of some gateways that a power failure ends: long enough for the database to catch up, and for
/// an interim of each flow.
const LONG_PERCENT: u64 = 30;
const LONG_LIFETIME_MS: std::ops::Range<u64> = 300..2_000;
const LONGEST_PERCENT: u64 = 10;
const LONGEST_LIFETIME_MS: std::ops::Range<u64> = 5_000..6_500;
/// How long after the begin of a start the power fails in it. A start takes some 30 ms, and more on a slow
/// disk.
const IN_START_US: std::ops::Range<u64> = 500..150_000;
const IN_RECOVERY: &str = "recovery, ";
const IN_STOP: &str = "a random instant of an orderly stop";
/// How often another recovery is killed too.
const AGAIN_PERCENT: u64 = 30;

/// What a gateway had shown or reported before the power failed, and is held to.
#[derive(Default)]
struct BeforeFailure {
    rows: Vec<Row>,
    live: Vec<Live>,
    /// The highest LSN that was reported as durable.
    durable: u64,
}

/// What ends a gateway early.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Cause {
    Kill,
    Power,
}

/// One data directory, its flows so far, and its last bill.
pub(crate) struct History<'t> {
    rng: Rng,
    workspace: Workspace,
    facts: Vec<Facts>,
    /// The number of flows whose gateway's successor is known to have recovered.
    recovered: usize,
    before_failure: BeforeFailure,
    bill: Vec<Row>,
    generation: usize,
    next_number: u32,
    /// Makes the bill from the send audit instead, to test the harness itself.
    rehearses: bool,
    totals: &'t mut Totals,
}

impl<'t> History<'t> {
    /// A history in `workspace`, which is new.
    pub(crate) fn new(
        seed: u64,
        workspace: Workspace,
        rehearses: bool,
        totals: &'t mut Totals,
    ) -> History<'t> {
        History {
            rng: Rng::new(seed, 0),
            workspace,
            facts: Vec::new(),
            recovered: 0,
            before_failure: BeforeFailure::default(),
            bill: Vec::new(),
            generation: 0,
            next_number: 0,
            rehearses,
            totals,
        }
    }

    /// Keeps a copy of the test disk, to be inspected.
    pub(crate) fn save(&self) {
        self.workspace.save();
    }

    /// Runs all `endings`, and one orderly stop behind them.
    ///
    /// # Errors
    /// What went wrong, and in which generation.
    pub(crate) fn run(&mut self, endings: &[Ending]) -> Result<(), String> {
        self.run_endings(endings).map_err(|wrong| format!("generation {}: {wrong}", self.generation))?;
        self.totals.bill(&self.facts, &self.bill);
        Ok(())
    }

    fn run_endings(&mut self, endings: &[Ending]) -> Result<(), String> {
        for ending in endings {
            self.generation += 1;
            match ending {
                Ending::Stop => self.stop_under_load(None)?,
                Ending::Random if self.rng.random_percent(IN_STOP_PERCENT) => {
                    let after = Duration::from_micros(self.rng.random_range(IN_STOP_US));
                    self.stop_under_load(Some((after, Cause::Kill)))?;
                }
                Ending::Random => self.kill_under_load(false, Cause::Kill)?,
                Ending::Aimed => self.kill_under_load(true, Cause::Kill)?,
                Ending::Recovery => {
                    self.kill_under_load(false, Cause::Kill)?;
                    self.kill_recovery()?;
                }
                Ending::Power => self.fail_power()?,
            }
            if !self.rng.random_percent(UNCHECKED_PERCENT) {
                self.check()?;
            }
        }
        self.generation += 1;
        self.stop_under_load(None)?;
        self.judge()
    }

    /// Loads a gateway and kills it, alone or by a power failure.
    fn kill_under_load(&mut self, is_aimed: bool, cause: Cause) -> Result<(), String> {
        let target = is_aimed.then(|| self.target(&POINTS));
        let lifetime = if is_aimed { AIMED_LIFETIME_MS } else { self.lifetime_ms(cause) };
        let running = match self.workspace.start(target.as_deref())? {
            StartOutcome::Serves(running) => running,
            StartOutcome::Died => {
                self.totals.aimed(target.as_deref(), true);
                return self.after_kill(cause, "at a crash point of a start", &Observed::default());
            }
        };
        self.recovered = self.facts.len();
        let listener = running.listener;
        let observer = self.start_observer(&running, cause);
        let mut load = Load::new(self.next_number, &mut self.rng);
        let switch = self.workspace.switch().filter(|_| cause == Cause::Power);
        let watcher = running.kill_after(Duration::from_millis(lifetime), switch);
        load.run(listener, &mut self.rng, || watcher.is_over(), None, || {});
        let end = self.end(watcher)?;
        if target.is_none() && end == Exit::Aimed {
            return Err(self.with_errors("the gateway was killed, though not by this harness".to_owned()));
        }
        let is_hit = end == Exit::Aimed;
        if cause == Cause::Kill || is_hit {
            self.totals.aimed(target.as_deref(), is_hit);
        }
        let observed = self.observed(observer);
        self.record_flows(load, if cause == Cause::Kill { Fate::Killed } else { Fate::Failed }, &observed)?;
        self.after_kill(cause, if is_hit { "at a crash point" } else { "under load" }, &observed)
    }

    /// Observes what a gateway makes durable, if its power is to fail.
    fn start_observer(&self, running: &Running, cause: Cause) -> Option<DurabilityObserver> {
        if cause == Cause::Kill {
            return None;
        }
        let (admin, tables) = (running.admin?, self.workspace.tables()?.to_owned());
        Some(DurabilityObserver::start(Sources {
            admin,
            audit_path: self.workspace.audit_path.clone(),
            tables,
        }))
    }

    /// What a dead gateway is held to. With `sync` a slot is free once its flow is durable, so the live table
    /// that it left shows all flows that ended.
    fn observed(&self, observer: Option<DurabilityObserver>) -> Observed {
        let Some(observer) = observer else { return Observed::default() };
        let mut observed = observer.finish();
        if self.workspace.is_sync
            && let Some(tables) = self.workspace.tables()
        {
            let holders = table::holders(tables).expect("a table in memory can be read");
            let moved = observer::moved(&self.workspace.audit_path);
            observed.finals.extend(moved.into_keys().filter(|number| !holders.contains(number)));
        }
        observed
    }

    /// After the kill: restores the power, if it failed too.
    fn after_kill(&mut self, cause: Cause, at: &'static str, observed: &Observed) -> Result<(), String> {
        match cause {
            Cause::Kill => Ok(()),
            Cause::Power => self.restore_power(at, observed),
        }
    }

    fn lifetime_ms(&mut self, cause: Cause) -> u64 {
        let range_ms = match cause {
            Cause::Power if self.rng.random_percent(LONGEST_PERCENT) => LONGEST_LIFETIME_MS,
            Cause::Power if self.rng.random_percent(LONG_PERCENT) => LONG_LIFETIME_MS,
            _ => LIFETIME_MS,
        };
        self.rng.random_range(range_ms)
    }

    /// Makes the power fail, in a random situation.
    fn fail_power(&mut self) -> Result<(), String> {
        match self.rng.random_range(0..100) {
            0..40 => self.kill_under_load(false, Cause::Power),
            40..60 => self.kill_under_load(true, Cause::Power),
            60..75 => {
                let after = Duration::from_micros(self.rng.random_range(IN_STOP_US));
                self.stop_under_load(Some((after, Cause::Power)))
            }
            _ => {
                let cause = *self.rng.choose(&[Cause::Kill, Cause::Power]);
                self.kill_under_load(false, cause)?;
                self.fail_power_in_start()
            }
        }
    }

    /// Makes the power fail while a gateway recovers, perhaps repeatedly.
    fn fail_power_in_start(&mut self) -> Result<(), String> {
        loop {
            if self.rng.random_percent(50) {
                let after = Duration::from_micros(self.rng.log_range(IN_START_US));
                if self.workspace.start_and_cut(after)? {
                    self.recovered = self.facts.len();
                }
                self.restore_power("at a random instant of a start", &Observed::default())?;
            } else {
                let target = self.target(&RECOVERY_POINTS);
                if let StartOutcome::Serves(running) = self.workspace.start(Some(&target))? {
                    self.recovered = self.facts.len();
                    let lifetime = Duration::from_millis(self.rng.random_range(0..20));
                    self.end(running.kill_after(lifetime, self.workspace.switch()))?;
                }
                self.restore_power("at a crash point of a start", &Observed::default())?;
            }
            if !self.rng.random_percent(AGAIN_PERCENT) {
                return Ok(());
            }
        }
    }

    /// Ends a power failure; keeps what had been shown and reported before it.
    fn restore_power(&mut self, at: &'static str, observed: &Observed) -> Result<(), String> {
        self.before_failure.durable = self.before_failure.durable.max(observed.durable);
        let seen = tempfile::tempdir().unwrap();
        self.workspace
            .restore_power(seen.path(), &mut self.rng)
            .map_err(|error| format!("the disk: {error}"))?;
        // A month that is ahead of the sums shows rows early. Their entries were durable all the same.
        let wrong = |error| format!("the databases as they were when the power failed: {error}");
        self.before_failure.rows.extend(bill::read(seen.path()).map_err(wrong)?);
        self.before_failure.live.extend(bill::live(seen.path()).map_err(wrong)?);
        for fact in &mut self.facts[self.recovered..] {
            if fact.fate == Fate::Killed {
                fact.fate = Fate::KilledThenFailed;
            }
        }
        self.totals.failed(at);
        Ok(())
    }

    /// Kills a gateway that recovers, perhaps repeatedly.
    fn kill_recovery(&mut self) -> Result<(), String> {
        loop {
            let target = self.target(&RECOVERY_POINTS);
            let died = match self.workspace.start(Some(&target))? {
                StartOutcome::Died => true,
                StartOutcome::Serves(running) => {
                    self.recovered = self.facts.len();
                    let watcher =
                        running.kill_after(Duration::from_millis(self.rng.random_range(0..20)), None);
                    self.end(watcher)? == Exit::Aimed
                }
            };
            self.totals.aimed(Some(&format!("{IN_RECOVERY}{target}")), died);
            if !self.rng.random_percent(AGAIN_PERCENT) {
                return Ok(());
            }
        }
    }

    /// Starts a gateway without load, stops it in order, and judges the bill.
    fn check(&mut self) -> Result<(), String> {
        let StartOutcome::Serves(running) = self.workspace.start(None)? else {
            return Err(self.with_errors("the gateway was killed, though not by this harness".to_owned()));
        };
        self.recovered = self.facts.len();
        stop(running.pid());
        self.end(running.await_stop(Arc::default(), None))?;
        self.judge()
    }

    /// Loads a gateway and stops it in order: then all is exact, unless it is killed meanwhile.
    fn stop_under_load(&mut self, kill_after: Option<(Duration, Cause)>) -> Result<(), String> {
        let StartOutcome::Serves(running) = self.workspace.start(None)? else {
            return Err(self.with_errors("the gateway was killed, though not by this harness".to_owned()));
        };
        self.recovered = self.facts.len();
        let (pid, listener) = (running.pid(), running.listener);
        let cause = kill_after.map_or(Cause::Kill, |(_, cause)| cause);
        let observer = self.start_observer(&running, cause);
        let mut load = Load::new(self.next_number, &mut self.rng);
        let lifetime = Duration::from_millis(self.rng.random_range(LIFETIME_MS));
        let kill_at = Arc::new(OnceLock::new());
        let switch = self.workspace.switch().filter(|_| cause == Cause::Power);
        let watcher = running.await_stop(Arc::clone(&kill_at), switch);
        let settled = || {
            stop(pid);
            if let Some((after, _)) = kill_after {
                kill_at.set(Instant::now() + after).expect("a load calls `settled` once");
            }
        };
        load.run(listener, &mut self.rng, || watcher.is_over(), Some(lifetime), settled);
        let in_order = self.end(watcher)? == Exit::Stopped;
        let fate = match cause {
            _ if in_order => Fate::Stopped,
            Cause::Kill => Fate::Killed,
            Cause::Power => Fate::Failed,
        };
        match fate {
            Fate::Stopped => self.totals.stopped(),
            Fate::Killed => self.totals.aimed(Some(IN_STOP), true),
            Fate::Failed | Fate::KilledThenFailed => {}
        }
        let observed = self.observed(observer);
        self.record_flows(load, fate, &observed)?;
        // The power may also fail after a complete stop: then nothing is lost.
        self.after_kill(
            cause,
            if in_order { "behind an orderly stop" } else { "in an orderly stop" },
            &observed,
        )
    }

    /// Waits for a gateway's end; no thread of it may have panicked.
    fn end(&self, watcher: Watcher) -> Result<Exit, String> {
        let end = watcher.end().map_err(|wrong| self.with_errors(wrong))?;
        match self.workspace.stderr().contains("panicked") {
            true => Err(self.with_errors("a thread of the gateway panicked".to_owned())),
            false => Ok(end),
        }
    }

    /// Draws a crash point, and the arrival at it.
    fn target(&mut self, points: &[(&'static str, u64)]) -> String {
        let (name, arrivals) = *self.rng.choose(points);
        format!("{name}:{}", self.rng.log_range(1..arrivals + 1))
    }

    /// Records the facts of a finished load's flows.
    fn record_flows(&mut self, load: Load, fate: Fate, observed: &Observed) -> Result<(), String> {
        let flows = load.into_flows();
        self.next_number += u32::try_from(flows.len()).expect("flows are numbered in 32 bits");
        let sent = Sent::read(&self.workspace.audit_path)?;
        for flow in flows {
            self.totals.traffic(flow.traffic.name);
            let fact = sent.facts(&flow, self.generation, fate);
            let is_final = observed.finals.contains(&flow.number);
            let recorded = observed.moved.get(&flow.number).copied().unwrap_or(0);
            self.facts.push(Facts { is_final, recorded, ..fact });
        }
        Ok(())
    }

    /// Reads the bill and judges it.
    fn judge(&mut self) -> Result<(), String> {
        let rows = match self.rehearses {
            true => oracle::rehearsed(&self.facts),
            false => bill::read(&self.workspace.data()).map_err(|error| format!("the bill: {error}"))?,
        };
        let mut findings = oracle::judge(&self.facts, &rows, REACTORS);
        findings.extend(oracle::changed(&self.bill, &rows));
        if !self.rehearses {
            findings.extend(oracle::usage_mismatch(&rows, self.workspace.usage()));
            if self.workspace.switch().is_some() {
                findings.extend(self.check_rollback(&rows)?);
            }
        }
        self.bill = rows;
        self.totals.checked();
        if findings.is_empty() {
            return Ok(());
        }
        let lines = findings.iter().take(10).map(|finding| format!("\n  {finding}")).collect::<String>();
        Err(format!("{} findings in a bill of {} rows:{lines}", findings.len(), self.bill.len()))
    }

    /// Findings about what a power failure reverted of the shown or reported data, and about the disk.
    fn check_rollback(&mut self, rows: &[Row]) -> Result<Vec<String>, String> {
        let progress =
            bill::progress(&self.workspace.data()).map_err(|error| format!("the database: {error}"))?;
        let before_failure = std::mem::take(&mut self.before_failure);
        let mut findings = oracle::changed(&before_failure.rows, rows);
        findings.extend(oracle::less_than_shown(&before_failure.live, rows));
        findings.extend(oracle::entries_lost(before_failure.durable, &progress));
        findings.extend(self.workspace.verify().err());
        Ok(findings)
    }

    fn with_errors(&self, wrong: String) -> String {
        format!("{wrong}\n{}", self.workspace.stderr())
    }
}
