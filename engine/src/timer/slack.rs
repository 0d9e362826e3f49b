//! Slack: by how much a deadline may be rounded up, so that many timers share a wake-up.

use sys::clock::Nanos;

/// Classes of slack: a deadline is rounded up to the next multiple, never down. A tick of the wheel (2^20 ns,
/// 1.05 ms) is added. The multiples are powers of two, so that the classes share instants.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Slack {
    /// No later than the tick: deadlines of calls.
    #[default]
    Tick,
    /// Up to 2^24 ns, 17 ms: retries, short pauses.
    Fine,
    /// Up to 2^27 ns, 134 ms: idle connections.
    Coarse,
    /// Up to 2^30 ns, 1.07 s: caches, sessions, periodic sweeps.
    Second,
}

impl Slack {
    /// In the order of their numbers.
    pub(super) const ALL: [Slack; 4] = [Slack::Tick, Slack::Fine, Slack::Coarse, Slack::Second];

    /// The most that this class adds, in nanoseconds.
    pub const fn nanos(self) -> u64 {
        match self {
            Slack::Tick => 0,
            Slack::Fine => 1 << 24,
            Slack::Coarse => 1 << 27,
            Slack::Second => 1 << 30,
        }
    }

    /// `deadline`, rounded up to an instant that others of the class share.
    pub fn apply(self, deadline: Nanos) -> Nanos {
        match self.nanos().checked_sub(1) {
            None => deadline,
            Some(mask) => Nanos(deadline.0.saturating_add(mask) & !mask).max(deadline),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadline_is_rounded_up_by_less_than_its_slack() {
        for (number, slack) in Slack::ALL.into_iter().enumerate() {
            assert_eq!(slack as usize, number);
            for deadline in [0, 1, (1 << 24) - 1, 1 << 24, (1 << 30) + 1, 12_345_678_901, u64::MAX - 1] {
                let put_off = slack.apply(Nanos(deadline));
                assert!(put_off.0 >= deadline, "{slack:?} {deadline}");
                assert!(put_off.0 - deadline < slack.nanos().max(1), "{slack:?} {deadline}");
            }
            assert_eq!(slack.apply(Nanos::NEVER), Nanos::NEVER);
        }
    }

    #[test]
    fn deadlines_of_one_class_coincide() {
        let base = 77 << 30;
        let due: Vec<_> = (1..=100).map(|ms| Slack::Coarse.apply(Nanos(base + ms * 1_000_000))).collect();
        assert!(due.iter().all(|it| *it == due[0]));
    }
}
