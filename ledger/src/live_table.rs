//! The live table: every open flow and what it has come to, in memory that outlives the process.
//!
//! Promises: a byte that was counted is found after `kill -9`; of a call that was under way when the process
//! died no more is unknown than its length, and that is told apart; a flipped bit in anything that is billed
//! is noticed. Leaves to others: where the table lies (`live_table/place.rs`), bringing what it holds into
//! the journal (`commit` while the process lives, `recover` after it died).
//!
//! A slot has one writer at a time, and its state says who:
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
//!   0..512      header: what the table is, and whose; a page, most of it empty
//!   512..       slots of 64 words; a region of as many for each reactor thread, one behind another
//!
//!   of a slot   0..8, one cache line:   state | up | down | up intent | down intent | client_rx |
//!                                       upstream_rx | closed, microseconds since the Unix epoch
//!               8:                      bytes of the identity | their CRC32C << 32
//!               9..64:                  the identity
//! ```
//!
//! Rules (the code cites them):
//!
//! 1. Each of the first eight words holds its value times 251 (an AN code: a flipped bit adds or takes a
//!    power of two, which 251 does not divide). A value is less than 2^56; 72 PB is the most that a flow
//!    can count.
//! 2. Around each outgoing call: intent = (count's low 36 bits, length) before it; the count behind it, or
//!    intent = 0 if the call took nothing. So an intent whose bits are the count's is a call whose end is not
//!    known, and with any other bits it is one that was counted.
//! 3. Identity before `Live`, counts and closing time before `Closing`: each a Release store.

pub(crate) mod locations;
mod slot;
pub mod snapshot;
pub mod space;

use std::sync::Arc;

use sys::clock::WallNanos;
use sys::mapping::SharedWords;

pub(crate) use slot::{CommitIntent, STATE, Slot, SlotContents, State};
pub use slot::{FlowCounters, Received, Sent};

/// Words of a slot: 512 bytes.
pub(crate) const SLOT_WORDS: usize = 64;

/// What a slot takes of memory.
pub const SLOT_BYTES: u64 = (SLOT_WORDS * size_of::<u64>()) as u64;

/// Words of a cache line.
const CACHE_LINE_WORDS: usize = 8;

/// Lines of a slot that are brought near ahead of its use: the counts, and 120 bytes of identity.
const LINES_PREFETCHED: usize = 3;

/// Words of a page.
pub(crate) const PAGE_WORDS: usize = 512;

/// "TOLLLIVE".
const MAGIC: u64 = u64::from_le_bytes(*b"TOLLLIVE");

/// What is said of a table whose flows this program cannot read: not to be passed over.
pub(crate) const OTHER_VERSION: &str =
    "it is a live table of another version of the program: start and stop that version once";

/// The version of the layout.
const VERSION: u64 = 1;

/// The word of the header that says when the process was last known to live, in microseconds since the Unix
/// epoch, times 251 (rule 1): the end of a flow that was killed, as far as anybody can tell.
pub(crate) const ALIVE_AT: usize = TableHeader::WORDS;

/// Whose table it is: the first words of the file, behind magic and version.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TableHeader {
    /// The gateway.
    pub gateway: u32,
    /// Its run.
    pub epoch: u32,
    /// The boot of the machine; after another one the table is not to be trusted.
    pub boot: u128,
    /// The process.
    pub process: u32,
    /// Regions, one for each reactor thread.
    pub regions: u32,
    /// Slots of each.
    pub slots: u32,
}

/// The number of the last entry that the journal was given, times 251: what the journal ends with at least
/// after a kill. Stored before the slots of that entry are free. Zero: not known.
const APPENDED_AT: usize = 9;

/// The number of the last entry that the database was seen to have, times 251. Zero: not known.
const APPLIED_AT: usize = 10;

/// From this word on, one for each region: slots below that number were used, times 251.
const USED_AT: usize = 32;

impl TableHeader {
    const WORDS: usize = 8;

    fn words(&self) -> [u64; TableHeader::WORDS] {
        let mut words = [
            MAGIC,
            VERSION | u64::from(self.process) << 32,
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

    /// The header in the first words of a file.
    pub(crate) fn parse(words: &[u64; TableHeader::WORDS]) -> Result<TableHeader, &'static str> {
        if words[0] != MAGIC {
            return Err("it is not a live table");
        }
        if words[1] as u32 != VERSION as u32 {
            return Err(OTHER_VERSION);
        }
        if words[7] != u64::from(checksum(&words[..7])) {
            return Err("its header is damaged");
        }
        Ok(TableHeader {
            process: (words[1] >> 32) as u32,
            gateway: words[2] as u32,
            epoch: (words[2] >> 32) as u32,
            boot: u128::from(words[3]) | u128::from(words[4]) << 64,
            regions: words[5] as u32,
            slots: words[6] as u32,
        })
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

/// When a process was last known to live; `None` if the word is damaged.
pub(crate) fn alive_at(word: u64) -> Option<WallNanos> {
    slot::decoded(word).map(|micros| WallNanos(micros.saturating_mul(1000)))
}

/// How far the journal and the database had come when the process last said so; a number that is damaged, or
/// was never said, is 0.
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

/// The number below which the slots of a region were used, as far as its table says: 0 where it does not.
pub(crate) fn used(region: u32, word: impl Fn(usize) -> u64) -> u32 {
    let at = used_at(region).map(word).and_then(slot::decoded);
    at.map_or(0, |used| u32::try_from(used).unwrap_or(u32::MAX))
}

/// Where a region's number of used slots stands; the last regions of more than 480 have no place for theirs.
fn used_at(region: u32) -> Option<usize> {
    let at = USED_AT + region as usize;
    (at < PAGE_WORDS).then_some(at)
}

/// A table in this process.
#[derive(Debug)]
pub(crate) struct LiveTable {
    words: Arc<SharedWords>,
    header: TableHeader,
}

impl LiveTable {
    /// A new table in `words`, which are zero: all of its slots are free. The header is written last.
    pub(crate) fn create(words: SharedWords, header: TableHeader) -> LiveTable {
        assert!(words.words().len() >= header.table_words(), "the table fits its memory");
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

    /// Notes that the journal was given entries up to `appended`, before the slots of any of them are free.
    pub(crate) fn note_appended(&self, appended: u64) {
        self.words.words()[APPENDED_AT].store(slot::coded(appended), slot::RELEASE);
    }

    /// Notes that the database has entries up to `applied`.
    pub(crate) fn note_applied(&self, applied: u64) {
        self.words.words()[APPLIED_AT].store(slot::coded(applied), slot::RELEASE);
    }

    /// The words, for a simulation that lets them outlive the process.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn words(&self) -> Arc<SharedWords> {
        Arc::clone(&self.words)
    }

    /// The run whose table it is.
    pub(crate) fn epoch(&self) -> u32 {
        self.header.epoch
    }

    /// Whether no slot is taken.
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
    /// Notes that slots below `used` were used: one of them that is all zero is damaged. Only grows.
    pub(crate) fn note_used(&self, used: u32) {
        if let Some(at) = self.used_at {
            self.words.words()[at].store(slot::coded(used.into()), slot::RELEASE);
        }
    }

    /// Its number of slots.
    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    /// Has the lines of a slot brought near that will soon be asked for: its counts, and an identity of usual
    /// length. They were last written on another CPU, and cost more than all that is done with them.
    pub(crate) fn prefetch(&self, number: u32) {
        let words = self.slot(number).0;
        for line in words.chunks(CACHE_LINE_WORDS).take(LINES_PREFETCHED) {
            sys::mapping::prefetch(&line[0]);
        }
    }

    /// A slot. Panics beyond the last.
    pub(crate) fn slot(&self, number: u32) -> Slot<'_> {
        assert!(number < self.slots, "slot {number} of {}", self.slots);
        let start = self.first + number as usize * SLOT_WORDS;
        let words = &self.words.words()[start..start + SLOT_WORDS];
        Slot(words.try_into().expect("a slot has 64 words"))
    }
}
