//! Chance that a seed reproduces: splitmix64.
//! Promises: equal seeds give equal draws. Leaves to others: the machine's own chance, which is the timing.

use std::ops::Range;

/// See the file's header.
pub(crate) struct Chance(u64);

impl Chance {
    /// The chance of `seed`, in the branch numbered `branch`: what one branch draws changes no other.
    pub(crate) fn new(seed: u64, branch: u64) -> Chance {
        let mut chance = Chance(seed ^ branch.wrapping_mul(0xd134_2543_de82_ef95));
        chance.draw();
        chance
    }

    /// A chance of its own for somebody else, whose draws change none of these.
    pub(crate) fn branch(&mut self) -> Chance {
        Chance(self.draw())
    }

    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number of `range`.
    pub(crate) fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.draw() % (range.end - range.start)
    }

    /// A number of `range`, small ones as likely as large ones: the logarithm is drawn evenly.
    pub(crate) fn within_orders(&mut self, range: Range<u64>) -> u64 {
        let (low, high) = ((range.start as f64).ln(), (range.end as f64).ln());
        let drawn = low + (high - low) * (self.draw() as f64 / u64::MAX as f64);
        (drawn.exp() as u64).clamp(range.start, range.end - 1)
    }

    /// True in `percent` of all draws.
    pub(crate) fn happens(&mut self, percent: u64) -> bool {
        self.within(0..100) < percent
    }

    /// One of `choices`.
    pub(crate) fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.within(0..choices.len() as u64) as usize]
    }

    /// The same things in another order.
    pub(crate) fn shuffle<T>(&mut self, things: &mut [T]) {
        for last in (1..things.len()).rev() {
            things.swap(last, self.within(0..last as u64 + 1) as usize);
        }
    }
}
