//! A whole ledger in memory, for simulations of the programs that write to it.
//!
//! Guarantees: the flow writer, the live table, the journal and the recovery are the product's own code; only
//! the disk and the database are simulated. Its threads run when [`MemoryLedger::step`] is called.

use std::sync::Arc;
use std::time::Duration;

use sys::mapping::SharedWords;

use super::Random;
use super::memory_sink::MemorySink;
use super::process::{Build, PreviousState, Process};
use crate::record::{CloseReason, Record, Uncertain};
use crate::storage::faulty::Faulty;
use crate::storage::memory::Memory;
use crate::{Durability, FlowWriter};

/// Passes after which nothing waits: an entry goes from the table to the journal, to its disk, to the
/// database, and its segment is released.
const SETTLING_PASSES: u32 = 4;

/// A ledger of one thread.
pub struct MemoryLedger {
    build: Build,
    memory: Memory,
    sink: MemorySink,
    process: Process,
}

/// A view of the live table, which a kill leaves as it is.
#[derive(Clone)]
pub struct TableView(Arc<SharedWords>);

impl TableView {
    /// The table's words now.
    pub fn words(&self) -> Vec<u64> {
        self.0.snapshot()
    }
}

/// What the ledger bills for a flow.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BilledFlow {
    /// The flow's id.
    pub id: u128,
    /// The user's name.
    pub user: String,
    /// The requested host.
    pub host: String,
    /// The client's address, as text.
    pub client: String,
    /// Bytes to the destination.
    pub up: u64,
    /// Bytes to the client.
    pub down: u64,
    /// Requests that were made in it.
    pub requests: u64,
    /// The reason of its end.
    pub reason: CloseReason,
    /// Bytes of the calls that a kill interrupted, which are not billed.
    pub uncertain: Uncertain,
}

impl MemoryLedger {
    /// An empty ledger whose live table has `slots` slots, and its flow writer.
    ///
    /// # Errors
    /// The product's, at its start.
    pub fn new(slots: u32) -> Result<(MemoryLedger, FlowWriter), String> {
        let segment_bytes = 96 << 10;
        let (durability, bytes_max) = (Durability::Delayed, 1 << 30);
        let build = Build { durability, regions: 1, slots, segment_bytes, bytes_max, kept_bytes_max: None };
        let memory = Memory::default();
        let previous = PreviousState { sink: MemorySink::default(), table: None, boot: 1 };
        let mut process = start(&memory, build, &previous)?;
        let writer = process.writers.pop().expect("a table of one region has one writer");
        Ok((MemoryLedger { build, memory, sink: previous.sink, process }, writer))
    }

    /// A view of the live table.
    pub fn table(&self) -> TableView {
        TableView(Arc::clone(&self.process.table))
    }

    /// One pass of each thread, `time` after the last one.
    ///
    /// # Errors
    /// The product's: on this disk no call fails.
    pub fn step(&mut self, time: Duration) -> Result<(), String> {
        step(&mut self.process, time)
    }

    /// Ends the process in order; returns the bill.
    ///
    /// # Errors
    /// The product's, a flow with two finals, or one that is still open.
    pub fn finish(mut self) -> Result<Vec<BilledFlow>, String> {
        settle(&mut self.process)?;
        bill(&self.sink)
    }

    /// Kills the process, whose table had these words then, and starts it again; returns the bill.
    ///
    /// # Errors
    /// As [`MemoryLedger::finish`], and a start that fails.
    pub fn recover(self, words: Vec<u64>) -> Result<Vec<BilledFlow>, String> {
        let previous = PreviousState { sink: self.sink.clone(), table: Some(Arc::new(words)), boot: 1 };
        drop(self.process);
        let mut process = start(&self.memory.after_kill(), self.build, &previous)?;
        settle(&mut process)?;
        bill(&self.sink)
    }
}

fn start(memory: &Memory, build: Build, previous: &PreviousState) -> Result<Process, String> {
    let disk = Faulty::new(memory.clone(), Random::from_seed(0), Box::new(|_, _| None));
    Process::start(&disk, build, previous).map_err(|error| error.to_string())
}

fn step(process: &mut Process, time: Duration) -> Result<(), String> {
    process.pass(time);
    process.commit()?;
    process.flush()?;
    process.apply()?;
    process.checkpoint()?;
    process.prepare()
}

fn settle(process: &mut Process) -> Result<(), String> {
    (0..SETTLING_PASSES).try_for_each(|_| step(process, Duration::from_secs(1)))
}

fn bill(sink: &MemorySink) -> Result<Vec<BilledFlow>, String> {
    if let Some(flow) = sink.doubled() {
        return Err(format!("flow {flow:032x} has two finals"));
    }
    if let Some(flow) = sink.open_flows().iter().next() {
        return Err(format!("flow {flow:032x} is still open"));
    }
    Ok(sink.finals().iter().map(billed).collect())
}

fn billed(record: &Record) -> BilledFlow {
    let flow = record.flow();
    BilledFlow {
        id: flow.id,
        user: flow.user.to_owned(),
        host: flow.host.to_owned(),
        client: flow.client.to_string(),
        up: flow.legs.upstream_tx,
        down: flow.legs.client_tx,
        requests: flow.requests,
        reason: flow.reason,
        uncertain: flow.uncertain,
    }
}
