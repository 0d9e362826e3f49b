//! Reads a report back from its JSON, so that its page and its plot can be drawn without measuring.
//!
//! Guarantees: every number, verdict and reason is as it was written.
//! Not handled here: the rounds of runs in documents that list none; these are numbered by their order.

use anyhow::{Context, Result};
use serde_json::{Map, Value};

use super::Report;
use crate::kit::measurements::{Row, Run, Skipped};
use crate::kit::presentation::Presentation;
use crate::kit::statistics::Interval;
use crate::kit::verdict::{Outcome, Threshold, Verdict};

/// What a row has besides numbers.
const NAMES: [&str; 3] = ["case", "part", "subject"];

/// The report in a document.
///
/// # Errors
/// The document is no report of this experiment.
pub(crate) fn read(document: &Value, presentation: &'static Presentation) -> Result<Report> {
    let mut machine = document["machine"].as_object().cloned().context("it has no `machine`")?;
    let marks = machine.remove("contaminated_runs").unwrap_or_default();
    let warnings = machine.remove("warnings").unwrap_or_default();
    let mut rows: Vec<Row> =
        list_field(document, "rows")?.iter().map(|row| read_row(row, presentation)).collect::<Result<_>>()?;
    for mark in marks.as_array().into_iter().flatten() {
        add_mark(&mut rows, mark);
    }
    Ok(Report {
        rows,
        verdicts: list_field(document, "verdicts")?.iter().map(read_verdict).collect::<Result<_>>()?,
        left_out: list_field(document, "left_out")?.iter().map(read_skipped).collect::<Result<_>>()?,
        skipped: list_field(document, "skipped")?.iter().map(read_skipped).collect::<Result<_>>()?,
        warnings: texts(&warnings),
        ..Report::new(presentation, machine)
    })
}

fn list_field<'a>(object: &'a Value, name: &str) -> Result<&'a Vec<Value>> {
    object[name].as_array().with_context(|| format!("it has no list `{name}`"))
}

fn text_field<'a>(object: &'a Value, name: &str) -> Result<&'a str> {
    object[name].as_str().with_context(|| format!("`{name}` is missing in {object}"))
}

fn number_field(object: &Value, name: &str) -> Result<f64> {
    object[name].as_f64().with_context(|| format!("the number `{name}` is missing in {object}"))
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// A name as reports have it. It lives as long as the program, which reads one document.
fn name(text: &str) -> &'static str {
    String::leak(text.to_owned())
}

fn read_row(row: &Value, presentation: &Presentation) -> Result<Row> {
    let numbers = in_order(row.as_object().context("a row is no object")?, presentation);
    // The number that most runs have holds the order of the runs.
    let order = numbers.iter().map(|number| rounds(number.1)).max_by_key(Vec::len).unwrap_or_default();
    let empty = |round| Run { round, marks: Vec::new(), numbers: Vec::new() };
    let mut runs: Vec<Run> = order.into_iter().map(empty).collect();
    for (number, summary) in numbers {
        let (number, values) = (name(number), list_field(summary, "values")?);
        for (round, value) in rounds(summary).into_iter().zip(values) {
            let value = value.as_f64().with_context(|| format!("{value} of {number} is no number"))?;
            let run = runs.iter_mut().find(|run| run.round == round);
            run.with_context(|| format!("a round of {number} is in no other number"))?
                .numbers
                .push((number, value));
        }
    }
    Ok(Row { part: name(text_field(row, "part")?), target: text_field(row, "subject")?.to_owned(), runs })
}

/// The round of each value of a number.
fn rounds(summary: &Value) -> Vec<usize> {
    let listed = summary["rounds"].as_array();
    let listed =
        listed.map(|rounds| rounds.iter().filter_map(|round| Some(round.as_u64()? as usize)).collect());
    listed.unwrap_or_else(|| (0..summary["values"].as_array().map_or(0, Vec::len)).collect())
}

/// The numbers of a row in the order of tables.
fn in_order<'a>(fields: &'a Map<String, Value>, presentation: &Presentation) -> Vec<(&'a String, &'a Value)> {
    let mut numbers: Vec<_> = fields.iter().filter(|field| !NAMES.contains(&field.0.as_str())).collect();
    numbers.sort_by_key(|number| presentation.number_position(number.0));
    numbers
}

fn add_mark(rows: &mut [Row], mark: &Value) {
    let Some(row) = rows.iter_mut().find(|row| mark["case"] == row.case().as_str()) else { return };
    let Some(run) = row.runs.iter_mut().find(|run| mark["round"] == run.round) else { return };
    run.marks = texts(&mark["marks"]);
}

fn read_verdict(verdict: &Value) -> Result<Verdict> {
    let interval = match (verdict["interval"].as_array(), verdict["interval_coverage"].as_f64()) {
        (Some(ends), Some(coverage)) => {
            let end = |index: usize| ends.get(index).and_then(Value::as_f64);
            let (low, high) = end(0).zip(end(1)).with_context(|| format!("an interval of {verdict}"))?;
            Some(Interval { low, high, coverage })
        }
        _ => None,
    };
    let result = text_field(verdict, "result")?;
    let outcome = Outcome::ALL.into_iter().find(|outcome| outcome.as_str() == result);
    Ok(Verdict {
        name: name(text_field(verdict, "name")?),
        value: number_field(verdict, "value")?,
        interval,
        threshold: Threshold::parse(text_field(verdict, "target")?)
            .with_context(|| format!("in {verdict}"))?,
        outcome: outcome.with_context(|| format!("no verdict has the result {result:?}"))?,
        note: text_field(verdict, "note")?.to_owned(),
    })
}

fn read_skipped(skipped: &Value) -> Result<Skipped> {
    let (name, reason) = (text_field(skipped, "name")?, text_field(skipped, "reason")?);
    Ok(Skipped { name: name.to_owned(), reason: reason.to_owned() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{document, page, print, tests::sample};
    use super::*;
    use crate::kit::presentation::tests::SAMPLE;

    #[test]
    fn report_survives_its_document() {
        let mut report = sample();
        report.rows[1].runs[1].round = 7;
        report.rows[1].runs[1].marks = vec!["busy".to_owned()];
        report.verdicts[0].interval = Some(Interval { low: 0.5, high: 0.8, coverage: 0.95 });
        let written = document(&report);
        let again = read(&written, &SAMPLE).expect("the document is a report");
        assert_eq!(document(&again), written);
        assert_eq!(print(&again), print(&report));
        assert_eq!(page(&again), page(&report));
    }

    #[test]
    fn other_document_is_refused_with_the_reason() {
        let refused = |document: Value| {
            format!("{:#}", read(&document, &SAMPLE).expect_err("the document is not a report"))
        };
        assert_eq!(refused(json!({})), "it has no `machine`");
        let mut written = document(&sample());
        written["verdicts"][0]["result"] = json!("maybe");
        assert_eq!(refused(written.clone()), "no verdict has the result \"maybe\"");
        written["rows"][0]["part"] = json!(7);
        assert!(refused(written).starts_with("`part` is missing in "));
    }
}
