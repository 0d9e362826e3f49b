//! One world: its threads as steps, its ends, and its judge.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use sys::clock::{Nanos, WallNanos};
use sys::mapping::SharedWords;

use super::bill::Bill;
use super::{Outcome, Random};
use crate::Durability;
use crate::apply::Applier;
use crate::commit::Committer;
use crate::inlet::{self, Inlet, LiveFlow};
use crate::journal::Settings;
use crate::live_table::{LiveTable, TableHeader};
use crate::record::{Class, CloseReason, Flow, Identity, Legs, Protocol, Uncertain};
use crate::recover::{Applied, TableImage, survey};
use crate::status::Shared;
use crate::storage::faulty::{Call, Fault, Faulty};
use crate::storage::memory::Memory;

const SLOTS: u32 = 24;
const REGIONS: u32 = 2;
const SEGMENT_BYTES: u64 = 48 * 1024;
const STEPS: u64 = 60;
const LIVES: u64 = 3;
const GATEWAY: u32 = 7;

/// What really happened to a flow.
#[derive(Clone, Copy, Debug, Default)]
struct Truth {
    up: u64,
    down: u64,
    /// In which life of the process it was opened.
    life: u64,
    /// It was closed, and its end was then said to be durable.
    durable: bool,
    /// A kill came inside a call of so many bytes toward the upstream.
    in_doubt: u64,
}

/// A world of one seed. See the parent's header.
pub struct World {
    random: Random,
    memory: Memory,
    bill: Bill,
    /// The words of the last life's table; none after a power failure.
    table: Option<(TableHeader, Arc<Vec<u64>>)>,
    boot: u128,
    truths: BTreeMap<u128, Truth>,
    outcome: Outcome,
    life: u64,
    durability: Durability,
}

/// How a life of the process ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Death {
    Kill,
    Power,
}

/// A running process.
struct Process {
    storage: Faulty,
    table: Arc<SharedWords>,
    header: TableHeader,
    committer: Committer<Faulty>,
    applier: Applier<Faulty, Bill>,
    journal: Arc<crate::journal::Shared<Faulty>>,
    shared: Arc<Shared>,
    inlets: Vec<Inlet>,
    flows: Vec<(usize, u128, LiveFlow)>,
    /// Flows that were closed, and whether their slots were seen free again.
    closed: Vec<u128>,
    now: Nanos,
}

impl World {
    /// The world of `seed`, before anything happened.
    pub fn of(seed: u64) -> World {
        let mut random = Random::of(seed);
        let durability = if random.chance(50) { Durability::Sync } else { Durability::Delayed };
        World {
            random,
            memory: Memory::default(),
            bill: Bill::default(),
            table: None,
            boot: 1,
            truths: BTreeMap::new(),
            outcome: Outcome::default(),
            life: 0,
            durability,
        }
    }

    /// Lets the process live and die some times, and then live in peace.
    ///
    /// # Errors
    /// What does not hold.
    pub fn run(mut self) -> Result<Outcome, String> {
        for _ in 0..LIVES {
            self.life += 1;
            let Some(mut process) = self.start(true)? else { continue };
            for _ in 0..1 + self.random.below(STEPS) {
                self.step(&mut process)?;
            }
            self.die(process);
        }
        self.life += 1;
        let mut process = self.start(false)?.ok_or("a healthy disk failed")?;
        self.settle(&mut process)?;
        self.judge()?;
        Ok(self.outcome)
    }

    /// Starts the process; `None` if it died on the way, or its disk failed.
    fn start(&mut self, dangerous: bool) -> Result<Option<Process>, String> {
        let storage = self.disk(dangerous);
        let (epoch, lsn) = self.bill.applied();
        let applied = Applied { epoch, lsn };
        let old = self.table.clone();
        let images: Vec<TableImage<'_>> = old
            .iter()
            .map(|(header, words)| TableImage { header: *header, word: Box::new(|index| words[index]) })
            .collect();
        let survey = match survey(&storage, GATEWAY, applied, &images) {
            Ok(survey) => survey,
            Err(_) if dangerous => return Ok(self.dies_early()),
            Err(error) => return Err(error.to_string()),
        };
        if let Some(damage) = survey.damage() {
            return Err(format!("nothing was damaged, and yet: {damage}"));
        }
        let header = TableHeader {
            gateway: GATEWAY,
            epoch: survey.epoch(applied, &images),
            boot: self.boot,
            process: 1,
            regions: REGIONS,
            slots: SLOTS,
        };
        let settings = Settings {
            gateway: GATEWAY,
            epoch: header.epoch,
            segment_bytes: SEGMENT_BYTES,
            bytes_max: 1 << 30,
            table: String::new(),
        };
        let recovered = match survey.recover(storage.clone(), settings, applied, self.boot, &images) {
            Ok(recovered) => recovered,
            Err(_) if dangerous => return Ok(self.dies_early()),
            Err(error) => return Err(error.to_string()),
        };
        if dangerous && self.random.chance(20) {
            // All is durable, and the table not removed yet.
            return Ok(self.dies_early());
        }
        Ok(Some(self.process(storage, header, recovered.journal)))
    }

    fn process(
        &mut self,
        storage: Faulty,
        header: TableHeader,
        journal: crate::journal::Writer<Faulty>,
    ) -> Process {
        let words = SharedWords::in_memory(header.table_words());
        let table = LiveTable::create(words, header);
        let words = table.words();
        let (_, applied) = self.bill.applied();
        let shared = Arc::new(Shared::new(applied));
        let (outlets, unbound): (Vec<_>, Vec<_>) = table.regions().map(|region| inlet::pair(&region)).unzip();
        let here = std::thread::current();
        let inlets = unbound.into_iter().map(|inlet| inlet.bind(&shared, &here)).collect();
        let journaled = Arc::clone(journal.shared());
        let applier = Applier::new(self.bill.clone(), Arc::clone(&journaled), applied, Arc::clone(&shared));
        let committer = Committer::new(journal, table, outlets, self.durability, Arc::clone(&shared));
        self.table = None;
        Process {
            storage,
            table: words,
            header,
            committer,
            applier,
            journal: journaled,
            shared,
            inlets,
            flows: Vec::new(),
            closed: Vec::new(),
            now: sys::clock::monotonic(),
        }
    }

    /// The disk, which fails now and then if it is dangerous.
    fn disk(&mut self, dangerous: bool) -> Faulty {
        let mut random = Random::of(self.random.next());
        let faults_per_thousand = if dangerous && random.chance(40) { 1 + random.below(60) } else { 0 };
        let plan = Box::new(move |call: Call, _number| {
            // Reading a journal that was just written does not fail in this world.
            let fails = call != Call::Read && call != Call::Open && random.below(1000) < faults_per_thousand;
            fails.then(|| if random.chance(50) { Fault::Broken } else { Fault::Full })
        });
        Faulty::new(self.memory.clone(), Random::of(self.random.next()), plan)
    }

    /// One step of one of the process's threads.
    fn step(&mut self, process: &mut Process) -> Result<(), String> {
        process.now = process.now + std::time::Duration::from_millis(self.random.below(2000));
        match self.random.below(100) {
            0..25 => self.open(process),
            25..55 => self.send(process),
            55..70 => self.close(process),
            70..85 => process.commit(),
            85..92 => process.flush(),
            92..97 => process.apply()?,
            _ => drop(process.journal.prepare()),
        }
        self.note_durable(process);
        Ok(())
    }

    fn open(&mut self, process: &mut Process) {
        let inlet = self.random.below(REGIONS.into()) as usize;
        let id = u128::from(self.outcome.flows) + 1;
        if let Some(flow) = process.inlets[inlet].open(&identity(id)) {
            self.outcome.flows += 1;
            self.truths.insert(id, Truth { life: self.life, ..Truth::default() });
            process.flows.push((inlet, id, flow));
        }
    }

    fn send(&mut self, process: &mut Process) {
        if process.flows.is_empty() {
            return;
        }
        let index = self.random.below(process.flows.len() as u64) as usize;
        let (inlet, id, flow) = &mut process.flows[index];
        let length = 1 + self.random.below(3 << 20) as usize;
        let taken = if self.random.chance(80) { 1 + self.random.below(length as u64) } else { 0 };
        let call = || if taken > 0 { Ok(taken as usize) } else { Err(io::ErrorKind::WouldBlock.into()) };
        let truth = self.truths.get_mut(id).expect("an open flow is known");
        let inlet = &mut process.inlets[*inlet];
        if self.random.chance(50) {
            let _ = inlet.tally(flow).up().1.around(length, call);
            truth.up += taken;
        } else {
            let _ = inlet.tally(flow).down().1.around(length, call);
            truth.down += taken;
        }
        inlet.counted(flow);
    }

    fn close(&mut self, process: &mut Process) {
        if process.flows.is_empty() {
            return;
        }
        let index = self.random.below(process.flows.len() as u64) as usize;
        let (inlet, id, flow) = process.flows.swap_remove(index);
        process.inlets[inlet].close(flow, WallNanos(1_000_000), CloseReason::ClientClosed);
        process.closed.push(id);
    }

    /// What was announced as durable is: that is the promise which a power failure tests.
    fn note_durable(&mut self, process: &mut Process) {
        let nothing_waits = process.inlets.iter_mut().all(|inlet| inlet.waiting() == 0);
        let all_durable = process.journal.durable() == process.journal.appended();
        if nothing_waits && (all_durable || self.durability == Durability::Sync) {
            for id in process.closed.drain(..) {
                self.truths.get_mut(&id).expect("a closed flow is known").durable = true;
            }
        }
    }

    /// The process ends, at an instant inside or between its calls.
    fn die(&mut self, mut process: Process) {
        let mut words = snapshot(&process.table);
        if let Some((inlet, id, flow)) = process.flows.first_mut().filter(|_| self.random.chance(50)) {
            let length = 1 + self.random.below(200_000) as usize;
            let _ = process.inlets[*inlet].tally(flow).up().1.around(length, || {
                words = snapshot(&process.table);
                Ok(length)
            });
            self.truths.get_mut(id).expect("an open flow is known").in_doubt = length as u64;
        }
        self.table = Some((process.header, Arc::new(words)));
        self.outcome.faults += process.storage.faults();
        self.end();
    }

    fn dies_early(&mut self) -> Option<Process> {
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
                self.bill = self.bill.after_power_failure();
                self.table = None;
                self.boot += 1;
                // Whatever was in the table and not durable is gone: it may be billed, and need not.
                let lost = self.truths.values_mut().filter(|truth| !truth.durable);
                lost.for_each(|truth| truth.life = 0);
            }
        }
    }

    /// Lets everything that waits come to its end.
    fn settle(&mut self, process: &mut Process) -> Result<(), String> {
        for _ in 0..4 * LIVES {
            process.commit();
            process.flush();
            process.apply()?;
        }
        match process.shared_failure() {
            Some(failure) => Err(format!("a healthy disk failed: {failure}")),
            None => Ok(()),
        }
    }

    fn judge(&self) -> Result<(), String> {
        if let Some(flow) = self.bill.doubled() {
            return Err(format!("flow {flow} has two finals"));
        }
        if self.bill.open() > 0 {
            return Err(format!("{} flows of earlier lives are still open", self.bill.open()));
        }
        self.truths.iter().try_for_each(|(id, truth)| self.judge_flow(*id, truth))
    }

    fn judge_flow(&self, id: u128, truth: &Truth) -> Result<(), String> {
        let must_be_exact = truth.life > 0;
        let Some(record) = self.bill.of(id) else {
            return if must_be_exact { Err(format!("flow {id} has no final: {truth:?}")) } else { Ok(()) };
        };
        let flow = record.flow();
        let (up, down) = (flow.legs.upstream_tx, flow.legs.client_tx);
        let exact = (up, down) == (truth.up, truth.down) && u64::from(flow.uncertain.up) == truth.in_doubt;
        let bounded = up <= truth.up && down <= truth.down;
        if (must_be_exact && !exact) || !bounded {
            return Err(format!("flow {id} is billed {up} up, {down} down, {:?}: {truth:?}", flow.uncertain));
        }
        Ok(())
    }
}

impl Process {
    fn commit(&mut self) {
        if let Err(error) = self.committer.turn(self.now) {
            self.shared.journal_failed(&error.to_string());
        } else {
            self.shared.journal_works();
        }
    }

    fn flush(&mut self) {
        if self.journal.durable() < self.journal.appended() && !self.shared.has_sync_failed() {
            match self.journal.sync() {
                Ok(lsn) => self.journal.announce_durable(lsn),
                Err(_) => self.shared.sync_failed(),
            }
        }
    }

    fn apply(&mut self) -> Result<(), String> {
        self.applier.step()
    }

    fn shared_failure(&self) -> Option<String> {
        crate::Watch(Arc::clone(&self.shared)).status().failing
    }
}

fn snapshot(words: &SharedWords) -> Vec<u64> {
    words.words().iter().map(|word| word.load(std::sync::atomic::Ordering::Acquire)).collect()
}

fn identity(id: u128) -> Identity {
    let texts = ["example.com", "a.test", "registry.example.org"];
    Identity::new(&Flow {
        id,
        opened: WallNanos(1),
        closed: WallNanos(0),
        user: "ci",
        host: texts[(id % 3) as usize],
        port: 443,
        address: None,
        client: "192.0.2.1:50000".parse().expect("an address"),
        class: Class::External,
        protocol: Protocol::Socks5,
        rule: "",
        reason: CloseReason::Fault,
        legs: Legs::default(),
        uncertain: Uncertain::default(),
    })
}
