//! The cost of counting for each relayed read and write: `cargo run --release -p ledger --example
//! accounting`.
//!
//! It does what a relay does, without its system calls: gets the counters of a flow, counts a read, counts a
//! write around an empty call, and requests an interim if one is due.

#![forbid(unsafe_code)]

use std::hint::black_box;
use std::io;

use ledger::record::{Class, CloseReason, Flow, Identity, Legs, Protocol, Uncertain};
use ledger::{Ledger, OpenSettings};
use sys::clock::{self, WallNanos};

const TIMES: u64 = 50_000_000;
const ROUNDS: usize = 5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::temp_dir().join(format!("tollgate-accounting-{}", std::process::id()));
    let (ledger, mut writers) = Ledger::open(&OpenSettings::new(&directory, 1, 16))?;
    let writer = &mut writers[0];
    let mut flow = writer.open(&identity()).ok_or("the table has no free slot")?;
    let mut spans = Vec::new();
    for _ in 0..ROUNDS {
        let began = clock::monotonic();
        for _ in 0..TIMES {
            let mut counters = writer.counters(&mut flow);
            let (mut received, mut sent) = counters.up();
            received.add(black_box(1));
            let call = || -> io::Result<usize> { Ok(black_box(1)) };
            black_box(sent.around(black_box(1), call)?);
            writer.request_interim_if_due(&mut flow);
        }
        spans.push(clock::monotonic().since(began).as_secs_f64() * 1e9 / TIMES as f64);
    }
    spans.sort_by(f64::total_cmp);
    println!("{:.2} ns a read and a write [{:.2}-{:.2}]", spans[ROUNDS / 2], spans[0], spans[ROUNDS - 1]);
    writer.close(flow, clock::wall(), CloseReason::ClientClosed);
    drop(writers);
    ledger.close()?;
    Ok(std::fs::remove_dir_all(directory)?)
}

fn identity() -> Identity {
    Identity::new(&Flow {
        id: 1,
        opened: WallNanos(1),
        closed: WallNanos(0),
        account: 0,
        policy: 0,
        set: 0,
        user: "ci",
        host: "example.com",
        port: 443,
        address: None,
        client: ([192, 0, 2, 1], 50_000).into(),
        class: Class::External,
        protocol: Protocol::Socks5,
        rule: "",
        reason: CloseReason::Fault,
        requests: 0,
        legs: Legs::default(),
        uncertain: Uncertain::default(),
    })
}
