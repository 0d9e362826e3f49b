//! The port range of a rule.

use std::fmt;

/// Ports from first to last, both included; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PortRange {
    pub(crate) first: u16,
    pub(crate) last: u16,
}

impl PortRange {
    pub(crate) const ANY: Self = Self { first: 1, last: u16::MAX };

    pub(crate) const fn contains(self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.first)?;
        if self.last == self.first { Ok(()) } else { write!(formatter, "-{}", self.last) }
    }
}
