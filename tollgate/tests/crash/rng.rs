//! A random number generator with a seed: splitmix64.
//!
//! Guarantees: equal seeds give equal draws.
//!
//! Not handled here: the timing of the machine, which no seed reproduces.

use std::ops::Range;

/// A splitmix64 generator.
pub(crate) struct Rng(u64);

impl Rng {
    /// A generator for `seed` and a branch number: draws of one branch change no other.
    pub(crate) fn new(seed: u64, fork: u64) -> Rng {
        let mut rng = Rng(seed ^ fork.wrapping_mul(0xd134_2543_de82_ef95));
        rng.next_u64();
        rng
    }

    /// A generator of its own, whose draws change none of these.
    pub(crate) fn fork(&mut self) -> Rng {
        Rng(self.next_u64())
    }

    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number in `range`.
    pub(crate) fn random_range(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next_u64() % (range.end - range.start)
    }

    /// A number in `range`, small ones as likely as large ones: its logarithm is uniform.
    pub(crate) fn log_range(&mut self, range: Range<u64>) -> u64 {
        let (low, high) = ((range.start as f64).ln(), (range.end as f64).ln());
        let drawn = low + (high - low) * (self.next_u64() as f64 / u64::MAX as f64);
        (drawn.exp() as u64).clamp(range.start, range.end - 1)
    }

    /// True in `percent` of all draws.
    pub(crate) fn random_percent(&mut self, percent: u64) -> bool {
        self.random_range(0..100) < percent
    }

    /// One of `choices`.
    pub(crate) fn choose<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.random_range(0..choices.len() as u64) as usize]
    }

    /// Shuffles `things` in place.
    pub(crate) fn shuffle<T>(&mut self, things: &mut [T]) {
        for last in (1..things.len()).rev() {
            things.swap(last, self.random_range(0..last as u64 + 1) as usize);
        }
    }
}
