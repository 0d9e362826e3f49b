//! A history: one data directory through many kills, judged again and again as it grows.
//!
//! Promises: a seed decides everything but the machine's timing; every check reads the whole bill, so that a
//! later start which spoils an earlier row is found. Leaves to others: what must hold (`oracle`).

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use sys::witness::{self, Role, Seen};

use crate::bill::{self, Row};
use crate::chance::Chance;
use crate::flow::{Flow, number_of_client, number_of_destination};
use crate::gateway::{End, Place, REACTORS, Start, Watch, stop};
use crate::load::Load;
use crate::oracle::{self, Direction, Facts};
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
const IN_RECOVERY: &str = "recovery, ";
const IN_STOP: &str = "a random instant of an orderly stop";
/// How often a recovery that was killed has company by another.
const AGAIN_PERCENT: u64 = 30;

/// See the file's header.
pub(crate) struct History<'t> {
    chance: Chance,
    place: Place,
    facts: Vec<Facts>,
    bill: Vec<Row>,
    generation: usize,
    next_number: u32,
    /// The bill is made of the witness, so that the harness itself is tested.
    rehearses: bool,
    tally: &'t mut Tally,
}

impl<'t> History<'t> {
    /// A history in `directory`, which is empty, with a witness at `witness`.
    pub(crate) fn new(
        seed: u64,
        directory: &Path,
        witness: PathBuf,
        (durability, rehearses): (Option<&str>, bool),
        tally: &'t mut Tally,
    ) -> History<'t> {
        let place = Place::new(directory, witness, durability);
        let chance = Chance::new(seed, 0);
        let (facts, bill) = (Vec::new(), Vec::new());
        History { chance, place, facts, bill, generation: 0, next_number: 0, rehearses, tally }
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
                    self.stop_under_load(Some(after))?;
                }
                Ending::Random | Ending::Aimed => self.strike(*ending)?,
                Ending::Recovery => {
                    self.strike(*ending)?;
                    self.strike_recovery()?;
                }
            }
            if !self.chance.happens(UNCHECKED_PERCENT) {
                self.check()?;
            }
        }
        self.generation += 1;
        self.stop_under_load(None)?;
        self.judge()
    }

    /// Loads a gateway and has it killed.
    fn strike(&mut self, ending: Ending) -> Result<(), String> {
        let target = (ending == Ending::Aimed).then(|| self.target(&POINTS));
        let life = if target.is_some() { AIMED_LIFE_MS } else { self.chance.within(LIFE_MS) };
        let running = match self.place.start(target.as_deref())? {
            Start::Serves(running) => running,
            Start::Died => {
                self.tally.aimed(target.as_deref(), true);
                return Ok(());
            }
        };
        let listener = running.listener;
        let mut load = Load::new(self.next_number, &mut self.chance);
        let watch = running.kill_after(Duration::from_millis(life));
        load.run(listener, &mut self.chance, || watch.is_over(), None, || {});
        let end = self.end(watch)?;
        if target.is_none() && end == End::Aimed {
            return Err(self.with_errors("it was killed by somebody else".to_owned()));
        }
        self.tally.aimed(target.as_deref(), end == End::Aimed);
        self.keep(load, false)
    }

    /// Has a gateway killed that recovers, perhaps another one too.
    fn strike_recovery(&mut self) -> Result<(), String> {
        loop {
            let target = self.target(&RECOVERY_POINTS);
            let died = match self.place.start(Some(&target))? {
                Start::Died => true,
                Start::Serves(running) => {
                    let watch = running.kill_after(Duration::from_millis(self.chance.within(0..20)));
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
        stop(running.pid());
        self.end(running.await_stop(Arc::default()))?;
        self.judge()
    }

    /// Loads a gateway and stops it in order: then all is exact, unless it is killed on the way.
    fn stop_under_load(&mut self, kill_after: Option<Duration>) -> Result<(), String> {
        let Start::Serves(running) = self.place.start(None)? else {
            return Err(self.with_errors("it was killed by somebody else".to_owned()));
        };
        let (pid, listener) = (running.pid(), running.listener);
        let mut load = Load::new(self.next_number, &mut self.chance);
        let life = Duration::from_millis(self.chance.within(LIFE_MS));
        let kill_at = Arc::new(OnceLock::new());
        let watch = running.await_stop(Arc::clone(&kill_at));
        let settled = || {
            stop(pid);
            if let Some(after) = kill_after {
                kill_at.set(Instant::now() + after).expect("a load settles once");
            }
        };
        load.run(listener, &mut self.chance, || watch.is_over(), Some(life), settled);
        let in_order = self.end(watch)? == End::Stopped;
        if in_order {
            self.tally.stopped();
        } else {
            self.tally.aimed(Some(IN_STOP), true);
        }
        self.keep(load, in_order)
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
    fn keep(&mut self, load: Load, in_order: bool) -> Result<(), String> {
        let flows = load.into_flows();
        self.next_number += u32::try_from(flows.len()).expect("flows are numbered in 32 bits");
        let seen = witness::read(&self.place.witness).map_err(|error| format!("the witness: {error}"))?;
        let mut sent: HashMap<(bool, u32), Seen> = HashMap::new();
        for entry in seen {
            let ip = entry.peer.ip();
            let key = match entry.role {
                Role::Accepted => number_of_client(ip).map(|number| (true, number)),
                Role::Connected => number_of_destination(ip).map(|number| (false, number)),
            };
            // The harness and nobody else connects to this gateway.
            let key = key.ok_or_else(|| format!("the witness saw a stranger: {entry:?}"))?;
            if let Some(other) = sent.insert(key, entry) {
                return Err(format!("the witness saw two sockets for one end: {entry:?} {other:?}"));
            }
        }
        for flow in flows {
            self.tally.traffic(flow.traffic.name);
            self.facts.push(facts(&flow, self.generation, in_order, &sent));
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
        }
        self.bill = rows;
        self.tally.checked();
        if findings.is_empty() {
            return Ok(());
        }
        let shown = findings.iter().take(10).map(|finding| format!("\n  {finding}")).collect::<String>();
        Err(format!("{} findings in a bill of {} rows:{shown}", findings.len(), self.bill.len()))
    }

    fn with_errors(&self, wrong: String) -> String {
        format!("{wrong}\n{}", self.place.errors())
    }
}

fn facts(flow: &Flow, generation: usize, in_order: bool, sent: &HashMap<(bool, u32), Seen>) -> Facts {
    // (what the witness saw returned, and attempted) toward the client or the destination, as payload.
    let seen = |to_client: bool| {
        let before = if to_client { flow.answer_bytes() } else { 0 };
        let counts = sent.get(&(to_client, flow.number)).map_or((0, 0), |seen| (seen.sent, seen.attempted));
        (counts.0.saturating_sub(before), counts.1.saturating_sub(before))
    };
    let ((up, up_attempted), (down, down_attempted)) = (seen(false), seen(true));
    let origin = |read: fn(&crate::flow::End) -> u64| flow.origin.as_ref().map_or(0, read);
    Facts {
        number: flow.number,
        client: flow.address,
        generation,
        in_order,
        traffic: flow.traffic.name,
        up: Direction {
            offered: flow.client.offered(),
            witnessed: up,
            attempted: up_attempted,
            arrived: origin(|end| end.received),
            is_whole: flow.origin.as_ref().is_some_and(|end| end.is_whole),
        },
        down: Direction {
            offered: origin(crate::flow::End::offered),
            witnessed: down,
            attempted: down_attempted,
            arrived: flow.client.received,
            is_whole: flow.client.is_whole,
        },
    }
}
