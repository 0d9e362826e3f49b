//! A seeded simulation of the ledger. One thread runs the reactor, the committer, the flusher, the applier, a
//! failing disk, kills and power failures; then each flow's bill is compared with what really happened.
//!
//! Guarantees: a seed gives the same simulation on every machine. After every end of the process these are
//! checked:
//!
//! 1. No flow has two finals, whatever happened.
//! 2. After a kill each flow has one final, with exactly the bytes that its calls took. The exception is one
//!    call of each thread, whose length is uncertain.
//! 3. After a power failure each flow whose end had been announced as durable has its exact final. Any other
//!    flow, unless a start has recovered it, is billed for no more than it moved, and no less than its last
//!    durable interim.
//! 4. A failing disk returns errors, and changes none of the above.
//! 5. The losses that a start reports are the losses of the bill.
//! 6. A start on files that were damaged since the kill is refused, or reports it, or bills as one on intact
//!    files.
//! 7. No start finds a journal whose chain is broken: only damage breaks it.
//! 8. What each flow was counted before the round of an edge began is in front of the edge, also after a kill
//!    or a power failure that leaves the edge. Behind it, up to the next one, no flow of its run has an
//!    earlier moment.
//! 9. A second reader of the journal gets each entry that the database gets, once and the same, or learns
//!    that it misses it. No segment that it holds is reused, and none that is kept for it alone makes the
//!    journal full.
//! 10. Once a barrier is answered, what each flow was counted before its request is durable, and the final of
//!     each flow that had ended.

mod damage;
#[cfg(test)]
mod flips;
mod memory_ledger;
mod memory_sink;
mod process;
#[cfg(test)]
mod scenario;
mod second_reader;
#[cfg(all(test, shuttle))]
mod shuttle_tests;
mod world;

pub use crate::random::Random;
pub use memory_ledger::{BilledFlow, MemoryLedger, TableView};
pub use world::World;

/// The events of a simulation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Flows that were opened.
    pub flows: u64,
    /// Kills of the process.
    pub kills: u64,
    /// Power failures.
    pub power_failures: u64,
    /// Flows that found no slot.
    pub refused: u64,
    /// Failed calls of the disk.
    pub faults: u64,
    /// Crashes inside recovery.
    pub in_recovery: u64,
    /// Damages to copies, and those of them that a start reported.
    pub damages: (u64, u64),
    /// Edges that were compared with what had been counted.
    pub edges: u64,
    /// Barriers that were answered.
    pub barriers: u64,
    /// Entries that the second reader of the journal got.
    pub followed: u64,
    /// How often it lapsed.
    pub lapses: u64,
}

/// Runs the simulation of `seed`.
///
/// # Errors
/// The violated check.
pub fn run(seed: u64) -> Result<Outcome, String> {
    World::from_seed(seed).run()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_400_seeds_hold() {
        let mut barriers = 0;
        for seed in 0..400 {
            barriers += run(seed).unwrap_or_else(|fault| panic!("seed {seed}: {fault}")).barriers;
        }
        assert!(barriers > 0, "what never happens is not tested");
    }
}
