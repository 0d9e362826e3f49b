//! What one flow draws on: the quotas and rates of both directions.
//!
//! Guarantees: a grant is given by each quota of the direction, or by none; what one of them lacks, the
//! others get back at once. What a flow was granted and did not send comes back with its end, also after a
//! panic.

use std::sync::Arc;
use std::time::Duration;

use sys::allowance::Reservation;
use sys::clock::{Nanos, WallNanos};
use sys::rate_limit::RateLimit;

use super::quota_meter::{QuotaMeter, QuotaPeriod};
use super::{CreditTime, Destination, Limits};

/// How long a flow waits for what another thread has reserved: that thread holds it for a read, and may have
/// been preempted.
const BUSY_PAUSE: Duration = Duration::from_millis(1);

/// The credit of one flow.
#[derive(Debug)]
pub(crate) struct FlowCredit {
    destination: Destination,
    pub(crate) up: DirectionCredit,
    pub(crate) down: DirectionCredit,
}

/// The credit of one direction of a flow.
#[derive(Debug, Default)]
pub(crate) struct DirectionCredit {
    quotas: Vec<Draw>,
    rates: Vec<Arc<RateLimit>>,
    /// The bytes of the open reservation.
    reserved: u64,
    /// Bytes that each rate has admitted and that are not read.
    admitted: u64,
    /// When they may be read.
    ready_at: Nanos,
    /// Bytes that were charged since the credit is counted, and those of them that came back.
    charged: u64,
}

/// What a direction draws on one quota.
#[derive(Debug)]
struct Draw {
    meter: Arc<QuotaMeter>,
    /// The period that was drawn on last.
    period: Arc<QuotaPeriod>,
    /// Bytes that were drawn on it.
    drawn: u64,
}

/// The result of [`DirectionCredit::reserve`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Grant {
    /// So many bytes may be read, one at least; [`DirectionCredit::settle`] ends the reservation.
    Bytes(u64),
    /// None before this moment.
    Wait(Nanos),
    /// None any more: a quota is spent.
    Exhausted,
}

impl FlowCredit {
    /// The credit of a flow to `destination`; `None` if nothing limits it.
    pub(crate) fn new(limits: &Limits, destination: Destination, now: WallNanos) -> Option<Box<FlowCredit>> {
        let (up, down) = (DirectionCredit::default(), DirectionCredit::default());
        let mut credit = FlowCredit { destination, up, down };
        credit.adopt(limits, now);
        (!credit.up.is_unlimited() || !credit.down.is_unlimited()).then(|| Box::new(credit))
    }

    /// The same credit, of a flow that has sent so many bytes before.
    pub(crate) fn begun_at(mut self: Box<Self>, sent_up: u64, sent_down: u64) -> Box<FlowCredit> {
        (self.up.charged, self.down.charged) = (sent_up, sent_down);
        self
    }

    /// Draws on `limits` from now on. Quotas that stay keep what was drawn.
    pub(crate) fn adopt(&mut self, limits: &Limits, now: WallNanos) {
        let quotas: Vec<&Arc<QuotaMeter>> = limits.quotas_of(self.destination).collect();
        let of = |is_up: bool| quotas.iter().filter(move |quota| is_covered(quota, is_up)).copied();
        self.up.adopt(of(true), &limits.rates_up, now);
        self.down.adopt(of(false), &limits.rates_down, now);
    }

    /// Charges bytes that were read before the relay of both directions; returns those that may be sent, and
    /// whether others may not.
    pub(crate) fn charge_early<'b>(
        &mut self,
        up: &'b [u8],
        down: &'b [u8],
        now: CreditTime,
    ) -> (&'b [u8], &'b [u8], bool) {
        let sent_up = &up[..self.up.charge_up_to(up.len() as u64, now) as usize];
        let sent_down = &down[..self.down.charge_up_to(down.len() as u64, now) as usize];
        (sent_up, sent_down, sent_up.len() < up.len() || sent_down.len() < down.len())
    }

    /// The first of its quotas that is spent.
    pub(crate) fn spent_quota(&self) -> Option<&Arc<QuotaMeter>> {
        self.up.spent_quota().or_else(|| self.down.spent_quota())
    }

    /// Returns what was charged beyond the bytes that were sent since the flow began.
    pub(crate) fn refund_unsent(&mut self, sent_up: u64, sent_down: u64) {
        self.up.refund_unsent(sent_up);
        self.down.refund_unsent(sent_down);
    }
}

fn is_covered(quota: &QuotaMeter, is_up: bool) -> bool {
    if is_up { quota.terms().up } else { quota.terms().down }
}

impl DirectionCredit {
    /// Whether nothing limits the direction.
    pub(crate) fn is_unlimited(&self) -> bool {
        self.quotas.is_empty() && self.rates.is_empty()
    }

    /// Reserves up to `wanted` bytes, one at least. No reservation may be open.
    pub(crate) fn reserve(&mut self, wanted: u64, now: CreditTime) -> Grant {
        debug_assert_eq!(self.reserved, 0, "a reservation is settled before the next one");
        let mut granted = wanted;
        if !self.rates.is_empty() {
            self.admit_by_rates(now.monotonic);
            if self.ready_at > now.monotonic {
                return Grant::Wait(self.ready_at);
            }
            granted = granted.min(self.admitted);
        }
        let grant = self.reserve_of_quotas(granted, now);
        if let Grant::Bytes(granted) = grant {
            self.reserved = granted;
        }
        grant
    }

    /// Charges `bytes` that were read already, or as many as the quotas have; returns the number of charged
    /// ones, which may be sent. Rates are charged without a wait.
    pub(crate) fn charge_up_to(&mut self, bytes: u64, now: CreditTime) -> u64 {
        if bytes == 0 || self.is_unlimited() {
            return bytes;
        }
        let Grant::Bytes(granted) = self.reserve_of_quotas(bytes, now) else { return 0 };
        self.reserved = granted;
        self.settle(granted);
        self.rates.iter().for_each(|rate| _ = rate.acquire(granted, now.monotonic));
        granted
    }

    /// The same for all of `bytes` or none; returns whether they were charged.
    pub(crate) fn charge(&mut self, bytes: u64, now: CreditTime) -> bool {
        let granted = self.charge_up_to(bytes, now);
        if granted < bytes {
            self.take_back(granted);
            self.rates.iter().for_each(|rate| rate.release(granted));
        }
        granted == bytes
    }

    /// Ends the reservation, of which `used` bytes were read.
    pub(crate) fn settle(&mut self, used: u64) {
        let unused = self.reserved - used;
        for draw in &mut self.quotas {
            draw.period.allowance.settle(unused);
            draw.drawn += used;
        }
        self.charged += used;
        self.reserved = 0;
        self.admitted = self.admitted.saturating_sub(used);
    }

    /// Returns what the rates have admitted: the source has no bytes, and others may have some.
    pub(crate) fn release_admitted(&mut self) {
        let admitted = std::mem::take(&mut self.admitted);
        if admitted > 0 {
            self.rates.iter().for_each(|rate| rate.release(admitted));
        }
    }

    fn spent_quota(&self) -> Option<&Arc<QuotaMeter>> {
        self.quotas.iter().find(|draw| draw.period.allowance.is_spent()).map(|draw| &draw.meter)
    }

    fn admit_by_rates(&mut self, now: Nanos) {
        if self.admitted > 0 {
            return;
        }
        let quantum = self.rates.iter().map(|rate| rate.quantum()).min().unwrap_or(u64::MAX);
        let moments = self.rates.iter().map(|rate| rate.acquire(quantum, now));
        self.ready_at = moments.max().unwrap_or(now);
        self.admitted = quantum;
    }

    /// Reserves up to `wanted` bytes of each quota.
    fn reserve_of_quotas(&mut self, wanted: u64, now: CreditTime) -> Grant {
        let mut granted = wanted;
        for index in 0..self.quotas.len() {
            let (before, rest) = self.quotas.split_at_mut(index);
            let lacking = match rest[0].reserve(granted, now.wall) {
                Reservation::Granted(bytes) => {
                    before.iter().for_each(|draw| draw.period.allowance.shrink(granted - bytes));
                    granted = bytes;
                    continue;
                }
                Reservation::Busy => Grant::Wait(now.monotonic + BUSY_PAUSE),
                Reservation::Spent => Grant::Exhausted,
            };
            before.iter().for_each(|draw| draw.period.allowance.settle(granted));
            return lacking;
        }
        Grant::Bytes(granted)
    }

    fn refund_unsent(&mut self, sent: u64) {
        self.take_back(self.charged.saturating_sub(sent));
    }

    /// Returns bytes that were charged by the last reads, and so to the last period.
    fn take_back(&mut self, bytes: u64) {
        self.charged -= bytes;
        for draw in &mut self.quotas {
            let refund = bytes.min(draw.drawn);
            draw.period.allowance.refund(refund);
            draw.drawn -= refund;
        }
    }

    fn adopt<'q>(
        &mut self,
        quotas: impl Iterator<Item = &'q Arc<QuotaMeter>>,
        rates: &[Arc<RateLimit>],
        now: WallNanos,
    ) {
        self.release_admitted();
        let mut before = std::mem::take(&mut self.quotas);
        let draw = |meter: &Arc<QuotaMeter>| {
            let known = before.iter().position(|draw| Arc::ptr_eq(&draw.meter, meter));
            let new = || Draw { meter: Arc::clone(meter), period: meter.period(now), drawn: 0 };
            known.map_or_else(new, |position| before.swap_remove(position))
        };
        self.quotas = quotas.map(draw).collect();
        self.rates = rates.to_vec();
    }
}

impl Draw {
    fn reserve(&mut self, wanted: u64, now: WallNanos) -> Reservation {
        if !self.period.contains(now) {
            self.period = self.meter.period(now);
            self.drawn = 0;
        }
        self.period.allowance.reserve(wanted)
    }
}

impl Drop for DirectionCredit {
    fn drop(&mut self) {
        if self.reserved > 0 {
            self.settle(0);
        }
        self.release_admitted();
    }
}
