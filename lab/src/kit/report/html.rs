//! The report as one self-contained HTML page: verdicts, plots, tables, the machine.
//! Promises: it needs nothing but itself, in light and in dark. Leaves to others: the drawing (`plot.rs`).

use std::fmt::Write;

use serde_json::Value;

use super::plot::{self, Lane, Line, escape};
use super::{Report, TARGETS_ACROSS_MAX, counted, digits, names_of};
use crate::kit::measurements::{Row, Run};
use crate::kit::statistics;
use crate::kit::verdict::Verdict;

const STYLE: &str = include_str!("page.css");

/// The whole report as one page.
pub(crate) fn page(report: &Report) -> String {
    let name = escape(report.experiment);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>lab {name}</title>\
         <style>{STYLE}</style></head><body><h1>lab {name}</h1>"
    );
    page.push_str(&notices(report));
    page.push_str("<h2>Verdicts</h2>");
    page.push_str(&verdicts(&report.verdicts));
    for left_out in &report.left_out {
        let _ = write!(page, "<p>Left out {}: {}.</p>", escape(&left_out.name), escape(&left_out.reason));
    }
    for (part, rows) in report.parts() {
        let _ = write!(page, "<h2>{}</h2>{}", escape(part), part_table(&rows));
        names_of(&rows).into_iter().for_each(|name| page.push_str(&part_plot(name, &rows)));
    }
    page.push_str(&counted_plots(report));
    page.push_str("<h2>Machine</h2>");
    page.push_str(&machine(report));
    page.push_str("</body></html>\n");
    page
}

fn notices(report: &Report) -> String {
    let mut text = String::new();
    for warning in &report.warnings {
        let _ = write!(text, "<p class=\"fails\">{}</p>", escape(warning));
    }
    for skipped in &report.skipped {
        let _ = write!(text, "<p>Skipped {}: {}.</p>", escape(&skipped.name), escape(&skipped.reason));
    }
    let runs = || report.rows.iter().flat_map(|row| &row.runs);
    let contaminated = runs().filter(|run| !run.marks.is_empty()).count();
    let _ = write!(
        text,
        "<p>{} runs, {contaminated} of them contaminated (hollow dots; verdicts do not use them).</p>",
        runs().count()
    );
    text
}

fn verdicts(verdicts: &[Verdict]) -> String {
    let mut text = String::from(
        "<table><tr><th>promise</th><th>value</th><th>interval</th><th>target</th><th>result</th>\
         <th class=\"note\">compared</th></tr>",
    );
    for verdict in verdicts {
        let interval = verdict
            .interval
            .map_or_else(String::new, |range| format!("{} to {}", digits(range.low), digits(range.high)));
        let result = verdict.outcome.as_str();
        let _ = write!(
            text,
            "<tr><td>{}</td><td>{}</td><td>{interval}</td><td>{}</td><td class=\"{result}\">{result}</td>\
             <td class=\"note\">{}</td></tr>",
            escape(verdict.name),
            digits(verdict.value),
            escape(&verdict.threshold.to_string()),
            escape(&verdict.note)
        );
    }
    text + "</table>"
}

/// Subjects across and numbers down, or the other way where there are too many subjects.
fn part_table(rows: &[&Row]) -> String {
    let names = names_of(rows);
    let cell = |row: &Row, name: &str| {
        let text = statistics::summary(&row.series(name)).map(|summary| {
            let [median, min, max] = [summary.median, summary.min, summary.max].map(digits);
            if summary.min == summary.max { median } else { format!("{median} [{min}, {max}]") }
        });
        format!("<td>{}</td>", text.unwrap_or_default())
    };
    let line = |head: &str, cells: String| format!("<tr><td>{}</td>{cells}</tr>", escape(head));
    let heads = |heads: Vec<&str>| {
        heads.into_iter().map(|head| format!("<th>{}</th>", escape(head))).collect::<String>()
    };
    let (heads, lines): (String, String) = if rows.len() > TARGETS_ACROSS_MAX {
        let cells = |row: &Row| names.iter().map(|name| cell(row, name)).collect();
        (heads(names.clone()), rows.iter().map(|row| line(&row.target, cells(row))).collect())
    } else {
        let cells = |name: &str| rows.iter().map(|row| cell(row, name)).collect();
        let targets = rows.iter().map(|row| row.target.as_str()).collect();
        (heads(targets), names.iter().map(|name| line(name, cells(name))).collect())
    };
    format!("<table><tr><th>median [min, max]</th>{heads}</tr>{lines}</table>")
}

/// A strip plot, unless all of it is one value.
fn part_plot(name: &str, rows: &[&Row]) -> String {
    let lane = |row: &&'_ Row| {
        let value = |run: &Run| Some((run.number(name)?, !run.marks.is_empty()));
        let runs: Vec<(f64, bool)> = row.runs.iter().filter_map(value).collect();
        row.median(name).map(|median| (row.target.clone(), runs, median))
    };
    let lanes: Vec<_> = rows.iter().filter_map(lane).collect();
    let mut values = lanes.iter().flat_map(|lane| &lane.1).map(|run| run.0);
    let first = values.next();
    if values.all(|value| Some(value) == first) {
        return String::new();
    }
    let lanes: Vec<Lane<'_>> = lanes
        .iter()
        .map(|(target, runs, median)| Lane { target, runs: runs.clone(), median: *median })
        .collect();
    plot::strips(&name.replace('_', " "), &lanes)
}

/// Parts whose names end in a count, `idle-1000`, `idle-5000`, are also drawn over that count.
fn counted_plots(report: &Report) -> String {
    let mut families: Vec<(&str, &'static str)> = Vec::new();
    for row in &report.rows {
        let Some((family, _)) = counted(row.part) else { continue };
        for name in row.names() {
            if !families.contains(&(family, name)) && !row.series(name).iter().all(|&value| value == 0.0) {
                families.push((family, name));
            }
        }
    }
    let mut text = String::new();
    for (family, name) in families {
        let title = format!("{family}: {} over the count", name.replace('_', " "));
        text.push_str(&plot::lines(&title, &counted_lines(report, family, name)));
    }
    text
}

fn counted_lines<'a>(report: &'a Report, family: &str, name: &str) -> Vec<Line<'a>> {
    let mut lines: Vec<Line<'a>> = Vec::new();
    for row in &report.rows {
        let Some((_, count)) = counted(row.part).filter(|part| part.0 == family) else { continue };
        let Some(median) = row.median(name) else { continue };
        match lines.iter_mut().find(|line| line.target == row.target) {
            Some(line) => line.points.push((count, median)),
            None => lines.push(Line { target: &row.target, points: vec![(count, median)] }),
        }
    }
    lines
}

fn machine(report: &Report) -> String {
    let mut text = String::from("<table>");
    for (name, value) in &report.machine {
        let value = match value {
            Value::String(value) => value.clone(),
            Value::Object(fields) => {
                fields.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
            }
            value => value.to_string(),
        };
        let _ = write!(text, "<tr><td>{}</td><td class=\"note\">{}</td></tr>", escape(name), escape(&value));
    }
    text + "</table>"
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    #[test]
    fn the_page_holds_everything_and_needs_nothing() {
        let page = page(&sample());
        for expected in ["short-cpu", "undecided", "Left out growth", "an unoptimised build", "79.8", "<svg"]
        {
            assert!(page.contains(expected), "{expected:?} is missing");
        }
        for foreign in ["http:", "https:", "src=", "<script", "@import", "url("] {
            assert!(!page.contains(foreign), "{foreign:?} would need something from elsewhere");
        }
    }

    #[test]
    fn many_subjects_have_a_line_each() {
        let report = sample();
        let row = &report.rows[0];
        let few = part_table(&[row, row]);
        assert!(few.contains("<th>tollgate</th><th>tollgate</th>"), "{few}");
        assert!(few.contains("<tr><td>connections_per_s</td><td>13,000 [12,000, 14,000]</td>"), "{few}");
        let single = Row { runs: row.runs[..1].to_vec(), ..row.clone() };
        let once = part_table(&[&single]);
        assert!(once.contains("<tr><td>connections_per_s</td><td>14,000</td>"), "{once}");
        assert_eq!(part_plot("connections_per_s", &[&single, &single]), "");
        let many = part_table(&[row; TARGETS_ACROSS_MAX + 1]);
        assert!(many.contains("<th>connections_per_s</th>"), "{many}");
        assert!(many.contains("<tr><td>tollgate</td><td>13,000 [12,000, 14,000]</td>"), "{many}");
    }

    #[test]
    fn parts_with_a_count_become_lines() {
        let mut report = sample();
        report.rows[0].part = "idle-1000";
        report.rows[1].part = "idle-5000";
        report.rows[1].target = "tollgate".to_owned();
        let lines = counted_lines(&report, "idle", "connections_per_s");
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0].points, [(1_000.0, 13_000.0), (5_000.0, 11_527.5)]);
        assert!(page(&report).contains("idle: connections per s over the count"));
    }
}
