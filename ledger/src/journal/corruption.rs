//! What is wrong where the journal should go on: a frame that is not whole.

use std::fmt;

use crate::entry::Entry;

/// A frame that should have come next and is not whole.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Corruption {
    /// The segment in which it should be.
    pub(crate) segment: u64,
    /// Where in it, in bytes.
    pub(crate) at: u64,
    /// The number of the first entry that is missing.
    pub(crate) first_lsn: u64,
    /// The run that wrote it.
    pub(crate) epoch: u32,
    /// Numbers that had been durable, are in no whole frame, and had not been applied: first and last of each
    /// stretch. Without any, the frame was torn before anybody relied on it.
    pub(crate) lost: Vec<(u64, u64)>,
    /// What whole frames behind it hold, by number, as far as it was not applied.
    pub(crate) salvaged: Vec<(u64, Entry)>,
}

impl fmt::Display for Corruption {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Corruption { segment, at, first_lsn, salvaged, lost, .. } = self;
        let kind = if lost.is_empty() { "torn" } else { "damaged" };
        let salvaged = salvaged.len();
        write!(
            formatter,
            "segment {segment} is {kind} at byte {at}, entry {first_lsn}; {salvaged} behind it are kept"
        )
    }
}
