//! The journal: numbered entries in files that are never grown, each frame of them sealed by checksums.
//!
//! Promises: an entry whose number is [`Shared::durable`] or less survives a power failure; a damaged frame
//! is told from a torn one; nothing that was written is ever written over, so a sector that is on the disk
//! is safe from a later write that fails. Leaves to others: what entries mean (`entry`), when to write and
//! sync (`commit`), what to do with what is found at a start (`recover`).
//!
//! ```text
//!   journal/segment-000000000007   header, 4 KiB | frame | frame | ...          full, or abandoned
//!           segment-000000000008   header        | frame | frame |~~~ zeros or what an older use left
//!           segment-000000000009   ~~~ zeros or what an older use left          the spare, ready to begin
//! ```
//!
//! 1. A segment has its whole length, synced, before its first use, and is used again when nothing in it is
//!    needed: writing never changes a file's length. It is written with zeros too, so that writing does not
//!    change its blocks either, unless it was needed before that was done.
//! 2. A frame is one group of entries: it begins on a border of 4 KiB and is padded to one, and names its
//!    segment and epoch, so that what an older use left is never taken for it.
//! 3. Frames are chained: each holds the hash of the header of the one before it, also across segments.
//! 4. A segment ends where the next one begins: at the next header's first number. What an abandoned segment
//!    holds beyond that was written again in the next.
//! 5. A segment that writes again what stood elsewhere (after a failure, or at a start) counts only once a
//!    frame behind that part says that it is durable. Until then what stood elsewhere counts, and may be
//!    the only copy.
//! 6. Numbers have no gaps, except where a segment's header begins beyond the end of the one before, which
//!    only happens where a journal was lost or repaired; a [`crate::entry::Entry::Gap`] then tells.

pub(crate) mod corruption;
pub(crate) mod frame;
pub(crate) mod reader;
pub(crate) mod scan;
pub(crate) mod segment;
mod shared;
pub(crate) mod writer;

use thiserror::Error;

pub(crate) use shared::Shared;
pub(crate) use writer::Writer;

/// What does not change while a journal is open.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) gateway: u32,
    pub(crate) epoch: u32,
    /// Bytes of a segment, a multiple of 4 KiB.
    pub(crate) segment_bytes: u64,
    /// Bytes that all segments together may take.
    pub(crate) bytes_max: u64,
}

/// Where a run's live table lies, as segments say.
#[derive(Clone, Debug, Default)]
pub(crate) struct TableReference {
    /// Empty while it is not made.
    pub(crate) path: String,
    /// The boot of the machine in which it lies there; 0 while it is not made.
    pub(crate) boot: u128,
}

/// Why something could not be journaled.
#[derive(Debug, Error)]
pub(crate) enum JournalError {
    /// The disk refused. What was not durable is still in memory, and is written to another segment.
    #[error("the journal cannot be written: {0}")]
    Io(#[from] std::io::Error),
    /// There are as many segments as there may be, and none is done with.
    #[error("the journal has its {bytes_max} bytes (`journal_max`), and the database has not come so far")]
    Full {
        /// The bound.
        bytes_max: u64,
    },
}
