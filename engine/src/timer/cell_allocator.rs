//! An allocator of cell numbers: last-in first-out for those freed by this thread, lowest first for those
//! freed by others.
//!
//! Guarantees: constant time, with at most four steps beyond the stack. Numbers that others freed and that
//! are allocated together are adjacent in memory, in whatever order they were freed. So passing them on to
//! another thread moves few cache lines; a stack would return them as good as shuffled after a while.
//!
//! Not handled here: the caller ensures that each number is freed once.

const BITS: usize = 64;

/// Which cache holds the cell of a number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Locality {
    /// The cache of the thread that frees the number.
    Warm,
    /// Possibly another thread's.
    Cold,
}

/// A stack of warm numbers, over a bitmap of cold ones with summary levels.
#[derive(Debug)]
pub(super) struct CellAllocator {
    warm: Vec<u32>,
    /// Bit n % 64 of word n / 64 is set if n is free.
    words: Box<[u64]>,
    /// Summary levels, the first of which is above `words`: bit n % 64 of word n / 64 is set if word n of the
    /// level below is not zero. The last level has one word.
    above: Vec<Box<[u64]>>,
    /// All words before this one are zero.
    lowest: usize,
}

impl CellAllocator {
    /// The numbers below `count`, all free.
    pub(super) fn all(count: usize) -> CellAllocator {
        let words = ones(count);
        let mut above: Vec<Box<[u64]>> = Vec::new();
        let mut below = words.len();
        while below > 1 {
            above.push(ones(below));
            below = below.div_ceil(BITS);
        }
        CellAllocator { warm: Vec::with_capacity(count), words, above, lowest: 0 }
    }

    /// Allocates a number.
    #[inline]
    pub(super) fn take(&mut self) -> Option<u32> {
        self.warm.pop().or_else(|| self.take_lowest())
    }

    fn take_lowest(&mut self) -> Option<u32> {
        if self.words[self.lowest] == 0 {
            self.lowest = self.find_lowest()?;
        }
        let word = &mut self.words[self.lowest];
        let number = self.lowest * BITS + word.trailing_zeros() as usize;
        *word &= *word - 1;
        if *word == 0 {
            self.mark(self.lowest, false);
        }
        Some(number as u32)
    }

    /// Frees a number.
    #[inline]
    pub(super) fn give(&mut self, number: u32, locality: Locality) {
        match locality {
            Locality::Warm => self.warm.push(number),
            Locality::Cold => self.give_cold(number),
        }
    }

    fn give_cold(&mut self, number: u32) {
        let position = number as usize / BITS;
        let before = self.words[position];
        self.words[position] = before | 1 << (number as usize % BITS);
        self.lowest = self.lowest.min(position);
        if before == 0 {
            self.mark(position, true);
        }
    }

    /// The position of the first word that is not zero, searched from the top level down.
    #[cold]
    fn find_lowest(&self) -> Option<usize> {
        self.above
            .iter()
            .rev()
            .try_fold(0, |position, level| {
                let word = level[position];
                (word != 0).then(|| position * BITS + word.trailing_zeros() as usize)
            })
            .filter(|&position| self.words[position] != 0)
    }

    /// Updates the summary levels for a word, from the bottom up as long as a bit changes.
    #[cold]
    fn mark(&mut self, mut position: usize, has_any: bool) {
        for level in &mut self.above {
            let bit = 1 << (position % BITS);
            position /= BITS;
            let before = level[position];
            level[position] = if has_any { before | bit } else { before & !bit };
            if (before == 0) == (level[position] == 0) {
                return;
            }
        }
    }
}

/// A bitmap of `count` ones; at least one word.
fn ones(count: usize) -> Box<[u64]> {
    let word = |position: usize| match count - (position * BITS).min(count) {
        0 => 0,
        remaining => u64::MAX >> (BITS - remaining.min(BITS)),
    };
    (0..count.div_ceil(BITS).max(1)).map(word).collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_number_is_given_once_lowest_first() {
        let large = if cfg!(miri) { 4_097 } else { 300_000 };
        for count in [0, 1, 63, 64, 65, 4_096, large] {
            let mut free = CellAllocator::all(count);
            let all: Vec<u32> = std::iter::from_fn(|| free.take()).collect();
            assert!(all.iter().copied().eq(0..count as u32), "{count}");
            // Freed from the middle outwards, so that every level becomes empty and not empty.
            for &number in all.iter().skip(count / 2).chain(all.iter().take(count / 2).rev()) {
                free.give(number, Locality::Cold);
                assert_eq!(free.take(), Some(number), "{count}");
                assert_eq!(free.take(), None, "{count}");
                free.give(number, Locality::Cold);
                assert_eq!(free.take(), Some(number), "{count}");
            }
        }
    }

    #[test]
    fn warm_numbers_go_first_last_in_first_out() {
        let mut free = CellAllocator::all(5);
        (0..4).for_each(|number| assert_eq!(free.take(), Some(number)));
        for (number, locality) in
            [(2, Locality::Cold), (1, Locality::Warm), (0, Locality::Cold), (3, Locality::Warm)]
        {
            free.give(number, locality);
        }
        assert!(std::iter::from_fn(|| free.take()).eq([3, 1, 0, 2, 4]));
    }

    #[test]
    fn agrees_with_an_ordered_set() {
        let mut random = super::super::wheel::tests::Random(7);
        // Phases of mostly allocating, and of mostly freeing.
        let (count, steps) = if cfg!(miri) { (5_000, 6_000) } else { (70_000, 400_000) };
        let (mut free, mut model) = (CellAllocator::all(count), (0..count as u32).collect::<BTreeSet<_>>());
        let mut out = Vec::new();
        for step in 0..steps {
            let take_weight = if step * 6 / steps % 2 == 0 { 14 } else { 2 };
            if random.below(16) < take_weight {
                let taken = free.take();
                assert_eq!(taken, model.pop_first());
                out.extend(taken);
            } else if !out.is_empty() {
                let number = out.swap_remove(random.below(out.len() as u64) as usize);
                free.give(number, Locality::Cold);
                model.insert(number);
            }
        }
    }
}
