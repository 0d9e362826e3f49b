//! The figures that documents quote are those of committed runs. Marks, comments of HTML, name the number
//! behind each figure; a figure without one is refused, as is a plot that was drawn from another run.
//!
//! `docs/benchmarks/README.md` explains the marks. `UPDATE=1 cargo test -p lab quotes` writes the figures of
//! the runs into the pages, and draws the plots.

mod blocks;
mod mark;
mod number;
mod run;

use std::collections::BTreeMap;
use std::ops::Range;

use self::blocks::{Content, blocks, cells};
use self::mark::{Mark, Source};
use self::number::Figure;
use self::run::Answer;
use crate::kit::report::Report;

/// The section that describes the experiment: its numbers are no results.
const METHOD: &str = "Method";

/// Reports by the name of their files.
type Runs = BTreeMap<String, Report>;

/// What is wrong in a page, and the page as it should be.
struct Checked {
    findings: Vec<String>,
    page: String,
    /// The runs that the page names.
    runs: Vec<String>,
}

struct Checker<'a> {
    page: &'a str,
    runs: &'a Runs,
    /// The run of the figures from here on, and its name.
    run: Option<(&'a str, &'a Report)>,
    named: Vec<String>,
    findings: Vec<String>,
    edits: Vec<(Range<usize>, String)>,
}

/// A comment of the page, and the mark in it.
struct Comment {
    range: Range<usize>,
    mark: Mark,
}

/// Checks the sections of a page; all of them where `section` is `None`.
fn check(page: &str, section: Option<&str>, runs: &Runs) -> Checked {
    let mut checker =
        Checker { page, runs, run: None, named: Vec::new(), findings: Vec::new(), edits: Vec::new() };
    for block in blocks(page) {
        if section.is_some_and(|section| section != block.section) {
            continue;
        }
        match block.content {
            Content::Prose(range) => checker.prose(range, &[], block.section == METHOD),
            Content::Table(lines) => checker.table(&lines, block.section == METHOD),
            Content::Verdicts(range) => checker.verdicts(range),
        }
    }
    let mut corrected = page.to_owned();
    checker.edits.sort_by_key(|edit| edit.0.start);
    for (range, text) in checker.edits.into_iter().rev() {
        corrected.replace_range(range, &text);
    }
    Checked { findings: checker.findings, page: corrected, runs: checker.named }
}

impl<'a> Checker<'a> {
    fn refuse(&mut self, at: usize, text: impl std::fmt::Display) {
        let line = self.page[..at].matches('\n').count() + 1;
        self.findings.push(format!("line {line}: {text}"));
    }

    /// The marks within a range.
    fn comments(&mut self, within: Range<usize>) -> Vec<Comment> {
        let mut comments = Vec::new();
        for range in delimited(self.page, within, "<!--", "-->") {
            match Mark::parse(&self.page[range.start + 4..range.end - 3]) {
                Ok(mark) => comments.push(Comment { range, mark }),
                Err(error) => self.refuse(range.start, error),
            }
        }
        comments
    }

    /// A paragraph, a list item or a cell. `context` has the counts that the row and the column name.
    fn prose(&mut self, within: Range<usize>, context: &[String], is_method: bool) {
        let mut context = context.to_vec();
        let mut known: Vec<Range<usize>> = delimited(self.page, within.clone(), "`", "`");
        known.extend(delimited(self.page, within.clone(), "](", ")"));
        for comment in self.comments(within.clone()) {
            known.push(comment.range.clone());
            context.extend(comment.mark.cell().map(mark::Cell::counts).unwrap_or_default());
            let is_field = comment.mark.cell().is_some_and(|cell| !cell.is_complete());
            match &comment.mark.source {
                Source::Run(name) => self.begin_run(name, comment.range.start),
                // A field of a table's row or column, in front of which stand words.
                _ if is_field => {}
                _ => known.extend(self.figure_before(&comment, within.start)),
            }
        }
        if is_method {
            return;
        }
        for range in number::numbers(&self.page[within.clone()]) {
            let range = within.start + range.start..within.start + range.end;
            let is_known = known.iter().any(|known| known.start <= range.start && range.end <= known.end);
            let text = &self.page[range.clone()];
            let plain = text.replace(',', "");
            let is_version = || self.run.is_some_and(|(_, report)| run::is_version(report, text));
            if !is_known && !context.contains(&plain) && !is_version() {
                self.refuse(range.start, format!("no mark names the source of {text}"));
            }
        }
    }

    fn begin_run(&mut self, name: &str, at: usize) {
        let runs = self.runs;
        self.run = runs.get_key_value(name).map(|(name, report)| (name.as_str(), report));
        self.named.push(name.to_owned());
        if self.run.is_none() {
            self.refuse(at, format!("there is no run `{name}`"));
        }
    }

    /// Compares the figure in front of a mark; returns its position.
    fn figure_before(&mut self, comment: &Comment, start: usize) -> Option<Range<usize>> {
        let at = comment.range.start;
        let Some(figure) = Figure::at_end(&self.page[start..at]) else {
            self.refuse(at, "no figure stands directly in front of the mark");
            return None;
        };
        if comment.mark.source != Source::Given {
            self.compare(&figure, start, &comment.mark);
        }
        let range = figure.range();
        Some(start + range.start..start + range.end)
    }

    /// Compares a figure, whose positions are relative to `start`, with what its mark names.
    fn compare(&mut self, figure: &Figure, start: usize, mark: &Mark) {
        let at = |range: &Range<usize>| start + range.start..start + range.end;
        let Some((name, report)) = self.run else {
            return self.refuse(start, "no mark in front of this figure names its run");
        };
        let (median, spread) = match run::answer(report, mark) {
            Ok(Answer::Number { median, spread }) => (median, spread),
            Ok(Answer::Words(words)) => {
                let number = &self.page[at(&figure.median)];
                if !run::names_version(&words, number) {
                    self.refuse(start, format!("{number} is not of `{words}` in {name}"));
                }
                return;
            }
            Err(error) => return self.refuse(start, format!("{error} ({name})")),
        };
        self.compare_number(at(&figure.median), median, name);
        match (&figure.spread, spread) {
            (Some(ranges), Some(values)) => {
                for (range, value) in ranges.iter().zip(values) {
                    self.compare_number(at(range), value, name);
                }
            }
            (Some(ranges), None) => {
                self.refuse(at(&ranges[0]).start, format!("{name} has no spread of this number"))
            }
            (None, _) => {}
        }
    }

    fn compare_number(&mut self, range: Range<usize>, value: f64, name: &str) {
        let written = &self.page[range.clone()];
        let expected = number::rendered_as(written, value);
        if written != expected {
            self.refuse(range.start, format!("{written} is {expected} in {name}"));
            self.edits.push((range, expected));
        }
    }

    fn table(&mut self, lines: &[Range<usize>], is_method: bool) {
        let Some(head) = lines.first() else { return };
        let columns: Vec<Option<Mark>> = cells(self.page, head.clone())
            .into_iter()
            .map(|cell| {
                self.prose(cell.clone(), &[], is_method);
                self.field(cell)
            })
            .collect();
        // The second line separates the head.
        for line in lines.iter().skip(2) {
            let cells = cells(self.page, line.clone());
            let Some((head, cells)) = cells.split_first() else { continue };
            self.prose(head.clone(), &[], is_method);
            let row = self.field(head.clone());
            for (index, cell) in cells.iter().enumerate() {
                let column = columns.get(index + 1).and_then(Option::as_ref);
                match Mark::of_row_and_column(row.as_ref(), column) {
                    Ok(Some(mark)) => self.cell(cell.clone(), &mark, is_method),
                    Ok(None) => self.prose(cell.clone(), &[], is_method),
                    Err(error) => self.refuse(cell.start, error),
                }
            }
        }
    }

    /// What the head of a row or of a column says about its cells.
    fn field(&self, head: Range<usize>) -> Option<Mark> {
        let marks = delimited(self.page, head, "<!--", "-->");
        let marks =
            marks.iter().filter_map(|range| Mark::parse(&self.page[range.start + 4..range.end - 3]).ok());
        marks.into_iter().find(|mark| mark.cell().is_some_and(|cell| !cell.is_complete()))
    }

    /// A cell with a figure at its begin; it is empty, or a dash, where the run has none.
    fn cell(&mut self, cell: Range<usize>, mark: &Mark, is_method: bool) {
        let text = &self.page[cell.clone()];
        let counts = mark.cell().map(mark::Cell::counts).unwrap_or_default();
        if let Some(figure) = Figure::at_start(text) {
            self.compare(&figure, cell.start, mark);
            return self.prose(cell.start + figure.range().end..cell.end, &counts, is_method);
        }
        let Some((name, report)) = self.run else {
            return self.refuse(cell.start, "no mark in front of this table names its run");
        };
        let is_empty = matches!(text, "" | "-");
        match run::answer(report, mark) {
            Ok(Answer::Number { median, spread }) => {
                let [median, low, high] =
                    [median, spread.map_or(median, |it| it[0]), spread.map_or(median, |it| it[1])]
                        .map(number::rendered_to_three_digits);
                let figure = if low == high { median } else { format!("{median} [{low}-{high}]") };
                self.refuse(cell.start, format!("`{text}` is {figure} in {name}"));
                if is_empty {
                    let padding = if text.is_empty() { " " } else { "" };
                    self.edits.push((cell, figure + padding));
                }
            }
            _ if is_empty => {}
            _ => self.refuse(cell.start, format!("`{text}` is no figure")),
        }
    }

    fn verdicts(&mut self, range: Range<usize>) {
        let Some((name, report)) = self.run else {
            return self.refuse(range.start, "no mark in front of the verdicts names their run");
        };
        let table = run::verdict_table(report);
        if self.page[range.clone()] != table {
            self.refuse(range.start, format!("the verdicts are not those of {name}"));
            self.edits.push((range, table));
        }
    }
}

/// The ranges from `open` to `close`, both included.
fn delimited(page: &str, within: Range<usize>, open: &str, close: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut at = within.start;
    while let Some(start) = page[at..within.end].find(open).map(|start| at + start) {
        let inside = start + open.len();
        let Some(length) = page[inside..within.end].find(close) else { break };
        at = inside + length + close.len();
        found.push(start..at);
    }
    found
}

mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use crate::experiments;
    use crate::kit::report::{self, tests::sample};

    /// The pages with figures, and the section that has them where it is one. `xtask check` reads this too.
    const PAGES: [(&str, Option<&str>); 8] = [
        ("/../README.md", Some("Speed")),
        ("/../docs/benchmarks/README.md", Some("The machine")),
        ("/../docs/benchmarks/accept.md", None),
        ("/../docs/benchmarks/inserts.md", None),
        ("/../docs/benchmarks/overload.md", None),
        ("/../docs/benchmarks/pipeline.md", None),
        ("/../docs/benchmarks/relay.md", None),
        ("/../docs/benchmarks/timers.md", None),
    ];

    const FOLDER: &str = "/../docs/benchmarks/";

    const REMEDY: &str = "to write the figures of the runs: UPDATE=1 cargo test -p lab quotes";

    fn path(below_crate: &str) -> PathBuf {
        PathBuf::from(format!("{}{below_crate}", env!("CARGO_MANIFEST_DIR")))
    }

    fn is_update() -> bool {
        std::env::var_os("UPDATE").is_some()
    }

    fn committed_runs() -> Runs {
        let files = fs::read_dir(path(&format!("{FOLDER}runs"))).expect("the runs are committed");
        let read = |file: fs::DirEntry| {
            let text = fs::read_to_string(file.path()).expect("a run is text");
            let document: serde_json::Value = serde_json::from_str(&text).expect("a run is JSON");
            let experiment = document["experiment"].as_str().expect("a run names its experiment");
            let presentation = experiments::presentation(experiment).expect("the lab has the experiment");
            let report = report::read(&document, presentation).expect("a run is a report");
            (file.file_name().into_string().expect("a name is text"), report)
        };
        files.map(|file| read(file.expect("the folder can be read"))).collect()
    }

    #[test]
    fn documents_quote_committed_runs() {
        let runs = committed_runs();
        let mut findings = Vec::new();
        let mut unnamed: Vec<&String> = runs.keys().collect();
        for (name, section) in PAGES {
            let page = fs::read_to_string(path(name)).expect("the page is committed");
            let mut checked = check(&page, section, &runs);
            if is_update() && checked.page != page {
                fs::write(path(name), &checked.page).expect("the page can be written");
                checked = check(&checked.page, section, &runs);
            }
            unnamed.retain(|run| !checked.runs.contains(run));
            findings.extend(checked.findings.iter().map(|finding| format!("{}, {finding}", &name[4..])));
        }
        findings.extend(unnamed.iter().map(|run| format!("no page quotes {run}")));
        assert!(findings.is_empty(), "{}\n{REMEDY}", findings.join("\n"));
    }

    #[test]
    fn plots_are_drawn_from_committed_runs() {
        for (name, report) in committed_runs() {
            let Some(figure) = report.figure() else { continue };
            let (stem, _) = name.split_once('.').expect("a run has an ending");
            let (file, drawn) = (path(&format!("{FOLDER}{stem}.svg")), figure.file());
            if is_update() {
                fs::write(&file, &drawn).expect("the plot can be written");
            }
            let committed = fs::read_to_string(&file).unwrap_or_default();
            assert!(committed == drawn, "{} was not drawn from {name}; {REMEDY}", file.display());
            let page = fs::read_to_string(path(&format!("{FOLDER}{stem}.md"))).unwrap_or_default();
            assert!(page.contains(&format!("]({stem}.svg)")), "{stem}.md does not show its plot");
        }
    }

    /// The pages describe one kind of machine. A kernel's local version is only that of its build.
    #[test]
    fn committed_runs_are_of_one_kind_of_machine() {
        let fact = |report: &Report, name: &str| {
            let fact = report.machine.get(name).map(ToString::to_string).unwrap_or_default();
            let is_kernel = name == "kernel";
            fact.split(|letter| is_kernel && letter == '-').next().unwrap_or_default().to_owned()
        };
        for name in ["cpus", "cpu_model", "kernel"] {
            let mut facts: Vec<_> =
                committed_runs().into_iter().map(|(run, report)| (fact(&report, name), run)).collect();
            assert!(facts.iter().all(|(fact, _)| !fact.is_empty()), "{name}: {facts:?}");
            facts.dedup_by(|one, other| one.0 == other.0);
            assert_eq!(facts.len(), 1, "{name}: {facts:?}");
        }
    }

    #[test]
    fn committed_runs_have_no_warnings() {
        for (name, report) in committed_runs() {
            assert_eq!(report.warnings, [] as [String; 0], "{name}");
        }
    }

    const PAGE: &str = "\
<!-- run sample.json -->
# Sample

Tollgate takes 0.75<!-- verdict short-cpu --> of HAProxy's time, aim 1.00<!-- aim short-cpu -->, and relays
13.0 [12.0-14.0]<!-- short/tollgate connections_per_s, thousands --> thousand connections, in all of
2<!-- short/tollgate connections_per_s runs --> runs of [HAProxy 2.6](https://example.org/3).

## Method

Of 500 clients each has `--rounds 15`.

## Results

| | Tollgate<!-- /tollgate --> | HAProxy 2.6<!-- /haproxy --> | squid<!-- /squid --> |
|---|---|---|---|
| rate<!-- short/ connections_per_s --> | 13,000 [12,000-14,000] | 11,528 (once) | - |
| CPU<!-- short/ process_cpu_us_per_connection --> | 65 | 80.9 | |

<!-- verdicts -->
| claim | measured | result |
|---|---|---|
| less CPU time than HAProxy | 0.750 | undecided |
|  | | not measured |

- Beside 64<!-- given --> threads nothing changes.
";

    fn findings(page: &str) -> (Vec<String>, String) {
        let mut report = sample();
        report.machine.insert("haproxy_version".to_owned(), "HAProxy version 2.6.12".into());
        let runs = Runs::from([("sample.json".to_owned(), report)]);
        let checked = check(page, None, &runs);
        (checked.findings, checked.page)
    }

    #[test]
    fn figures_of_the_run_are_accepted() {
        assert_eq!(findings(PAGE), (Vec::new(), PAGE.to_owned()));
    }

    #[test]
    fn changed_figure_is_found_and_corrected() {
        let check = |right: &str, wrong: &str, finding: &str| {
            let page = PAGE.replacen(right, wrong, 1);
            assert_ne!(page, PAGE, "{right:?} is missing");
            let (found, corrected) = findings(&page);
            assert!(found.len() == 1 && found[0].contains(finding), "{wrong:?}: {found:?}");
            assert_eq!(corrected, PAGE, "{wrong:?}");
        };
        check("0.75<", "0.76<", "line 4: 0.76 is 0.75 in sample.json");
        check("aim 1.00", "aim 0.90", "0.90 is 1.00");
        check("13.0 [", "13.1 [", "13.1 is 13.0");
        check("-14.0]", "-13.9]", "13.9 is 14.0");
        check("\n2<", "\n3<", "3 is 2");
        check("13,000 [", "13,500 [", "13,500 is 13,000");
        check("-14,000]", "-15,000]", "15,000 is 14,000");
        check("11,528 (", "11,529 (", "11,529 is 11,528");
        check("| 65 |", "| 66 |", "66 is 65");
        check("0.750 | undecided", "0.750 | holds", "the verdicts are not those of sample.json");
        check("|  | | not measured |\n", "", "the verdicts are not those of sample.json");
    }

    #[test]
    fn figure_without_a_source_is_found() {
        let check = |right: &str, wrong: &str, finding: &str| {
            let page = PAGE.replacen(right, wrong, 1);
            assert_ne!(page, PAGE, "{right:?} is missing");
            let (found, _) = findings(&page);
            assert!(found.iter().any(|it| it.contains(finding)), "{wrong:?}: {found:?}");
        };
        check("0.75<!-- verdict short-cpu -->", "0.75", "no mark names the source of 0.75");
        check("(once)", "(3 times)", "no mark names the source of 3");
        check("2.6]", "2.7]", "no mark names the source of 2.7");
        check("64<!-- given -->", "64", "no mark names the source of 64");
        check("| - |", "| 3 |", "the run has no case `short/squid`");
        check("0.75<", "0.75 <", "no figure stands directly in front of the mark");
        check("verdict short-cpu", "verdict other", "the run has no verdict `other`");
        check("run sample.json", "run other.json", "there is no run `other.json`");
        check("run sample.json", "given", "no mark in front of this figure names its run");
        check("<!-- short/ connections_per_s -->", "", "no mark names the source of 13,000");
    }

    #[test]
    fn measured_figure_may_not_be_left_out() {
        let (found, corrected) = findings(&PAGE.replacen("11,528 (once)", "-", 1));
        assert_eq!(found, ["line 16: `-` is 11,500 [11,000-12,100] in sample.json"]);
        assert_eq!(corrected, PAGE.replacen("11,528 (once)", "11,500 [11,000-12,100]", 1));
        assert_eq!(findings(&PAGE.replacen("80.9", "n/a", 1)).0.len(), 1);
    }

    #[test]
    fn other_sections_are_not_checked() {
        let page = PAGE.replacen("64<!-- given -->", "64", 1);
        let runs = Runs::new();
        assert!(check(&page, Some("Method"), &runs).findings.is_empty());
        assert_eq!(check(&page, Some("None"), &runs).page, page);
    }
}
