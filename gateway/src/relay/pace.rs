//! How fast the source of a direction has proved to be, from what its reads and splices returned.
//!
//! ```text
//!   copied --2 full reads--> spliced --16 large fills--> sustained: large turns, a grown pipe
//!      ^                        |  ^                         |
//!      '------ tiny fill -------'  '--- small fills, pause --'
//! ```
//!
//! Not handled here: how large a turn is (`turns`), and whether a grown pipe is free (`splice`).

use std::time::Duration;

use crate::limits::{PASS_BYTES_MAX, PIPE_BYTES, SCRATCH_BYTES};

/// Consecutive full reads that make a stream a fast one.
const FULL_READS_MAX: u8 = 2;

/// A fill of a pipe with fewer bytes speaks against splicing.
const FAST_BYTES_MIN: usize = 4 * 1024;

/// A fill with as many bytes speaks for larger ones: a segment as large as segmentation offload makes it.
pub(super) const LARGE_FILL_BYTES_MIN: usize = SCRATCH_BYTES;

const _: () = assert!(LARGE_FILL_BYTES_MIN < PASS_BYTES_MAX && LARGE_FILL_BYTES_MIN < PIPE_BYTES as usize);

/// Large fills that make a fast stream a sustained one: together 1 MiB at least.
const LARGE_FILLS_MIN: u8 = 16;

/// Large fills that a smaller one outweighs.
const SMALL_FILL_WEIGHT: u8 = 4;

/// How long a sustained stream may move no byte: one that fills a grown pipe again after this has some
/// 20 MB/s. A slower one gains nothing, and would keep the pipe from another for long.
pub(super) const SUSTAINED_PAUSE_MAX: Duration = Duration::from_millis(50);

/// The proved pace of a source: full reads, and then large fills. 0 <= pace <= SUSTAINED
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Pace(u8);

const SUSTAINED: u8 = FULL_READS_MAX + LARGE_FILLS_MIN;

impl Pace {
    /// Whether the stream is spliced.
    pub(super) fn is_fast(self) -> bool {
        self.0 >= FULL_READS_MAX
    }

    /// Whether the stream has been fast for long.
    pub(super) fn is_sustained(self) -> bool {
        self.0 == SUSTAINED
    }

    /// Notes a read of `count` bytes into a buffer of `requested`. Returns whether the stream became fast.
    pub(super) fn read(&mut self, count: usize, requested: usize) -> bool {
        if count < requested {
            *self = Pace::default();
        } else if !self.is_fast() {
            self.0 += 1;
            return self.is_fast();
        }
        // A fast stream may still be copied for a while, past an urgent byte.
        false
    }

    /// Notes that a splice moved `count` bytes of a fast stream into a pipe. It requests more than is large.
    pub(super) fn filled(&mut self, count: usize) {
        if count >= LARGE_FILL_BYTES_MIN {
            self.0 = (self.0 + 1).min(SUSTAINED);
        } else if count < FAST_BYTES_MIN {
            *self = Pace::default();
        } else {
            self.0 = self.0.saturating_sub(SMALL_FILL_WEIGHT).max(FULL_READS_MAX);
        }
    }

    /// Notes that no byte has moved for longer than [`SUSTAINED_PAUSE_MAX`].
    pub(super) fn paused(&mut self) {
        self.0 = self.0.min(FULL_READS_MAX);
    }

    /// Makes the stream prove fast again.
    pub(super) fn reset(&mut self) {
        *self = Pace::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sustained() -> Pace {
        let mut pace = Pace::default();
        for _ in 0..FULL_READS_MAX {
            pace.read(SCRATCH_BYTES, SCRATCH_BYTES);
        }
        for _ in 0..LARGE_FILLS_MIN {
            assert!(pace.is_fast() && !pace.is_sustained());
            pace.filled(LARGE_FILL_BYTES_MIN);
        }
        assert!(pace.is_sustained());
        pace
    }

    #[test]
    fn full_reads_make_a_stream_fast_once() {
        let mut pace = Pace::default();
        let became_fast: Vec<bool> = (0..300).map(|_| pace.read(4096, 4096)).collect();
        assert_eq!(became_fast.iter().position(|became| *became), Some(1));
        assert_eq!(became_fast.iter().filter(|became| **became).count(), 1);
        pace.read(4095, 4096);
        assert!(!pace.is_fast());
    }

    #[test]
    fn sustained_stream_stays_so_under_large_fills() {
        let mut pace = sustained();
        for _ in 0..300 {
            pace.filled(PASS_BYTES_MAX);
            assert!(pace.is_sustained());
        }
    }

    #[test]
    fn small_fill_costs_large_turns_and_a_tiny_one_the_pipe() {
        let mut pace = sustained();
        pace.filled(LARGE_FILL_BYTES_MIN - 1);
        assert!(pace.is_fast() && !pace.is_sustained());
        for _ in 0..SMALL_FILL_WEIGHT {
            pace.filled(LARGE_FILL_BYTES_MIN);
        }
        assert!(pace.is_sustained());
        for _ in 0..100 {
            pace.filled(FAST_BYTES_MIN);
            assert!(pace.is_fast());
        }
        pace.filled(FAST_BYTES_MIN - 1);
        assert!(!pace.is_fast());
    }

    #[test]
    fn pause_costs_large_turns_alone() {
        let mut pace = sustained();
        pace.paused();
        assert!(pace.is_fast() && !pace.is_sustained());
        let mut slow = Pace::default();
        slow.paused();
        assert_eq!(slow, Pace::default());
    }
}
