//! Quotas under load: many tunnels of a few users race for the last bytes of a quota, through the built
//! binary and the real kernel. In a third of the rounds the gateway is killed meanwhile.
//!
//! Guarantees: what the receivers got never exceeds a quota. Where nothing was killed it is the whole quota,
//! and what the ledger bills. Where the gateway was killed, billed and uncertain bytes together are the whole
//! quota. A failure is printed with the command that repeats its round.
//!
//! ```text
//!   round.rs   one round and its judgement      flow.rs     both ends of a flow
//!   plan.rs    what a round draws by its seed   end.rs      one end: what it sends and has received
//!   load.rs    flows until all are over         gateway.rs  the process that is killed
//!   bill.rs    what the ledger has of a user
//! ```
//!
//! `cargo xtask quota-race --rounds 1000` runs more rounds; it sets `TOLLGATE_QUOTA_ROUNDS`.

#![forbid(unsafe_code)]

mod bill;
mod end;
mod flow;
mod gateway;
mod load;
mod plan;
#[path = "../crash/rng.rs"]
#[expect(dead_code, reason = "the kill tests draw in more ways")]
mod rng;
mod round;

use std::time::{Instant, SystemTime};

use gateway::Gateway;
use load::Load;
use plan::Plan;
use rng::Rng;
use round::Totals;

/// Rounds of an ordinary test run.
const ROUNDS: u64 = 12;

/// Rounds with one data directory, and one configuration.
const ROUNDS_PER_DIRECTORY: u64 = 40;

#[test]
fn quotas_hold_to_the_byte() {
    let rounds = number("TOLLGATE_QUOTA_ROUNDS").unwrap_or(ROUNDS);
    let seed = number("TOLLGATE_QUOTA_SEED").unwrap_or_else(random_seed);
    let only = number("TOLLGATE_QUOTA_ROUND");
    println!("cargo xtask quota-race --rounds {rounds} --seed {seed}");
    let (began, mut totals) = (Instant::now(), Totals::default());
    let numbers: Vec<u64> = only.map_or_else(|| (0..rounds).collect(), |round| vec![round]);
    for numbers in numbers.chunks(ROUNDS_PER_DIRECTORY as usize) {
        if let Err(fault) = run_directory(seed, numbers, &mut totals) {
            panic!("seed {seed}, {fault}");
        }
        println!("{totals}; {} s", began.elapsed().as_secs());
    }
    totals.check(only.is_none() && rounds >= ROUNDS);
}

/// Runs some rounds with one data directory, which is kept if there is a fault.
fn run_directory(seed: u64, numbers: &[u64], totals: &mut Totals) -> Result<(), String> {
    let plans: Vec<Plan> = numbers.iter().map(|number| Plan::random(seed, *number)).collect();
    let directory = tempfile::Builder::new().prefix("tollgate-quota-race-").tempdir().unwrap();
    let mut rng = Rng::new(seed, (1 << 32) + numbers[0]);
    let mut load = Load::new();
    let mut gateway = Gateway::start(directory.path(), &plans, rng.random_range(2..5))?;
    let mut run = || {
        for plan in &plans {
            let again = format!("again: cargo xtask quota-race --seed {seed} --round {}", plan.number);
            match round::run(plan, &mut gateway, &mut load, totals) {
                Ok(()) => {}
                Err(fault) => return Err(format!("round {}: {fault}\n{plan:?}\n{again}", plan.number)),
            }
        }
        totals.spliced += gateway.spliced();
        gateway.stop()
    };
    let outcome = run();
    outcome.map_err(|fault| {
        drop(gateway);
        format!("{fault}\nkept: {}", directory.keep().display())
    })
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is not a number: {text}")))
}

fn random_seed() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("the clock is after 1970");
    Rng::new(now.as_nanos() as u64, 0).random_range(0..u64::from(u32::MAX))
}
