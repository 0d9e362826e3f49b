//! The corruption at which the readable journal ends: a frame that is torn or damaged.

use std::fmt;

use crate::entry::Entry;

/// A torn or damaged frame that should have come next.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Corruption {
    /// The segment in which it should be.
    pub(crate) segment: u64,
    /// Its position in the segment, in bytes.
    pub(crate) at: u64,
    /// The number of the first missing entry.
    pub(crate) first_lsn: u64,
    /// The run that wrote it.
    pub(crate) epoch: u32,
    /// Ranges (first, last) of numbers that had been durable, are in no intact frame, and had not been
    /// applied. Without any, the frame was torn before it was durable.
    pub(crate) lost: Vec<(u64, u64)>,
    /// The entries of intact frames behind it, by number, except applied ones.
    pub(crate) salvaged: Vec<(u64, Entry)>,
}

impl fmt::Display for Corruption {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Corruption { segment, at, first_lsn, salvaged, lost, .. } = self;
        let kind = if lost.is_empty() { "torn" } else { "damaged" };
        let salvaged = salvaged.len();
        write!(
            formatter,
            "segment {segment} is {kind} at byte {at}, entry {first_lsn}; {salvaged} entries behind it are \
             kept"
        )
    }
}
