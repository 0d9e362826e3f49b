//! The marks of a document: HTML comments that name the source of the figure in front of them.

use super::number;

/// Where figures come from, and in which unit they are written.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mark {
    pub(super) source: Source,
    pub(super) unit: Unit,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Source {
    /// The figures behind it are those of this file.
    Run(String),
    /// The table behind it lists all verdicts.
    Verdicts,
    /// The experiment sets the number: no result.
    Given,
    /// The value of a verdict, with its interval.
    Verdict(String),
    /// The threshold of a verdict.
    Aim(String),
    /// A fact on the machine, or on the run as a whole.
    Machine(String),
    /// How many results the run has: one of each run of each case.
    Results,
    /// How many of them other work on the machine disturbed.
    Disturbed,
    Cell(Cell),
}

/// A number of a case. In a table the row has some fields of it and the column the others.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Cell {
    pub(super) part: Option<String>,
    pub(super) target: Option<String>,
    /// The part and the target of the case beside it: the figure is the ratio of both.
    pub(super) beside: Option<(String, String)>,
    pub(super) number: Option<String>,
    pub(super) statistic: Option<Statistic>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Statistic {
    Least,
    Greatest,
    Runs,
}

/// What one of the written number is worth in the unit of the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Unit {
    One,
    Thousands,
    Millions,
    Percent,
}

impl Unit {
    pub(super) fn factor(self) -> f64 {
        match self {
            Self::One => 1.0,
            Self::Thousands => 1e-3,
            Self::Millions => 1e-6,
            Self::Percent => 1e2,
        }
    }

    fn parse(word: &str) -> Option<Self> {
        match word {
            "thousands" => Some(Self::Thousands),
            "millions" => Some(Self::Millions),
            "percent" => Some(Self::Percent),
            _ => None,
        }
    }
}

impl Mark {
    /// The mark in the text of a comment.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let unit =
            words.rsplit_once(", ").and_then(|(source, unit)| Some((source.to_owned(), Unit::parse(unit)?)));
        let (words, unit) = unit.unwrap_or((words, Unit::One));
        let source = match (words.as_str(), words.split_once(' ')) {
            ("verdicts", _) => Source::Verdicts,
            ("given", _) => Source::Given,
            ("results", _) => Source::Results,
            ("disturbed", _) => Source::Disturbed,
            (_, Some(("run", file))) => Source::Run(file.to_owned()),
            (_, Some(("verdict", name))) => Source::Verdict(name.to_owned()),
            (_, Some(("aim", name))) => Source::Aim(name.to_owned()),
            (_, Some(("machine", name))) => Source::Machine(name.to_owned()),
            _ => Source::Cell(Cell::parse(&words)?),
        };
        Ok(Self { source, unit })
    }

    /// The number of the case that a row and a column name together; `None` where they do not name one.
    pub(super) fn of_row_and_column(
        row: Option<&Self>,
        column: Option<&Self>,
    ) -> Result<Option<Self>, String> {
        let none = Self { source: Source::Cell(Cell::default()), unit: Unit::One };
        let (row, column) = (row.unwrap_or(&none), column.unwrap_or(&none));
        let (Source::Cell(one), Source::Cell(other)) = (&row.source, &column.source) else { return Ok(None) };
        let cell = one.with(other)?;
        let unit = if row.unit == Unit::One { column.unit } else { row.unit };
        Ok(cell.is_complete().then_some(Self { source: Source::Cell(cell), unit }))
    }

    /// Whether it is a number of a case, or some fields of one.
    pub(super) fn cell(&self) -> Option<&Cell> {
        match &self.source {
            Source::Cell(cell) => Some(cell),
            _ => None,
        }
    }
}

impl Cell {
    fn parse(words: &str) -> Result<Self, String> {
        let mut cell = Self::default();
        let mut is_beside = false;
        for word in words.split(' ') {
            match (word, word.split_once('/')) {
                ("beside", _) => is_beside = true,
                (_, Some((part, target))) if is_beside => {
                    put(&mut cell.beside, (part.into(), target.into()))?
                }
                (_, Some((part, target))) => {
                    if !part.is_empty() {
                        put(&mut cell.part, part.to_owned())?;
                    }
                    if !target.is_empty() {
                        put(&mut cell.target, target.to_owned())?;
                    }
                }
                ("min", _) => put(&mut cell.statistic, Statistic::Least)?,
                ("max", _) => put(&mut cell.statistic, Statistic::Greatest)?,
                ("runs", _) => put(&mut cell.statistic, Statistic::Runs)?,
                _ => put(&mut cell.number, word.to_owned())?,
            }
        }
        Ok(cell)
    }

    pub(super) fn is_complete(&self) -> bool {
        self.part.is_some() && self.target.is_some() && self.number.is_some()
    }

    fn with(&self, other: &Self) -> Result<Self, String> {
        let mut both = self.clone();
        let Self { part, target, beside, number, statistic } = other.clone();
        put_some(&mut both.part, part)?;
        put_some(&mut both.target, target)?;
        put_some(&mut both.beside, beside)?;
        put_some(&mut both.number, number)?;
        put_some(&mut both.statistic, statistic)?;
        Ok(both)
    }

    /// The counts in the names of its cases, such as 8 and 64 of `owner-w64-8`.
    pub(super) fn counts(&self) -> Vec<String> {
        let beside = self.beside.iter().flat_map(|(part, target)| [part, target]);
        let names = self.part.iter().chain(&self.target).chain(beside);
        names.flat_map(|name| number::counts_within(name)).collect()
    }
}

fn put<T>(field: &mut Option<T>, value: T) -> Result<(), String> {
    match field.replace(value) {
        None => Ok(()),
        Some(_) => Err("the mark names two parts, targets, numbers or statistics".to_owned()),
    }
}

fn put_some<T>(field: &mut Option<T>, value: Option<T>) -> Result<(), String> {
    value.map_or(Ok(()), |value| put(field, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(text: &str) -> Cell {
        Mark::parse(text).expect("the mark is valid").cell().expect("the mark is of a case").clone()
    }

    #[test]
    fn mark_names_a_source_and_a_unit() {
        let check = |text: &str, source: Source, unit| {
            assert_eq!(Mark::parse(text), Ok(Mark { source, unit }), "{text}");
        };
        check(" run relay.json ", Source::Run("relay.json".to_owned()), Unit::One);
        check("verdicts", Source::Verdicts, Unit::One);
        check("given", Source::Given, Unit::One);
        check("machine cpus", Source::Machine("cpus".to_owned()), Unit::One);
        check("aim short-cpu", Source::Aim("short-cpu".to_owned()), Unit::One);
        let name = "T(K) >= 0.5 x share x T(0) at every K".to_owned();
        check("verdict T(K) >= 0.5 x share\nx T(0) at every K", Source::Verdict(name), Unit::One);
        check("verdict rate, millions", Source::Verdict("rate".to_owned()), Unit::Millions);
    }

    #[test]
    fn case_is_part_target_and_number() {
        let whole = cell("hogs-16/ours inserts_per_s max");
        assert!(whole.is_complete());
        assert_eq!((whole.part.as_deref(), whole.target.as_deref()), (Some("hogs-16"), Some("ours")));
        assert_eq!(whole.statistic, Some(Statistic::Greatest));
        assert_eq!(whole.counts(), ["16"]);
        let ratio = cell("crowd-24/shared beside crowd-8/mutex cpu_us");
        assert_eq!(ratio.beside, Some(("crowd-8".to_owned(), "mutex".to_owned())));
        assert_eq!(ratio.counts(), ["24", "8"]);
        assert!(Mark::parse("short/a short/b cpu_us").is_err());
        assert!(Mark::parse("short/a cpu_us rate").is_err());
    }

    #[test]
    fn row_and_column_make_one_mark() {
        let merged = |row: &str, column: &str| {
            let [row, column] = [row, column].map(|text| Mark::parse(text).expect("the mark is valid"));
            Mark::of_row_and_column(Some(&row), Some(&column))
        };
        let expected = Mark::parse("short/nginx rate, thousands").ok();
        assert_eq!(merged("short/ rate, thousands", "/nginx"), Ok(expected.clone()));
        assert_eq!(merged("/nginx", "short/ rate, thousands"), Ok(expected));
        assert_eq!(merged("/nginx", "short/"), Ok(None));
        assert!(merged("short/nginx", "/haproxy rate").is_err());
        let row = Mark::parse("short/ rate").ok();
        assert_eq!(Mark::of_row_and_column(row.as_ref(), None), Ok(None));
    }
}
