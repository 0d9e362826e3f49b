//! Chaos test of the timer service: short-lived threads arm, cancel and await each other's timers, with a
//! real clock, and the history of every timer must be consistent.
//!
//! Guarantees: a timer never fires before its deadline, and fires once for each arming unless it was
//! cancelled. It never fires after a cancel that rules it out. No cell, thread or descriptor leaks. A
//! contradiction is printed with seed, tag and history. Lateness is printed but never judged.
//!
//! Not handled here: schedules that a machine does not happen to run (`tests/timer_loom.rs`,
//! `src/timer/shuttle_tests.rs`).
//!
//! ```text
//!   round.rs    a service, its users, and the checks at its end
//!   world.rs    what the users share, and their actions      user.rs      the threads of the users
//!   history.rs  what has happened to one timer               counters.rs  the results of a run
//!   random.rs   what the seed decides
//! ```
//!
//! It runs for two seconds, or for `TOLLGATE_CHAOS_SECONDS`. `TOLLGATE_CHAOS_SEED` repeats what a seed
//! decides: what each thread does, but not when it runs. To read the figures:
//!
//! `TOLLGATE_CHAOS_SECONDS=600 cargo test -p engine --release --test timer_chaos -- --nocapture`

#![forbid(unsafe_code)]

mod counters;
mod history;
mod random;
mod round;
mod user;
mod world;

use std::time::Duration;

use sys::clock::monotonic;

use counters::{Counters, Lateness};
use round::Kind;
use world::Workload;

const SECONDS: u64 = 2;

/// Rounds cycle through these kinds.
const KINDS: [Kind; 4] = [
    Kind { workload: Workload::Mixed, is_patient: false, ends_at_work: false },
    Kind { workload: Workload::Far, is_patient: false, ends_at_work: false },
    Kind { workload: Workload::Mixed, is_patient: false, ends_at_work: true },
    Kind { workload: Workload::Mixed, is_patient: true, ends_at_work: false },
];

static SERVICE_LATENESS: Lateness = Lateness::new();
static LOCAL_LATENESS: Lateness = Lateness::new();

fn number_from_env(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

// The only test of its process, whose threads and descriptors it counts.
#[test]
fn every_timer_history_is_consistent() {
    let begin = monotonic();
    let seed = number_from_env("TOLLGATE_CHAOS_SEED").unwrap_or(begin.0);
    let end = begin + Duration::from_secs(number_from_env("TOLLGATE_CHAOS_SECONDS").unwrap_or(SECONDS));
    let mut counters = Counters::default();
    for (number, kind) in (0..).zip(KINDS.into_iter().cycle()) {
        round::run(seed.wrapping_add(number), kind, [&SERVICE_LATENESS, &LOCAL_LATENESS], &mut counters);
        counters.rounds += 1;
        if monotonic() >= end {
            break;
        }
    }
    println!("seed {seed}, {counters}");
    println!("the service's threads fired {SERVICE_LATENESS}");
    println!("threads with a loop fired {LOCAL_LATENESS}");
}
