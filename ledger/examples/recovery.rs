//! The duration of a start after a kill: `cargo run --release -p ledger --example recovery -- DIRECTORY`.
//!
//! Creates a ledger in DIRECTORY with ten million journal entries that the database lacks and a million open
//! flows, then opens it and prints the duration. DIRECTORY must not exist.

#![forbid(unsafe_code)]

use std::path::Path;
use std::process::ExitCode;

use ledger::record::{Class, CloseReason, Flow, Identity, Legs, Protocol, Uncertain};
use ledger::{FlowWriter, Ledger, OpenSettings};
use sys::clock::{self, WallNanos};

const ENTRIES: u64 = 10_000_000;
const OPEN: u32 = 1_000_000;
/// Closed flows that are not journaled need slots too.
const SLOTS: u32 = OPEN + 65_536;

fn main() -> ExitCode {
    let Some(directory) = std::env::args().nth(1) else {
        eprintln!("usage: recovery DIRECTORY");
        return ExitCode::from(2);
    };
    match measure(Path::new(&directory)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(directory: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let settings = OpenSettings::new(directory, 1, SLOTS);
    let (ledger, mut writers) = Ledger::open(&settings)?;
    let writer = &mut writers[0];
    for id in 0..OPEN {
        writer.open(&identity(id.into())).ok_or("the table has no free slot")?;
    }
    let mut id = u128::from(OPEN);
    while ledger.status_handle().progress().appended < ledger.status_handle().progress().applied + ENTRIES {
        id += u128::from(close_one(writer, id));
    }
    // Journals ended flows and applies nothing. The table stays locked while a flow writer exists.
    drop(writers);
    drop(ledger);
    let began = clock::monotonic();
    let (ledger, _writers) = Ledger::open(&settings)?;
    let took = clock::monotonic().since(began);
    let recovery = ledger.recovery();
    println!("{} entries, {} open flows: {:.2} s", recovery.entries, recovery.killed, took.as_secs_f64());
    Ok(())
}

/// Returns whether there was a free slot.
fn close_one(writer: &mut FlowWriter, id: u128) -> bool {
    let Some(flow) = writer.open(&identity(id)) else {
        std::thread::yield_now();
        return false;
    };
    writer.close(flow, WallNanos(1_700_000_000_000_000_000), CloseReason::ClientClosed);
    true
}

fn identity(id: u128) -> Identity {
    Identity::new(&Flow {
        id,
        opened: WallNanos(1_700_000_000_000_000_000),
        closed: WallNanos(0),
        account: 0,
        policy: 0,
        set: 0,
        user: "ci",
        host: "registry.example.org",
        port: 443,
        address: Some([192, 0, 2, 1].into()),
        client: ([10, 1, 2, 3], 40_000).into(),
        class: Class::External,
        protocol: Protocol::HttpConnect,
        rule: "user:ci/allow[0] @registry",
        reason: CloseReason::Fault,
        requests: 0,
        legs: Legs::default(),
        uncertain: Uncertain::default(),
    })
}
