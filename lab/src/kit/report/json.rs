//! The report as JSON: `experiment`, `machine`, `rows`, `verdicts`, and what was left out or skipped.
//!
//! Guarantees: each number of a row is an object of `median`, `min`, `max`, `runs` (how many) and `values`
//! (in the order of the runs), and `rounds` where these are not 0, 1, 2, ...; the machine's marks list the
//! contaminated runs. `subject` is the target of a row, `target` the threshold of a verdict: documents and
//! scripts read them by these names.

use serde_json::{Map, Value, json};

use super::Report;
use crate::kit::measurements::{Row, Skipped};
use crate::kit::statistics;
use crate::kit::verdict::Verdict;

/// The whole report as one document.
pub(crate) fn document(report: &Report) -> Value {
    let mut machine = report.machine.clone();
    machine.insert("contaminated_runs".to_owned(), Value::Array(contaminated(&report.rows)));
    machine.insert("warnings".to_owned(), json!(report.warnings));
    json!({
        "experiment": report.presentation.experiment,
        "machine": machine,
        "rows": report.rows.iter().map(row).collect::<Vec<_>>(),
        "verdicts": report.verdicts.iter().map(|verdict| judged(verdict, report)).collect::<Vec<_>>(),
        "left_out": report.left_out.iter().map(skipped).collect::<Vec<_>>(),
        "skipped": report.skipped.iter().map(skipped).collect::<Vec<_>>(),
    })
}

fn row(row: &Row) -> Value {
    let mut object = Map::new();
    object.insert("case".to_owned(), json!(row.case()));
    object.insert("part".to_owned(), json!(row.part));
    object.insert("subject".to_owned(), json!(row.target));
    for name in row.names() {
        let values = row.series(name);
        let Some(summary) = statistics::summary(&values) else { continue };
        let mut number = json!({
            "median": summary.median,
            "min": summary.min,
            "max": summary.max,
            "runs": summary.runs,
            "values": values,
        });
        let rounds: Vec<usize> = row.samples(name).into_iter().map(|(round, _)| round).collect();
        if !rounds.iter().copied().eq(0..rounds.len()) {
            number["rounds"] = json!(rounds);
        }
        object.insert(name.to_owned(), number);
    }
    Value::Object(object)
}

fn judged(verdict: &Verdict, report: &Report) -> Value {
    json!({
        "name": verdict.name,
        "label": report.presentation.verdict_label(verdict.name),
        "value": verdict.value,
        "interval": verdict.interval.map(|range| [range.low, range.high]),
        "interval_coverage": verdict.interval.map(|range| range.coverage),
        "target": verdict.threshold.to_string(),
        "result": verdict.outcome.as_str(),
        "note": verdict.note,
    })
}

fn skipped(skipped: &Skipped) -> Value {
    json!({ "name": skipped.name, "reason": skipped.reason })
}

fn contaminated(rows: &[Row]) -> Vec<Value> {
    let marked = |row: &Row| {
        let case = row.case();
        let runs = row.runs.iter().filter(|run| !run.marks.is_empty());
        runs.map(|run| json!({ "case": case, "round": run.round, "marks": run.marks })).collect::<Vec<_>>()
    };
    rows.iter().flat_map(marked).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    #[test]
    fn document_has_the_agreed_shape() {
        let number = |median: f64, min: f64, max: f64, values: &[f64]| {
            let runs = values.len();
            json!({ "median": median, "min": min, "max": max, "runs": runs, "values": values })
        };
        let document = document(&sample());
        assert_eq!(document["experiment"], "sample");
        assert_eq!(document["machine"]["cpus"], 2);
        let expected = json!({
            "case": "short/haproxy",
            "part": "short",
            "subject": "haproxy",
            "connections_per_s": number(11_527.5, 11_000.0, 12_055.0, &[12_055.0, 11_000.0]),
            "process_cpu_us_per_connection": number(80.9, 79.8, 82.0, &[79.8, 82.0]),
        });
        assert_eq!(document["rows"][1], expected);
    }

    #[test]
    fn rounds_are_listed_where_some_are_missing() {
        let mut report = sample();
        report.rows[1].runs[1].round = 4;
        let rows = &document(&report)["rows"];
        assert_eq!(rows[0]["connections_per_s"].get("rounds"), None);
        assert_eq!(rows[1]["connections_per_s"]["rounds"], json!([0, 4]));
    }

    #[test]
    fn document_has_verdicts_and_marks() {
        let document = document(&sample());
        let expected = json!({
            "name": "short-cpu",
            "label": "less CPU time than HAProxy",
            "value": 0.75,
            "interval": null,
            "interval_coverage": null,
            "target": "<= 1.00",
            "result": "undecided",
            "note": "fewer than 5 pairs",
        });
        assert_eq!(document["verdicts"], json!([expected]));
        let mark = json!([{ "case": "short/tollgate", "round": 1, "marks": ["busy <others>"] }]);
        assert_eq!(document["machine"]["contaminated_runs"], mark);
        assert_eq!(document["left_out"], json!([{ "name": "growth", "reason": "not yet" }]));
        assert_eq!(document["skipped"], json!([{ "name": "nginx", "reason": "it is not installed" }]));
    }
}
