//! The verdict on a case, given what was said and what the account came to.
//!
//! Promises: each outcome is one rule; the judge is tested before it judges. Leaves to others: what was said
//! (`case`), and what differs (`account`).

use crate::account::{Account, Differences, Line};

/// What a case came to: the first three are as it should be.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub(crate) enum Outcome {
    /// The bill is what it would have been.
    Right,
    /// A start was refused, and said what is the matter.
    Refused,
    /// Something is missing or other, and that was said.
    Reported,
    /// Something is missing or other, and nobody said so.
    Silent,
    /// It was said at the start alone: `verify` and `usage` take the ledger for whole.
    Blind,
    /// More was billed than was moved, or something twice.
    Over,
    /// `verify` says that something is wrong, and nothing is.
    FalseAlarm,
    /// A refusal that does not say what is the matter, or what to do.
    Vague,
    /// A refusal, and `repair` says that nothing is to be repaired, or what it repaired is refused again.
    Untrue,
    /// A refusal that changed files, or a question that did.
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
            Outcome::Reported => "told",
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

/// What is known at a case's end.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    /// What went wrong on the way, and needs no comparison.
    pub(crate) faults: Vec<(Outcome, String)>,
    /// A start was refused.
    pub(crate) is_refused: bool,
    /// A gateway served in the end: there is something to compare.
    pub(crate) has_served: bool,
    /// What starts, stops and the log said beyond what they always say.
    pub(crate) messages: Vec<String>,
    /// What `verify` and `usage` said, in the end, beyond what they always say.
    pub(crate) final_messages: Vec<String>,
    /// `verify` found, in the end, that something is wrong.
    pub(crate) is_alarmed: bool,
    /// What was damaged is damaged still, or may be.
    pub(crate) remains: bool,
    /// None if there was no account.
    pub(crate) differences: Option<Differences>,
}

/// Lines that are printed of what was told.
const MESSAGES_SHOWN: usize = 4;

impl Evidence {
    /// The outcome, and why.
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

    /// What the comparison alone says.
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
        Some((outcome, format!("{text}\n{} lines told: {shown}", messages.len())))
    }
}

/// The judge's own test: each lie is found, and the truth is not.
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
            "the judge is to say {expected_outcome:?}: {text}, {evidence:?}"
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
