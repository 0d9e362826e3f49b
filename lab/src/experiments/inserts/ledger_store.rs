//! Our ledger with everything on. An insert is the open and the close of a flow whose id is the guid, whose
//! host is the text and whose user is the writer; it counts when the ledger has accepted the close.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::Result;
use ledger::record::{Class, CloseReason, Flow, Identity, Legs, Protocol, Uncertain};
use ledger::{FlowWriter, Ledger, OpenSettings, Progress, StatusHandle};
use sys::clock::WallNanos;

use super::row::{Row, TEXT};
use super::store::{InsertResult, OpenStore, Store, Watermarks, Writer};

pub(super) use ledger::Durability;

/// The ledger's threads that compute while rows are inserted: committer and applier.
pub(super) const COMPUTING_THREADS: usize = 2;

/// Slots of the live table for each writer, as a gateway with 9,000 connections has them.
const SLOTS: u32 = 25_384;

struct LedgerStore {
    _ledger: Ledger,
    status: StatusHandle,
    /// The ledger's progress when it was opened.
    first: Progress,
}

struct LedgerWriter {
    flows: FlowWriter,
    user: String,
}

pub(super) fn open(directory: &Path, writers: usize, durability: Durability) -> Result<OpenStore> {
    let settings = OpenSettings { durability, ..OpenSettings::new(directory, writers, SLOTS) };
    let (ledger, flow_writers) = Ledger::open(&settings)?;
    let status = ledger.status_handle();
    let writer = |(number, flows): (usize, FlowWriter)| -> Box<dyn Writer> {
        Box::new(LedgerWriter { flows, user: format!("writer-{number}") })
    };
    let writers = flow_writers.into_iter().enumerate().map(writer).collect();
    let first = wait_until_idle(&status);
    Ok(OpenStore { writers, store: Box::new(LedgerStore { _ledger: ledger, status, first }) })
}

/// Waits until the ledger has processed its own first entry, and returns its progress then.
fn wait_until_idle(status: &StatusHandle) -> Progress {
    loop {
        let progress = status.progress();
        if progress.appended > 0 && progress.applied == progress.appended {
            return progress;
        }
        std::thread::yield_now();
    }
}

impl Store for LedgerStore {
    fn watermarks(&self) -> Watermarks {
        let Progress { appended, durable, applied } = self.status.progress();
        let since = |now: u64, first: u64| Some(now.saturating_sub(first));
        Watermarks {
            appended: since(appended, self.first.appended),
            durable: since(durable, self.first.durable),
            visible: since(applied, self.first.applied),
        }
    }
}

impl Writer for LedgerWriter {
    fn insert(&mut self, row: &Row) -> Result<InsertResult> {
        let identity = Identity::new(&flow(row, &self.user));
        let Some(live) = self.flows.open(&identity) else { return Ok(InsertResult::Refused) };
        self.flows.close(live, WallNanos(row.at_ns), CloseReason::ClientClosed);
        Ok(InsertResult::Accepted(1))
    }
}

fn flow<'a>(row: &Row, user: &'a str) -> Flow<'a> {
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    Flow {
        id: row.guid,
        opened: WallNanos(row.at_ns),
        closed: WallNanos(row.at_ns),
        account: 0,
        policy: 0,
        set: 0,
        user,
        host: TEXT,
        port: 443,
        address: Some(address),
        client: SocketAddr::new(address, 40_000),
        class: Class::External,
        protocol: Protocol::HttpConnect,
        rule: "lab",
        reason: CloseReason::ClientClosed,
        requests: 0,
        legs: Legs { client_rx: 1, upstream_tx: 1, upstream_rx: 1, client_tx: 1 },
        uncertain: Uncertain::default(),
    }
}
