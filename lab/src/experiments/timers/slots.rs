//! Numbered slots in blocks that never move.
//!
//! Guarantees: a slot is found by its number with two loads; a number is claimed without a lock as long as
//! its thread has free ones.

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use super::free_list::{FreeList, LocalFreeList};

/// No slot's number.
pub(super) const NONE: u32 = u32::MAX;

const BLOCK_BITS: u32 = 10;
const BLOCK: usize = 1 << BLOCK_BITS;
/// 67 million slots: more than ten seconds of the fastest design that holds cancelled timers.
const BLOCKS_MAX: usize = 1 << 16;

const _: () = assert!(BLOCK * BLOCKS_MAX < NONE as usize);

/// Blocks of slots, allocated on demand.
pub(super) struct Slots<T> {
    blocks: Box<[OnceLock<Box<[T; BLOCK]>>]>,
    /// Blocks that are being made or are made; more than BLOCKS_MAX where the limit refused one.
    count: AtomicUsize,
    free: Arc<FreeList<u32>>,
}

impl<T: Default> Slots<T> {
    pub(super) fn new() -> Self {
        let blocks = (0..BLOCKS_MAX).map(|_| OnceLock::new()).collect();
        Self { blocks, count: AtomicUsize::new(0), free: FreeList::new() }
    }

    /// A thread's own numbers, none yet.
    pub(super) fn local(&self) -> LocalFreeList<u32> {
        self.free.local()
    }

    /// A slot that no other owner has, as its last owner left it, or new.
    ///
    /// # Errors
    /// All slots are in use.
    pub(super) fn claim(&self, local: &mut LocalFreeList<u32>) -> io::Result<u32> {
        match local.pop() {
            Some(number) => Ok(number),
            None => self.grow(local),
        }
    }

    pub(super) fn at(&self, number: u32) -> &T {
        let number = number as usize;
        let block = self.blocks[number >> BLOCK_BITS].get().expect("a claimed number's block is allocated");
        &block[number % BLOCK]
    }

    #[cold]
    fn grow(&self, local: &mut LocalFreeList<u32>) -> io::Result<u32> {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let Some(home) = self.blocks.get(number) else {
            return Err(io::Error::new(ErrorKind::OutOfMemory, "no free slot is left"));
        };
        home.get_or_init(|| {
            let slots: Vec<T> = (0..BLOCK).map(|_| T::default()).collect();
            slots.try_into().unwrap_or_else(|_| unreachable!("a block has BLOCK slots"))
        });
        // Below NONE, as asserted above.
        let first = (number << BLOCK_BITS) as u32;
        local.extend((first + 1..first + BLOCK as u32).rev());
        Ok(first)
    }
}
