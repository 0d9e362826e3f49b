//! A seeded world for the ledger: one thread plays the reactor, the committer, the flusher, the applier,
//! the disk that fails, the kill and the power cut; afterwards each flow's bill is held against what really
//! happened.
//!
//! Promises: a seed gives the same world on every machine. What is checked, after every end of the process:
//!
//! 1. No flow has two finals, whatever happened.
//! 2. After a kill each flow has one, with exactly the bytes that its calls took, but for one call of each
//!    thread, whose length stands as uncertain.
//! 3. After a power failure each flow whose end had been announced as durable has its final, exact; any
//!    other, unless a start has recovered it, is billed for no more than it moved, and no less than its
//!    last interim that had been announced as durable.
//! 4. A disk that fails is an error, and changes none of the above.
//! 5. What a start says it lost is what the bill has as lost.
//! 6. A start on files that were damaged since the kill is refused, or tells, or bills as one on whole files.
//! 7. No start finds a journal whose chain is broken: only damage breaks it.

mod damage;
#[cfg(test)]
mod flips;
mod memory_sink;
mod process;
#[cfg(test)]
mod scenario;
#[cfg(all(test, shuttle))]
mod schedules;
mod world;

pub use world::World;

/// What a run of a seed went through.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Flows that were opened.
    pub flows: u64,
    /// Times that the process was killed.
    pub kills: u64,
    /// Times that the power failed.
    pub power_failures: u64,
    /// Flows that found no slot.
    pub refused: u64,
    /// Calls of the disk that failed.
    pub faults: u64,
    /// Ends inside recovery.
    pub in_recovery: u64,
    /// Damages that were tried on copies, and those of them that a start told of.
    pub damages: (u64, u64),
}

/// Runs the world of `seed`.
///
/// # Errors
/// What does not hold, in words.
pub fn run(seed: u64) -> Result<Outcome, String> {
    World::from_seed(seed).run()
}

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): small, and the same on every machine.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// The sequence of `seed`.
    pub(crate) fn from_seed(seed: u64) -> Random {
        Random(seed)
    }

    /// Any number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not zero.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True in `percent` of a hundred cases.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_400_seeds_hold() {
        for seed in 0..400 {
            run(seed).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
        }
    }
}
