//! One fixed scenario of a process, which is repeated with each disk call failing in turn, and with flipped
//! bits.
//!
//! Guarantees: the same calls in the same order each time, up to the first fault.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::Random;
use super::memory_sink::MemorySink;
use super::process::{Build, CLOSED_AT, PreviousState, Process, identity};
use crate::Durability;
use crate::flow_writer::LiveFlow;
use crate::record::CloseReason;
use crate::storage::faulty::{Faulty, Plan};
use crate::storage::memory::Memory;

pub(super) const BUILD: Build = Build {
    durability: Durability::Delayed,
    regions: 2,
    slots: 12,
    segment_bytes: 24 << 10,
    bytes_max: 12 * (24 << 10),
    kept_bytes_max: None,
};

/// A scenario, and what really happened in it.
pub(super) struct Scenario {
    pub(super) build: Build,
    pub(super) memory: Memory,
    pub(super) previous: PreviousState,
    pub(super) storage: Faulty,
    process: Option<Process>,
    flows: Vec<(usize, u128, LiveFlow)>,
    /// Bytes up of each flow.
    pub(super) expectations: BTreeMap<u128, u64>,
    closed: Vec<u128>,
    /// Flows whose end was announced as durable.
    pub(super) durable: Vec<u128>,
    /// Errors that the process returned.
    pub(super) errors: Vec<String>,
}

impl Scenario {
    /// A scenario on an empty disk that fails by `plan`.
    pub(super) fn on(plan: Plan, build: Build) -> Scenario {
        let memory = Memory::default();
        Scenario {
            build,
            storage: Faulty::new(memory.clone(), Random::from_seed(7), plan),
            memory,
            previous: PreviousState { sink: MemorySink::default(), table: None, boot: 1 },
            process: None,
            flows: Vec::new(),
            expectations: BTreeMap::new(),
            closed: Vec::new(),
            durable: Vec::new(),
            errors: Vec::new(),
        }
    }

    /// Two runs: several segments, interims, a release, and a kill between.
    pub(super) fn play(&mut self) {
        self.start();
        for round in 0..6 {
            self.traffic(round, 9 << 20);
            self.work(round % 2 == 1);
        }
        self.kill();
        self.start();
        for round in 0..9 {
            self.traffic(round, 100);
            self.work(false);
        }
        // Written and synced, without a frame that proves it; then flows that only the table has.
        self.traffic(1, 50);
        self.record_error(Process::commit);
        self.record_error(Process::flush);
        self.traffic(2, 50);
    }

    /// Starts the process, with some retries, as an operator does.
    pub(super) fn start(&mut self) {
        for _ in 0..3 {
            match Process::start(&self.storage, self.build, &self.previous) {
                Ok(process) => {
                    self.previous.table = None;
                    self.process = Some(process);
                    return;
                }
                Err(error) => self.errors.push(error.to_string()),
            }
        }
    }

    /// Opens three flows, sends on all, closes two.
    fn traffic(&mut self, round: usize, bytes: usize) {
        let Some(process) = &mut self.process else { return };
        for writer in [0, 1, round % 2] {
            let id = self.expectations.len() as u128 + 1;
            let Some(flow) = process.writers[writer].open(&identity(id)) else { continue };
            self.expectations.insert(id, 0);
            self.flows.push((writer, id, flow));
        }
        for (writer, id, flow) in &mut self.flows {
            let writer = &mut process.writers[*writer];
            let length = bytes + *id as usize;
            writer.counters(flow).up().1.around(length, || Ok(length)).expect("the call took all");
            writer.request_interim_if_due(flow);
            *self.expectations.get_mut(id).expect("an open flow has an expectation") += length as u64;
        }
        for _ in 0..2.min(self.flows.len()) {
            let (writer, id, flow) = self.flows.remove(0);
            process.writers[writer].close(flow, CLOSED_AT, CloseReason::ClientClosed);
            self.closed.push(id);
        }
    }

    /// One pass of each thread.
    pub(super) fn work(&mut self, is_checkpoint: bool) {
        if let Some(process) = &mut self.process {
            process.pass(Duration::from_secs(1));
        }
        self.record_error(Process::commit);
        self.record_error(Process::prepare);
        self.record_error(Process::flush);
        self.note_durable();
        self.record_error(Process::apply);
        if is_checkpoint {
            self.record_error(Process::checkpoint);
            self.record_error(Process::prepare);
        }
        self.record_error(Process::commit);
    }

    fn record_error(&mut self, step: impl Fn(&mut Process) -> Result<(), String>) {
        let outcome = self.process.as_mut().map_or(Ok(()), step);
        self.errors.extend(outcome.err());
    }

    fn note_durable(&mut self) {
        let Some(process) = &mut self.process else { return };
        let nothing_waits = process.writers.iter_mut().all(|writer| writer.unjournaled() == 0);
        if nothing_waits && process.journal.durable() == process.journal.appended() {
            self.durable.append(&mut self.closed);
        }
    }

    /// The present failure.
    pub(super) fn failing(&self) -> Option<String> {
        self.process.as_ref().and_then(Process::failing)
    }

    /// Kills the process.
    pub(super) fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            self.previous.table = Some(Arc::new(process.words()));
        }
        self.flows.clear();
        self.closed.clear();
    }

    /// Kills the process and fails the power.
    pub(super) fn lose_power(&mut self, random: &mut Random) {
        self.kill();
        self.memory = self.memory.after_power_failure(random);
        let sink = self.previous.sink.after_power_failure();
        self.previous = PreviousState { sink, table: None, boot: self.previous.boot + 1 };
    }

    /// Restarts on a healthy disk and runs until everything is applied; returns the report of the start, or
    /// its refusal.
    pub(super) fn finish(&mut self) -> Result<crate::Recovery, String> {
        self.kill();
        self.storage = Faulty::new(self.memory.clone(), Random::from_seed(7), Box::new(|_, _| None));
        let build = self.build;
        let mut process =
            Process::start(&self.storage, build, &self.previous).map_err(|error| error.to_string())?;
        for _ in 0..4 {
            let applied = process.commit().and_then(|()| process.flush()).and_then(|()| process.apply());
            assert_eq!(applied, Ok(()), "the start took what cannot be applied");
        }
        Ok(process.recovery)
    }

    /// What each flow is billed up, and the reason of its end. Panics if a flow has two finals, or is open.
    pub(super) fn bill(&self) -> BTreeMap<u128, (u64, CloseReason)> {
        let sink = &self.previous.sink;
        assert_eq!((sink.doubled(), sink.open_flows().len()), (None, 0));
        let billed = self.expectations.keys().filter_map(|id| sink.final_of(*id).map(|record| (*id, record)));
        billed.map(|(id, record)| (id, (record.flow().legs.upstream_tx, record.flow().reason))).collect()
    }
}

mod faults {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::storage::faulty::{Call, Fault};

    /// What follows the scenario with the failed call.
    #[derive(Clone, Copy, Debug)]
    enum Then {
        /// The disk heals, and the process continues.
        Heals,
        Kill,
        Power,
    }

    /// Plays the scenario with call `from` failing, or every call from it on, and checks the bill.
    fn check(build: Build, from: u64, fault: Fault, is_permanent: bool, then: Then) {
        let healed = Arc::new(AtomicBool::new(false));
        let heals = Arc::clone(&healed);
        let plan = Box::new(move |_, number| {
            let fails = number == from || (is_permanent && number > from);
            (fails && !heals.load(Ordering::Relaxed)).then_some(fault)
        });
        let mut scenario = Scenario::on(plan, build);
        scenario.play();
        let case = format!("{fault:?} at call {from}, permanent: {is_permanent}, then {then:?}");
        assert!(!scenario.errors.is_empty(), "{case}: no error was returned");
        for error in &scenario.errors {
            let is_clear = ["simulated", "not rewritten yet"].iter().any(|text| error.contains(text));
            assert!(is_clear, "{case}: {error}");
        }
        healed.store(true, Ordering::Relaxed);
        match then {
            Then::Heals => {
                (0..6).for_each(|_| scenario.work(true));
                assert_eq!(scenario.failing(), None, "{case}");
            }
            Then::Kill => scenario.kill(),
            Then::Power => scenario.lose_power(&mut Random::from_seed(from)),
        }
        scenario.finish().unwrap_or_else(|error| panic!("{case}: {error}"));
        let bill = scenario.bill();
        for (id, up) in &scenario.expectations {
            let billed = bill.get(id).map(|(up, _)| *up);
            let must_be_exact = !matches!(then, Then::Power) || scenario.durable.contains(id);
            assert!(billed == Some(*up) || !must_be_exact, "{case}: flow {id} moved {up}: {billed:?}");
            assert!(billed.is_none_or(|billed| billed <= *up), "{case}: flow {id} moved {up}: {billed:?}");
        }
    }

    /// With `Sync`, of interims only, which hold no slot.
    #[test]
    fn unsynced_entries_are_rewritten_and_durable() {
        let fails = Arc::new(AtomicBool::new(false));
        let failing = Arc::clone(&fails);
        let plan = Box::new(move |call, _| {
            (call == Call::Sync && failing.load(Ordering::Relaxed)).then_some(Fault::Broken)
        });
        let mut scenario = Scenario::on(plan, Build { durability: Durability::Sync, ..BUILD });
        scenario.start();
        scenario.traffic(0, 9 << 20);
        scenario.work(true);
        let process = scenario.process.as_mut().unwrap();
        process.pass(Duration::from_secs(9));
        let (writer, _, flow) = &mut scenario.flows[0];
        process.writers[*writer].counters(flow).up().1.around(1, || Ok(1)).unwrap();
        fails.store(true, Ordering::Relaxed);
        process.commit().unwrap_err();
        fails.store(false, Ordering::Relaxed);
        process.commit().unwrap();
        assert_eq!(process.journal.durable(), process.journal.appended());
    }

    /// Every sync fails until the end, and the disk is unmounted without one. Finals that were freed from the
    /// table before their sync failed are in the table again.
    #[test]
    fn unsynced_finals_return_to_the_table_on_close() {
        for durability in [Durability::Delayed, Durability::Sync] {
            let fails = Arc::new(AtomicBool::new(false));
            let failing = Arc::clone(&fails);
            let plan = Box::new(move |call, _| {
                (call == Call::Sync && failing.load(Ordering::Relaxed)).then_some(Fault::Broken)
            });
            let mut scenario = Scenario::on(plan, Build { durability, ..BUILD });
            scenario.start();
            scenario.traffic(0, 100);
            scenario.work(true);
            fails.store(true, Ordering::Relaxed);
            for round in 1..4 {
                scenario.traffic(round, 50);
                scenario.record_error(Process::commit);
                scenario.record_error(Process::flush);
            }
            let process = scenario.process.as_mut().unwrap();
            process.committer.finish().unwrap_err();
            let unfinished = process.committer.restore_to_table("simulated".to_owned());
            assert!(unfinished.flows >= 4 && unfinished.without_slot == 0, "{unfinished:?}");
            let (table, boot) = (Arc::new(process.words()), scenario.previous.boot);
            scenario.lose_power(&mut Random::from_seed(3));
            (scenario.previous.table, scenario.previous.boot) = (Some(table), boot);
            let found = scenario.finish().unwrap();
            assert_eq!(found.corruption.as_ref().filter(|text| text.contains("damaged")), None);
            let billed: BTreeMap<u128, u64> =
                scenario.bill().iter().map(|(id, (up, _))| (*id, *up)).collect();
            assert_eq!(billed, scenario.expectations, "{durability:?}");
        }
    }

    /// A sync fails, so that its entries must be rewritten; then files can be created and not written, and
    /// each attempt begins one.
    #[test]
    fn journal_recovers_after_a_long_disk_failure() {
        const HEALTHY: Option<Call> = None;
        let fails = Arc::new(Mutex::new(HEALTHY));
        let failing = Arc::clone(&fails);
        let plan = Box::new(move |call, _| (Some(call) == *failing.lock().unwrap()).then_some(Fault::Broken));
        let mut scenario = Scenario::on(plan, Build { bytes_max: 5 * BUILD.segment_bytes, ..BUILD });
        scenario.start();
        for call in [HEALTHY, Some(Call::Sync), Some(Call::Write)] {
            *fails.lock().unwrap() = call;
            scenario.traffic(0, 100);
            scenario.work(true);
        }
        (0..20).for_each(|_| scenario.work(false));
        assert!(scenario.failing().is_some());
        *fails.lock().unwrap() = HEALTHY;
        (0..6).for_each(|_| scenario.work(true));
        assert_eq!(scenario.failing(), None);
        scenario.finish().unwrap();
        let billed: BTreeMap<u128, u64> = scenario.bill().iter().map(|(id, (up, _))| (*id, *up)).collect();
        assert_eq!(billed, scenario.expectations);
    }

    /// Every call of the disk in turn fails once, or permanently. Then the disk heals, the process is killed,
    /// or the power fails.
    #[test]
    fn any_failed_disk_call_bills_every_flow_once() {
        for durability in [Durability::Delayed, Durability::Sync] {
            let build = Build { durability, ..BUILD };
            let mut whole = Scenario::on(Box::new(|_, _| None), build);
            whole.play();
            assert!(whole.errors.is_empty(), "{:?}", whole.errors);
            let calls = whole.storage.calls();
            assert!(calls > 100, "the scenario has {calls} calls");
            for from in 1..=calls {
                for fault in [Fault::Broken, Fault::Full] {
                    for then in [Then::Heals, Then::Kill, Then::Power] {
                        check(build, from, fault, false, then);
                        check(build, from, fault, true, then);
                    }
                }
            }
        }
    }
}
