//! One world: its threads as steps, its ends, and its judge.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::bill::Bill;
use super::damage::{Bills, Leavings};
use super::process::{Build, CLOSED_AT, Left, Process, identity};
use super::{Outcome, Random};
use crate::Durability;
use crate::flow_writer::LiveFlow;
use crate::limits::INTERIM_BYTES;
use crate::record::{CloseReason, Uncertain};
use crate::recover::RecoverError;
use crate::storage::faulty::{Call, Fault, Faulty};
use crate::storage::memory::Memory;

const REGIONS: u32 = 2;
const STEPS: u64 = 60;
const LIVES: u64 = 3;

/// What really happened to a flow.
#[derive(Clone, Copy, Debug, Default)]
struct Truth {
    up: u64,
    down: u64,
    /// Its last owner's life, 0 once a power failure took its slot before its end was durable.
    life: u64,
    closed: bool,
    /// Its end was said to be durable, or a start has recovered it.
    durable: bool,
    /// A kill came inside a call of so many bytes, up or down.
    in_doubt: Uncertain,
    /// Bytes both ways when it last asked for an interim.
    asked: u64,
    /// Bytes both ways that an interim has, which was then said to be durable.
    floor: u64,
}

/// A world of one seed. See the parent's header.
pub struct World {
    random: Random,
    memory: Memory,
    left: Left,
    /// A table on a disk, as far as its pages had come there: what a power failure may leave of it.
    stale: Option<Arc<Vec<u64>>>,
    /// The disk some time ago.
    older: Option<Memory>,
    truths: BTreeMap<u128, Truth>,
    /// Flows that starts said were lost.
    told_lost: usize,
    outcome: Outcome,
    life: u64,
    build: Build,
}

/// A life of the process, and what its reactor threads hold.
struct Life {
    process: Process,
    flows: Vec<(usize, u128, LiveFlow)>,
    /// Flows that were closed and not seen durable.
    closed: Vec<u128>,
    /// Whether the committer's last turn went well.
    committed: bool,
}

impl World {
    /// The world of `seed`, before anything happened.
    pub fn of(seed: u64) -> World {
        let mut random = Random::of(seed);
        let segment_bytes = [20, 24, 48, 96][random.below(4) as usize] << 10;
        let build = Build {
            durability: if random.chance(50) { Durability::Sync } else { Durability::Delayed },
            regions: REGIONS,
            slots: 2 + random.below(22) as u32,
            segment_bytes,
            bytes_max: if random.chance(40) { segment_bytes * (4 + random.below(6)) } else { 1 << 30 },
        };
        World {
            random,
            memory: Memory::default(),
            left: Left { bill: Bill::default(), table: None, boot: 1 },
            stale: None,
            older: None,
            truths: BTreeMap::new(),
            told_lost: 0,
            outcome: Outcome::default(),
            life: 0,
            build,
        }
    }

    /// Lets the process live and die some times, and then live in peace.
    ///
    /// # Errors
    /// What does not hold.
    pub fn run(mut self) -> Result<Outcome, String> {
        for _ in 0..LIVES {
            self.life += 1;
            self.try_damage()?;
            let Some(mut life) = self.start(true)? else { continue };
            for _ in 0..1 + self.random.below(STEPS) {
                self.step(&mut life)?;
            }
            self.die(life);
        }
        self.life += 1;
        let mut life = self.start(false)?.ok_or("a healthy disk failed")?;
        Self::settle(&mut life)?;
        self.judge()?;
        Ok(self.outcome)
    }

    /// Starts the process; `None` if it died on the way, or its disk failed.
    fn start(&mut self, dangerous: bool) -> Result<Option<Life>, String> {
        let storage = self.disk(dangerous);
        let process = match Process::start(&storage, self.build, &self.left) {
            Ok(process) => process,
            Err(error @ RecoverError::Incomplete(_)) => {
                return Err(format!("nothing was damaged, and yet: {error}"));
            }
            Err(error) if storage.faults() == 0 => return Err(format!("a healthy disk failed: {error}")),
            Err(_) => return Ok(self.dies_early()),
        };
        if process.breaks > 0 {
            return Err(format!("the journal's chain is broken in {} places", process.breaks));
        }
        self.told_lost += process.recovery.lost as usize;
        // What it recovered is durable from now on.
        let recovered = self.truths.values_mut().filter(|truth| truth.life > 0);
        recovered.for_each(|truth| truth.durable = true);
        if dangerous && self.random.chance(20) {
            // All is durable, and the table not removed yet.
            return Ok(self.dies_early());
        }
        self.left.table = None;
        Ok(Some(Life { process, flows: Vec::new(), closed: Vec::new(), committed: true }))
    }

    /// After a kill, now and then: damage to a copy of what it left.
    fn try_damage(&mut self) -> Result<(), String> {
        // Without the table of this boot nothing says how far the journal went beyond the database.
        if !self.left.has_table() || !self.random.chance(20) {
            return Ok(());
        }
        let leavings = Leavings {
            build: self.build,
            memory: &self.memory,
            left: &self.left,
            older: (self.older.as_ref(), self.stale.as_ref()),
        };
        let moved = |truth: &Truth| (truth.up, truth.down, CloseReason::Fault);
        let moved: Bills = self.truths.iter().map(|(id, truth)| (*id, moved(truth))).collect();
        let is_told = leavings.damage(&mut self.random, &moved)?;
        self.outcome.damages.0 += 1;
        self.outcome.damages.1 += u64::from(is_told);
        Ok(())
    }

    /// The disk, which fails now and then if it is dangerous, or for a while.
    fn disk(&mut self, dangerous: bool) -> Faulty {
        let mut random = Random::of(self.random.next());
        let per_thousand = if dangerous && random.chance(60) { 1 + random.below(120) } else { 0 };
        let from = if dangerous && random.chance(15) { random.below(60) } else { u64::MAX };
        let storm = from..from.saturating_add(random.below(30));
        let plan = Box::new(move |call: Call, number| {
            // Reading what was just written seldom fails.
            let rare = matches!(call, Call::Read | Call::Open);
            let fails = random.below(1000) < if rare { per_thousand / 20 } else { per_thousand };
            let fails = fails || (storm.contains(&number) && !rare);
            fails.then(|| if random.chance(50) { Fault::Broken } else { Fault::Full })
        });
        Faulty::new(self.memory.clone(), Random::of(self.random.next()), plan)
    }

    /// One step of one of the process's threads.
    fn step(&mut self, life: &mut Life) -> Result<(), String> {
        life.process.pass(Duration::from_millis(self.random.below(2000)));
        match self.random.below(100) {
            0..24 => self.open(life),
            24..52 => self.send(life),
            52..67 => self.close(life),
            67..82 => life.committed = life.process.commit().is_ok(),
            82..88 => drop(life.process.flush()),
            88..93 => Self::unless_simulated(life.process.apply())?,
            93..96 => Self::unless_simulated(life.process.checkpoint())?,
            _ => drop(life.process.prepare()),
        }
        if self.random.chance(2) {
            self.older = Some(self.memory.copy());
        }
        if self.random.chance(4) {
            self.stale = Some(Arc::new(life.process.words()));
        }
        self.note_durable(life);
        Ok(())
    }

    /// A disk that fails is no fault of the applier.
    fn unless_simulated(outcome: Result<(), String>) -> Result<(), String> {
        outcome.or_else(|error| if error.contains("simulated") { Ok(()) } else { Err(error) })
    }

    fn open(&mut self, life: &mut Life) {
        let inlet = self.random.below(REGIONS.into()) as usize;
        let id = u128::from(self.outcome.flows) + 1;
        match life.process.inlets[inlet].open(&identity(id)) {
            Some(flow) => {
                self.outcome.flows += 1;
                self.truths.insert(id, Truth { life: self.life, ..Truth::default() });
                life.flows.push((inlet, id, flow));
            }
            None => self.outcome.refused += 1,
        }
    }

    fn send(&mut self, life: &mut Life) {
        if life.flows.is_empty() {
            return;
        }
        let index = self.random.below(life.flows.len() as u64) as usize;
        let (inlet, id, flow) = &mut life.flows[index];
        let length_max = if self.random.chance(30) { 12 << 20 } else { 1 << 20 };
        let length = 1 + self.random.below(length_max) as usize;
        let taken = if self.random.chance(80) { 1 + self.random.below(length as u64) } else { 0 };
        let call = || if taken > 0 { Ok(taken as usize) } else { Err(io::ErrorKind::WouldBlock.into()) };
        let truth = self.truths.get_mut(id).expect("an open flow is known");
        let inlet = &mut life.process.inlets[*inlet];
        if self.random.chance(50) {
            let _ = inlet.tally(flow).up().1.around(length, call);
            truth.up += taken;
        } else {
            let _ = inlet.tally(flow).down().1.around(length, call);
            truth.down += taken;
        }
        inlet.counted(flow);
        // Written down apart from the product: each whole 8 MiB since the last time asks.
        let moved = truth.up + truth.down;
        if moved >= truth.asked + INTERIM_BYTES {
            truth.asked = moved;
        }
    }

    fn close(&mut self, life: &mut Life) {
        if life.flows.is_empty() {
            return;
        }
        let index = self.random.below(life.flows.len() as u64) as usize;
        let (inlet, id, flow) = life.flows.swap_remove(index);
        life.process.inlets[inlet].close(flow, CLOSED_AT, CloseReason::ClientClosed);
        self.truths.get_mut(&id).expect("an open flow is known").closed = true;
        life.closed.push(id);
    }

    /// What was announced as durable is: that is the promise which a power failure tests.
    fn note_durable(&mut self, life: &mut Life) {
        let process = &mut life.process;
        let nothing_waits = process.inlets.iter_mut().all(|inlet| inlet.unjournaled() == 0);
        let all_durable = process.journal.durable() == process.journal.appended();
        if nothing_waits && (all_durable || self.build.durability == Durability::Sync) {
            for id in life.closed.drain(..) {
                self.truths.get_mut(&id).expect("a closed flow is known").durable = true;
            }
        }
        if life.committed && all_durable && process.committer.is_idle() {
            for (_, id, _) in &life.flows {
                let truth = self.truths.get_mut(id).expect("an open flow is known");
                truth.floor = truth.asked;
            }
        }
    }

    /// The process ends, at an instant inside or between its calls.
    fn die(&mut self, mut life: Life) {
        if self.random.chance(30) {
            // Inside a write, a part of which has come to the kernel.
            life.process.storage.break_down();
            let _ = life.process.commit();
        }
        let mut words = life.process.words();
        if let Some((inlet, id, flow)) = life.flows.first_mut().filter(|_| self.random.chance(50)) {
            let length = 1 + self.random.below(200_000) as usize;
            let table = Arc::clone(&life.process.table);
            let call = || {
                words = table.snapshot();
                Ok(length)
            };
            let mut tally = life.process.inlets[*inlet].tally(flow);
            let in_doubt = &mut self.truths.get_mut(id).expect("an open flow is known").in_doubt;
            let (mut sent, in_doubt) = match self.random.chance(50) {
                true => (tally.up().1, &mut in_doubt.up),
                false => (tally.down().1, &mut in_doubt.down),
            };
            let _ = sent.around(length, call);
            *in_doubt = length as u32;
        }
        self.left.table = Some(Arc::new(words));
        self.outcome.faults += life.process.storage.faults();
        self.end();
    }

    fn dies_early(&mut self) -> Option<Life> {
        self.outcome.in_recovery += 1;
        self.end();
        None
    }

    fn end(&mut self) {
        let death = if self.random.chance(50) { Death::Kill } else { Death::Power };
        match death {
            Death::Kill => {
                self.outcome.kills += 1;
                self.memory = self.memory.after_kill();
            }
            Death::Power => {
                self.outcome.power_failures += 1;
                self.memory = self.memory.after_power_failure(&mut self.random);
                let bill = self.left.bill.after_power_failure();
                let table = self.stale.take().filter(|_| self.random.chance(50));
                self.left = Left { bill, table, boot: self.left.boot + 1 };
                // Whatever was in the table and not durable is gone: it may be billed, and need not.
                let lost = self.truths.values_mut().filter(|truth| !truth.durable);
                lost.for_each(|truth| truth.life = 0);
            }
        }
    }

    /// Lets everything that waits come to its end.
    fn settle(life: &mut Life) -> Result<(), String> {
        // A full journal refuses until it is released, and no longer.
        let unless_full = |outcome: Result<(), String>, is_last: bool| {
            outcome
                .or_else(|error| if error.contains("journal_max") && !is_last { Ok(()) } else { Err(error) })
        };
        for is_last in (0..=4 * LIVES).map(|round| round == 4 * LIVES) {
            unless_full(life.process.commit(), is_last)?;
            life.process.flush()?;
            life.process.apply()?;
            life.process.checkpoint()?;
            unless_full(life.process.prepare(), is_last)?;
        }
        match life.process.failing() {
            Some(failure) => Err(format!("a healthy disk failed: {failure}")),
            None => Ok(()),
        }
    }

    fn judge(&self) -> Result<(), String> {
        let bill = &self.left.bill;
        if let Some(flow) = bill.doubled() {
            return Err(format!("flow {flow} has two finals"));
        }
        let open = bill.open_flows().len();
        if open > 0 {
            return Err(format!("{open} flows of earlier lives are still open"));
        }
        // A start that came to nothing may have lost some, and told nobody.
        let (lost, told) = (bill.lost(), self.told_lost);
        if told > lost || (told < lost && self.outcome.in_recovery == 0) {
            return Err(format!("{lost} flows were lost, and starts told of {told}"));
        }
        self.truths.iter().try_for_each(|(id, truth)| self.judge_flow(*id, truth))
    }

    fn judge_flow(&self, id: u128, truth: &Truth) -> Result<(), String> {
        let must_be_exact = truth.life > 0;
        let Some(record) = self.left.bill.of(id) else {
            let may_be_missing = !must_be_exact && truth.floor == 0;
            return if may_be_missing { Ok(()) } else { Err(format!("flow {id} has no final: {truth:?}")) };
        };
        let flow = record.flow();
        let (up, down) = (flow.legs.upstream_tx, flow.legs.client_tx);
        let ended = match truth.closed {
            true => flow.reason == CloseReason::ClientClosed && flow.closed == CLOSED_AT,
            false => flow.reason == CloseReason::Killed,
        };
        let exact = ended && (up, down) == (truth.up, truth.down) && flow.uncertain == truth.in_doubt;
        let bounded = up <= truth.up && down <= truth.down && up + down >= truth.floor;
        if (must_be_exact && !exact) || !bounded || record.identity() != &identity(id) {
            return Err(format!("flow {id} is billed {up} up, {down} down, {flow:?}: {truth:?}"));
        }
        Ok(())
    }
}

/// How a life of the process ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Death {
    Kill,
    Power,
}
