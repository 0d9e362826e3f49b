//! A seeded simulation of whole flows: one reactor thread of the gateway on a simulated kernel, with clients,
//! destinations, reloads and kills; then the bill is compared with what really moved.
//!
//! Guarantees: a seed gives the same simulation on every machine. Everything between the system calls and the
//! database is the product's own code, the worker and the ledger included. In each simulation these are
//! checked:
//!
//! 1. Each side receives a prefix of what the other sent, and everything if both end in order.
//! 2. Each flow is billed once, with exactly the bytes that send calls took. After a kill one call of a
//!    direction may be uncertain.
//! 3. A flow ends for a reason that its peers or the operator gave, and within its deadlines.
//! 4. The log has one line for the end of each flow, with the bytes of the bill.
//! 5. Nothing is left over: no descriptor, no registration, no permit, and no thread that waits for ever.
//!
//! Not handled here: names (`dns`), passwords (`identity`), several reactor threads.
//!
//! ```text
//!   process.rs   the gateway: its worker, its ledger, its control side
//!   plan.rs      what a seed decides: the configuration, the peers, the operator's acts
//!   client.rs    opens a tunnel        destination.rs  accepts it     both are a peer.rs with a script
//!   session.rs   plain HTTP requests   origin.rs       responds
//!   connection.rs, message.rs   what these two share
//!   world.rs     which program runs next, and when time passes
//!   pair.rs      the same gateway for tests that are written by hand
//!   bill.rs      what must be true of the bill
//! ```

mod bill;
mod client;
mod connection;
mod destination;
mod message;
mod origin;
mod pair;
mod peer;
mod plan;
mod process;
mod session;
mod world;

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

pub(crate) use pair::{LISTENER, Pair};

use world::World;

/// Seeds of an ordinary test run.
const SEEDS: Range<u64> = 0..1_000;

/// Names the first seed and the number of seeds, as `FIRST COUNT`, in place of [`SEEDS`].
const SEEDS_VARIABLE: &str = "TOLLGATE_FLOW_SEEDS";

#[test]
fn flows_are_billed_as_they_moved() {
    let seeds = match std::env::var(SEEDS_VARIABLE) {
        Ok(text) => {
            let numbers: Vec<u64> = text.split(' ').map(|number| number.parse().unwrap()).collect();
            numbers[0]..numbers[0] + numbers[1]
        }
        Err(_) => SEEDS,
    };
    // A simulation belongs to its thread, so each CPU runs some.
    let next = AtomicU64::new(seeds.start);
    let total = Mutex::new(world::Events::default());
    let run = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let events = World::from_seed(seed).run();
            let events = events.unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
            total.lock().unwrap().add(&events);
        }
    };
    thread::scope(|scope| {
        for _ in 0..sys::limits::cpus() {
            scope.spawn(run);
        }
    });
    let (count, total) = (seeds.end - seeds.start, total.into_inner().unwrap());
    println!("{count} seeds from {}: {total:?}", seeds.start);
    if count >= SEEDS.end {
        total.assert_each_happened();
    }
}

#[test]
fn a_seed_gives_the_same_simulation_each_time() {
    for seed in 0..20 {
        let run = || World::from_seed(seed).run().unwrap();
        assert_eq!(run(), run(), "seed {seed}");
    }
}
