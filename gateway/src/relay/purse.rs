//! A purse: what a direction may read in one run of its relay.
//!
//! Guarantees: nothing is read that its credit has not granted; what was granted and not read comes back at
//! the end of the run, so that a thread that runs other relays holds nothing. Without credit it permits all.

use sys::clock::Nanos;

use crate::credit::{CreditTime, DirectionCredit, Grant};
use crate::limits::PASS_BYTES_MAX;

/// The least that is requested of the credit at a time: each request changes memory that threads share.
const REQUEST_BYTES_MIN: u64 = PASS_BYTES_MAX as u64;

/// What a direction may read in one run.
#[derive(Debug)]
pub(super) struct Purse<'c> {
    credit: Option<(&'c mut DirectionCredit, CreditTime)>,
    /// Granted bytes. 0 <= read <= granted
    granted: u64,
    read: u64,
    outcome: PurseOutcome,
}

/// Whether a direction may read on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum PurseOutcome {
    /// It may.
    Open,
    /// Not before this moment.
    Waits(Nanos),
    /// Never: a quota is spent.
    Exhausted,
}

impl<'c> Purse<'c> {
    /// The purse of a direction with `credit`; `None` permits everything.
    pub(super) fn new(credit: Option<(&'c mut DirectionCredit, CreditTime)>) -> Purse<'c> {
        let credit = credit.filter(|(credit, _)| !credit.is_unlimited());
        Purse { credit, granted: 0, read: 0, outcome: PurseOutcome::Open }
    }

    /// How many of `wanted` bytes may be read now; with 0, the outcome says why none.
    #[inline]
    pub(super) fn permit(&mut self, wanted: usize) -> usize {
        if self.credit.is_none() { wanted } else { self.permit_of_credit(wanted as u64) as usize }
    }

    fn permit_of_credit(&mut self, wanted: u64) -> u64 {
        let left = self.granted - self.read;
        if left >= wanted || self.outcome != PurseOutcome::Open {
            return left.min(wanted);
        }
        self.settle();
        let Some((credit, time)) = &mut self.credit else { return wanted };
        match credit.reserve(wanted.max(REQUEST_BYTES_MIN), *time) {
            Grant::Bytes(granted) => self.granted = granted,
            Grant::Wait(until) => self.outcome = PurseOutcome::Waits(until),
            Grant::Exhausted => self.outcome = PurseOutcome::Exhausted,
        }
        self.granted.min(wanted)
    }

    /// Notes that permitted bytes were read.
    #[inline]
    pub(super) fn note_read(&mut self, bytes: usize) {
        if self.credit.is_some() {
            self.read += bytes as u64;
        }
    }

    /// Ends the run, behind which the source has more bytes, or none (`is_empty`).
    pub(super) fn finish(mut self, is_empty: bool) -> PurseOutcome {
        self.settle();
        if let (true, Some((credit, _))) = (is_empty, &mut self.credit) {
            credit.release_admitted();
        }
        self.outcome
    }

    /// Returns what was granted and not read.
    pub(super) fn settle(&mut self) {
        if let (true, Some((credit, _))) = (self.granted > 0, &mut self.credit) {
            credit.settle(self.read);
            (self.granted, self.read) = (0, 0);
        }
    }
}

impl Drop for Purse<'_> {
    fn drop(&mut self) {
        self.settle();
    }
}
