//! Random numbers that the seed decides: the same for the same seed and stream. No seed decides the order in
//! which threads run.

/// A small generator of reproducible numbers (splitmix64).
pub(crate) struct Random(u64);

impl Random {
    /// One of the seed's independent streams.
    pub(crate) fn new(seed: u64, stream: u64) -> Random {
        Random(seed ^ stream.wrapping_mul(0xD6E8_FEB8_6659_FD93))
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ mixed >> 31) % bound
    }

    /// True once in so many.
    pub(crate) fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }
}
