//! The options that every experiment has, and the amount of work that they select.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::ValueEnum;
use clap::builder::EnumValueParser;

use crate::kit::presentation::Presentation;

/// The flags of every experiment; `Part` lists its parts.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct CommonOptions<Part: ValueEnum + Send + Sync + 'static> {
    /// The whole work: more rounds and larger cases
    #[arg(long, conflicts_with = "quick")]
    long: bool,
    /// One short round, which decides nothing: seconds
    #[arg(long)]
    quick: bool,
    /// Only these parts, with commas between them
    #[arg(long, value_delimiter = ',', value_name = "PART", value_parser = EnumValueParser::<Part>::new())]
    only: Vec<Part>,
    /// Rounds of each case, in place of the experiment's own numbers
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Write the report as JSON, every run in it
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) drawings: Drawings,
}

/// The files that are drawn from a report.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Drawings {
    /// Write the report as one page with plots
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Write the main plot as one SVG, for documents
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

/// How much work a run does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// Seconds: shows that the experiment works.
    Quick,
    /// Minutes: enough for verdicts.
    Usual,
    /// The whole matrix.
    Long,
}

impl<Part: ValueEnum + PartialEq + Send + Sync + 'static> CommonOptions<Part> {
    /// The selected amount of work.
    pub(crate) fn scale(&self) -> Scale {
        match (self.quick, self.long) {
            (true, _) => Scale::Quick,
            (_, true) => Scale::Long,
            _ => Scale::Usual,
        }
    }

    /// The chosen parts in the experiment's order; all of them where none is named.
    pub(crate) fn parts(&self) -> Vec<Part> {
        Part::value_variants().iter().filter(|part| self.has(part)).cloned().collect()
    }

    /// Whether a part is chosen.
    pub(crate) fn has(&self, part: &Part) -> bool {
        self.only.is_empty() || self.only.contains(part)
    }

    /// The requested rounds, or else `usual`.
    pub(crate) fn rounds_or(&self, usual: usize) -> usize {
        self.rounds.map_or(usual, |rounds| rounds as usize)
    }

    /// Refuses `--svg` where no chosen part measures what the main plot shows.
    ///
    /// # Errors
    /// `--only` leaves out every part of the main plot.
    pub(crate) fn check_svg(&self, presentation: &Presentation) -> Result<()> {
        let parts = presentation.figure_parts;
        let value = |part: &Part| part.to_possible_value().map(|value| value.get_name().to_owned());
        let is_drawn = |part: &Part| value(part).is_some_and(|name| parts.contains(&name.as_str()));
        ensure!(
            self.drawings.svg.is_none() || self.parts().iter().any(is_drawn),
            "`--svg` draws {}, which `--only` leaves out",
            parts.join(", ")
        );
        Ok(())
    }

    /// Reasons why every figure of such a run is weak.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let quick = self.quick.then(|| "a quick run decides nothing".to_owned());
        quick.into_iter().chain(debug_build_warning()).collect()
    }
}

/// The warning of a lab that was built without optimisation.
pub(crate) fn debug_build_warning() -> Option<String> {
    cfg!(debug_assertions).then(|| "the lab is a build without optimisation".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::presentation::tests::SAMPLE;
    use clap::Parser;

    #[derive(ValueEnum, Clone, Copy, Debug, PartialEq)]
    enum Part {
        First,
        Second,
    }

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: CommonOptions<Part>,
    }

    #[test]
    fn parts_are_all_or_the_named_ones_in_order() {
        let parts = |words: &[&str]| Line::parse_from([&["lab"], words].concat()).options.parts();
        assert_eq!(parts(&[]), [Part::First, Part::Second]);
        assert_eq!(parts(&["--only", "second,first"]), [Part::First, Part::Second]);
        assert_eq!(parts(&["--only", "second"]), [Part::Second]);
    }

    #[test]
    fn svg_without_a_drawn_part_is_refused() {
        let presentation = Presentation { figure_parts: &["second"], ..SAMPLE };
        let check = |words: &[&str]| {
            Line::parse_from([&["lab"], words].concat()).options.check_svg(&presentation).is_ok()
        };
        assert!(check(&["--svg", "f"]) && check(&["--svg", "f", "--only", "second"]));
        assert!(check(&["--only", "first"]) && !check(&["--svg", "f", "--only", "first"]));
    }

    #[test]
    fn scale_is_quick_usual_or_long() {
        let line = |words: &[&str]| Line::try_parse_from([&["lab"], words].concat()).ok();
        let scale = |words: &[&str]| line(words).map(|line| line.options.scale());
        assert_eq!(scale(&[]), Some(Scale::Usual));
        assert_eq!(scale(&["--quick"]), Some(Scale::Quick));
        assert_eq!(scale(&["--long"]), Some(Scale::Long));
        assert_eq!(scale(&["--quick", "--long"]), None);
        assert_eq!(line(&["--rounds", "7"]).map(|line| line.options.rounds_or(5)), Some(7));
        assert_eq!(line(&[]).map(|line| line.options.rounds_or(5)), Some(5));
    }
}
