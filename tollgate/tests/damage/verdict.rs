//! The verdict on a case, given the output of its commands and the account.
//!
//! Guarantees: each outcome is one rule; a self-test checks the rules first.

use crate::account::{Account, Differences, Line};

/// The outcome of a case: the first three are correct.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub(crate) enum Outcome {
    /// The bill is that of the undamaged ledger.
    Right,
    /// A start was refused, with a message that names the cause.
    Refused,
    /// Something is missing or different, and that was reported.
    Reported,
    /// Something is missing or different, and that was not reported.
    Silent,
    /// It was reported at the start alone: `verify` and `usage` report a whole ledger.
    Blind,
    /// More was billed than was moved, or a flow twice.
    Over,
    /// `verify` reports a problem where there is none.
    FalseAlarm,
    /// A refusal without its cause, or without a remedy.
    Vague,
    /// A refusal, and `repair` finds nothing to repair, or the start is refused again after it.
    Untrue,
    /// A refusal or a query changed files.
    Changed,
    /// A command crashed.
    Crash,
    /// A command did not end.
    Stuck,
}

impl Outcome {
    pub(crate) const ALL: [Outcome; 12] = [
        Outcome::Right,
        Outcome::Refused,
        Outcome::Reported,
        Outcome::Silent,
        Outcome::Blind,
        Outcome::Over,
        Outcome::FalseAlarm,
        Outcome::Vague,
        Outcome::Untrue,
        Outcome::Changed,
        Outcome::Crash,
        Outcome::Stuck,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Outcome::Right => "right",
            Outcome::Refused => "refused",
            Outcome::Reported => "reported",
            Outcome::Silent => "SILENT",
            Outcome::Blind => "BLIND",
            Outcome::Over => "OVER",
            Outcome::FalseAlarm => "ALARM",
            Outcome::Vague => "VAGUE",
            Outcome::Untrue => "UNTRUE",
            Outcome::Changed => "CHANGED",
            Outcome::Crash => "CRASH",
            Outcome::Stuck => "STUCK",
        }
    }

    pub(crate) fn is_failure(self) -> bool {
        self > Outcome::Reported
    }
}

/// The evidence at a case's end.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    /// Faults on the way, which need no comparison.
    pub(crate) faults: Vec<(Outcome, String)>,
    /// A start was refused.
    pub(crate) is_refused: bool,
    /// A gateway served in the end: there is an account to compare.
    pub(crate) has_served: bool,
    /// Unusual messages of starts, stops and the log.
    pub(crate) messages: Vec<String>,
    /// Unusual final messages of `verify` and `usage`.
    pub(crate) final_messages: Vec<String>,
    /// The final `verify` found a problem.
    pub(crate) is_alarmed: bool,
    /// The damage is still in the files, or may be.
    pub(crate) remains: bool,
    /// `None` without an account.
    pub(crate) differences: Option<Differences>,
}

/// Messages that are printed.
const MESSAGES_SHOWN: usize = 4;

impl Evidence {
    /// The outcome, and the reason.
    pub(crate) fn verdict(&self) -> (Outcome, String) {
        let worst = self.faults.iter().map(|(outcome, _)| *outcome).max();
        let texts = self.faults.iter().map(|(outcome, text)| format!("{}: {text}", outcome.name()));
        let texts = texts.collect::<Vec<_>>().join("\n");
        let compared = self.compared();
        match (worst, compared) {
            (Some(outcome), _) if outcome >= Outcome::Crash => (outcome, texts),
            (_, Some((Outcome::Over, text))) => (Outcome::Over, text),
            (_, Some((outcome @ (Outcome::Silent | Outcome::Blind), text))) => (outcome, text),
            (Some(outcome), _) => (outcome, texts),
            (None, Some((outcome, text))) if outcome.is_failure() => (outcome, text),
            (None, Some((_, text))) if self.is_refused => (Outcome::Refused, text),
            (None, Some(compared)) => compared,
            (None, None) => (Outcome::Refused, String::new()),
        }
    }

    /// The outcome of the comparison alone.
    fn compared(&self) -> Option<(Outcome, String)> {
        if !self.has_served {
            return None;
        }
        let has_final_messages = self.is_alarmed || !self.final_messages.is_empty();
        let Some(differences) = &self.differences else {
            let outcome = if has_final_messages { Outcome::Reported } else { Outcome::Silent };
            return Some((outcome, "there is no account".to_owned()));
        };
        let text = differences.text();
        let outcome = if !differences.over.is_empty() {
            Outcome::Over
        } else if differences.is_empty() {
            let is_false = self.is_alarmed && !self.remains;
            if is_false { Outcome::FalseAlarm } else { Outcome::Right }
        } else if has_final_messages {
            Outcome::Reported
        } else if self.messages.is_empty() {
            Outcome::Silent
        } else {
            Outcome::Blind
        };
        let messages: Vec<&str> =
            self.messages.iter().chain(&self.final_messages).map(String::as_str).collect();
        let shown = messages[..messages.len().min(MESSAGES_SHOWN)].join("\n  ");
        Some((outcome, format!("{text}\n{} messages: {shown}", messages.len())))
    }
}

/// The judge's own test: each wrong account is found, and the right one is not.
pub(crate) fn run_self_test() {
    let line = Line { flows: 1, up: 100, down: 1_000, uncertain_up: 5, ..Line::default() };
    let account = |lines: &[Line]| {
        let named = lines.iter().enumerate().map(|(at, line)| (format!("127.1.0.{at}"), *line));
        Account::default().with(&named.collect::<Vec<_>>())
    };
    let expected = account(&[line, line]);
    let served = |found: &Account| Evidence {
        has_served: true,
        differences: Some(found.compare_with(&expected)),
        ..Evidence::default()
    };
    let check = |evidence: Evidence, expected_outcome: Outcome| {
        let (outcome, text) = evidence.verdict();
        assert_eq!(
            outcome, expected_outcome,
            "expected {expected_outcome:?}, got {outcome:?}: {text}, {evidence:?}"
        );
    };
    let short = account(&[line, Line { up: 99, ..line }]);
    let message = || vec!["something is lost".to_owned()];
    check(served(&expected), Outcome::Right);
    check(served(&account(&[line])), Outcome::Silent);
    check(served(&short), Outcome::Silent);
    check(served(&account(&[line, Line { flows: 0, live: 1, ..line }])), Outcome::Silent);
    check(served(&account(&[line, line, line])), Outcome::Silent);
    check(served(&Account { total: line, ..expected.clone() }), Outcome::Silent);
    check(Evidence { messages: message(), ..served(&short) }, Outcome::Blind);
    check(Evidence { final_messages: message(), ..served(&short) }, Outcome::Reported);
    check(Evidence { is_alarmed: true, ..served(&short) }, Outcome::Reported);
    check(Evidence { differences: None, ..served(&short) }, Outcome::Silent);
    check(Evidence { is_alarmed: true, ..served(&expected) }, Outcome::FalseAlarm);
    check(Evidence { is_alarmed: true, remains: true, ..served(&expected) }, Outcome::Right);
    check(served(&account(&[line, Line { up: 105, uncertain_up: 0, ..line }])), Outcome::Silent);
    for over in [Line { up: 106, ..line }, Line { down: 1_001, ..line }, Line { flows: 2, ..line }] {
        check(Evidence { final_messages: message(), ..served(&account(&[line, over])) }, Outcome::Over);
    }
    check(Evidence { is_refused: true, ..Evidence::default() }, Outcome::Refused);
    check(Evidence { is_refused: true, ..served(&expected) }, Outcome::Refused);
    check(Evidence { is_refused: true, ..served(&short) }, Outcome::Silent);
    let faults = vec![(Outcome::Vague, String::new()), (Outcome::Crash, String::new())];
    check(Evidence { faults, ..served(&expected) }, Outcome::Crash);
}
