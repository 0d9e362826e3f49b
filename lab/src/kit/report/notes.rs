//! The notes below a main plot: how to read it, and what it was measured on.

use serde_json::Value;

use super::Report;
use crate::kit::plot::{Figure, Panel};

/// Letters that fit into the width of a plot.
const LINE_LETTERS: usize = 118;

/// The figure with the notes of this report behind its own.
pub(super) fn with_notes(mut figure: Figure, report: &Report) -> Figure {
    let own = std::mem::take(&mut figure.notes);
    let reading = std::iter::once(reading(&figure));
    let warnings = report.warnings.iter().map(|warning| format!("These figures are weak: {warning}."));
    let notes = own.into_iter().chain(reading).chain([machine(report)]).chain(warnings);
    figure.notes = notes.flat_map(|note| wrapped(&note)).collect();
    figure
}

fn reading(figure: &Figure) -> String {
    let has_lines = figure.panels.iter().any(|panel| matches!(panel, Panel::Lines(_)));
    let shape = if has_lines { "point" } else { "bar" };
    let runs = match figure.runs() {
        Some((fewest, most)) if fewest == most => format!("its {most} runs"),
        Some((fewest, most)) => format!("its runs, {fewest} to {most} of them"),
        None => "its runs".to_owned(),
    };
    format!("Each {shape} is the median of {runs}; the thin line spans the smallest and the largest run.")
}

fn machine(report: &Report) -> String {
    let fact = |name: &str| match report.machine.get(name)? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let cpus = fact("cpus").map(|cpus| if cpus == "1" { "1 CPU".to_owned() } else { format!("{cpus} CPUs") });
    let facts = [cpus, fact("cpu_model"), fact("kernel").map(|kernel| format!("Linux {kernel}"))];
    let facts: Vec<String> = facts.into_iter().flatten().collect();
    format!("Measured by lab {} on {}.", report.presentation.experiment, facts.join(", "))
}

/// Lines that fit below a plot.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= LINE_LETTERS => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    #[test]
    fn notes_explain_the_plot_and_name_the_machine() {
        let notes = sample().figure().expect("the sample has a plot").notes;
        let expected = [
            "Each bar is the median of its 2 runs; the thin line spans the smallest and the largest run.",
            "Measured by lab sample on 2 CPUs.",
            "These figures are weak: an unoptimised build.",
        ];
        assert_eq!(notes, expected);
    }

    #[test]
    fn long_notes_are_broken_between_words() {
        let word = "a".repeat(50);
        assert_eq!(wrapped(&format!("{word} {word} {word}")), [format!("{word} {word}"), word]);
        assert_eq!(wrapped(""), [] as [&str; 0]);
    }
}
