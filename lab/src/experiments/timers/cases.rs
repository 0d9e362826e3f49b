//! The cases by name, and the names of their numbers: a process that measures for the lab can report nothing
//! under another name.

use super::pairs::{CancelledBy, Pairs};
use super::target::BuiltIn;

/// Cases of schedule and cancel, in the order of the report: which thread cancels, window, threads.
pub(super) const PAIRS: [(&str, Pairs); 18] = [
    ("owner-w1-1", pairs(CancelledBy::Owner, 1, 1)),
    ("owner-w1-2", pairs(CancelledBy::Owner, 1, 2)),
    ("owner-w1-4", pairs(CancelledBy::Owner, 1, 4)),
    ("owner-w1-8", pairs(CancelledBy::Owner, 1, 8)),
    ("owner-w1-50", pairs(CancelledBy::Owner, 1, 50)),
    ("owner-w64-1", pairs(CancelledBy::Owner, 64, 1)),
    ("owner-w64-2", pairs(CancelledBy::Owner, 64, 2)),
    ("owner-w64-4", pairs(CancelledBy::Owner, 64, 4)),
    ("owner-w64-8", pairs(CancelledBy::Owner, 64, 8)),
    ("owner-w64-50", pairs(CancelledBy::Owner, 64, 50)),
    ("other-w1-2", pairs(CancelledBy::Other, 1, 2)),
    ("other-w1-4", pairs(CancelledBy::Other, 1, 4)),
    ("other-w1-8", pairs(CancelledBy::Other, 1, 8)),
    ("other-w1-50", pairs(CancelledBy::Other, 1, 50)),
    ("other-w64-2", pairs(CancelledBy::Other, 64, 2)),
    ("other-w64-4", pairs(CancelledBy::Other, 64, 4)),
    ("other-w64-8", pairs(CancelledBy::Other, 64, 8)),
    ("other-w64-50", pairs(CancelledBy::Other, 64, 50)),
];

/// The case of [`PAIRS`] that is measured once more, by [`INTERLEAVED_TARGETS`] one after another, and the
/// name of that part. Between two targets of a whole round seconds pass, in which a shared machine changes.
pub(super) const INTERLEAVED_CASE: &str = "other-w64-8";
pub(super) const INTERLEAVED: &str = "other-w64-8-in-turn";
pub(super) const INTERLEAVED_TARGETS: [BuiltIn; 3] =
    [BuiltIn::TollgateLocal, BuiltIn::Bucketed, BuiltIn::Nothing];

/// The other parts of the report.
pub(super) const CALLS: &str = "calls";
pub(super) const HELD: &str = "held";
pub(super) const ECHO: [(&str, usize); 2] = [("echo-50", 50), ("echo-400", 400)];

/// Every number, in the order of the table.
const NUMBERS: [&str; 18] = [
    "pairs_per_s",
    "cpu_ns_per_pair",
    "calls",
    "fired",
    "wakes_per_s",
    "wakes_per_s_at_the_end",
    "dead_wakes_percent",
    "late_p50_us",
    "late_p99.9_us",
    "late_min_us",
    "gained_mb",
    "cancelled",
    "held_mb",
    "held_bytes_per_timer",
    "calls_per_s",
    "cpu_ns_per_call",
    "instructions_per_call",
    "deadlines_fired",
];

const fn pairs(by: CancelledBy, window: usize, threads: usize) -> Pairs {
    Pairs { by, threads, window }
}

/// All parts, in the order of the report.
fn parts() -> impl Iterator<Item = &'static str> {
    let pairs = PAIRS.iter().map(|case| case.0);
    pairs.chain([INTERLEAVED, CALLS, HELD]).chain(ECHO.map(|case| case.0))
}

/// The part of this name.
pub(super) fn part(name: &str) -> Option<&'static str> {
    parts().find(|part| *part == name)
}

/// Parses the name of a case of schedule and cancel.
///
/// # Errors
/// There is no case of that name.
pub(super) fn pairs_named(name: &str) -> Result<&'static str, String> {
    let found = PAIRS.iter().find(|case| case.0 == name);
    found.map(|case| case.0).ok_or_else(|| "cases are owner-wW-T and other-wW-T".to_owned())
}

/// The number of this name.
pub(super) fn number_named(name: &str) -> Option<&'static str> {
    NUMBERS.into_iter().find(|number| *number == name)
}

/// The position of a part in the report.
pub(super) fn position(part: &str) -> usize {
    parts().position(|it| it == part).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_names_match_their_settings() {
        for (name, pairs) in PAIRS {
            let by = if pairs.by == CancelledBy::Owner { "owner" } else { "other" };
            assert_eq!(name, format!("{by}-w{}-{}", pairs.window, pairs.threads));
            assert_eq!(part(name), Some(name));
        }
        assert_eq!(part("owner-w1-3"), None);
        assert_eq!((number_named("calls"), number_named("no such")), (Some("calls"), None));
    }
}
