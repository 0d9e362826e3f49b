//! Chaos: threads that come and go arm, cancel and await each other's timers, with a real clock, and every
//! timer has an account that must come out even.
//!
//! Promises: a timer fires never before its deadline, and once for each arming unless it was cancelled;
//! nothing fires after the answer that it will not; nothing is left, neither cells nor threads nor
//! descriptors. What contradicts is printed with seed, tag and account. Lateness is printed and never judged.
//! Leaves to others: schedules that a machine does not happen to run (`tests/timer_loom.rs`,
//! `src/timer/schedules.rs`).
//!
//! ```text
//!   round.rs    a service, its users, and what must hold at its end
//!   world.rs    what the users share, and do        user.rs    their threads
//!   account.rs  what was said of one timer          tally.rs   what it all came to
//!   chance.rs   what the seed decides
//! ```
//!
//! It runs for two seconds, or `TOLLGATE_CHAOS_SECONDS`. `TOLLGATE_CHAOS_SEED` repeats what a seed decides,
//! which is what each thread does, and not when it runs. To read the figures:
//! `TOLLGATE_CHAOS_SECONDS=600 cargo test -p engine --release --test timer_chaos -- --nocapture`

#![forbid(unsafe_code)]

mod account;
mod chance;
mod round;
mod tally;
mod user;
mod world;

use std::time::Duration;

use sys::clock::monotonic;

use round::Kind;
use tally::{Lateness, Tally};
use world::Temper;

const SECONDS: u64 = 2;

/// Rounds take turns.
const KINDS: [Kind; 4] = [
    Kind { temper: Temper::Mixed, is_patient: false, ends_at_work: false },
    Kind { temper: Temper::Far, is_patient: false, ends_at_work: false },
    Kind { temper: Temper::Mixed, is_patient: false, ends_at_work: true },
    Kind { temper: Temper::Mixed, is_patient: true, ends_at_work: false },
];

static OF_SERVICE: Lateness = Lateness::new();
static OF_LOCALS: Lateness = Lateness::new();

fn number_of(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

// The only test of its process, whose threads and descriptors it counts.
#[test]
fn every_timer_comes_out_even() {
    let begin = monotonic();
    let seed = number_of("TOLLGATE_CHAOS_SEED").unwrap_or(begin.0);
    let end = begin + Duration::from_secs(number_of("TOLLGATE_CHAOS_SECONDS").unwrap_or(SECONDS));
    let mut tally = Tally::default();
    for (number, kind) in (0..).zip(KINDS.into_iter().cycle()) {
        round::run(seed.wrapping_add(number), kind, [&OF_SERVICE, &OF_LOCALS], &mut tally);
        tally.rounds += 1;
        if monotonic() >= end {
            break;
        }
    }
    println!("seed {seed}, {tally}");
    println!("the service's threads fired {OF_SERVICE}");
    println!("threads with a loop fired {OF_LOCALS}");
}
