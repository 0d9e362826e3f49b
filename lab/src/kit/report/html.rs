//! The report as one self-contained HTML page: the claim with its plot, then verdicts, tables and all plots.
//!
//! Guarantees: the page loads nothing, and reads in light and in dark.

use std::fmt::Write;

use serde_json::Value;

use super::{Report, TARGETS_ACROSS_MAX, names_of};
use crate::kit::markup::{digits, escape};
use crate::kit::measurements::{Row, Skipped};
use crate::kit::plot::{self, Figure, Panel, Scale};
use crate::kit::presentation::{Presentation, counted};
use crate::kit::statistics;
use crate::kit::verdict::Verdict;

const STYLE: &str = include_str!("page.css");

/// The whole report as one page.
pub(crate) fn page(report: &Report) -> String {
    let title = format!("lab {}", escape(report.presentation.experiment));
    let plot_style = plot::STYLE;
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\
         <style>{STYLE}{plot_style}</style></head><body><h1>{title}</h1>"
    );
    let _ = write!(page, "<p class=\"claim\">{}</p>", escape(report.presentation.claim));
    if let Some(figure) = report.figure() {
        page.push_str(&figure.inline("main"));
    }
    page.push_str(&notices(report));
    page.push_str("<h2>Verdicts</h2>");
    page.push_str(&verdicts(report));
    page.push_str("<h2>What was measured</h2>");
    page.push_str(&targets(report));
    let mut plots = Plots { drawn: 0, presentation: report.presentation };
    for (part, rows) in report.parts() {
        let heading = heading(&report.presentation.part_label(part), part);
        let _ = write!(page, "<h2>{heading}</h2>{}", part_table(report.presentation, &rows));
        page.push_str(&plots.strips(&rows));
    }
    page.push_str(&plots.over_counts(report));
    page.push_str("<h2>Machine</h2>");
    page.push_str(&machine(report));
    page.push_str("</body></html>\n");
    page
}

/// Plain words, and the name that the command line, the JSON and the documents use.
fn heading(words: &str, name: &str) -> String {
    let space = if words.is_empty() { "" } else { " " };
    format!("{}{space}<code>{}</code>", escape(words), escape(name))
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
        "<p>{} runs, {contaminated} of them contaminated by other work on the machine (hollow dots; \
         verdicts do not use them).</p>",
        runs().count()
    );
    text
}

fn verdicts(report: &Report) -> String {
    let presentation = report.presentation;
    let mut text = String::from(
        "<p>A verdict holds or fails where the whole interval lies on one side of the threshold, and is \
         undecided otherwise.</p>",
    );
    if !report.verdicts.is_empty() {
        let rows: String = report.verdicts.iter().map(|it| verdict(it, presentation)).collect();
        let _ = write!(
            text,
            "<table><tr><th>verdict</th><th>value</th><th>interval</th><th>threshold</th><th>result</th>\
             <th class=\"note\">compared</th></tr>{rows}</table>"
        );
    }
    if !report.left_out.is_empty() {
        let rows: String = report.left_out.iter().map(|it| left_out(it, presentation)).collect();
        let _ = write!(text, "<table><tr><th>left out</th><th class=\"note\">reason</th></tr>{rows}</table>");
    }
    text
}

fn left_out(left_out: &Skipped, presentation: &Presentation) -> String {
    let words = presentation.verdict_label(&left_out.name).unwrap_or_default();
    let (heading, reason) = (heading(words, &left_out.name), escape(&left_out.reason));
    format!("<tr><td>{heading}</td><td class=\"note\">{reason}</td></tr>")
}

fn verdict(verdict: &Verdict, presentation: &Presentation) -> String {
    let interval = verdict
        .interval
        .map_or_else(String::new, |range| format!("{} to {}", digits(range.low), digits(range.high)));
    let words = presentation.verdict_label(verdict.name).unwrap_or_default();
    format!(
        "<tr><td>{}</td><td>{}</td><td>{interval}</td><td>{}</td><td class=\"{result}\">{result}</td>\
         <td class=\"note\">{}</td></tr>",
        heading(words, verdict.name),
        digits(verdict.value),
        escape(&verdict.threshold.to_string()),
        escape(&verdict.note),
        result = verdict.outcome.as_str(),
    )
}

/// The targets of all rows in words.
fn targets(report: &Report) -> String {
    let mut names: Vec<&str> = Vec::new();
    for row in &report.rows {
        if !names.contains(&row.target.as_str()) {
            names.push(&row.target);
        }
    }
    let line = |name: &&str| {
        let words = report.presentation.target_label(name)?;
        Some(format!(
            "<tr><td><code>{}</code></td><td class=\"note\">{}</td></tr>",
            escape(name),
            escape(&words)
        ))
    };
    format!("<table>{}</table>", names.iter().filter_map(line).collect::<String>())
}

/// Targets across and numbers down, or the other way where there are too many targets.
fn part_table(presentation: &Presentation, rows: &[&Row]) -> String {
    let names = names_of(presentation, rows);
    let cell = |row: &Row, name: &str| {
        let text = statistics::summary(&row.series(name)).map(|summary| {
            let [median, min, max] = [summary.median, summary.min, summary.max].map(digits);
            if summary.min == summary.max { median } else { format!("{median} [{min}, {max}]") }
        });
        format!("<td>{}</td>", text.unwrap_or_default())
    };
    let line = |head: &str, cells: String| format!("<tr><td>{head}</td>{cells}</tr>");
    let heads = |heads: Vec<String>| heads.iter().map(|head| format!("<th>{head}</th>")).collect::<String>();
    let number = |name: &&str| heading(&presentation.number_label(name), name);
    let (heads, lines): (String, String) = if rows.len() > TARGETS_ACROSS_MAX {
        let cells = |row: &Row| names.iter().map(|name| cell(row, name)).collect();
        let lines = rows.iter().map(|row| line(&escape(&row.target), cells(row))).collect();
        (heads(names.iter().map(number).collect()), lines)
    } else {
        let cells = |name: &str| rows.iter().map(|row| cell(row, name)).collect();
        let targets = rows.iter().map(|row| escape(&row.target)).collect();
        (heads(targets), names.iter().map(|name| line(&number(name), cells(name))).collect())
    };
    format!("<table><tr><th>median [min, max]</th>{heads}</tr>{lines}</table>")
}

/// The plots behind the main one; each needs an `id` of its own.
struct Plots {
    drawn: usize,
    presentation: &'static Presentation,
}

impl Plots {
    /// Every run of a part, folded away: a strip for each target, a plot for each number.
    fn strips(&mut self, rows: &[&Row]) -> String {
        let names = names_of(self.presentation, rows).into_iter();
        let panels = names.filter_map(|name| self.presentation.strip_panel(rows, name));
        let plots: String = panels.collect::<Vec<_>>().into_iter().map(|panel| self.plot(panel)).collect();
        if plots.is_empty() {
            plots
        } else {
            format!("<details><summary>Every run</summary>{plots}</details>")
        }
    }

    /// Parts whose names end in a count, `idle-1000`, `idle-5000`, over that count.
    fn over_counts(&mut self, report: &Report) -> String {
        let mut families: Vec<(&str, &'static str)> = Vec::new();
        for row in &report.rows {
            let Some((family, _)) = counted(row.part) else { continue };
            for name in names_of(self.presentation, &[row]) {
                if !families.contains(&(family, name)) && row.series(name).iter().any(|&value| value != 0.0) {
                    families.push((family, name));
                }
            }
        }
        let mut text = String::new();
        let mut last = "";
        for (family, name) in families {
            let scales = [Scale::Auto, Scale::Auto];
            let title = self.presentation.number_label(name);
            let panel = self.presentation.line_panel(&report.rows, family, name, &title, scales);
            let Some(panel) = panel else { continue };
            if family != last {
                let counted = escape(self.presentation.counted(family));
                let _ = write!(text, "<h2><code>{}</code> over {counted}</h2>", escape(family));
                last = family;
            }
            text.push_str(&self.plot(panel));
        }
        text
    }

    fn plot(&mut self, panel: Panel) -> String {
        self.drawn += 1;
        let figure = Figure { title: String::new(), panels: vec![panel], notes: Vec::new() };
        figure.inline(&format!("plot-{}", self.drawn))
    }
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
        let name = escape(&name.replace('_', " "));
        let _ = write!(text, "<tr><td>{name}</td><td class=\"note\">{}</td></tr>", escape(&value));
    }
    text + "</table>"
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;
    use crate::kit::presentation::tests::SAMPLE;

    #[test]
    fn page_holds_everything_and_loads_nothing() {
        let page = page(&sample());
        for expected in [
            "<p class=\"claim\">Tollgate takes less CPU time than HAProxy.</p>",
            "less CPU time than HAProxy <code>short-cpu</code>",
            "undecided",
            "<code>growth</code></td><td class=\"note\">not yet</td>",
            "an unoptimised build",
            "79.8",
            "<h2>short connections <code>short</code></h2>",
            "<code>tollgate</code></td><td class=\"note\">the gateway</td>",
        ] {
            assert!(page.contains(expected), "{expected:?} is missing");
        }
        for foreign in ["http:", "https:", "src=", "<script", "@import", "url("] {
            assert!(!page.contains(foreign), "{foreign:?} would need something from elsewhere");
        }
    }

    #[test]
    fn claim_and_its_plot_come_first() {
        let page = page(&sample());
        let at = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text} is missing"));
        assert!(at("class=\"claim\"") < at("<svg") && at("<svg") < at("<h2>Verdicts"));
        assert_eq!(page.matches("id=\"main-title\"").count(), 1);
        assert_eq!(page.matches("id=\"plot-1-title\"").count(), 1);
    }

    #[test]
    fn many_targets_have_a_line_each() {
        let report = sample();
        let row = &report.rows[0];
        let few = part_table(&SAMPLE, &[row, row]);
        assert!(few.contains("<th>tollgate</th><th>tollgate</th>"), "{few}");
        let rate = "connections per second <code>connections_per_s</code>";
        assert!(few.contains(&format!("<tr><td>{rate}</td><td>13,000 [12,000, 14,000]</td>")), "{few}");
        let single = Row { runs: row.runs[..1].to_vec(), ..row.clone() };
        let once = part_table(&SAMPLE, &[&single]);
        assert!(once.contains(&format!("<tr><td>{rate}</td><td>14,000</td>")), "{once}");
        let many = part_table(&SAMPLE, &[row; TARGETS_ACROSS_MAX + 1]);
        assert!(many.contains(&format!("<th>{rate}</th>")), "{many}");
        assert!(many.contains("<tr><td>tollgate</td><td>13,000 [12,000, 14,000]</td>"), "{many}");
    }

    #[test]
    fn parts_with_a_count_become_lines() {
        let mut report = sample();
        report.rows[0].part = "hogs-1";
        report.rows[1].part = "hogs-5";
        report.rows[1].target = "tollgate".to_owned();
        let page = page(&report);
        assert!(page.contains("<h2><code>hogs</code> over CPU hogs</h2><svg"), "{page}");
        assert!(page.contains("connections per second, over CPU hogs: tollgate 13,000 at 1, 11,528 at 5."));
    }
}
