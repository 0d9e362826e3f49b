//! The live table: every open flow with its counts, in shared memory that outlives the process.
//!
//! Guarantees: a counted byte survives `kill -9`. Of a call in progress when the process died, it is unknown
//! whether the kernel took its bytes; its length is recorded as uncertain. A flipped bit in anything that is
//! billed is detected.
//!
//! A slot has one writer at a time, which its state determines:
//!
//! ```text
//!            open                close               journaled
//!   Free -----------> Live -------------> Closing ------------> Free, next generation
//!    '- the reactor thread's  - - - - - -'  '- the committer's -'
//! ```
//!
//! The file, in 64-bit words:
//!
//! ```text
//!   0..512      header: kind and owner of the table; a page, most of it empty
//!   512..       slots of 64 words; a region of as many for each reactor thread, one after another
//!
//!   of a slot   0..8, one cache line:   state | up | down | up intent | down intent | client_rx |
//!                                       upstream_rx | closed, microseconds since the Unix epoch
//!               8:                      requests
//!               9:                      bytes of the identity | their CRC32C << 32
//!               10..64:                 the identity
//! ```
//!
//! Rules (the code cites them):
//!
//! 1. Each of the first nine words holds its value times 251. This is an AN code: a flipped bit adds or
//!    subtracts a power of two, which 251 does not divide. A value is less than 2^56; 72 PB is the most that
//!    a flow can count.
//! 2. Around each outgoing call: before it intent = (count's low 36 bits, length); after it the new count, or
//!    intent = 0 if the call took nothing. So an intent with the bits of the count is a call whose end is not
//!    known; with any other bits the call was counted.
//! 3. The identity is stored before `Live`, counts and closing time before `Closing`: each a Release store.

pub(crate) mod image;
pub(crate) mod locations;
mod slot;
pub mod snapshot;
pub mod space;

use std::sync::Arc;

use sys::clock::WallNanos;
use sys::mapping::SharedWords;

pub(crate) use slot::{CommitIntent, InterimMoment, Slot, SlotContents, SlotLayout, State};
pub use slot::{FlowCounters, Received, Sent};

/// Words of a slot: 512 bytes.
pub(crate) const SLOT_WORDS: usize = 64;

/// The memory of one slot, in bytes.
pub const SLOT_BYTES: u64 = (SLOT_WORDS * size_of::<u64>()) as u64;

/// Words of a cache line.
const CACHE_LINE_WORDS: usize = 8;

/// Cache lines of a slot that are prefetched: the counts, and 120 bytes of identity.
const LINES_PREFETCHED: usize = 3;

/// Words of a page.
pub(crate) const PAGE_WORDS: usize = 512;

/// "TOLLLIVE".
const MAGIC: u64 = u64::from_le_bytes(*b"TOLLLIVE");

/// The error for a table whose flows this program cannot read; it is refused, not skipped.
pub(crate) const LATER_VERSION: &str =
    "it is a live table of a later version of the program: start and stop that version once";

/// The version that is written. Its layout is that of version 2. A program that knows version 2 alone would
/// take a slot that closes with reason 15 for a damaged one.
const VERSION: u32 = 3;

/// The version with close reasons up to 14, which is read.
const VERSION_2: u32 = 2;

/// The version without requests and runs, which is read.
const VERSION_1: u32 = 1;

/// The header word with the time at which the process was last known to be alive, in microseconds since the
/// Unix epoch, times 251 (rule 1). It is the best known end of a flow that was killed.
pub(crate) const ALIVE_AT: usize = TableHeader::WORDS;

/// The owner of a table: the first words of the file, behind magic and version.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TableHeader {
    /// The gateway.
    pub gateway: u32,
    /// Its run.
    pub epoch: u32,
    /// The boot of the machine; in another boot the table is not trusted.
    pub boot: u128,
    /// The process.
    pub process: u32,
    /// Regions, one for each reactor thread.
    pub regions: u32,
    /// Slots of each region.
    pub slots: u32,
    /// The number that the run drew; 0: not known.
    pub run: u128,
}

/// The last entry that was appended to the journal, times 251: after a kill the journal ends there or later.
/// Stored before the slots of that entry are free. Zero: not known.
const APPENDED_AT: usize = 9;

/// The last entry that the database was seen to have, times 251. Zero: not known.
const APPLIED_AT: usize = 10;

/// The number that the run drew, low word first, and the CRC-32C of the two.
const RUN_AT: usize = 11;
const RUN_CRC_AT: usize = 13;

/// From this word on, one word for each region: slots below that number were used, times 251.
const USED_AT: usize = 32;

impl TableHeader {
    const WORDS: usize = 8;

    fn words(&self) -> [u64; TableHeader::WORDS] {
        let mut words = [
            MAGIC,
            u64::from(VERSION) | u64::from(self.process) << 32,
            u64::from(self.gateway) | u64::from(self.epoch) << 32,
            self.boot as u64,
            (self.boot >> 64) as u64,
            u64::from(self.regions),
            u64::from(self.slots),
            0,
        ];
        words[7] = u64::from(checksum(&words[..7]));
        words
    }

    fn run_words(&self) -> [u64; 3] {
        let run = [self.run as u64, (self.run >> 64) as u64];
        [run[0], run[1], u64::from(checksum(&run))]
    }

    /// The header of a table, whose words `word` reads, and the layout of its slots.
    pub(crate) fn parse(word: impl Fn(usize) -> u64) -> Result<(TableHeader, SlotLayout), &'static str> {
        let words: [u64; TableHeader::WORDS] = std::array::from_fn(&word);
        if words[0] != MAGIC {
            return Err("it is not a live table");
        }
        // Every version has this checksum, so that a damaged version is no other one.
        if words[7] != u64::from(checksum(&words[..7])) {
            return Err("its header is damaged");
        }
        let layout = match words[1] as u32 {
            VERSION | VERSION_2 => SlotLayout::V2,
            VERSION_1 => SlotLayout::V1,
            0 => return Err("its header is damaged"),
            _ => return Err(LATER_VERSION),
        };
        let run = [word(RUN_AT), word(RUN_AT + 1)];
        let has_run = layout == SlotLayout::V2 && word(RUN_CRC_AT) == u64::from(checksum(&run));
        let header = TableHeader {
            process: (words[1] >> 32) as u32,
            gateway: words[2] as u32,
            epoch: (words[2] >> 32) as u32,
            boot: u128::from(words[3]) | u128::from(words[4]) << 64,
            regions: words[5] as u32,
            slots: words[6] as u32,
            run: if has_run { u128::from(run[0]) | u128::from(run[1]) << 64 } else { 0 },
        };
        Ok((header, layout))
    }

    /// Whether a file of `words` words holds the whole table. A damaged or forged header may claim any size.
    pub(crate) fn fits(&self, words: usize) -> bool {
        let slots = u64::from(self.regions).checked_mul(u64::from(self.slots));
        let claimed = slots.and_then(|slots| slots.checked_mul(SLOT_WORDS as u64));
        claimed.is_some_and(|claimed| claimed <= (words as u64).saturating_sub(PAGE_WORDS as u64))
    }

    /// Words of the whole table.
    pub(crate) fn table_words(&self) -> usize {
        self.slot_at(self.regions, 0)
    }

    /// The first word of slot `slot` of region `region`.
    pub(crate) fn slot_at(&self, region: u32, slot: u32) -> usize {
        PAGE_WORDS + (region as usize * self.slots as usize + slot as usize) * SLOT_WORDS
    }
}

fn checksum(words: &[u64]) -> u32 {
    words.iter().fold(0, |crc, word| crc32c::crc32c_append(crc, &word.to_le_bytes()))
}

/// When a process was last known to be alive; `None` if the word is damaged.
pub(crate) fn alive_at(word: u64) -> Option<WallNanos> {
    slot::decoded(word).map(|micros| WallNanos(micros.saturating_mul(1000)))
}

/// How far the journal and the database had come when the process last stored it; a damaged or missing number
/// is 0.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct ProgressMarks {
    pub(crate) appended: u64,
    pub(crate) applied: u64,
}

impl ProgressMarks {
    pub(crate) fn from_words(word: impl Fn(usize) -> u64) -> ProgressMarks {
        let number = |at| slot::decoded(word(at)).unwrap_or(0);
        ProgressMarks { appended: number(APPENDED_AT), applied: number(APPLIED_AT) }
    }
}

/// The number below which the slots of a region were used; 0 if the table does not say.
pub(crate) fn used(region: u32, word: impl Fn(usize) -> u64) -> u32 {
    let at = used_at(region).map(word).and_then(slot::decoded);
    at.map_or(0, |used| u32::try_from(used).unwrap_or(u32::MAX))
}

/// The word with a region's number of used slots; regions beyond the 480th have none.
fn used_at(region: u32) -> Option<usize> {
    let at = USED_AT + region as usize;
    (at < PAGE_WORDS).then_some(at)
}

/// A live table that this process writes.
#[derive(Debug)]
pub(crate) struct LiveTable {
    words: Arc<SharedWords>,
    header: TableHeader,
}

impl LiveTable {
    /// Creates a table in `words`, which are zero: all slots are free. The header is written last.
    pub(crate) fn create(words: SharedWords, header: TableHeader) -> LiveTable {
        assert!(words.words().len() >= header.table_words(), "the table fits into its memory");
        let run_words = words.words()[RUN_AT..].iter().zip(header.run_words());
        run_words.for_each(|(word, value)| word.store(value, slot::RELEASE));
        for (word, value) in words.words().iter().zip(header.words()).rev() {
            word.store(value, slot::RELEASE);
        }
        LiveTable { words: Arc::new(words), header }
    }

    /// The regions, in their order.
    pub(crate) fn regions(&self) -> impl Iterator<Item = Region> {
        (0..self.header.regions).map(|number| Region {
            words: Arc::clone(&self.words),
            first: self.header.slot_at(number, 0),
            slots: self.header.slots,
            used_at: used_at(number),
        })
    }

    /// Notes that the process was alive at `now`.
    pub(crate) fn note_alive(&self, now: WallNanos) {
        self.words.words()[ALIVE_AT].store(slot::coded(now.0 / 1000), slot::RELEASE);
    }

    /// Stores that the journal has entries up to `appended`, before the slots of any of them are free.
    pub(crate) fn note_appended(&self, appended: u64) {
        self.words.words()[APPENDED_AT].store(slot::coded(appended), slot::RELEASE);
    }

    /// Stores that the database has entries up to `applied`.
    pub(crate) fn note_applied(&self, applied: u64) {
        self.words.words()[APPLIED_AT].store(slot::coded(applied), slot::RELEASE);
    }

    /// The words, for a simulation that lets them outlive the process.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn words(&self) -> Arc<SharedWords> {
        Arc::clone(&self.words)
    }

    /// The run that owns the table.
    pub(crate) fn epoch(&self) -> u32 {
        self.header.epoch
    }

    /// Whether all slots are free.
    pub(crate) fn is_empty(&self) -> bool {
        let is_free = |region: &Region, slot| matches!(region.slot(slot).state(), Some((State::Free, _)));
        self.regions().all(|region| (0..region.slots()).all(|slot| is_free(&region, slot)))
    }
}

/// The slots of one reactor thread.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    words: Arc<SharedWords>,
    first: usize,
    slots: u32,
    used_at: Option<usize>,
}

impl Region {
    /// Stores that slots below `used` were used: such a slot that is all zero is damaged. Only grows.
    pub(crate) fn note_used(&self, used: u32) {
        if let Some(at) = self.used_at {
            self.words.words()[at].store(slot::coded(used.into()), slot::RELEASE);
        }
    }

    /// Its number of slots.
    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    /// Prefetches the cache lines of a slot: its counts, and an identity of usual length. They were last
    /// written on another CPU, and loading them costs more than all work on them.
    pub(crate) fn prefetch(&self, number: u32) {
        let words = self.slot(number).0;
        for line in words.chunks(CACHE_LINE_WORDS).take(LINES_PREFETCHED) {
            sys::mapping::prefetch(&line[0]);
        }
    }

    /// A slot.
    ///
    /// # Panics
    /// Beyond the last slot.
    pub(crate) fn slot(&self, number: u32) -> Slot<'_> {
        assert!(number < self.slots, "slot {number} of {}", self.slots);
        let start = self.first + number as usize * SLOT_WORDS;
        let words = &self.words.words()[start..start + SLOT_WORDS];
        Slot(words.try_into().expect("a slot has 64 words"))
    }
}
