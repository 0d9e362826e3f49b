//! How the results of one experiment are presented: its claim, its main plot, and its names in plain words.

use crate::kit::measurements::Row;
use crate::kit::plot::{Bar, BarPanel, Figure, Line, LinePanel, Panel, Scale, Strip, StripPanel, Style};
use crate::kit::statistics;

/// The fixed part of an experiment's reports. `{}` in a name, and in its words, stands for a count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Presentation {
    /// The name of the experiment and of its command.
    pub(crate) experiment: &'static str,
    /// What the experiment shows, in one sentence.
    pub(crate) claim: &'static str,
    /// The main plot; `None` where the rows lack its data.
    pub(crate) figure: fn(&[Row]) -> Option<Figure>,
    /// The parts of the command line that measure the data of the main plot; one of them is enough.
    pub(crate) figure_parts: &'static [&'static str],
    /// The verdicts by id, each with the claim that it checks.
    pub(crate) verdicts: &'static [(&'static str, &'static str)],
    pub(crate) parts: &'static [PartWords],
    pub(crate) targets: &'static [TargetWords],
    /// The numbers by name, in the order of tables.
    pub(crate) numbers: &'static [(&'static str, &'static str)],
    /// What the terminal shows instead of a table for each part, where there are too many parts.
    pub(crate) terminal_tables: &'static [NumberTable],
}

/// A part of the report.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartWords {
    pub(crate) name: &'static str,
    pub(crate) words: &'static str,
    /// The plural of what the count in the name counts; empty where the name has none.
    pub(crate) counted: &'static str,
}

/// A measured target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TargetWords {
    pub(crate) name: &'static str,
    pub(crate) style: Style,
    pub(crate) words: &'static str,
}

/// A table of one number: a row for each target, a column for each part of a family (`load-1`, `load-2`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NumberTable {
    pub(crate) family: &'static str,
    pub(crate) number: &'static str,
}

/// A part without a count.
pub(crate) const fn part(name: &'static str, words: &'static str) -> PartWords {
    PartWords { name, words, counted: "" }
}

/// A family of parts whose names end in a count of `counted`.
pub(crate) const fn family(name: &'static str, words: &'static str, counted: &'static str) -> PartWords {
    PartWords { name, words, counted }
}

pub(crate) const fn target(name: &'static str, style: Style, words: &'static str) -> TargetWords {
    TargetWords { name, style, words }
}

impl Presentation {
    /// The claim that a verdict checks.
    pub(crate) fn verdict_label(&self, id: &str) -> Option<&'static str> {
        self.verdicts.iter().find(|verdict| verdict.0 == id).map(|verdict| verdict.1)
    }

    /// A part in words; its own name where it has none.
    pub(crate) fn part_label(&self, name: &str) -> String {
        let words = self.parts.iter().find_map(|part| filled(part.name, part.words, name));
        words.unwrap_or_else(|| name.replace('-', " "))
    }

    /// What the counts of a family of parts count.
    pub(crate) fn counted(&self, family: &str) -> &'static str {
        let is_of_family = |part: &&PartWords| part.name.strip_suffix("-{}") == Some(family);
        self.parts.iter().find(is_of_family).map_or("count", |part| part.counted)
    }

    /// A target in words.
    pub(crate) fn target_label(&self, name: &str) -> Option<String> {
        self.targets.iter().find_map(|target| filled(target.name, target.words, name))
    }

    /// The colour of a target.
    pub(crate) fn style(&self, name: &str) -> Style {
        let is_it = |target: &&TargetWords| filled(target.name, "", name).is_some();
        self.targets.iter().find(is_it).map_or(Style::Reference, |target| target.style)
    }

    /// A number in words.
    pub(crate) fn number_label(&self, name: &str) -> String {
        let words = self.numbers.iter().find(|number| number.0 == name).map(|number| number.1);
        words.map_or_else(|| name.replace('_', " "), str::to_owned)
    }

    /// Where a number stands in tables.
    pub(crate) fn number_position(&self, name: &str) -> usize {
        self.numbers.iter().position(|number| number.0 == name).unwrap_or(self.numbers.len())
    }

    /// Bars of one number of a part: its median with the range of its runs.
    pub(crate) fn bars(&self, rows: &[Row], part: &str, number: &str) -> Vec<Bar> {
        let bar = |row: &Row| {
            let value = statistics::summary(&row.series(number))?;
            let label = row.target.clone();
            Some(Bar { label, style: self.style(&row.target), value, mark: None })
        };
        rows.iter().filter(|row| row.part == part).filter_map(bar).collect()
    }

    /// Bars below a title; `None` where there are none.
    pub(crate) fn bar_panel(&self, title: &str, bars: Vec<Bar>) -> Option<Panel> {
        (!bars.is_empty()).then(|| Panel::Bars(BarPanel { title: title.to_owned(), bars }))
    }

    /// A line for each target: one number of a family of parts over their counts; `None` where fewer than two
    /// counts were measured.
    pub(crate) fn line_panel(
        &self,
        rows: &[Row],
        family: &str,
        number: &str,
        title: &str,
        [across_scale, up_scale]: [Scale; 2],
    ) -> Option<Panel> {
        let lines = self.lines(rows, family, number);
        let mut counts = lines.iter().flat_map(|line| line.points.iter().map(|point| point.0));
        let first = counts.next()?;
        counts.any(|count| count != first).then(|| {
            Panel::Lines(LinePanel {
                title: title.to_owned(),
                across: self.counted(family).to_owned(),
                across_scale,
                up_scale,
                lines,
            })
        })
    }

    fn lines(&self, rows: &[Row], family: &str, number: &str) -> Vec<Line> {
        let mut lines: Vec<Line> = Vec::new();
        for row in rows {
            let Some((_, count)) = counted(row.part).filter(|part| part.0 == family) else { continue };
            let Some(value) = statistics::summary(&row.series(number)) else { continue };
            match lines.iter_mut().find(|line| line.label == row.target) {
                Some(line) => line.points.push((count, value)),
                None => {
                    let (label, style) = (row.target.clone(), self.style(&row.target));
                    lines.push(Line { label, style, points: vec![(count, value)] });
                }
            }
        }
        for line in &mut lines {
            line.points.sort_by(|one, other| one.0.total_cmp(&other.0));
        }
        lines
    }

    /// Every run of one number of some rows; `None` where all of them are one value.
    pub(crate) fn strip_panel(&self, rows: &[&Row], number: &str) -> Option<Panel> {
        let strip = |row: &&Row| {
            let runs = row.samples(number).into_iter().map(|(_, sample)| (sample.value, !sample.is_clean));
            let (label, style) = (row.target.clone(), self.style(&row.target));
            Some(Strip { label, style, runs: runs.collect(), median: row.median(number)? })
        };
        let strips: Vec<Strip> = rows.iter().filter_map(strip).collect();
        let mut values = strips.iter().flat_map(|strip| &strip.runs).map(|run| run.0);
        let first = values.next();
        let varies = values.any(|value| Some(value) != first);
        varies.then(|| Panel::Strips(StripPanel { title: self.number_label(number), strips }))
    }
}

/// A part's family and count, where its name ends in one: `idle-1000`.
pub(crate) fn counted(part: &str) -> Option<(&str, f64)> {
    let (family, count) = part.rsplit_once('-')?;
    Some((family, count.parse().ok()?))
}

/// `words` with the count that `name` has where `pattern` has `{}`; `None` where the name is another.
fn filled(pattern: &str, words: &str, name: &str) -> Option<String> {
    let Some((before, after)) = pattern.split_once("{}") else {
        return (pattern == name).then(|| words.to_owned());
    };
    let count = name.strip_prefix(before)?.strip_suffix(after)?;
    count.parse::<f64>().ok()?;
    Some(words.replace("{}", count))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::kit::measurements::{Run, tests::rows};

    /// The presentation of the rows in the tests of the kit.
    pub(crate) const SAMPLE: Presentation = Presentation {
        experiment: "sample",
        claim: "Tollgate takes less CPU time than HAProxy.",
        figure,
        figure_parts: &["short"],
        verdicts: &[("short-cpu", "less CPU time than HAProxy")],
        parts: &[part("short", "short connections"), family("hogs-{}", "{} hogs", "CPU hogs")],
        targets: &[
            target("tollgate", Style::Ours, "the gateway"),
            target("pool-{}", Style::Rival(2), "a pool of {} threads"),
        ],
        numbers: &[("connections_per_s", "connections per second")],
        terminal_tables: &[],
    };

    fn figure(rows: &[Row]) -> Option<Figure> {
        let bars = SAMPLE.bars(rows, "short", "connections_per_s");
        let panels = vec![SAMPLE.bar_panel("connections per second", bars)?];
        Some(Figure { title: "Short connections".to_owned(), panels, notes: Vec::new() })
    }

    #[test]
    fn counts_in_names_are_filled_in() {
        let check = |pattern, words, name, expected: Option<&str>| {
            assert_eq!(filled(pattern, words, name).as_deref(), expected, "{pattern} {name}");
        };
        check("short", "short connections", "short", Some("short connections"));
        check("short", "short connections", "shorter", None);
        check("pool-{}", "{} threads of {}", "pool-8", Some("8 threads of 8"));
        check("load-{}", "{} x", "load-0.5", Some("0.5 x"));
        check("pool-{}", "{} threads", "pool-some", None);
        check("owner-w64-{}", "{} threads", "owner-w1-2", None);
    }

    #[test]
    fn unknown_names_stand_for_themselves() {
        assert_eq!(SAMPLE.part_label("hogs-4"), "4 hogs");
        assert_eq!(SAMPLE.part_label("open-loop-4"), "open loop 4");
        assert_eq!(SAMPLE.number_label("time_s"), "time s");
        assert_eq!((SAMPLE.counted("hogs"), SAMPLE.counted("pinned")), ("CPU hogs", "count"));
        assert_eq!((SAMPLE.style("pool-3"), SAMPLE.style("nginx")), (Style::Rival(2), Style::Reference));
        assert_eq!(SAMPLE.target_label("nginx"), None);
    }

    #[test]
    fn lines_are_sorted_by_their_counts() {
        let [mut more, mut fewer] = [rows().remove(0), rows().remove(0)];
        (more.part, fewer.part) = ("hogs-16", "hogs-2");
        let scales = [Scale::Auto, Scale::Auto];
        let Some(Panel::Lines(panel)) =
            SAMPLE.line_panel(&[more.clone(), fewer], "hogs", "connections_per_s", "rate", scales)
        else {
            panic!("two counts are a line");
        };
        assert_eq!((panel.lines.len(), panel.across.as_str()), (1, "CPU hogs"));
        assert_eq!(panel.lines[0].points.iter().map(|point| point.0).collect::<Vec<_>>(), [2.0, 16.0]);
        assert!(SAMPLE.line_panel(&[more], "hogs", "connections_per_s", "rate", scales).is_none());
    }

    #[test]
    fn single_value_has_no_strip() {
        let run = Run { round: 0, marks: Vec::new(), numbers: vec![("connections_per_s", 1.0)] };
        let once = Row { part: "short", target: "tollgate".to_owned(), runs: vec![run] };
        assert!(SAMPLE.strip_panel(&[&once, &once], "connections_per_s").is_none());
        assert!(SAMPLE.strip_panel(&[&rows()[0]], "connections_per_s").is_some());
    }
}
