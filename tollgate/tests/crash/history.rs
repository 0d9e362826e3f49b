//! A history: one data directory through many kills, judged again and again as it grows.
//!
//! Promises: a seed decides everything but the machine's timing; every check reads the whole bill, so that a
//! later start which spoils an earlier row is found. Leaves to others: what must hold (`oracle`).

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::announced::{self, Announced, Sources, Told};
use crate::bill::{self, Live, Row};
use crate::chance::Chance;
use crate::facts::Sent;
use crate::gateway::{End, Place, REACTORS, Running, Start, Watch, stop};
use crate::load::Load;
use crate::oracle::{self, Facts, Fate};
use crate::table;
use crate::tally::Tally;

/// Points at which a gateway under load is killed, each with a bound of the arrival that is drawn.
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

/// Points at which a gateway that finds what a dead one left is killed.
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

/// Every place at which a gateway is to die, as the tally calls it.
pub(crate) fn points() -> impl Iterator<Item = String> {
    let recovery = RECOVERY_POINTS.iter().map(|(name, _)| format!("{IN_RECOVERY}{name}"));
    POINTS.iter().map(|(name, _)| (*name).to_owned()).chain(recovery)
}

/// How a gateway under load ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Ending {
    /// By an orderly stop.
    Stop,
    /// At a random instant.
    Random,
    /// At a point.
    Aimed,
    /// At a random instant, and the one that recovers at a point.
    Recovery,
    /// With its machine: under load, in an orderly stop, or in the start that follows.
    Power,
}

/// How long a gateway under load lives; one that misses its point has a little more.
const LIFE_MS: std::ops::Range<u64> = 20..300;
const AIMED_LIFE_MS: u64 = 300;
/// How often a kill is followed by the next one, and not by a check.
const UNCHECKED_PERCENT: u64 = 25;
/// How often a kill at a random instant comes while the gateway stops in order, and how long after it was
/// asked to.
const IN_STOP_PERCENT: u64 = 15;
const IN_STOP_US: std::ops::Range<u64> = 0..60_000;
/// The lives of some that the power ends: so long that the database comes after, and that each flow has an
/// interim of its own.
const LONG_PERCENT: u64 = 30;
const LONG_LIFE_MS: std::ops::Range<u64> = 300..2_000;
const LONGEST_PERCENT: u64 = 10;
const LONGEST_LIFE_MS: std::ops::Range<u64> = 5_000..6_500;
/// How long after a start began the power fails in it. One takes some 30 ms, and more on a slow disk.
const IN_START_US: std::ops::Range<u64> = 500..150_000;
const IN_RECOVERY: &str = "recovery, ";
const IN_STOP: &str = "a random instant of an orderly stop";
/// How often a recovery that was killed has company by another.
const AGAIN_PERCENT: u64 = 30;

/// What a gateway had shown or said before the power failed, and is held to.
#[derive(Default)]
struct Shown {
    rows: Vec<Row>,
    live: Vec<Live>,
    /// The highest entry that was said to be durable.
    durable: u64,
}

/// What ends a gateway before its time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum By {
    Kill,
    Power,
}

/// See the file's header.
pub(crate) struct History<'t> {
    chance: Chance,
    place: Place,
    facts: Vec<Facts>,
    /// As many flows belong to gateways whose successor is known to have recovered.
    recovered: usize,
    shown: Shown,
    bill: Vec<Row>,
    generation: usize,
    next_number: u32,
    /// The bill is made of the witness, so that the harness itself is tested.
    rehearses: bool,
    tally: &'t mut Tally,
}

impl<'t> History<'t> {
    /// A history in `place`, which is new.
    pub(crate) fn new(seed: u64, place: Place, rehearses: bool, tally: &'t mut Tally) -> History<'t> {
        History {
            chance: Chance::new(seed, 0),
            place,
            facts: Vec::new(),
            recovered: 0,
            shown: Shown::default(),
            bill: Vec::new(),
            generation: 0,
            next_number: 0,
            rehearses,
            tally,
        }
    }

    /// Keeps a disk of ours for a person to look at.
    pub(crate) fn save(&self) {
        self.place.save();
    }

    /// Goes through `endings`, and through one orderly stop behind them.
    ///
    /// # Errors
    /// What went wrong, and in which generation.
    pub(crate) fn run(&mut self, endings: &[Ending]) -> Result<(), String> {
        self.go_through(endings).map_err(|wrong| format!("generation {}: {wrong}", self.generation))?;
        self.tally.bill(&self.facts, &self.bill);
        Ok(())
    }

    fn go_through(&mut self, endings: &[Ending]) -> Result<(), String> {
        for ending in endings {
            self.generation += 1;
            match ending {
                Ending::Stop => self.stop_under_load(None)?,
                Ending::Random if self.chance.happens(IN_STOP_PERCENT) => {
                    let after = Duration::from_micros(self.chance.within(IN_STOP_US));
                    self.stop_under_load(Some((after, By::Kill)))?;
                }
                Ending::Random => self.strike(false, By::Kill)?,
                Ending::Aimed => self.strike(true, By::Kill)?,
                Ending::Recovery => {
                    self.strike(false, By::Kill)?;
                    self.strike_recovery()?;
                }
                Ending::Power => self.fail()?,
            }
            if !self.chance.happens(UNCHECKED_PERCENT) {
                self.check()?;
            }
        }
        self.generation += 1;
        self.stop_under_load(None)?;
        self.judge()
    }

    /// Loads a gateway and has it killed, alone or with its machine.
    fn strike(&mut self, is_aimed: bool, by: By) -> Result<(), String> {
        let target = is_aimed.then(|| self.target(&POINTS));
        let life = if is_aimed { AIMED_LIFE_MS } else { self.life_ms(by) };
        let running = match self.place.start(target.as_deref())? {
            Start::Serves(running) => running,
            Start::Died => {
                self.tally.aimed(target.as_deref(), true);
                return self.struck(by, "at a point of a start", &Told::default());
            }
        };
        self.recovered = self.facts.len();
        let listener = running.listener;
        let announced = self.announced(&running, by);
        let mut load = Load::new(self.next_number, &mut self.chance);
        let switch = self.place.switch().filter(|_| by == By::Power);
        let watch = running.kill_after(Duration::from_millis(life), switch);
        load.run(listener, &mut self.chance, || watch.is_over(), None, || {});
        let end = self.end(watch)?;
        if target.is_none() && end == End::Aimed {
            return Err(self.with_errors("it was killed by somebody else".to_owned()));
        }
        let is_hit = end == End::Aimed;
        if by == By::Kill || is_hit {
            self.tally.aimed(target.as_deref(), is_hit);
        }
        let told = self.told(announced);
        self.keep(load, if by == By::Kill { Fate::Killed } else { Fate::Failed }, &told)?;
        self.struck(by, if is_hit { "at a point" } else { "under load" }, &told)
    }

    /// Looks at what a gateway makes durable, if its power is to fail.
    fn announced(&self, running: &Running, by: By) -> Option<Announced> {
        if by == By::Kill {
            return None;
        }
        let (admin, tables) = (running.admin?, self.place.tables()?.to_owned());
        Some(Announced::look(Sources { admin, witness: self.place.witness.clone(), tables }))
    }

    /// What it is held to, now that it is dead. With `sync` a slot is free when its flow is durable, and so
    /// the live table that it left tells of all that ended.
    fn told(&self, announced: Option<Announced>) -> Told {
        let Some(announced) = announced else { return Told::default() };
        let mut told = announced.told();
        if self.place.is_sync
            && let Some(tables) = self.place.tables()
        {
            let holders = table::holders(tables).expect("a table in memory can be read");
            let moved = announced::moved(&self.place.witness);
            told.finals.extend(moved.into_keys().filter(|number| !holders.contains(number)));
        }
        told
    }

    /// What is left when a gateway was killed, and the power failed with it.
    fn struck(&mut self, by: By, at: &'static str, told: &Told) -> Result<(), String> {
        match by {
            By::Kill => Ok(()),
            By::Power => self.come_back(at, told),
        }
    }

    fn life_ms(&mut self, by: By) -> u64 {
        let lives = match by {
            By::Power if self.chance.happens(LONGEST_PERCENT) => LONGEST_LIFE_MS,
            By::Power if self.chance.happens(LONG_PERCENT) => LONG_LIFE_MS,
            _ => LIFE_MS,
        };
        self.chance.within(lives)
    }

    /// Has the power fail, somewhere.
    fn fail(&mut self) -> Result<(), String> {
        match self.chance.within(0..100) {
            0..40 => self.strike(false, By::Power),
            40..60 => self.strike(true, By::Power),
            60..75 => {
                let after = Duration::from_micros(self.chance.within(IN_STOP_US));
                self.stop_under_load(Some((after, By::Power)))
            }
            _ => {
                let by = *self.chance.pick(&[By::Kill, By::Power]);
                self.strike(false, by)?;
                self.fail_in_start()
            }
        }
    }

    /// Has the power fail while a gateway recovers, perhaps while another one does too.
    fn fail_in_start(&mut self) -> Result<(), String> {
        loop {
            if self.chance.happens(50) {
                let after = Duration::from_micros(self.chance.within_orders(IN_START_US));
                if self.place.start_and_cut(after)? {
                    self.recovered = self.facts.len();
                }
                self.come_back("at a random instant of a start", &Told::default())?;
            } else {
                let target = self.target(&RECOVERY_POINTS);
                if let Start::Serves(running) = self.place.start(Some(&target))? {
                    self.recovered = self.facts.len();
                    let life = Duration::from_millis(self.chance.within(0..20));
                    self.end(running.kill_after(life, self.place.switch()))?;
                }
                self.come_back("at a point of a start", &Told::default())?;
            }
            if !self.chance.happens(AGAIN_PERCENT) {
                return Ok(());
            }
        }
    }

    /// Ends a power failure; keeps what had been shown and said before it.
    fn come_back(&mut self, at: &'static str, told: &Told) -> Result<(), String> {
        self.shown.durable = self.shown.durable.max(told.durable);
        let seen = tempfile::tempdir().unwrap();
        self.place.come_back(seen.path(), &mut self.chance).map_err(|error| format!("the disk: {error}"))?;
        // A month that is ahead of the sums shows rows too early. They came of durable entries all the same.
        let wrong = |error| format!("the databases as they were when the power failed: {error}");
        self.shown.rows.extend(bill::read(seen.path()).map_err(wrong)?);
        self.shown.live.extend(bill::live(seen.path()).map_err(wrong)?);
        for fact in &mut self.facts[self.recovered..] {
            if fact.fate == Fate::Killed {
                fact.fate = Fate::KilledThenFailed;
            }
        }
        self.tally.failed(at);
        Ok(())
    }

    /// Has a gateway killed that recovers, perhaps another one too.
    fn strike_recovery(&mut self) -> Result<(), String> {
        loop {
            let target = self.target(&RECOVERY_POINTS);
            let died = match self.place.start(Some(&target))? {
                Start::Died => true,
                Start::Serves(running) => {
                    self.recovered = self.facts.len();
                    let watch = running.kill_after(Duration::from_millis(self.chance.within(0..20)), None);
                    self.end(watch)? == End::Aimed
                }
            };
            self.tally.aimed(Some(&format!("{IN_RECOVERY}{target}")), died);
            if !self.chance.happens(AGAIN_PERCENT) {
                return Ok(());
            }
        }
    }

    /// Starts a gateway without load, stops it in order, and judges the bill.
    fn check(&mut self) -> Result<(), String> {
        let Start::Serves(running) = self.place.start(None)? else {
            return Err(self.with_errors("it was killed by somebody else".to_owned()));
        };
        self.recovered = self.facts.len();
        stop(running.pid());
        self.end(running.await_stop(Arc::default(), None))?;
        self.judge()
    }

    /// Loads a gateway and stops it in order: then all is exact, unless it is killed on the way.
    fn stop_under_load(&mut self, kill_after: Option<(Duration, By)>) -> Result<(), String> {
        let Start::Serves(running) = self.place.start(None)? else {
            return Err(self.with_errors("it was killed by somebody else".to_owned()));
        };
        self.recovered = self.facts.len();
        let (pid, listener) = (running.pid(), running.listener);
        let by = kill_after.map_or(By::Kill, |(_, by)| by);
        let announced = self.announced(&running, by);
        let mut load = Load::new(self.next_number, &mut self.chance);
        let life = Duration::from_millis(self.chance.within(LIFE_MS));
        let kill_at = Arc::new(OnceLock::new());
        let switch = self.place.switch().filter(|_| by == By::Power);
        let watch = running.await_stop(Arc::clone(&kill_at), switch);
        let settled = || {
            stop(pid);
            if let Some((after, _)) = kill_after {
                kill_at.set(Instant::now() + after).expect("a load settles once");
            }
        };
        load.run(listener, &mut self.chance, || watch.is_over(), Some(life), settled);
        let in_order = self.end(watch)? == End::Stopped;
        let fate = match by {
            _ if in_order => Fate::Stopped,
            By::Kill => Fate::Killed,
            By::Power => Fate::Failed,
        };
        match fate {
            Fate::Stopped => self.tally.stopped(),
            Fate::Killed => self.tally.aimed(Some(IN_STOP), true),
            Fate::Failed | Fate::KilledThenFailed => {}
        }
        let told = self.told(announced);
        self.keep(load, fate, &told)?;
        // Behind a stop that came to its end the power may fail too: then nothing is lost.
        self.struck(by, if in_order { "behind an orderly stop" } else { "in an orderly stop" }, &told)
    }

    /// Awaits a gateway's end, which a thread of it that panicked must not have outlived.
    fn end(&self, watch: Watch) -> Result<End, String> {
        let end = watch.end().map_err(|wrong| self.with_errors(wrong))?;
        match self.place.errors().contains("panicked") {
            true => Err(self.with_errors("a thread of it panicked".to_owned())),
            false => Ok(end),
        }
    }

    /// Draws a point and the arrival at it.
    fn target(&mut self, points: &[(&'static str, u64)]) -> String {
        let (name, arrivals) = *self.chance.pick(points);
        format!("{name}:{}", self.chance.within_orders(1..arrivals + 1))
    }

    /// Keeps what is known of the flows of a load that is over.
    fn keep(&mut self, load: Load, fate: Fate, told: &Told) -> Result<(), String> {
        let flows = load.into_flows();
        self.next_number += u32::try_from(flows.len()).expect("flows are numbered in 32 bits");
        let sent = Sent::read(&self.place.witness)?;
        for flow in flows {
            self.tally.traffic(flow.traffic.name);
            let fact = sent.facts(&flow, self.generation, fate);
            let is_final = told.finals.contains(&flow.number);
            let recorded = told.moved.get(&flow.number).copied().unwrap_or(0);
            self.facts.push(Facts { is_final, recorded, ..fact });
        }
        Ok(())
    }

    /// Reads the bill and has it judged.
    fn judge(&mut self) -> Result<(), String> {
        let rows = match self.rehearses {
            true => oracle::rehearsed(&self.facts),
            false => bill::read(&self.place.data()).map_err(|error| format!("the bill: {error}"))?,
        };
        let mut findings = oracle::judge(&self.facts, &rows, REACTORS);
        findings.extend(oracle::changed(&self.bill, &rows));
        if !self.rehearses {
            findings.extend(oracle::disagreement(&rows, self.place.usage()));
            if self.place.switch().is_some() {
                findings.extend(self.went_back(&rows)?);
            }
        }
        self.bill = rows;
        self.tally.checked();
        if findings.is_empty() {
            return Ok(());
        }
        let shown = findings.iter().take(10).map(|finding| format!("\n  {finding}")).collect::<String>();
        Err(format!("{} findings in a bill of {} rows:{shown}", findings.len(), self.bill.len()))
    }

    /// What the power took back of what had been shown or said, and what else is wrong on the disk.
    fn went_back(&mut self, rows: &[Row]) -> Result<Vec<String>, String> {
        let progress =
            bill::progress(&self.place.data()).map_err(|error| format!("the database: {error}"))?;
        let shown = std::mem::take(&mut self.shown);
        let mut findings = oracle::changed(&shown.rows, rows);
        findings.extend(oracle::less_than_shown(&shown.live, rows));
        findings.extend(oracle::entries_lost(shown.durable, &progress));
        findings.extend(self.place.verify().err());
        Ok(findings)
    }

    fn with_errors(&self, wrong: String) -> String {
        format!("{wrong}\n{}", self.place.errors())
    }
}
