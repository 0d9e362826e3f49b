//! Our ledger with everything on. An insert is the open and the close of a flow whose id is the guid, whose
//! host is the text and whose user is the writer; it counts when the ledger has taken the close.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::Result;
use ledger::record::{Class, CloseReason, Flow, Identity, Legs, Protocol, Uncertain};
use ledger::{FlowWriter, Ledger, OpenSettings, Progress, StatusHandle};
use sys::clock::WallNanos;

use super::row::{Row, TEXT};
use super::store::{Answer, Marks, Opened, Store, Writer};

pub(super) use ledger::Durability;

/// The ledger's threads that compute while rows come in: committer and applier.
pub(super) const COMPUTING_THREADS: usize = 2;

/// Slots of the live table for each writer, as a gateway with 9,000 connections has them.
const SLOTS: u32 = 25_384;

struct Ours {
    _ledger: Ledger,
    watch: StatusHandle,
    /// Where it stood when it was opened.
    first: Progress,
}

struct Insert {
    inlet: FlowWriter,
    user: String,
}

pub(super) fn open(directory: &Path, writers: usize, durability: Durability) -> Result<Opened> {
    let settings = OpenSettings { durability, ..OpenSettings::new(directory, writers, SLOTS) };
    let (ledger, inlets) = Ledger::open(&settings)?;
    let watch = ledger.status_handle();
    let writer = |(number, inlet): (usize, FlowWriter)| -> Box<dyn Writer> {
        Box::new(Insert { inlet, user: format!("writer-{number}") })
    };
    let writers = inlets.into_iter().enumerate().map(writer).collect();
    let first = settled(&watch);
    Ok(Opened { writers, store: Box::new(Ours { _ledger: ledger, watch, first }) })
}

/// How far the ledger is when it has told of its own first entry.
fn settled(watch: &StatusHandle) -> Progress {
    loop {
        let progress = watch.progress();
        if progress.appended > 0 && progress.applied == progress.appended {
            return progress;
        }
        std::thread::yield_now();
    }
}

impl Store for Ours {
    fn marks(&self) -> Marks {
        let Progress { appended, durable, applied } = self.watch.progress();
        let since = |now: u64, first: u64| Some(now.saturating_sub(first));
        Marks {
            appended: since(appended, self.first.appended),
            durable: since(durable, self.first.durable),
            visible: since(applied, self.first.applied),
        }
    }
}

impl Writer for Insert {
    fn insert(&mut self, row: &Row) -> Result<Answer> {
        let identity = Identity::new(&flow(row, &self.user));
        let Some(live) = self.inlet.open(&identity) else { return Ok(Answer::Refused) };
        self.inlet.close(live, WallNanos(row.at_ns), CloseReason::ClientClosed);
        Ok(Answer::Accepted(1))
    }
}

fn flow<'a>(row: &Row, user: &'a str) -> Flow<'a> {
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    Flow {
        id: row.guid,
        opened: WallNanos(row.at_ns),
        closed: WallNanos(row.at_ns),
        user,
        host: TEXT,
        port: 443,
        address: Some(address),
        client: SocketAddr::new(address, 40_000),
        class: Class::External,
        protocol: Protocol::HttpConnect,
        rule: "lab",
        reason: CloseReason::ClientClosed,
        legs: Legs { client_rx: 1, upstream_tx: 1, upstream_rx: 1, client_tx: 1 },
        uncertain: Uncertain::default(),
    }
}
