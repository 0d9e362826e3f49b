//! The report on a terminal of 120 columns: a small table per part, then the verdicts.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};

use super::{Report, TARGETS_ACROSS_MAX, names_of};
use crate::kit::markup::digits;
use crate::kit::measurements::Row;
use crate::kit::presentation::{NumberTable, Presentation, counted};
use crate::kit::statistics;
use crate::kit::verdict::Verdict;

const WIDTH_COLUMNS: u16 = 120;

/// The whole report as text.
pub(crate) fn print(report: &Report) -> String {
    let mut text = String::new();
    if report.presentation.terminal_tables.is_empty() {
        for (part, rows) in report.parts() {
            text.push_str(&format!(
                "\n{part}: median [min-max]\n{}\n",
                part_table(report.presentation, &rows).trim_fmt()
            ));
        }
    }
    for description in report.presentation.terminal_tables {
        let Some(table) = number_table(report, *description) else { continue };
        let NumberTable { family, number } = description;
        text.push_str(&format!("\n{number}, by {family}: medians\n{}\n", table.trim_fmt()));
    }
    if !report.verdicts.is_empty() {
        text.push_str(&format!("\nVerdicts\n{}\n", verdict_table(&report.verdicts).trim_fmt()));
    }
    text.push('\n');
    for left_out in &report.left_out {
        text.push_str(&format!("left out {}: {}\n", left_out.name, left_out.reason));
    }
    for skipped in &report.skipped {
        text.push_str(&format!("skipped {}: {}\n", skipped.name, skipped.reason));
    }
    for warning in &report.warnings {
        text.push_str(&format!("warning: {warning}\n"));
    }
    for (count, mark) in marks(&report.rows) {
        text.push_str(&format!("contaminated: {count} results: {mark}\n"));
    }
    text
}

/// Targets across and numbers down, or the other way where there are too many targets.
fn part_table(presentation: &Presentation, rows: &[&Row]) -> Table {
    if rows.len() > TARGETS_ACROSS_MAX {
        return targets_down(presentation, rows);
    }
    let mut table = empty();
    let targets = rows.iter().map(|row| Cell::new(&row.target).set_alignment(CellAlignment::Right));
    table.set_header(std::iter::once(Cell::new("")).chain(targets));
    for name in names_of(presentation, rows) {
        let cells = rows.iter().map(|row| Cell::new(cell(row, name)).set_alignment(CellAlignment::Right));
        table.add_row(std::iter::once(Cell::new(name)).chain(cells));
    }
    table
}

fn targets_down(presentation: &Presentation, rows: &[&Row]) -> Table {
    let mut table = empty();
    let names = names_of(presentation, rows);
    let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    table
        .set_header(std::iter::once(Cell::new("")).chain(names.iter().map(|name| right((*name).to_owned()))));
    for row in rows {
        let cells = names.iter().map(|name| right(cell(row, name)));
        table.add_row(std::iter::once(Cell::new(&row.target)).chain(cells));
    }
    table
}

fn cell(row: &Row, name: &str) -> String {
    let Some(summary) = statistics::summary(&row.series(name)) else { return String::new() };
    if summary.min == summary.max {
        return digits(summary.median);
    }
    format!("{} [{}-{}]", digits(summary.median), digits(summary.min), digits(summary.max))
}

/// Medians; `None` where nothing was measured.
fn number_table(report: &Report, NumberTable { family, number }: NumberTable) -> Option<Table> {
    let of_family = |row: &&Row| counted(row.part).is_some_and(|part| part.0 == family);
    let rows: Vec<&Row> = report.rows.iter().filter(of_family).collect();
    let has_number = |row: &&&Row| !row.series(number).is_empty();
    let (mut parts, mut targets): (Vec<(f64, &str)>, Vec<&str>) = (Vec::new(), Vec::new());
    for row in rows.iter().filter(has_number) {
        let (_, count) = counted(row.part)?;
        if !parts.contains(&(count, row.part)) {
            parts.push((count, row.part));
        }
        if !targets.contains(&row.target.as_str()) {
            targets.push(&row.target);
        }
    }
    parts.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut table = empty();
    let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    let heads = parts.iter().map(|part| right(part.0.to_string()));
    table.set_header(std::iter::once(Cell::new("")).chain(heads));
    for target in &targets {
        let median = |part: &str| report.row(part, target).and_then(|row| row.median(number));
        let cells = parts.iter().map(|part| right(median(part.1).map_or_else(String::new, digits)));
        table.add_row(std::iter::once(Cell::new(target)).chain(cells));
    }
    (!targets.is_empty()).then_some(table)
}

fn verdict_table(verdicts: &[Verdict]) -> Table {
    let mut table = empty();
    table.set_header(["verdict", "value", "interval", "target", "result", "because"]);
    for verdict in verdicts {
        let interval = verdict
            .interval
            .map_or_else(String::new, |range| format!("{}-{}", digits(range.low), digits(range.high)));
        let value = digits(verdict.value);
        let threshold = verdict.threshold.to_string();
        let result = verdict.outcome.as_str().to_owned();
        table.add_row([verdict.name.to_owned(), value, interval, threshold, result, verdict.note.clone()]);
    }
    table
}

fn empty() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(WIDTH_COLUMNS);
    table
}

/// Each kind of mark once with its number of runs; figures in it are those of the first run.
fn marks(rows: &[Row]) -> Vec<(usize, &str)> {
    let mut kinds: Vec<(usize, String, &str)> = Vec::new();
    for mark in rows.iter().flat_map(|row| &row.runs).flat_map(|run| &run.marks) {
        let kind: String = mark.chars().filter(|letter| !letter.is_ascii_digit()).collect();
        match kinds.iter_mut().find(|known| known.1 == kind) {
            Some(known) => known.0 += 1,
            None => kinds.push((1, kind, mark)),
        }
    }
    kinds.into_iter().map(|(count, _, mark)| (count, mark)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;
    use crate::kit::presentation::tests::SAMPLE;

    const WITH_TERMINAL_TABLE: Presentation = Presentation {
        terminal_tables: &[NumberTable { family: "hogs", number: "connections_per_s" }],
        ..SAMPLE
    };

    #[test]
    fn terminal_shows_tables_verdicts_and_reasons() {
        let text = print(&sample());
        for expected in [
            "short: median [min-max]",
            "connections_per_s",
            "13,000 [12,000-14,000]",
            "11,528 [11,000-12,055]",
            "short-cpu",
            "<= 1.00",
            "undecided",
            "left out growth: not yet",
            "skipped nginx: it is not installed",
            "warning: an unoptimised build",
            "contaminated: 1 results: busy <others>",
        ] {
            assert!(text.contains(expected), "{expected:?} is missing from:\n{text}");
        }
    }

    #[test]
    fn terminal_table_replaces_the_parts_of_its_family() {
        let mut report = sample();
        report.rows[0].part = "hogs-16";
        report.rows[1].part = "hogs-0";
        report.presentation = &WITH_TERMINAL_TABLE;
        let text = print(&report);
        assert!(text.contains("connections_per_s, by hogs: medians"), "{text}");
        assert!(!text.contains("median [min-max]"), "{text}");
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        for expected in [["0", "16"], ["tollgate", "13,000"], ["haproxy", "11,528"]] {
            assert!(lines.iter().any(|line| line == &expected), "{expected:?} is missing from:\n{text}");
        }
    }

    #[test]
    fn many_targets_are_listed_downwards() {
        let mut report = sample();
        let row = report.rows.remove(0);
        let target = |number: usize| Row { target: format!("pool-{number}"), ..row.clone() };
        report.rows = (0..=TARGETS_ACROSS_MAX).map(target).collect();
        let text = print(&report);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        let head = ["connections_per_s", "process_cpu_us_per_connection"];
        let line = ["pool-3", "13,000", "[12,000-14,000]", "65.0", "[60.0-70.0]"];
        for expected in [head.as_slice(), &line] {
            assert!(lines.iter().any(|line| line == expected), "{expected:?} is missing from:\n{text}");
        }
    }

    #[test]
    fn marks_that_differ_in_numbers_are_one_kind() {
        let mut rows = sample().rows;
        rows[0].runs[0].marks = vec!["others used 12 %".to_owned()];
        rows[0].runs[1].marks = vec!["others used 7 %".to_owned()];
        assert_eq!(marks(&rows), [(2, "others used 12 %")]);
    }
}
