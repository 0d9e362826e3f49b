//! A process of the simulation: the ledger's threads as steps, its start, and the state that it leaves.
//!
//! Guarantees: everything between the flow writers and the sink is the product's own code; only the time, the
//! disk and the database are simulated.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use sys::clock::{Nanos, WallNanos};
use sys::mapping::SharedWords;

use super::memory_sink::MemorySink;
use crate::apply::Applier;
use crate::commit::Committer;
use crate::flow_writer::{self, FlowWriter};
use crate::flush::Flusher;
use crate::journal::{JournalState, Settings, TableReference, Writer};
use crate::live_table::image::TableImage;
use crate::live_table::{LiveTable, TableHeader};
use crate::loss::Losses;
use crate::readers::{ReaderSettings, Readers};
use crate::record::{Class, CloseReason, Flow, Identity, Legs, Protocol, Uncertain};
use crate::recover::{Applied, RecoverError, Recovery, Start, scan};
use crate::sink::Sink;
use crate::status::LedgerState;
use crate::storage::faulty::Faulty;
use crate::{Durability, StatusHandle};

pub(super) const GATEWAY: u32 = 7;

/// The closing time of every flow.
pub(super) const CLOSED_AT: WallNanos = WallNanos(1_000_000);

/// The configuration of a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Build {
    pub(super) durability: Durability,
    pub(super) regions: u32,
    pub(super) slots: u32,
    pub(super) segment_bytes: u64,
    pub(super) bytes_max: u64,
    /// What may be kept for the second reader of the journal; `None` without one.
    pub(super) kept_bytes_max: Option<u64>,
}

/// The name of the second reader of the journal.
pub(super) const SECOND_READER: &str = "second";

/// The state that the next start finds, besides the disk.
#[derive(Clone, Debug)]
pub(super) struct PreviousState {
    pub(super) sink: MemorySink,
    /// The words of the last run's table; `None` after a power failure.
    pub(super) table: Option<Arc<Vec<u64>>>,
    pub(super) boot: u128,
}

impl PreviousState {
    /// Whether there is a table of this boot.
    pub(super) fn has_table(&self) -> bool {
        let header = self.table.as_ref().and_then(|words| TableHeader::parse(|index| words[index]).ok());
        header.is_some_and(|(header, _)| header.boot == self.boot)
    }
}

/// A running process.
pub(super) struct Process {
    pub(super) storage: Faulty,
    pub(super) table: Arc<SharedWords>,
    pub(super) writers: Vec<FlowWriter>,
    pub(super) committer: Committer<Faulty>,
    pub(super) flusher: Flusher<Faulty>,
    pub(super) applier: Applier<Faulty, MemorySink>,
    pub(super) journal: Arc<JournalState<Faulty>>,
    pub(super) recovery: Recovery,
    /// Whether the start found an older copy of the table.
    pub(super) is_stale: bool,
    /// Segments that do not continue the one before them, as the start found them.
    pub(super) breaks: u64,
    shared: Arc<LedgerState>,
    now: Nanos,
}

impl Process {
    /// Starts a process on the state of the previous one.
    ///
    /// # Errors
    /// The product's.
    pub(super) fn start(
        storage: &Faulty,
        build: Build,
        previous: &PreviousState,
    ) -> Result<Process, RecoverError> {
        let (epoch, lsn) = previous.sink.applied();
        let applied = Applied { epoch, lsn, is_ended: false, has_begun: true };
        let mut images: Vec<TableImage<'_>> = Vec::new();
        if let Some(words) = &previous.table {
            let header = TableHeader::parse(|index| words[index]);
            let (header, layout) = header.map_err(|what| RecoverError::Read(what.to_owned()))?;
            images.push(TableImage { header, layout, word: Box::new(|index| words[index]) });
        }
        let scan = scan(storage, GATEWAY, applied, previous.sink.open_flows(), &images)?;
        let losses = scan.losses(lsn, previous.boot, &images);
        if !losses.is_empty() {
            return Err(RecoverError::Incomplete(Losses(losses)));
        }
        let Build { regions, slots, segment_bytes, bytes_max, kept_bytes_max, .. } = build;
        let name = SECOND_READER.to_owned();
        let second = kept_bytes_max.map(|kept_bytes_max| ReaderSettings { name, kept_bytes_max });
        let readers = Readers::new(second.as_slice()).expect("the reader's name is permitted");
        let breaks = scan.breaks();
        let is_stale = images.iter().any(|image| scan.is_stale(image));
        let epoch = scan.epoch(&images);
        let (boot, run) = (previous.boot, u128::from(epoch));
        let header = TableHeader { gateway: GATEWAY, epoch, boot, process: 1, regions, slots, run };
        let settings = Settings { gateway: GATEWAY, epoch, run, segment_bytes, bytes_max };
        let table = TableReference { path: String::new(), boot: previous.boot };
        let (boot, tables) = (previous.boot, images.as_slice());
        let start = Start { settings, table, boot, tables, consents: &[], readers: Arc::new(readers) };
        let recovered = scan.recover(storage.clone(), start)?;
        let (journal, recovery) = (recovered.journal, recovered.report);
        let mut sink = previous.sink.clone();
        sink.expect_accounts(recovered.accounts);
        let mut process = Process::assemble(storage.clone(), build, sink, header, journal, recovery);
        (process.breaks, process.is_stale) = (breaks, is_stale);
        Ok(process)
    }

    fn assemble(
        storage: Faulty,
        build: Build,
        sink: MemorySink,
        header: TableHeader,
        journal: Writer<Faulty>,
        recovery: Recovery,
    ) -> Process {
        let table = LiveTable::create(SharedWords::in_memory(header.table_words()), header);
        table.note_appended(journal.shared().appended());
        let words = table.words();
        let (_, applied) = sink.applied();
        let shared = Arc::new(LedgerState::new(applied));
        let (drains, writers) = table.regions().map(|region| flow_writer::pair(&region, &shared)).unzip();
        let journaled = Arc::clone(journal.shared());
        let applier = Applier::new(sink, Arc::clone(&journaled), applied, Arc::clone(&shared));
        let flusher = Flusher {
            journal: Arc::clone(&journaled),
            durability: build.durability,
            shared: Arc::clone(&shared),
        };
        let mut committer = Committer::new(journal, table, drains, build.durability, Arc::clone(&shared));
        // Not the machine's clock, which would make a seed differ each time.
        let now = Nanos(0);
        committer.begin_at(now);
        let table = words;
        let journal = journaled;
        Process {
            storage,
            table,
            writers,
            committer,
            flusher,
            applier,
            journal,
            recovery,
            breaks: 0,
            is_stale: false,
            shared,
            now,
        }
    }

    /// Advances the clock.
    pub(super) fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
    }

    /// Begins the round for an edge; whether none was under way.
    pub(super) fn begin_edge(&mut self, at: WallNanos) -> bool {
        self.committer.begin_edge(at)
    }

    /// Requests a barrier, as `Ledger::journal_counts` does.
    pub(super) fn request_barrier(&self) -> Option<Receiver<()>> {
        self.shared.barriers.put(())
    }

    /// A pass of the committer.
    pub(super) fn commit(&mut self) -> Result<(), String> {
        self.committer.step(self.now).map(drop).map_err(|error| error.to_string())
    }

    /// A sync of the flusher.
    pub(super) fn flush(&mut self) -> Result<(), String> {
        let outcome = if self.flusher.must_sync() { self.flusher.sync() } else { Ok(()) };
        outcome.map_err(|error| error.to_string())
    }

    /// Prepares the next segment, as the flusher does.
    pub(super) fn prepare(&mut self) -> Result<(), String> {
        while !self.journal.prepare().map_err(|error| error.to_string())? {}
        Ok(())
    }

    /// A pass of the applier.
    pub(super) fn apply(&mut self) -> Result<(), String> {
        self.applier.step()
    }

    /// A checkpoint of the applier.
    pub(super) fn checkpoint(&mut self) -> Result<(), String> {
        self.applier.step_checkpoint()
    }

    /// The present failure.
    pub(super) fn failing(&self) -> Option<String> {
        StatusHandle(Arc::clone(&self.shared)).status().failing
    }

    /// A copy of the table's words.
    pub(super) fn words(&self) -> Vec<u64> {
        self.table.snapshot()
    }
}

/// The identity of flow `id`.
pub(super) fn identity(id: u128) -> Identity {
    let texts = ["example.com", "a.test", "registry.example.org"];
    let (protocol, class) = match id % 4 {
        0 => (Protocol::HttpConnect, Class::Internal),
        1 => (Protocol::Forward, Class::External),
        _ => (Protocol::Socks5, Class::External),
    };
    let host = "x".repeat(253);
    let host = if id.is_multiple_of(5) { &host } else { texts[(id % 3) as usize] };
    Identity::new(&Flow {
        id,
        opened: WallNanos(1),
        closed: WallNanos(0),
        account: 0,
        policy: 0,
        set: 0,
        user: "ci",
        host,
        port: 443,
        address: (id % 2 == 1).then(|| "2001:db8::1".parse().expect("an address")),
        client: "192.0.2.1:50000".parse().expect("an address"),
        class,
        protocol,
        rule: "",
        reason: CloseReason::Fault,
        requests: 0,
        legs: Legs::default(),
        uncertain: Uncertain::default(),
    })
}
