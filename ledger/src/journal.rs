//! The journal: numbered entries in files of fixed size, in frames that are sealed by checksums.
//!
//! Guarantees: an entry up to [`JournalState::durable`] survives a power failure. A damaged frame is
//! distinguished from a torn one. No written byte is overwritten, so a later write that fails cannot damage a
//! sector that is on the disk.
//!
//! ```text
//!   journal/segment-000000000007   header, 4 KiB | frame | frame | ...           full, or abandoned
//!           segment-000000000008   header        | frame | frame |~~~ zeros, or bytes of an earlier use
//!           segment-000000000009   ~~~ zeros, or bytes of an earlier use         the spare, ready for use
//! ```
//!
//! 1. A segment has its whole length, synced, before its first use, and is reused when nothing in it is
//!    needed: writing never changes a file's length. It is filled with zeros too, so that writing does not
//!    allocate blocks either, unless it was needed before that was done.
//! 2. A frame is one group of entries. It begins at a multiple of 4 KiB, is padded to one, and names its
//!    segment and epoch, so that bytes of an earlier use are never taken for it.
//! 3. Frames are chained: each holds the hash of the previous frame's header, also across segments.
//! 4. A segment ends where the next one begins: at the first number in the next header. Entries of an
//!    abandoned segment beyond that were rewritten in the next one.
//! 5. A segment that rewrites entries of earlier ones (after a failure, or at a start) counts only once a
//!    later frame in it says that they are durable. Until then the earlier copies count, and may be the only
//!    ones.
//! 6. Numbers have no gaps, except where a segment's header begins beyond the end of the one before. That
//!    happens only where a journal was lost or repaired; a [`crate::entry::Entry::Gap`] then records it.

pub(crate) mod corruption;
pub(crate) mod follower;
pub(crate) mod frame;
pub(crate) mod positions;
pub(crate) mod reader;
pub(crate) mod scan;
pub(crate) mod segment;
mod shared;
mod walk;
pub(crate) mod writer;

use thiserror::Error;

pub(crate) use shared::JournalState;
pub(crate) use writer::Writer;

/// The constants of an open journal.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) gateway: u32,
    pub(crate) epoch: u32,
    /// A number that the run drew.
    pub(crate) run: u128,
    /// Bytes of a segment, a multiple of 4 KiB.
    pub(crate) segment_bytes: u64,
    /// Bytes that all segments together may take.
    pub(crate) bytes_max: u64,
}

/// The location of a run's live table, as segment headers record it.
#[derive(Clone, Debug, Default)]
pub(crate) struct TableReference {
    /// Empty until the table is created.
    pub(crate) path: String,
    /// The boot of the machine in which the table exists; 0 until it is created.
    pub(crate) boot: u128,
}

/// Why an entry could not be journaled.
#[derive(Debug, Error)]
pub(crate) enum JournalError {
    /// The disk's error. What was not durable is still in memory, and is rewritten to another segment.
    #[error("the journal cannot be written: {0}")]
    Io(#[from] std::io::Error),
    /// The journal has as many segments as permitted, and none is released.
    #[error("the journal is full: it has {bytes_max} bytes (`journal_max`), and the database is behind")]
    Full {
        /// The bound.
        bytes_max: u64,
    },
}
