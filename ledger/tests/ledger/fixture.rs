//! The fixture of the tests: a ledger's directory, its flows, and its bill.
//!
//! Guarantees: a bill comes from a ledger that `verify` finds clean.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use ledger::SqliteUsage;
use ledger::query::{Filter, Usage};
use ledger::record::{Class, CloseReason, Flow, Identity, Legs, Protocol, Uncertain};
use ledger::{FlowWriter, Ledger, LiveFlow, OpenError, OpenSettings, Recovery};
use sys::clock::WallNanos;

/// The directories of a ledger and of its live table; removed with the test.
pub(crate) struct Fixture(pub(crate) tempfile::TempDir);

/// What each flow is billed: bytes up and down, and the reason of its end.
pub(crate) type Bill = BTreeMap<u128, (u64, u64, String)>;

impl Fixture {
    pub(crate) fn new() -> Fixture {
        let fixture = Fixture(tempfile::tempdir().unwrap());
        fs::create_dir(fixture.tables()).unwrap();
        fixture
    }

    pub(crate) fn directory(&self) -> PathBuf {
        self.0.path().join("data")
    }

    pub(crate) fn journal(&self) -> PathBuf {
        self.directory().join("journal")
    }

    pub(crate) fn tables(&self) -> PathBuf {
        self.0.path().join("tables")
    }

    pub(crate) fn settings(&self, writers: usize, slots: u32) -> OpenSettings {
        settings(self.0.path(), writers, slots)
    }

    pub(crate) fn open(&self) -> (Ledger, FlowWriter) {
        let (ledger, mut writers) = Ledger::open(&self.settings(1, 64)).unwrap();
        (ledger, writers.remove(0))
    }

    pub(crate) fn refusal(&self) -> OpenError {
        match Ledger::open(&self.settings(1, 64)) {
            Ok(_) => panic!("the ledger was opened"),
            Err(error) => error,
        }
    }

    /// Opens and closes the ledger; returns the report of the start.
    pub(crate) fn restart(&self) -> Recovery {
        let (ledger, _writer) = self.open();
        let recovery = ledger.recovery().clone();
        ledger.close().unwrap();
        recovery
    }

    /// The present live tables.
    pub(crate) fn live_tables(&self) -> Vec<PathBuf> {
        fs::read_dir(self.tables()).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    pub(crate) fn bill(&self) -> Bill {
        bill(&self.directory())
    }
}

/// The settings for a fixture whose directories are in `root`.
pub(crate) fn settings(root: &Path, writers: usize, slots: u32) -> OpenSettings {
    OpenSettings {
        live_table: Some(root.join("tables")),
        segment_bytes: 1 << 20,
        ..OpenSettings::new(&root.join("data"), writers, slots)
    }
}

/// Closes a ledger. A flow writer that exists longer would keep the live table in use.
pub(crate) fn close_ledger<I>(ledger: Ledger, writers: I) {
    drop(writers);
    ledger.close().unwrap();
}

/// Every closed flow, each once, of a clean ledger.
pub(crate) fn bill(directory: &Path) -> Bill {
    let report = ledger::verify::verify(directory).unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    let mut bill = Bill::new();
    for flow in SqliteUsage::open(directory).unwrap().flows(&Filter::default(), usize::MAX >> 1).unwrap() {
        assert!(!flow.live, "{flow:?}");
        assert_eq!(bill.insert(flow.id, (flow.up, flow.down, flow.reason)), None, "{:x} twice", flow.id);
    }
    bill
}

pub(crate) fn identity(id: u128, user: &str) -> Identity {
    Identity::new(&flow(id, user))
}

/// A flow at its beginning.
pub(crate) fn flow(id: u128, user: &str) -> Flow<'_> {
    Flow {
        id,
        opened: WallNanos(1_780_000_000_000_000_000),
        closed: WallNanos(0),
        account: 0,
        policy: 0,
        set: 0,
        user,
        host: "example.com",
        port: 443,
        address: None,
        client: "192.0.2.1:50000".parse().unwrap(),
        class: Class::External,
        protocol: Protocol::Socks5,
        rule: "rule",
        reason: CloseReason::Fault,
        requests: 0,
        legs: Legs::default(),
        uncertain: Uncertain::default(),
    }
}

pub(crate) fn open(writer: &mut FlowWriter, id: u128) -> LiveFlow {
    writer.open(&identity(id, "ci")).expect("the table has a free slot")
}

/// Counts bytes up and down as a relay does.
pub(crate) fn count(writer: &mut FlowWriter, flow: &mut LiveFlow, up: usize, down: usize) {
    let mut counters = writer.counters(flow);
    counters.up().1.around(up, || Ok(up)).unwrap();
    counters.down().1.around(down, || Ok(down)).unwrap();
    writer.request_interim_if_due(flow);
}

pub(crate) fn close(writer: &mut FlowWriter, flow: LiveFlow) {
    writer.close(flow, WallNanos(1_780_000_001_000_000_000), CloseReason::ClientClosed);
}

/// Opens, counts and closes flow `id`.
pub(crate) fn run_flow(writer: &mut FlowWriter, id: u128, up: usize, down: usize) {
    let mut flow = open(writer, id);
    count(writer, &mut flow, up, down);
    close(writer, flow);
}

pub(crate) fn billed(flows: &[(u128, u64, u64, &str)]) -> Bill {
    flows.iter().map(|(id, up, down, reason)| (*id, (*up, *down, (*reason).to_owned()))).collect()
}

/// Copies a directory and its contents. A running gateway may rename a file meanwhile.
pub(crate) fn copy_files(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let copy = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_files(&entry.path(), &copy),
            false => match fs::copy(entry.path(), copy) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                copied => drop(copied.unwrap()),
            },
        }
    }
}
