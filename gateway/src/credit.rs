//! Credit: the bytes that flows may still move, by the quotas and the rates of their user and its teams.
//!
//! Guarantees: a byte is read only once each quota that its flow draws on has reserved it. So all flows
//! together never exceed a quota, whichever threads they are on. A flow without limits has no credit, and
//! costs one check of that.
//!
//! ```text
//!   reserve --> read --> settle (what was not read comes back) --> send --> refund what was never sent
//! ```
//!
//! - `calendar.rs`: when the periods of a quota begin.
//! - `quota_meter.rs`: a quota with what is spent in its present period.
//! - `flow_credit.rs`: what one flow draws on.
//!
//! Not handled here: the settings (`config`), and the quotas of a configuration together (`snapshot`).

pub mod calendar;
pub(crate) mod flow_credit;
pub mod quota_meter;

use std::sync::Arc;

use ledger::record::Class;
use sys::clock::{Nanos, WallNanos};
use sys::rate_limit::RateLimit;

pub(crate) use flow_credit::{DirectionCredit, FlowCredit, Grant};
pub use quota_meter::QuotaMeter;

/// The time by which credit is reserved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CreditTime {
    /// For rates.
    pub(crate) monotonic: Nanos,
    /// For periods: the time by which the ledger dates bytes.
    pub(crate) wall: WallNanos,
}

/// The number of a named set in this process; it is the same in each configuration.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SetId(u16);

impl SetId {
    /// No set.
    pub(crate) const NONE: SetId = SetId(0);

    /// The position of its name among [`SetIds`].
    pub(crate) fn position(self) -> Option<usize> {
        usize::from(self.0).checked_sub(1)
    }
}

/// The numbers of all named sets that a configuration of this process has had.
#[derive(Debug, Default)]
pub(crate) struct SetIds(Vec<Box<str>>);

impl SetIds {
    /// The numbers of `names`, in their order.
    pub(crate) fn of(names: &[Box<str>]) -> SetIds {
        SetIds(names.to_vec())
    }

    /// The names, in the order of their numbers.
    pub(crate) fn into_names(self) -> Vec<Box<str>> {
        self.0
    }

    /// The number of the set with this name; [`SetId::NONE`] beyond 65,535 names, of which no configuration
    /// has a part.
    pub(crate) fn id(&mut self, name: &str) -> SetId {
        let position = self.0.iter().position(|known| **known == *name).unwrap_or_else(|| {
            self.0.push(name.into());
            self.0.len() - 1
        });
        SetId(u16::try_from(position + 1).unwrap_or(0))
    }
}

/// What a quota distinguishes destinations by.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Destination {
    pub(crate) class: Class,
    /// The named set by which it is metered.
    pub(crate) set: SetId,
}

/// The quotas and rates of a user, and of the teams above it.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    /// The user's own first, then those of each team upward.
    pub(crate) quotas: Vec<Arc<QuotaMeter>>,
    pub(crate) rates_up: Vec<Arc<RateLimit>>,
    pub(crate) rates_down: Vec<Arc<RateLimit>>,
}

impl Limits {
    /// Whether nothing is limited.
    pub(crate) fn is_empty(&self) -> bool {
        self.quotas.is_empty() && self.rates_up.is_empty() && self.rates_down.is_empty()
    }

    /// The quotas that a flow to `destination` draws on, in either direction.
    pub(crate) fn quotas_of(&self, destination: Destination) -> impl Iterator<Item = &Arc<QuotaMeter>> {
        self.quotas.iter().filter(move |quota| quota.covers(destination))
    }
}

#[cfg(test)]
mod tests;
