//! One simulation: its threads as steps, its crashes, and its checks.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use sys::clock::WallNanos;

use super::damage::KilledState;
use super::memory_sink::{Bills, Counts, MemorySink};
use super::process::{Build, CLOSED_AT, PreviousState, Process, identity};
use super::second_reader::SecondReader;
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
const RUNS: u64 = 3;
/// The time between two edges.
const EDGE_NS: u64 = 1_000_000_000;
/// How far before the last moment an edge is after a step of the clock; no multiple of the time between two.
const EDGE_BACK_NS: u64 = 3_500_000_000;

/// What really happened to a flow.
#[derive(Clone, Copy, Debug, Default)]
struct Expected {
    up: u64,
    down: u64,
    /// The last run that had it; 0 once a power failure took its slot before its end was durable.
    run: u64,
    closed: bool,
    /// Its end was announced as durable, or a start has recovered it.
    durable: bool,
    /// The length of the call, up or down, in which a kill came.
    in_doubt: Uncertain,
    /// Bytes both ways when it last requested an interim.
    interim_requested_at: u64,
    /// Bytes both ways in its last durable interim.
    durable_bytes: u64,
}

/// The simulation of one seed. See the parent's header.
pub struct World {
    random: Random,
    memory: Memory,
    previous: PreviousState,
    /// A copy of the table on a disk, as a power failure may leave it.
    old_table: Option<Arc<Vec<u64>>>,
    /// An earlier copy of the disk.
    older: Option<Memory>,
    expectations: BTreeMap<u128, Expected>,
    /// Flows that starts reported as lost.
    reported_lost: usize,
    outcome: Outcome,
    run_number: u64,
    /// The last moment of an edge. None is before the first one.
    last_edge: WallNanos,
    /// What each flow of the run had been counted when the round of an edge began.
    edges: BTreeMap<WallNanos, Counts>,
    build: Build,
    second: SecondReader,
}

/// A run of the process, and the flows of its reactor threads.
struct ProcessRun {
    process: Process,
    flows: Vec<(usize, u128, LiveFlow)>,
    /// Closed flows that are not known to be durable.
    closed: Vec<u128>,
    /// Whether the committer's last pass succeeded.
    committed: bool,
    barriers: Vec<BarrierWait>,
}

/// A barrier that is not answered yet, and each flow of the run when it was requested: its bytes both ways,
/// and whether it had ended.
struct BarrierWait {
    reply: Receiver<()>,
    flows: Vec<(u128, u64, bool)>,
}

impl World {
    /// The simulation of `seed`, before its first run.
    pub fn from_seed(seed: u64) -> World {
        let mut random = Random::from_seed(seed);
        let segment_bytes = [20, 24, 48, 96][random.below(4) as usize] << 10;
        let build = Build {
            durability: if random.chance(50) { Durability::Sync } else { Durability::Delayed },
            regions: REGIONS,
            slots: 2 + random.below(22) as u32,
            segment_bytes,
            bytes_max: if random.chance(40) { segment_bytes * (4 + random.below(6)) } else { 1 << 30 },
            kept_bytes_max: match random.below(10) {
                0..3 => None,
                3..6 => Some(u64::MAX),
                _ => Some(segment_bytes * random.below(4)),
            },
        };
        World {
            random,
            memory: Memory::default(),
            previous: PreviousState { sink: MemorySink::default(), table: None, boot: 1 },
            old_table: None,
            older: None,
            expectations: BTreeMap::new(),
            reported_lost: 0,
            outcome: Outcome::default(),
            run_number: 0,
            last_edge: WallNanos(CLOSED_AT.0 + EDGE_BACK_NS),
            edges: BTreeMap::new(),
            build,
            second: SecondReader::new(build.kept_bytes_max),
        }
    }

    /// Runs and crashes the process some times, and then runs it on a healthy disk.
    ///
    /// # Errors
    /// The violated check.
    pub fn run(mut self) -> Result<Outcome, String> {
        for _ in 0..RUNS {
            self.run_number += 1;
            self.try_damage()?;
            let Some(mut run) = self.start(true)? else { continue };
            for _ in 0..1 + self.random.below(STEPS) {
                self.step(&mut run)?;
            }
            self.crash(run);
        }
        self.run_number += 1;
        let mut run = self.start(false)?.ok_or("a healthy disk failed")?;
        self.drain(&mut run)?;
        self.check()?;
        self.check_edges()?;
        self.second.finish(&run.process, &self.previous.sink.log())?;
        (self.outcome.lapses, self.outcome.followed) = self.second.counts();
        Ok(self.outcome)
    }

    /// Starts the process; `None` if it crashed meanwhile, or its disk failed.
    fn start(&mut self, is_faulty: bool) -> Result<Option<ProcessRun>, String> {
        let storage = self.disk(is_faulty);
        let started = Process::start(&storage, self.build, &self.previous);
        self.second.note_faults(storage.faults());
        let process = match started {
            Ok(process) => process,
            Err(error @ RecoverError::Incomplete(_)) => {
                return Err(format!("a start on intact files failed: {error}"));
            }
            Err(error) if storage.faults() == 0 => return Err(format!("a healthy disk failed: {error}")),
            Err(_) => return Ok(self.crash_during_start()),
        };
        if process.breaks > 0 {
            return Err(format!("the journal's chain is broken in {} places", process.breaks));
        }
        self.reported_lost += process.recovery.lost as usize;
        // Recovered flows are durable from now on.
        let recovered = self.expectations.values_mut().filter(|expected| expected.run > 0);
        recovered.for_each(|expected| expected.durable = true);
        if is_faulty && self.random.chance(20) {
            // Everything is durable, and the table not removed yet.
            return Ok(self.crash_during_start());
        }
        self.previous.table = None;
        self.second.check_start(&process)?;
        Ok(Some(ProcessRun {
            process,
            flows: Vec::new(),
            closed: Vec::new(),
            committed: true,
            barriers: Vec::new(),
        }))
    }

    /// After a kill, now and then: damages a copy of the files.
    fn try_damage(&mut self) -> Result<(), String> {
        // Without the table of this boot the end of the journal beyond the database is unknown.
        if !self.previous.has_table() || !self.random.chance(20) {
            return Ok(());
        }
        let killed = KilledState {
            build: self.build,
            memory: &self.memory,
            previous: &self.previous,
            older: (self.older.as_ref(), self.old_table.as_ref()),
        };
        let moved = |expected: &Expected| (expected.up, expected.down, CloseReason::Fault);
        let moved: Bills = self.expectations.iter().map(|(id, expected)| (*id, moved(expected))).collect();
        let is_reported = killed.damage(&mut self.random, &moved)?;
        self.outcome.damages.0 += 1;
        self.outcome.damages.1 += u64::from(is_reported);
        Ok(())
    }

    /// The disk, which fails now and then if `is_faulty`, or for a while.
    fn disk(&mut self, is_faulty: bool) -> Faulty {
        let mut random = Random::from_seed(self.random.next());
        let per_thousand = if is_faulty && random.chance(60) { 1 + random.below(120) } else { 0 };
        let from = if is_faulty && random.chance(15) { random.below(60) } else { u64::MAX };
        let storm = from..from.saturating_add(random.below(30));
        let plan = Box::new(move |call: Call, number| {
            // Reading what was just written seldom fails.
            let rare = matches!(call, Call::Read | Call::Open);
            let fails = random.below(1000) < if rare { per_thousand / 20 } else { per_thousand };
            let fails = fails || (storm.contains(&number) && !rare);
            fails.then(|| if random.chance(50) { Fault::Broken } else { Fault::Full })
        });
        Faulty::new(self.memory.clone(), Random::from_seed(self.random.next()), plan)
    }

    /// One step of one of the process's threads.
    fn step(&mut self, run: &mut ProcessRun) -> Result<(), String> {
        run.process.pass(Duration::from_millis(self.random.below(2000)));
        match self.random.below(100) {
            0..24 => self.open(run),
            24..52 => self.send(run),
            52..64 => self.close(run),
            64..66 => self.burst(run),
            66..81 => {
                let outcome = run.process.commit();
                run.committed = outcome.is_ok();
                self.second.check_full(&run.process, self.build, outcome)?;
            }
            81..87 => drop(run.process.flush()),
            87..92 => Self::unless_simulated(run.process.apply())?,
            92..95 => Self::unless_simulated(run.process.checkpoint())?,
            95..97 => self.begin_edge(run),
            97..98 => self.request_barrier(run),
            _ => {
                let outcome = run.process.prepare();
                self.second.check_full(&run.process, self.build, outcome)?;
            }
        }
        self.second.step(&run.process, &mut self.random)?;
        if self.random.chance(2) {
            self.older = Some(self.memory.copy());
        }
        if self.random.chance(4) {
            self.old_table = Some(Arc::new(run.process.words()));
        }
        self.note_durable(run);
        self.note_barriers(run);
        Ok(())
    }

    /// Flows that end together: often more than a frame takes.
    fn burst(&mut self, run: &mut ProcessRun) {
        for _ in 0..self.build.slots {
            self.open(run);
            self.send(run);
        }
        for _ in 0..self.random.below(run.flows.len() as u64 + 1) {
            self.close(run);
        }
    }

    /// Begins the round of an edge: all that was counted by now has to be in front of it. The clock goes back
    /// now and then.
    fn begin_edge(&mut self, run: &mut ProcessRun) {
        self.last_edge.0 += EDGE_NS;
        let back = if self.random.chance(20) { EDGE_BACK_NS } else { 0 };
        let at = WallNanos(self.last_edge.0 - back);
        if run.process.begin_edge(at) {
            let of_run = self.expectations.iter().filter(|(_, expected)| expected.run == self.run_number);
            let counts = of_run.map(|(id, expected)| (*id, (expected.up, expected.down))).collect();
            self.edges.insert(at, counts);
        }
    }

    /// Requests a barrier: all that was counted by now has to be durable once it is answered.
    fn request_barrier(&mut self, run: &mut ProcessRun) {
        let of_run = self.expectations.iter().filter(|(_, expected)| expected.run == self.run_number);
        let flows =
            of_run.map(|(id, expected)| (*id, expected.up + expected.down, expected.closed)).collect();
        run.barriers.extend(run.process.request_barrier().map(|reply| BarrierWait { reply, flows }));
    }

    fn note_barriers(&mut self, run: &mut ProcessRun) {
        for BarrierWait { flows, .. } in run.barriers.extract_if(.., |wait| wait.reply.try_recv().is_ok()) {
            self.outcome.barriers += 1;
            for (id, moved, is_closed) in flows {
                let expected = self.expectations.get_mut(&id).expect("the flow has an expectation");
                expected.durable_bytes = expected.durable_bytes.max(moved);
                expected.durable |= is_closed;
            }
        }
    }

    /// A simulated disk failure is no fault of the applier.
    fn unless_simulated(outcome: Result<(), String>) -> Result<(), String> {
        outcome.or_else(|error| if error.contains("simulated") { Ok(()) } else { Err(error) })
    }

    fn open(&mut self, run: &mut ProcessRun) {
        let writer = self.random.below(REGIONS.into()) as usize;
        let id = u128::from(self.outcome.flows) + 1;
        match run.process.writers[writer].open(&identity(id)) {
            Some(flow) => {
                self.outcome.flows += 1;
                self.expectations.insert(id, Expected { run: self.run_number, ..Expected::default() });
                run.flows.push((writer, id, flow));
            }
            None => self.outcome.refused += 1,
        }
    }

    fn send(&mut self, run: &mut ProcessRun) {
        if run.flows.is_empty() {
            return;
        }
        let index = self.random.below(run.flows.len() as u64) as usize;
        let (writer, id, flow) = &mut run.flows[index];
        let length_max = if self.random.chance(30) { 12 << 20 } else { 1 << 20 };
        let length = 1 + self.random.below(length_max) as usize;
        let taken = if self.random.chance(80) { 1 + self.random.below(length as u64) } else { 0 };
        let call = || if taken > 0 { Ok(taken as usize) } else { Err(io::ErrorKind::WouldBlock.into()) };
        let expected = self.expectations.get_mut(id).expect("an open flow has an expectation");
        let writer = &mut run.process.writers[*writer];
        if self.random.chance(50) {
            let _ = writer.counters(flow).up().1.around(length, call);
            expected.up += taken;
        } else {
            let _ = writer.counters(flow).down().1.around(length, call);
            expected.down += taken;
        }
        writer.request_interim_if_due(flow);
        // Recorded independently of the product: a request for each whole 8 MiB since the last one.
        let moved = expected.up + expected.down;
        if moved >= expected.interim_requested_at + INTERIM_BYTES {
            expected.interim_requested_at = moved;
        }
    }

    fn close(&mut self, run: &mut ProcessRun) {
        if run.flows.is_empty() {
            return;
        }
        let index = self.random.below(run.flows.len() as u64) as usize;
        let (writer, id, flow) = run.flows.swap_remove(index);
        run.process.writers[writer].close(flow, CLOSED_AT, CloseReason::ClientClosed);
        self.expectations.get_mut(&id).expect("an open flow has an expectation").closed = true;
        run.closed.push(id);
    }

    /// Announced entries are durable: a power failure tests this.
    fn note_durable(&mut self, run: &mut ProcessRun) {
        let process = &mut run.process;
        let nothing_waits = process.writers.iter_mut().all(|writer| writer.unjournaled() == 0);
        let all_durable = process.journal.durable() == process.journal.appended();
        if nothing_waits && (all_durable || self.build.durability == Durability::Sync) {
            for id in run.closed.drain(..) {
                self.expectations.get_mut(&id).expect("a closed flow has an expectation").durable = true;
            }
        }
        if run.committed && all_durable && process.committer.is_idle() {
            for (_, id, _) in &run.flows {
                let expected = self.expectations.get_mut(id).expect("an open flow has an expectation");
                expected.durable_bytes = expected.durable_bytes.max(expected.interim_requested_at);
            }
        }
    }

    /// The process ends, inside a call or between two.
    fn crash(&mut self, mut run: ProcessRun) {
        if self.random.chance(30) {
            // Inside a write, a part of which is in the kernel.
            run.process.storage.fail_always();
            let _ = run.process.commit();
        }
        let mut words = run.process.words();
        if let Some((writer, id, flow)) = run.flows.first_mut().filter(|_| self.random.chance(50)) {
            let length = 1 + self.random.below(200_000) as usize;
            let table = Arc::clone(&run.process.table);
            let call = || {
                words = table.snapshot();
                Ok(length)
            };
            let mut counters = run.process.writers[*writer].counters(flow);
            let in_doubt =
                &mut self.expectations.get_mut(id).expect("an open flow has an expectation").in_doubt;
            let (mut sent, in_doubt) = match self.random.chance(50) {
                true => (counters.up().1, &mut in_doubt.up),
                false => (counters.down().1, &mut in_doubt.down),
            };
            let _ = sent.around(length, call);
            *in_doubt = length as u32;
        }
        self.previous.table = Some(Arc::new(words));
        self.outcome.faults += run.process.storage.faults();
        self.second.crash(&run.process, &mut self.random);
        self.end();
    }

    fn crash_during_start(&mut self) -> Option<ProcessRun> {
        self.outcome.in_recovery += 1;
        self.end();
        None
    }

    fn end(&mut self) {
        let crash = if self.random.chance(50) { Crash::Kill } else { Crash::Power };
        match crash {
            Crash::Kill => {
                self.outcome.kills += 1;
                self.memory = self.memory.after_kill();
            }
            Crash::Power => {
                self.outcome.power_failures += 1;
                self.memory = self.memory.after_power_failure(&mut self.random);
                let sink = self.previous.sink.after_power_failure();
                let table = self.old_table.take().filter(|_| self.random.chance(50));
                self.previous = PreviousState { sink, table, boot: self.previous.boot + 1 };
                // Flows that were in the table and not durable are lost: they may be billed, and need not.
                let lost = self.expectations.values_mut().filter(|expected| !expected.durable);
                lost.for_each(|expected| expected.run = 0);
                self.second.note_power_failure();
            }
        }
    }

    /// Runs until everything that waits is applied.
    fn drain(&mut self, run: &mut ProcessRun) -> Result<(), String> {
        // A full journal refuses writes until it is released, and no longer.
        let unless_full = |outcome: Result<(), String>, is_last: bool| {
            outcome
                .or_else(|error| if error.contains("journal_max") && !is_last { Ok(()) } else { Err(error) })
        };
        for is_last in (0..=4 * RUNS).map(|round| round == 4 * RUNS) {
            unless_full(run.process.commit(), is_last)?;
            run.process.flush()?;
            run.process.apply()?;
            run.process.checkpoint()?;
            unless_full(run.process.prepare(), is_last)?;
            self.second.check_hold(&run.process)?;
        }
        match run.process.failing() {
            Some(failure) => Err(format!("a healthy disk failed: {failure}")),
            None => Ok(()),
        }
    }

    /// Compares each edge in the database with what had been counted when its round began.
    fn check_edges(&mut self) -> Result<(), String> {
        let sink = &self.previous.sink;
        if let Some(flow) = sink.early() {
            return Err(format!("flow {flow} has an entry behind an edge, and a moment before it"));
        }
        for (at, expected) in &self.edges {
            let Some(counts) = sink.counts_at_edge(*at) else { continue };
            self.outcome.edges += 1;
            for (flow, (up, down)) in expected {
                let found = counts.get(flow).copied().unwrap_or_default();
                if found.0 < *up || found.1 < *down {
                    return Err(format!(
                        "flow {flow} had {up} up and {down} down before an edge, and {found:?} in front of it"
                    ));
                }
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        let sink = &self.previous.sink;
        if let Some(flow) = sink.doubled() {
            return Err(format!("flow {flow} has two finals"));
        }
        let open = sink.open_flows().len();
        if open > 0 {
            return Err(format!("{open} flows of earlier runs are still open"));
        }
        // A failed start may have lost some without a report.
        let (lost, reported) = (sink.lost(), self.reported_lost);
        if reported > lost || (reported < lost && self.outcome.in_recovery == 0) {
            return Err(format!("{lost} flows were lost, and starts reported {reported}"));
        }
        self.expectations.iter().try_for_each(|(id, expected)| self.check_flow(*id, expected))
    }

    fn check_flow(&self, id: u128, expected: &Expected) -> Result<(), String> {
        let must_be_exact = expected.run > 0;
        let Some(record) = self.previous.sink.final_of(id) else {
            let may_be_missing = !must_be_exact && expected.durable_bytes == 0;
            return if may_be_missing {
                Ok(())
            } else {
                Err(format!("flow {id} has no final: {expected:?}"))
            };
        };
        let flow = record.flow();
        let (up, down) = (flow.legs.upstream_tx, flow.legs.client_tx);
        let ended = match expected.closed {
            true => {
                let moments = CLOSED_AT..=self.last_edge;
                flow.reason == CloseReason::ClientClosed && moments.contains(&flow.closed)
            }
            false => flow.reason == CloseReason::Killed,
        };
        let exact =
            ended && (up, down) == (expected.up, expected.down) && flow.uncertain == expected.in_doubt;
        let bounded = up <= expected.up && down <= expected.down && up + down >= expected.durable_bytes;
        if (must_be_exact && !exact) || !bounded || record.identity() != &identity(id) {
            return Err(format!("flow {id} is billed {up} up, {down} down, {flow:?}: {expected:?}"));
        }
        Ok(())
    }
}

/// How a run of the process ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Crash {
    Kill,
    Power,
}
