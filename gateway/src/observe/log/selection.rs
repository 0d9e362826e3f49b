//! Selects the lines of allowed flows, by the settings of `[log]`.
//!
//! Guarantees: a client can neither choose nor predict whether its flow is sampled. A flow that is open while
//! a reload changes the settings gets its `close` line if the settings of its beginning or those of its end
//! give it one. The factor of a line is the inverse of the probability with which it is written, so that sums
//! over lines can be estimated.
//!
//! Not handled here: lines of denials and failures (`line_limiter.rs`). What is written for a flow is all
//! that it knows of flows: a request with a line of its own is selected in the same way.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use crate::config::settings::{Log, LoggedCloses, LoggedDecisions};

/// Every line is written.
pub(crate) const NO_SAMPLING: u32 = 1;

/// The selector of one thread. A flow begins and ends on the same thread.
pub(crate) struct LineSelector {
    decisions: LoggedDecisions,
    closes: LoggedCloses,
    long: Duration,
    sample: u32,
    /// The secret by which an id decides on the sample. Ids count up, and clients see theirs: without a
    /// secret a client could wait for an id that is left out.
    key: RandomState,
}

/// What is selected for a flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Selection {
    /// Uniform over all values; 0 is in every sample.
    draw: u32,
    /// The least factor of the settings so far.
    sample: u32,
    /// The most that the settings of its beginning give.
    closes: LoggedCloses,
    has_line: bool,
}

/// Which setting gives a flow no line.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum LeftOutBy {
    /// `sample`.
    Sample,
    /// `closes`.
    Closes,
}

impl LeftOutBy {
    /// All, in the order of their numbers.
    pub(crate) const ALL: [LeftOutBy; 2] = [LeftOutBy::Sample, LeftOutBy::Closes];

    /// The name of the setting.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            LeftOutBy::Sample => "sample",
            LeftOutBy::Closes => "closes",
        }
    }
}

impl LineSelector {
    /// A selector by `settings`.
    pub(crate) fn new(settings: &Log) -> LineSelector {
        let Log { decisions, closes, long, sample, .. } = *settings;
        LineSelector { decisions, closes, long, sample, key: RandomState::new() }
    }

    /// Selects by `settings` from now on.
    pub(crate) fn configure(&mut self, settings: &Log) {
        let key = std::mem::take(&mut self.key);
        *self = LineSelector { key, ..LineSelector::new(settings) };
    }

    /// The selection for a flow that begins.
    pub(crate) fn begin(&self, id: u128) -> Selection {
        let is_sampled = self.sample > NO_SAMPLING;
        let draw = if is_sampled { (self.key.hash_one(id) >> 32) as u32 } else { 0 };
        Selection { draw, sample: self.sample, closes: self.closes, has_line: false }
    }

    /// The factor of the decision line of a flow that begins; `None` if it gets none now.
    pub(crate) fn decision(&self, selection: &mut Selection) -> Option<u32> {
        let is_selected = self.decisions == LoggedDecisions::All && selection.is_sampled(self.sample);
        selection.has_line |= is_selected;
        is_selected.then_some(selection.sample)
    }

    /// Whether a flow without a decision line gets one once it is long.
    pub(crate) fn awaits_long(&self, selection: &Selection) -> bool {
        self.decisions == LoggedDecisions::DeniedAndLong && selection.is_in_sample()
    }

    /// For how long a flow has to last to be a long one.
    pub(crate) fn long(&self) -> Duration {
        self.long
    }

    /// The factor of the decision line of a flow that has become a long one.
    pub(crate) fn late_decision(&self, selection: &mut Selection) -> Option<u32> {
        let is_selected = self.decisions != LoggedDecisions::Denied && selection.is_sampled(self.sample);
        selection.has_line |= is_selected;
        is_selected.then_some(selection.sample)
    }

    /// The factor of the `close` line of a flow that lasted for `age`.
    ///
    /// # Errors
    /// It gets none. If it has got no line at all, this says by which setting.
    pub(crate) fn close(&self, mut selection: Selection, age: Duration) -> Result<u32, Option<LeftOutBy>> {
        let has_line = selection.has_line;
        let left_out_by = |setting| Err((!has_line).then_some(setting));
        let is_selected = match selection.closes.max(self.closes) {
            LoggedCloses::All => true,
            LoggedCloses::Long => age >= self.long,
            LoggedCloses::None => false,
        };
        if !is_selected {
            return left_out_by(LeftOutBy::Closes);
        }
        match selection.is_sampled(self.sample) {
            true => Ok(selection.sample),
            false => left_out_by(LeftOutBy::Sample),
        }
    }
}

impl Selection {
    /// Whether it is in the sample of any settings so far, `sample` being the current one.
    fn is_sampled(&mut self, sample: u32) -> bool {
        // A sample holds those of all greater factors, so one comparison decides for all settings.
        self.sample = self.sample.min(sample);
        self.is_in_sample()
    }

    fn is_in_sample(&self) -> bool {
        u64::from(self.draw) * u64::from(self.sample) <= u64::from(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(10);
    const SHORT: Duration = Duration::from_secs(9);

    fn settings(decisions: LoggedDecisions, closes: LoggedCloses, sample: u32) -> Log {
        Log { decisions, closes, sample, long: LONG, ..Log::default() }
    }

    /// The lines of a flow, with the settings of its beginning and of its end: for its beginning, for its
    /// having lasted for [`LONG`], for its end.
    fn lines(begin: &Log, end: &Log, age: Duration) -> String {
        let mut selector = LineSelector::new(begin);
        let mut selection = selector.begin(1);
        let mut lines = String::new();
        let mut add = |is_written: bool, letter| lines.push(if is_written { letter } else { '-' });
        let decision = selector.decision(&mut selection);
        add(decision.is_some(), 'd');
        let awaits_long = decision.is_none() && selector.awaits_long(&selection);
        selector.configure(end);
        let is_due = awaits_long && age >= selector.long();
        add(is_due && selector.late_decision(&mut selection).is_some(), 'l');
        add(selector.close(selection, age).is_ok(), 'c');
        lines
    }

    #[test]
    fn settings_give_a_flow_its_lines() {
        use LoggedCloses as Closes;
        use LoggedDecisions as Decisions;
        for (decisions, closes, short, long) in [
            (Decisions::All, Closes::All, "d-c", "d-c"),
            (Decisions::All, Closes::Long, "d--", "d-c"),
            (Decisions::All, Closes::None, "d--", "d--"),
            (Decisions::DeniedAndLong, Closes::All, "--c", "-lc"),
            (Decisions::DeniedAndLong, Closes::Long, "---", "-lc"),
            (Decisions::DeniedAndLong, Closes::None, "---", "-l-"),
            (Decisions::Denied, Closes::All, "--c", "--c"),
            (Decisions::Denied, Closes::Long, "---", "--c"),
            (Decisions::Denied, Closes::None, "---", "---"),
        ] {
            let settings = settings(decisions, closes, NO_SAMPLING);
            let both = (lines(&settings, &settings, SHORT), lines(&settings, &settings, LONG));
            assert_eq!(both, (short.into(), long.into()), "{decisions:?} {closes:?}");
        }
    }

    #[test]
    fn default_gives_every_flow_a_line() {
        let settings = Log::default();
        assert_eq!(lines(&settings, &settings, Duration::ZERO), "--c");
        assert_eq!(lines(&settings, &settings, settings.long), "-lc");
    }

    #[test]
    fn reload_takes_no_line_from_an_open_flow() {
        use LoggedCloses as Closes;
        use LoggedDecisions as Decisions;
        let all = settings(Decisions::All, Closes::All, NO_SAMPLING);
        let one_line = settings(Decisions::DeniedAndLong, Closes::All, NO_SAMPLING);
        let none = settings(Decisions::Denied, Closes::None, 1_000_000);
        assert_eq!(lines(&all, &none, LONG), "d-c");
        assert_eq!(lines(&one_line, &none, LONG), "--c", "the end alone, as the decision is due afterwards");
        assert_eq!(lines(&none, &one_line, LONG), "--c");
        assert_eq!(lines(&none, &all, SHORT), "--c");
        assert_eq!(lines(&one_line, &all, LONG), "-lc");
    }

    #[test]
    fn flow_without_a_line_names_the_setting() {
        let (decisions, long) = (LoggedDecisions::Denied, LoggedCloses::Long);
        let selector = LineSelector::new(&settings(decisions, long, NO_SAMPLING));
        assert_eq!(selector.close(selector.begin(1), SHORT), Err(Some(LeftOutBy::Closes)));
        assert_eq!(selector.close(selector.begin(1), LONG), Ok(NO_SAMPLING));
        let selector = LineSelector::new(&settings(decisions, LoggedCloses::All, 1_000_000));
        let unsampled = Selection { draw: u32::MAX, ..selector.begin(1) };
        assert_eq!(selector.close(unsampled, LONG), Err(Some(LeftOutBy::Sample)));
        let logged = Selection { has_line: true, ..unsampled };
        assert_eq!(selector.close(logged, LONG), Err(None));
    }

    #[test]
    fn sample_has_both_lines_of_a_flow() {
        const FLOWS: u128 = 40_000;
        let selector = LineSelector::new(&settings(LoggedDecisions::All, LoggedCloses::All, 10));
        let mut sum = 0;
        for id in 0..FLOWS {
            let mut selection = selector.begin(id);
            let decision = selector.decision(&mut selection);
            assert_eq!(decision, selector.close(selection, SHORT).ok());
            sum += decision.unwrap_or(0);
        }
        // 60 is the standard deviation of the number of lines.
        assert!(sum.abs_diff(FLOWS as u32) < 10 * 10 * 60, "{sum}");
    }

    #[test]
    fn sample_is_not_known_from_the_ids() {
        let settings = settings(LoggedDecisions::All, LoggedCloses::All, 2);
        let sample = |selector: &LineSelector| {
            (0..128_u128).map(|id| selector.begin(id).is_in_sample()).collect::<Vec<_>>()
        };
        let (mut first, second) = (LineSelector::new(&settings), LineSelector::new(&settings));
        assert_ne!(sample(&first), sample(&second), "each has its secret");
        let before = sample(&first);
        first.configure(&settings);
        assert_eq!(sample(&first), before, "a reload keeps the secret");
    }

    /// Of flows that are open while the factor changes, the lines estimate the number at any time.
    #[test]
    fn factor_of_a_line_is_the_inverse_of_its_probability() {
        const FLOWS: u128 = 40_000;
        for (begin, end, least) in [(10, 3, 3), (3, 10, 3), (1, 10, 1), (10, 1, 1)] {
            let of = |sample| settings(LoggedDecisions::All, LoggedCloses::All, sample);
            let mut selector = LineSelector::new(&of(begin));
            let mut selections: Vec<Selection> = (0..FLOWS).map(|id| selector.begin(id)).collect();
            let opened: u32 = selections.iter_mut().filter_map(|it| selector.decision(it)).sum();
            selector.configure(&of(end));
            let closed: Vec<u32> =
                selections.iter().filter_map(|it| selector.close(*it, SHORT).ok()).collect();
            assert!(closed.iter().all(|factor| *factor == least), "{begin} {end}");
            for sum in [opened, closed.iter().sum()] {
                assert!(sum.abs_diff(FLOWS as u32) < 10 * 10 * 60, "{begin} {end}: {sum}");
            }
            for selection in selections.iter().filter(|it| it.has_line) {
                assert!(selector.close(*selection, SHORT).is_ok(), "a decision line has its close line");
            }
        }
    }
}
