//! Runs the seeded simulation of the ledger: `cargo xtask sim SEED [--count N]`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let (Some(Ok(first)), Some(Ok(count))) = (numbers.next(), numbers.next()) else {
        eprintln!("usage: sim SEED COUNT");
        return ExitCode::from(2);
    };
    let (mut flows, mut refused, mut kills, mut power_failures) = (0, 0, 0, 0);
    let (mut faults, mut in_recovery, mut damages, mut reported, mut edges) = (0, 0, 0, 0, 0);
    let (mut followed, mut lapses) = (0, 0);
    for seed in first..first.saturating_add(count) {
        match ledger::simulation::run(seed) {
            Ok(outcome) => {
                flows += outcome.flows;
                refused += outcome.refused;
                kills += outcome.kills;
                power_failures += outcome.power_failures;
                faults += outcome.faults;
                in_recovery += outcome.in_recovery;
                damages += outcome.damages.0;
                reported += outcome.damages.1;
                edges += outcome.edges;
                followed += outcome.followed;
                lapses += outcome.lapses;
            }
            Err(fault) => {
                eprintln!("seed {seed}: {fault}\nagain: cargo xtask sim {seed}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!(
        "{count} seeds from {first} hold: {flows} flows, {refused} refused, {kills} kills, \
         {power_failures} power failures, \
         {in_recovery} ends inside recovery, {faults} failed calls of the disk, \
         {damages} damages ({reported} reported, the others without effect), {edges} edges, \
         {followed} entries for a second reader, which lapsed {lapses} times"
    );
    ExitCode::SUCCESS
}
