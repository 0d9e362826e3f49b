//! Walks the TOML tree with its spans: from a written table to the typed values of its settings.
//!
//! Guarantees: one wrong value never hides another. Each finding points to the value, the key, or the table
//! that lacks it. Unknown keys are errors.
//!
//! Not handled here: which settings exist (`settings.rs`) and what their values mean together (`config.rs`).

use std::ops::{Deref, Range};

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::report::{Diagnostic, Report, Span};
use super::schema::{Setting, Table};

/// How far a misspelt key may be from the one that is suggested (Damerau-Levenshtein).
const SUGGESTION_DISTANCE_MAX: usize = 3;

/// A value with its span in the source.
#[derive(Clone, Debug, PartialEq)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    pub(crate) span: Span,
}

impl<T> Located<T> {
    /// A default: its span is empty, and no finding is about it.
    fn unwritten(value: T) -> Located<T> {
        Located { value, span: Span::new(0, 0..0) }
    }
}

impl<T> Deref for Located<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// The value of a setting that may be omitted.
#[derive(Clone, Debug, PartialEq)]
pub enum Optional<T> {
    /// It is omitted.
    Absent,
    /// It is present, and an error was reported.
    Invalid,
    /// It is present.
    Written(Located<T>),
}

impl<T> Optional<T> {
    /// The value, if it is present and valid.
    pub fn written(&self) -> Option<&Located<T>> {
        match self {
            Optional::Written(located) => Some(located),
            _ => None,
        }
    }

    pub(crate) fn into_value(self) -> Option<T> {
        match self {
            Optional::Written(located) => Some(located.value),
            _ => None,
        }
    }
}

/// A written table.
pub(crate) struct Section<'a> {
    entries: Option<&'a DeTable<'a>>,
    /// The span for findings about what is missing.
    span: Span,
}

impl<'a> Section<'a> {
    pub(crate) fn new(entries: &'a DeTable<'a>, span: Span) -> Section<'a> {
        Section { entries: Some(entries), span }
    }

    /// A table in which nothing is written: every setting has its default.
    pub(crate) fn empty() -> Section<'a> {
        Section { entries: None, span: Span::new(0, 0..0) }
    }

    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    /// The written keys, each with its value.
    pub(crate) fn entries(
        &self,
    ) -> impl Iterator<Item = (&'a Spanned<DeString<'a>>, &'a Spanned<DeValue<'a>>)> {
        self.entries.into_iter().flatten()
    }

    /// The value of one setting of `table`: as written, else its default. `None` if an error was reported and
    /// there is no default to continue with.
    pub(crate) fn value<T: FromSetting>(&self, table: &Table, name: &str, report: &mut Report) -> Option<T> {
        let setting =
            table.setting(name).expect("the `settings!` macro reads only settings that it declares");
        let Some(value) = self.entries.and_then(|entries| entries.get(name)) else {
            return self.default(table, setting, report);
        };
        let span = self.span_in_source(value.span());
        if T::SECRET {
            report.secrets.push(span.clone());
        }
        T::read(value.get_ref(), &span, setting, report).or_else(|| T::default(setting))
    }

    /// Reports every key that `table`, one of `tables`, does not have.
    pub(crate) fn reject_unknown_keys(&self, table: &Table, tables: &[&Table], report: &mut Report) {
        let names: Vec<&str> = table.settings.iter().map(|setting| setting.name).collect();
        for (key, value) in self.entries() {
            if names.contains(&key.get_ref().as_ref()) {
                continue;
            }
            let meant = nearest(key.get_ref(), &names).and_then(|name| table.setting(name));
            // In a table with secrets, a misspelt key may hold one.
            if table.settings.iter().any(|setting| setting.secret) && meant.is_none_or(|near| near.secret) {
                report.secrets.push(self.span_in_source(value.span()));
            }
            let title = format!("unknown key `{}` in {}", key.get_ref(), table.header);
            let diagnostic = Diagnostic::at(&self.span_in_source(key.span()), title);
            report.error(match tables_with_setting(key.get_ref(), table, tables) {
                _ if meant.is_some() => suggest(diagnostic, key.get_ref(), &names),
                Some(homes) => diagnostic.help(format!("`{}` belongs in {homes}", key.get_ref())),
                None => suggest(diagnostic, key.get_ref(), &names),
            });
        }
    }

    pub(crate) fn span_in_source(&self, span: Range<usize>) -> Span {
        Span::new(self.span.source, span)
    }

    fn default<T: FromSetting>(&self, table: &Table, setting: &Setting, report: &mut Report) -> Option<T> {
        let default = T::default(setting);
        if default.is_none() {
            let title = format!("{} lacks `{}`", table.header, setting.name);
            let label = format!("write `{} = ...`: {}", setting.name, setting.kind);
            report.error(Diagnostic::at(&self.span, title).label(label));
        }
        default
    }
}

/// Adds the probably intended word to a finding about an unknown one.
pub(crate) fn suggest(diagnostic: Diagnostic, word: &str, known: &[&str]) -> Diagnostic {
    match nearest(word, known) {
        Some(name) => diagnostic.help(format!("did you mean `{name}`?")),
        None if known.is_empty() => diagnostic,
        None => diagnostic.help(format!("there is {}", quoted_list(known))),
    }
}

/// The known word that is closest to `word`, if it is close at all.
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let distance = |name: &&str| strsim::damerau_levenshtein(word, name);
    let close = |name: &&str| distance(name) <= SUGGESTION_DISTANCE_MAX.min(name.len() / 2);
    known.iter().copied().filter(close).min_by_key(distance)
}

/// The other tables that have a setting of this name.
fn tables_with_setting(name: &str, table: &Table, tables: &[&Table]) -> Option<String> {
    let others = tables.iter().filter(|other| other.header != table.header);
    let headers: Vec<_> =
        others.filter(|other| other.setting(name).is_some()).map(|other| other.header).collect();
    (!headers.is_empty()).then(|| headers.join(" or "))
}

/// The words as a list for a message; a long list is cut.
fn quoted_list(names: &[&str]) -> String {
    const SHOWN_MAX: usize = 16;
    let shown: Vec<String> = names.iter().take(SHOWN_MAX).map(|name| format!("`{name}`")).collect();
    let more = if names.len() > SHOWN_MAX { ", ..." } else { "" };
    shown.join(", ") + more
}

/// A table of settings, as `settings.rs` declares it.
pub(crate) trait FromTable: Sized {
    /// The declarations.
    const TABLE: &'static Table;

    /// Reads a table, reports every error in it, and uses defaults where it can.
    fn read(section: &Section<'_>, report: &mut Report) -> Option<Self>;
}

/// A type that a setting can have.
pub(crate) trait FromSetting: Sized {
    /// What to write, in words.
    const KIND: &'static str;
    /// Whether the value must never be shown.
    const SECRET: bool = false;
    /// Whether it is a list of these.
    const LIST: bool = false;

    /// Reads a written value, or reports an error.
    fn read(value: &DeValue<'_>, span: &Span, setting: &Setting, report: &mut Report) -> Option<Self>;

    /// The value of an omitted setting; `None` where one is required.
    fn default(setting: &Setting) -> Option<Self>;
}

/// A type whose value is one TOML string, number or boolean.
pub(crate) trait Scalar: Sized {
    /// What to write, in words.
    const KIND: &'static str;
    /// Whether the value must never be shown.
    const SECRET: bool = false;

    /// Parses a value within the setting's bounds; the error says what is expected.
    fn parse(value: &DeValue<'_>, setting: &Setting) -> Result<Self, String>;
}

impl<T: Scalar> FromSetting for T {
    const KIND: &'static str = T::KIND;
    const SECRET: bool = T::SECRET;

    fn read(value: &DeValue<'_>, span: &Span, setting: &Setting, report: &mut Report) -> Option<T> {
        scalar(value, span, setting, report)
    }

    fn default(setting: &Setting) -> Option<T> {
        let written = DeValue::parse(setting.default).ok()?;
        T::parse(written.get_ref(), setting).ok()
    }
}

impl<T: Scalar> FromSetting for Located<T> {
    const KIND: &'static str = T::KIND;
    const SECRET: bool = T::SECRET;

    fn read(value: &DeValue<'_>, span: &Span, setting: &Setting, report: &mut Report) -> Option<Self> {
        let value = scalar(value, span, setting, report)?;
        Some(Located { value, span: span.clone() })
    }

    fn default(setting: &Setting) -> Option<Self> {
        <T as FromSetting>::default(setting).map(Located::unwritten)
    }
}

impl<T: Scalar> FromSetting for Optional<T> {
    const KIND: &'static str = T::KIND;
    const SECRET: bool = T::SECRET;

    fn read(value: &DeValue<'_>, span: &Span, setting: &Setting, report: &mut Report) -> Option<Self> {
        Some(Located::read(value, span, setting, report).map_or(Optional::Invalid, Optional::Written))
    }

    fn default(_: &Setting) -> Option<Self> {
        Some(Optional::Absent)
    }
}

impl<T: Scalar> FromSetting for Vec<Located<T>> {
    const KIND: &'static str = T::KIND;
    const LIST: bool = true;
    const SECRET: bool = T::SECRET;

    fn read(value: &DeValue<'_>, span: &Span, setting: &Setting, report: &mut Report) -> Option<Self> {
        let Some(items) = value.as_array() else {
            let label = format!("expected a list, each {}; found {}", setting.kind, kind_of(value));
            report.error(wrong_value(span, setting).label(label));
            return None;
        };
        let item = |item: &Spanned<DeValue<'_>>| {
            let span = Span::new(span.source, item.span());
            Located::read(item.get_ref(), &span, setting, report)
        };
        Some(items.iter().filter_map(item).collect())
    }

    fn default(setting: &Setting) -> Option<Self> {
        let written = DeValue::parse(setting.default).ok()?;
        let items = written.get_ref().as_array()?.iter();
        items.map(|item| T::parse(item.get_ref(), setting).ok().map(Located::unwritten)).collect()
    }
}

/// A list of tables, each with the settings that `T` declares: `[{ key = value }]`, or `[[table.list]]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Items<T>(pub Vec<Located<T>>);

impl<T: FromTable> FromSetting for Items<T> {
    const KIND: &'static str = "an inline table";
    const LIST: bool = true;

    fn read(value: &DeValue<'_>, span: &Span, setting: &Setting, report: &mut Report) -> Option<Self> {
        let expected = |what: &str, found: &DeValue<'_>| format!("expected {what}; found {}", kind_of(found));
        let Some(items) = value.as_array() else {
            let label = expected("a list of tables, `[{ ... }]`", value);
            report.error(wrong_value(span, setting).label(label));
            return None;
        };
        let mut tables = Vec::new();
        for item in items {
            let span = Span::new(span.source, item.span());
            match item.get_ref().as_table() {
                None => {
                    let label = expected("a table, `{ ... }`", item.get_ref());
                    report.error(wrong_value(&span, setting).label(label));
                }
                Some(entries) => {
                    let error_count = report.errors.len();
                    let table = T::read(&Section::new(entries, span.clone()), report);
                    // With a default in place of what is wrong, the item might equal another one.
                    let table = table.filter(|_| report.errors.len() == error_count);
                    tables.extend(table.map(|value| Located { value, span }));
                }
            }
        }
        Some(Items(tables))
    }

    fn default(_: &Setting) -> Option<Self> {
        Some(Items(Vec::new()))
    }
}

/// The kind of the written value, for an error that expected another.
pub(crate) fn kind_of(value: &DeValue<'_>) -> String {
    match value {
        DeValue::Integer(_) => "an integer".into(),
        DeValue::Array(_) => "a list".into(),
        other => format!("a {}", other.type_str()),
    }
}

fn scalar<T: Scalar>(value: &DeValue<'_>, span: &Span, setting: &Setting, report: &mut Report) -> Option<T> {
    let complain = |reason| report.error(wrong_value(span, setting).label(reason));
    T::parse(value, setting).map_err(complain).ok()
}

fn wrong_value(span: &Span, setting: &Setting) -> Diagnostic {
    Diagnostic::at(span, format!("wrong value for `{}`", setting.name))
}
