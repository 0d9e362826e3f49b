//! The ledger's threads under shuttle, which switches threads at every load and store of shared data and at
//! every call of the disk. It covers schedules that are rare on a machine, and a kill or a power failure at
//! any such point.
//!
//! Guarantees: the checks 1 to 4 and 8 of the parent's header, with threads in place of steps; and that a
//! flow whose slot was freed with `Sync` is durable.
//! Not handled here: reordering by the memory model (shuttle assumes one order of all accesses; loom tests
//! the ring), and the sleep of threads.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p ledger --release --target-dir target/shuttle --lib shuttle_tests`
//!
//! With `SHUTTLE_RANDOM_SEED=` the schedule of a failed seed comes first.

mod stalls;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, Scheduler};
use shuttle::thread::{self, JoinHandle};
use shuttle::{Config, FailurePersistence, Runner};
use sys::clock::{Nanos, WallNanos};
use sys::sync::atomic::{AtomicUsize, Ordering};

use self::stalls::Stalls;
use super::Random;
use super::memory_sink::{Counts, MemorySink};
use super::process::{Build, CLOSED_AT, PreviousState, Process, identity};
use crate::Durability;
use crate::apply::Applier;
use crate::commit::Committer;
use crate::flow_writer::{FlowWriter, LiveFlow};
use crate::flush::Flusher;
use crate::limits::INTERIM_BYTES;
use crate::record::CloseReason;
use crate::storage::faulty::{Call, Fault, Faulty, Plan};
use crate::storage::memory::Memory;

/// Flows of each reactor thread; more than it has slots.
const FLOWS: u128 = 4;
/// The length of a call.
const CALL_BYTES: u64 = 1_000_000;
/// The largest number of steps before the crash: about as many as a run has.
const STEPS_MAX: u64 = 2_500;

/// What really happened to a flow.
#[derive(Clone, Copy, Debug, Default)]
struct Expected {
    up: u64,
    down: u64,
    /// Both, before the calls in progress.
    counted: (u64, u64),
    /// The length of the call in progress.
    calling: u64,
    /// Whether its close was begun, and done.
    closing: bool,
    closed: bool,
    /// Whether its end is known to be durable.
    durable: bool,
}

/// What the threads record beside the product. A lock of `std`: shuttle does not switch threads while it is
/// held.
#[derive(Clone, Debug, Default)]
struct Expectations {
    flows: Arc<Mutex<BTreeMap<u128, Expected>>>,
    /// What each flow had been counted when the round of an edge began.
    edges: Arc<Mutex<BTreeMap<WallNanos, Counts>>>,
}

impl Expectations {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u128, Expected>> {
        self.flows.lock().expect("no thread panics while it holds the lock")
    }

    fn edges(&self) -> MutexGuard<'_, BTreeMap<WallNanos, Counts>> {
        self.edges.lock().expect("no thread panics while it holds the lock")
    }

    fn note(&self, flow: u128, change: impl FnOnce(&mut Expected)) {
        change(self.lock().entry(flow).or_default());
    }
}

/// How a run ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Crash {
    Kill,
    /// The seed decides which sectors are on the disk.
    Power {
        seed: u64,
    },
}

/// The state of a run at one instant, as a crash would leave it.
struct CrashState {
    crash: Crash,
    memory: Memory,
    previous: PreviousState,
    expectations: BTreeMap<u128, Expected>,
    edges: BTreeMap<WallNanos, Counts>,
}

/// Which calls may fail.
#[derive(Clone, Copy, Debug)]
enum Disk {
    Healthy,
    /// Writes and syncs, now and then.
    Faulty,
}

/// The threads of a run, and their shared data.
struct ProcessRun {
    memory: Memory,
    sink: MemorySink,
    process: Process,
    expectations: Expectations,
    durability: Durability,
    /// Reactor threads that have not ended.
    open: Arc<AtomicUsize>,
    /// Threads besides the applier that have not ended.
    writing: Arc<AtomicUsize>,
}

impl ProcessRun {
    fn begin(durability: Durability, disk: Disk) -> ProcessRun {
        let memory = Memory::default();
        let storage = Faulty::new(memory.clone(), Random::from_seed(1), Box::new(|_, _| None));
        let build = Build {
            durability,
            regions: 2,
            slots: 2,
            segment_bytes: 20 << 10,
            bytes_max: 1 << 30,
            kept_bytes_max: None,
        };
        let sink = MemorySink::default();
        let previous = PreviousState { sink: sink.clone(), table: None, boot: 1 };
        let process =
            Process::start(&storage, build, &previous).expect("a start on an empty healthy disk succeeds");
        storage.set_plan(plan(disk));
        let open = Arc::new(AtomicUsize::new(process.writers.len()));
        let writing = Arc::new(AtomicUsize::new(2));
        ProcessRun { memory, sink, process, expectations: Expectations::default(), durability, open, writing }
    }

    /// Runs all threads to their end; returns the state at some instant meanwhile, and at the end.
    fn run(self) -> [CrashState; 2] {
        let ProcessRun { memory, sink, process, expectations, durability, open, writing } = self;
        let Process { table, writers, committer, flusher, applier, .. } = process;
        let state_after = {
            let expectations = expectations.clone();
            move |crash| crash_state(crash, &memory, &sink, table.snapshot(), &expectations)
        };
        let mut threads = Vec::new();
        for (number, writer) in writers.into_iter().enumerate() {
            let (expectations, open) = (expectations.clone(), Arc::clone(&open));
            threads.push(thread::spawn(move || {
                let first = number as u128 * FLOWS + 1;
                Reactor { writer, first, expectations, durability }.run();
                open.fetch_sub(1, Ordering::SeqCst);
            }));
        }
        threads.push(commit(committer, expectations, open, Arc::clone(&writing)));
        threads.push(flush(flusher, Arc::clone(&writing)));
        threads.push(apply(applier, writing));
        let killer = thread::spawn(move || {
            let steps = AtomicUsize::new(0);
            for _ in 0..thread_rng().gen_range(0..STEPS_MAX) {
                steps.load(Ordering::SeqCst);
            }
            let seed = thread_rng().r#gen();
            let crash = if thread_rng().gen_bool(0.5) { Crash::Kill } else { Crash::Power { seed } };
            (state_after(crash), state_after)
        });
        threads.into_iter().for_each(|thread| thread.join().expect("no thread panics"));
        let (meanwhile, state_after) = killer.join().expect("no thread panics");
        [meanwhile, state_after(Crash::Kill)]
    }
}

fn plan(disk: Disk) -> Plan {
    let mut random = Random::from_seed(thread_rng().r#gen());
    Box::new(move |call, _| {
        let may_fail = matches!(disk, Disk::Faulty) && !matches!(call, Call::Read | Call::Open);
        (may_fail && random.below(1000) < 25).then_some(Fault::Broken)
    })
}

/// The present state. No thread is switched to meanwhile.
fn crash_state(
    crash: Crash,
    memory: &Memory,
    sink: &MemorySink,
    words: Vec<u64>,
    expectations: &Expectations,
) -> CrashState {
    let edges = expectations.edges().clone();
    let mut expectations = expectations.lock().clone();
    // An applied entry is durable: nothing is applied before.
    expectations.iter_mut().for_each(|(id, expected)| expected.durable |= sink.final_of(*id).is_some());
    let (memory, previous) = match crash {
        Crash::Kill => {
            let previous = PreviousState { sink: sink.copy(), table: Some(Arc::new(words)), boot: 1 };
            (memory.copy(), previous)
        }
        Crash::Power { seed } => {
            let previous = PreviousState { sink: sink.after_power_failure(), table: None, boot: 2 };
            (memory.after_power_failure(&mut Random::from_seed(seed)), previous)
        }
    };
    CrashState { crash, memory, previous, expectations, edges }
}

/// A reactor thread.
struct Reactor {
    writer: FlowWriter,
    /// The id of its first flow.
    first: u128,
    expectations: Expectations,
    durability: Durability,
}

impl Reactor {
    /// Opens flows, two at a time, sends on them and closes all but the last.
    fn run(&mut self) {
        let mut last: Option<(u128, LiveFlow)> = None;
        for id in self.flows() {
            let mut flow = self.open(id);
            self.send(id, &mut flow);
            if let Some((earlier, mut flow)) = last.replace((id, flow)) {
                self.send(earlier, &mut flow);
                self.close(earlier, flow);
            }
        }
    }

    fn open(&mut self, id: u128) -> LiveFlow {
        loop {
            if let Some(flow) = self.writer.open(&identity(id)) {
                self.expectations.note(id, |_| {});
                return flow;
            }
            self.note_durable();
            thread::yield_now();
        }
    }

    /// Sends both ways: sometimes enough for an interim, and sometimes nothing.
    fn send(&mut self, id: u128, flow: &mut LiveFlow) {
        let calls = if thread_rng().gen_bool(0.2) { INTERIM_BYTES / CALL_BYTES } else { 1 };
        let expectations = &self.expectations;
        let call = |moved: fn(&mut Expected) -> &mut u64| {
            let taken = if thread_rng().gen_bool(0.2) { 0 } else { CALL_BYTES - 1 };
            expectations.note(id, |expected| *moved(expected) += taken);
            Ok(taken as usize)
        };
        expectations.note(id, |expected| expected.calling = CALL_BYTES);
        for _ in 0..calls {
            let mut counters = self.writer.counters(flow);
            counters
                .up()
                .1
                .around(CALL_BYTES as usize, || call(|expected| &mut expected.up))
                .expect("the call succeeds");
            counters
                .down()
                .1
                .around(CALL_BYTES as usize, || call(|expected| &mut expected.down))
                .expect("the call succeeds");
        }
        expectations.note(id, |expected| {
            expected.calling = 0;
            expected.counted = (expected.up, expected.down);
        });
        self.writer.request_interim_if_due(flow);
    }

    fn close(&mut self, id: u128, flow: LiveFlow) {
        self.expectations.note(id, |expected| expected.closing = true);
        self.writer.close(flow, CLOSED_AT, CloseReason::ClientClosed);
        self.expectations.note(id, |expected| expected.closed = true);
        self.note_durable();
    }

    /// With `Sync` a slot is freed when its flow is durable.
    fn note_durable(&mut self) {
        if self.durability == Durability::Sync && self.writer.unjournaled() == 0 {
            let own = self.flows();
            self.expectations
                .lock()
                .range_mut(own)
                .for_each(|(_, expected)| expected.durable = expected.closed);
        }
    }

    fn flows(&self) -> Range<u128> {
        self.first..self.first + FLOWS
    }
}

/// The committer's thread: as its `run`, without the pauses, and with edges at any time.
fn commit(
    mut committer: Committer<Faulty>,
    expectations: Expectations,
    open: Arc<AtomicUsize>,
    writing: Arc<AtomicUsize>,
) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut now = Nanos(0);
        while open.load(Ordering::SeqCst) > 0 {
            now = now + Duration::from_millis(700);
            if thread_rng().gen_bool(0.2) {
                let at = WallNanos(CLOSED_AT.0 + now.0);
                let counts = expectations.lock().iter().map(|(id, flow)| (*id, flow.counted)).collect();
                if committer.begin_edge(at) {
                    expectations.edges().insert(at, counts);
                }
            }
            let _ = committer.step(now);
            thread::yield_now();
        }
        while committer.finish().is_err() {}
        writing.fetch_sub(1, Ordering::SeqCst);
    })
}

/// The flusher's thread: as its `run`, without the pauses.
fn flush(flusher: Flusher<Faulty>, writing: Arc<AtomicUsize>) -> JoinHandle<()> {
    thread::spawn(move || {
        while writing.load(Ordering::SeqCst) == 2 {
            if flusher.must_sync() {
                let _ = flusher.sync();
            } else {
                let _ = flusher.journal.prepare();
            }
            thread::yield_now();
        }
        writing.fetch_sub(1, Ordering::SeqCst);
    })
}

/// The applier's thread: as its `run`, without the pauses.
fn apply(mut applier: Applier<Faulty, MemorySink>, writing: Arc<AtomicUsize>) -> JoinHandle<()> {
    thread::spawn(move || {
        while writing.load(Ordering::SeqCst) > 0 {
            applier.step().expect("announced entries can be read");
            if thread_rng().gen_bool(0.2) {
                applier.step_checkpoint().expect("the memory sink does not fail");
            }
            thread::yield_now();
        }
        applier.step().expect("announced entries can be read");
    })
}

impl CrashState {
    /// Starts the next run on this state, lets it finish, and compares the bill with the expectations.
    fn check(self) {
        let CrashState { crash, memory, previous, expectations, edges } = self;
        let storage = Faulty::new(memory, Random::from_seed(1), Box::new(|_, _| None));
        let build = Build {
            durability: Durability::Delayed,
            regions: 1,
            slots: 1,
            segment_bytes: 20 << 10,
            bytes_max: 1 << 30,
            kept_bytes_max: None,
        };
        let mut process =
            Process::start(&storage, build, &previous).expect("a start on intact files succeeds");
        for _ in 0..3 {
            process
                .commit()
                .and_then(|()| process.flush())
                .and_then(|()| process.apply())
                .expect("the call succeeds");
        }
        assert_eq!((previous.sink.doubled(), previous.sink.open_flows().len()), (None, 0), "after {crash:?}");
        for (id, expected) in &expectations {
            check_flow(crash, &previous.sink, *id, expected);
        }
        assert_eq!(previous.sink.early(), None, "after {crash:?}");
        for (at, expected) in &edges {
            check_edge(crash, &previous.sink, *at, expected);
        }
    }
}

fn check_edge(crash: Crash, sink: &MemorySink, at: WallNanos, expected: &Counts) {
    let Some(counts) = sink.counts_at_edge(at) else { return };
    for (id, (up, down)) in expected {
        let found = counts.get(id).copied().unwrap_or_default();
        let is_in_front = found.0 >= *up && found.1 >= *down;
        assert!(is_in_front, "flow {id} after {crash:?}: {up} up and {down} down before {at:?}, {found:?}");
    }
}

fn check_flow(crash: Crash, sink: &MemorySink, id: u128, expected: &Expected) {
    let must_be_exact = crash == Crash::Kill || expected.durable;
    let Some(record) = sink.final_of(id) else {
        assert!(!must_be_exact, "flow {id} has no final after {crash:?}: {expected:?}");
        return;
    };
    let flow = record.flow();
    assert_eq!(record.identity(), &identity(id));
    let case = format!("flow {id} after {crash:?}: {expected:?}, billed {flow:?}");
    assert!(flow.legs.upstream_tx <= expected.up && flow.legs.client_tx <= expected.down, "{case}");
    if !must_be_exact {
        return;
    }
    let (up, down) = (expected.up - flow.legs.upstream_tx, expected.down - flow.legs.client_tx);
    let (up_max, down_max) = (u64::from(flow.uncertain.up), u64::from(flow.uncertain.down));
    assert!(up <= up_max && down <= down_max, "{case}");
    assert!(up_max + down_max <= expected.calling, "{case}");
    match flow.reason {
        CloseReason::ClientClosed => assert!(expected.closing && flow.closed >= CLOSED_AT, "{case}"),
        CloseReason::Killed => assert!(!expected.closed, "{case}"),
        _ => panic!("{case}"),
    }
}

/// How many schedules each scheduler runs, unless the environment variable `SCHEDULES` sets another number.
const SCHEDULES_PER_SCHEDULER: usize = 5_000;

/// Explores runs by random schedules with stalls, and by PCT (Burckhardt et al., "A Randomized Scheduler with
/// Probabilistic Guarantees of Finding Bugs", ASPLOS 2010), for bugs that need three threads to meet.
fn explore(durability: Durability, disk: Disk) {
    let count = std::env::var("SCHEDULES")
        .map_or(SCHEDULES_PER_SCHEDULER, |count| count.parse().expect("SCHEDULES is a number"));
    explore_by(Stalls::new(count), durability, disk);
    explore_by(PctScheduler::new(3, count), durability, disk);
}

fn explore_by(scheduler: impl Scheduler + 'static, durability: Durability, disk: Disk) {
    let mut config = Config::new();
    config.stack_size = 256 << 10;
    // The printed seed is enough.
    config.failure_persistence = FailurePersistence::None;
    // Shuttle treats all atomics as sequentially consistent: see the file's header.
    config.silence_warnings = true;
    let program = move || ProcessRun::begin(durability, disk).run().into_iter().for_each(CrashState::check);
    Runner::new(scheduler, config).run(program);
}

#[test]
fn any_schedule_bills_every_flow_once() {
    explore(Durability::Delayed, Disk::Healthy);
}

#[test]
fn any_schedule_bills_every_flow_once_synced() {
    explore(Durability::Sync, Disk::Healthy);
}

#[test]
fn any_schedule_bills_once_with_failing_disk() {
    explore(Durability::Delayed, Disk::Faulty);
}

#[test]
fn any_schedule_bills_once_synced_with_failing_disk() {
    explore(Durability::Sync, Disk::Faulty);
}
