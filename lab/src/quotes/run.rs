//! The values of a run that marks name.

use super::mark::{Cell, Mark, Source, Statistic};
use super::number;
use crate::kit::report::Report;
use crate::kit::statistics;
use crate::kit::verdict::{Threshold, Verdict, paired_ratios};

/// What a run says about a mark.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    /// A number in the unit of the mark, and its spread.
    Number { median: f64, spread: Option<[f64; 2]> },
    /// A fact in words, such as a version.
    Words(String),
}

/// The value that a mark names.
///
/// # Errors
/// The run has none of this name.
pub(super) fn answer(report: &Report, mark: &Mark) -> Result<Answer, String> {
    let missing = |what: &str, name: &str| format!("the run has no {what} `{name}`");
    let verdict = |name: &str| {
        let verdict = report.verdicts.iter().find(|verdict| verdict.name == name);
        verdict.ok_or_else(|| missing("verdict", name))
    };
    let runs = || report.rows.iter().flat_map(|row| &row.runs);
    let factor = mark.unit.factor();
    let (median, spread) = match &mark.source {
        Source::Verdict(name) => judged(verdict(name)?),
        Source::Aim(name) => match verdict(name)?.threshold {
            Threshold::AtMost(bound) | Threshold::AtLeast(bound) => (bound, None),
        },
        Source::Machine(name) => {
            let fact = report.machine.get(name).ok_or_else(|| missing("fact", name))?;
            match (fact.as_f64(), fact.as_str()) {
                (Some(number), _) => (number, None),
                (None, Some(words)) => return Ok(Answer::Words(words.to_owned())),
                _ => return Err(missing("fact", name)),
            }
        }
        Source::Results => (runs().count() as f64, None),
        Source::Disturbed => (runs().filter(|run| !run.marks.is_empty()).count() as f64, None),
        Source::Cell(cell) => measured(report, cell)?,
        Source::Run(_) | Source::Verdicts | Source::Given => {
            return Err("this mark names no figure".to_owned());
        }
    };
    let spread = spread.map(|spread| spread.map(|value| value * factor));
    Ok(Answer::Number { median: median * factor, spread })
}

type Measured = (f64, Option<[f64; 2]>);

fn judged(verdict: &Verdict) -> Measured {
    (verdict.value, verdict.interval.map(|range| [range.low, range.high]))
}

fn measured(report: &Report, cell: &Cell) -> Result<Measured, String> {
    let Cell { part: Some(part), target: Some(target), number: Some(number), .. } = cell else {
        return Err("the mark names no number of a case".to_owned());
    };
    let row = |part: &str, target: &str| {
        report.row(part, target).ok_or_else(|| format!("the run has no case `{part}/{target}`"))
    };
    let missing = || format!("the run has no `{number}` of `{part}/{target}`");
    let ours = row(part, target)?;
    if let Some((part, target)) = &cell.beside {
        let ratios = paired_ratios(ours, row(part, target)?, number);
        // Its interval is that of every verdict; the threshold decides nothing here.
        let ratio = Verdict::on_median("ratio", Threshold::AtMost(1.0), &ratios, "");
        return ratio.map(|ratio| judged(&ratio)).ok_or_else(missing);
    }
    let summary = statistics::summary(&ours.series(number)).ok_or_else(missing)?;
    Ok(match cell.statistic {
        None => (summary.median, Some([summary.min, summary.max])),
        Some(Statistic::Least) => (summary.min, None),
        Some(Statistic::Greatest) => (summary.max, None),
        Some(Statistic::Runs) => (summary.runs as f64, None),
    })
}

/// Whether a number is that of a version in the record of the run: `2.6` for `HAProxy version 2.6.12`.
pub(super) fn is_version(report: &Report, number: &str) -> bool {
    let versions = report.machine.iter().filter(|fact| fact.0.ends_with("_version"));
    number.contains('.')
        && versions.filter_map(|version| version.1.as_str()).any(|version| names_version(version, number))
}

/// Whether a fact in words has a version that begins with this number.
pub(super) fn names_version(words: &str, number: &str) -> bool {
    number::versions_within(words).iter().any(|version| {
        version.strip_prefix(number).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

/// The table of all verdicts of a run.
pub(super) fn verdict_table(report: &Report) -> String {
    let claim = |name: &str| report.presentation.verdict_label(name).unwrap_or_default().to_owned();
    let judged = report.verdicts.iter().map(|verdict| {
        let value = number::rendered_to_three_digits(verdict.value);
        let spread = verdict.interval.filter(|range| range.low != range.high).map(|range| {
            let [low, high] = [range.low, range.high].map(number::rendered_to_three_digits);
            format!(" [{low}-{high}]")
        });
        let spread = spread.unwrap_or_default();
        format!("| {} | {value}{spread} | {} |\n", claim(verdict.name), verdict.outcome.as_str())
    });
    let left_out = report.left_out.iter().map(|it| format!("| {} | | not measured |\n", claim(&it.name)));
    "| claim | measured | result |\n|---|---|---|\n".to_owned() + &judged.chain(left_out).collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::report::tests::sample;

    fn of(text: &str) -> Result<Answer, String> {
        let mut report = sample();
        report.machine.insert("haproxy_version".to_owned(), "HAProxy version 2.6.12-1".into());
        answer(&report, &Mark::parse(text).expect("the mark is valid"))
    }

    #[test]
    fn marks_name_values_of_the_run() {
        let check = |text: &str, median: f64, spread: Option<[f64; 2]>| {
            assert_eq!(of(text), Ok(Answer::Number { median, spread }), "{text}");
        };
        check("short/tollgate connections_per_s", 13_000.0, Some([12_000.0, 14_000.0]));
        check("short/tollgate connections_per_s, thousands", 13.0, Some([12.0, 14.0]));
        check("short/tollgate connections_per_s max", 14_000.0, None);
        check("short/tollgate connections_per_s min", 12_000.0, None);
        check("short/tollgate connections_per_s runs", 2.0, None);
        check("short/haproxy beside short/haproxy connections_per_s", 1.0, None);
        check("verdict short-cpu", 0.75, None);
        check("verdict short-cpu, percent", 75.0, None);
        check("aim short-cpu", 1.0, None);
        check("machine cpus", 2.0, None);
        check("results", 4.0, None);
        check("disturbed", 1.0, None);
        assert_eq!(of("machine haproxy_version"), Ok(Answer::Words("HAProxy version 2.6.12-1".to_owned())));
    }

    #[test]
    fn unknown_names_have_no_value() {
        for text in [
            "short/squid connections_per_s",
            "short/tollgate no_such_number",
            "verdict none",
            "machine none",
            "given",
        ] {
            assert!(of(text).is_err(), "{text}");
        }
    }

    #[test]
    fn version_begins_with_the_number() {
        let check = |number, expected| {
            assert_eq!(names_version("HAProxy version 2.6.12-1+deb", number), expected, "{number}");
        };
        check("2.6", true);
        check("2.6.12", true);
        check("2.6.1", false);
        check("6.12", false);
    }

    #[test]
    fn verdicts_are_listed_with_their_results() {
        let expected = "\
| claim | measured | result |
|---|---|---|
| less CPU time than HAProxy | 0.750 | undecided |
|  | | not measured |
";
        assert_eq!(verdict_table(&sample()), expected);
    }
}
