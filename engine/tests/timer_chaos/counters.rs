//! The results of a run: how many timers did what, and how late they fired.
//!
//! Guarantees: none of these figures decides whether a run passes. Read them on a machine without other load.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::history::{History, Outcome};

/// Counts of timers by their outcome.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) rounds: u64,
    armed: u64,
    rearmed: u64,
    refused: u64,
    fired: u64,
    cancelled: u64,
    dismissed: u64,
    left: u64,
}

impl Counters {
    pub(crate) fn add(&mut self, history: &History, outcome: Outcome) {
        self.fired += u64::from(history.begun());
        self.rearmed += u64::from(history.rearmed()) - u64::from(outcome == Outcome::Dismissed);
        self.armed += u64::from(outcome != Outcome::Refused);
        match outcome {
            Outcome::Refused => self.refused += 1,
            Outcome::Cancelled => self.cancelled += 1,
            Outcome::Dismissed => self.dismissed += 1,
            Outcome::Left => self.left += 1,
            Outcome::Fired => {}
        }
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counters { rounds, armed, rearmed, refused, fired, cancelled, dismissed, left } = self;
        write!(
            out,
            "{rounds} rounds: {armed} armed, {rearmed} re-armed, {fired} fired, {cancelled} cancelled, \
             {dismissed} dismissed in their callback, {left} left at the end of their service, \
             {refused} refused"
        )
    }
}

/// How late callbacks began, beyond deadline, slack and tick, by powers of two of a nanosecond.
#[derive(Debug)]
pub(crate) struct Lateness {
    counts: [AtomicU64; 65],
    greatest_nanos: AtomicU64,
}

impl Lateness {
    pub(crate) const fn new() -> Lateness {
        Lateness { counts: [const { AtomicU64::new(0) }; 65], greatest_nanos: AtomicU64::new(0) }
    }

    pub(crate) fn add(&self, nanos: u64) {
        self.counts[(u64::BITS - nanos.leading_zeros()) as usize].fetch_add(1, Relaxed);
        self.greatest_nanos.fetch_max(nanos, Relaxed);
    }

    /// The lateness that so many of a thousand did not exceed, in microseconds, rounded up to a power of two.
    fn micros_of(&self, thousandths: u64) -> f64 {
        let counts: Vec<u64> = self.counts.iter().map(|count| count.load(Relaxed)).collect();
        let wanted = (counts.iter().sum::<u64>() * thousandths).div_ceil(1000);
        let mut so_far = 0;
        let class = counts.iter().position(|count| {
            so_far += count;
            so_far >= wanted
        });
        class.map_or(0.0, |class| if class == 0 { 0.0 } else { (1u128 << class) as f64 / 1e3 })
    }
}

impl fmt::Display for Lateness {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [half, most, nearly_all] = [500, 990, 999].map(|thousandths| self.micros_of(thousandths));
        let greatest = self.greatest_nanos.load(Relaxed) as f64 / 1e6;
        write!(
            out,
            "later than deadline, slack and tick by at most: half {half:.0} us, 99 % {most:.0} us, \
             99.9 % {nearly_all:.0} us, all {greatest:.1} ms"
        )
    }
}
