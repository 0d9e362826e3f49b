//! The configuration as written: every table in its typed form, all files together.
//!
//! Guarantees: every syntax error and every wrong value of every file is reported in one pass.
//!
//! Not handled here: whether the tables agree with each other (`listeners.rs`, `user.rs`).

use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::read::{FromTable, Optional, Section, kind_of, suggest};
use super::report::{Diagnostic, Report, SourceText, Span};
use super::source::Sources;
use super::value::team_name;
use crate::config::settings::{
    Accept, Admin, Auth, DestinationTable, Dns, Ledger, Limits, ListenerTable, Log, Network, QuotaDefaults,
    TABLES, TeamTable, Threads, Timeouts, UserTable,
};
use crate::users::UserName;

/// All tables.
#[derive(Default)]
pub(super) struct RawConfig {
    pub(super) listeners: Vec<ListenerTable>,
    pub(super) destinations: Vec<RawDestination>,
    /// In the order of their names.
    pub(super) teams: Vec<RawTeam>,
    pub(super) users: Vec<RawUser>,
    /// Whether every user file could be read. If not, a user that is missing here may exist.
    pub(super) has_all_users: bool,
    pub(super) network: Network,
    pub(super) admin: Admin,
    pub(super) accept: Accept,
    pub(super) threads: Threads,
    pub(super) limits: Limits,
    pub(super) timeouts: Timeouts,
    pub(super) dns: Dns,
    /// Its header, if it is written.
    pub(super) dns_span: Option<Span>,
    pub(super) ledger: Ledger,
    pub(super) log: Log,
    pub(super) auth: Auth,
    pub(super) quotas: QuotaDefaults,
}

/// One `[destinations.NAME]`.
pub(super) struct RawDestination {
    pub(super) name: String,
    pub(super) span: Span,
    pub(super) table: DestinationTable,
}

/// One `[teams.NAME]`.
pub(super) struct RawTeam {
    pub(super) name: String,
    pub(super) span: Span,
    pub(super) table: TeamTable,
}

/// One `[[user]]`, or one user file.
pub(super) struct RawUser {
    pub(super) name: UserName,
    /// The table's header, or the beginning of the file.
    pub(super) span: Span,
    pub(super) table: UserTable,
    /// The user file; `None` for a table of the configuration itself.
    pub(super) file: Option<PathBuf>,
}

/// Reads all texts.
pub(super) fn read(sources: &Sources, report: &mut Report) -> RawConfig {
    let mut raw = RawConfig { has_all_users: sources.has_all_users, ..RawConfig::default() };
    if let Some(main) = sources.main {
        parse_text(&sources.sources, main, report, |section, report| raw.read_main(section, report));
    }
    for (name, path, index) in &sources.users {
        parse_text(&sources.sources, *index, report, |section, report| {
            raw.read_user_file(section, name, path, report);
        });
    }
    raw
}

/// Parses one text and walks it. Where the text is broken the parser guesses. So findings of the walk on a
/// broken line are dropped in favour of the parser's own.
fn parse_text(
    sources: &[SourceText],
    index: usize,
    report: &mut Report,
    walk: impl FnOnce(&Section<'_>, &mut Report),
) {
    let text = sources[index].text.as_str();
    let (table, errors) = DeTable::parse_recoverable(text);
    let syntax_errors: Vec<Span> =
        errors.iter().map(|error| Span::new(index, error.span().unwrap_or(0..0))).collect();
    let mut walked = Report::default();
    walk(&Section::new(table.get_ref(), Span::new(index, 0..0)), &mut walked);
    let broken = |diagnostic: &Diagnostic| {
        // An empty span stands for a whole file and belongs to no line.
        let Some(span) = diagnostic.span.as_ref().filter(|span| span.start < span.end) else {
            return false;
        };
        let line_start = text[..span.start].rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = text[span.end..].find('\n').map_or(text.len(), |newline| span.end + newline);
        syntax_errors.iter().any(|at| line_start <= at.start && at.start <= line_end)
    };
    walked.errors.retain(|diagnostic| !broken(diagnostic));
    for (error, span) in errors.iter().zip(&syntax_errors) {
        walked.error(Diagnostic::at(span, "this is not TOML").label(error.message()));
    }
    report.errors.append(&mut walked.errors);
    report.warnings.append(&mut walked.warnings);
    report.secrets.append(&mut walked.secrets);
}

impl RawConfig {
    fn read_main(&mut self, root: &Section<'_>, report: &mut Report) {
        for (key, value) in root.entries() {
            match key.get_ref().as_ref() {
                "listener" => self.listeners = tables(root, value, report).map(|(_, table)| table).collect(),
                "user" => {
                    let users = tables(root, value, report);
                    self.users =
                        users.filter_map(|(span, table)| user_with_name(span, table, report)).collect();
                }
                "destinations" => {
                    let sets = named_tables(root, value, report).into_iter();
                    self.destinations =
                        sets.map(|(name, span, table)| RawDestination { name, span, table }).collect();
                }
                "teams" => self.teams = teams(named_tables(root, value, report), report),
                "network" => single(&mut self.network, root, value, report),
                "admin" => single(&mut self.admin, root, value, report),
                "accept" => single(&mut self.accept, root, value, report),
                "threads" => single(&mut self.threads, root, value, report),
                "limits" => single(&mut self.limits, root, value, report),
                "timeouts" => single(&mut self.timeouts, root, value, report),
                "dns" => {
                    self.dns_span = Some(root.span_in_source(value.span()));
                    single(&mut self.dns, root, value, report);
                }
                "ledger" => single(&mut self.ledger, root, value, report),
                "log" => single(&mut self.log, root, value, report),
                "auth" => single(&mut self.auth, root, value, report),
                "quotas" => single(&mut self.quotas, root, value, report),
                unknown => report.error(unknown_table(unknown, &root.span_in_source(key.span()))),
            }
        }
    }

    fn read_user_file(&mut self, root: &Section<'_>, name: &UserName, path: &Path, report: &mut Report) {
        if let Some((key, _)) = root.entries().find(|(key, _)| key.get_ref() == "user") {
            let title = "a user file holds the settings of one user, without a header";
            let span = root.span_in_source(key.span());
            return report.error(Diagnostic::at(&span, title).label("delete this header"));
        }
        let Some(table) = UserTable::read(root, report) else {
            self.has_all_users = false;
            return;
        };
        if let Some(written) = table.name.written().filter(|written| written.value != *name) {
            let title = format!("by the name of its file this user is called `{name}`");
            report.error(Diagnostic::at(&written.span, title).label("delete this line, or rename the file"));
        }
        let span = root.span().clone();
        self.users.push(RawUser { name: name.clone(), span, table, file: Some(path.into()) });
    }
}

/// `[name]`.
fn single<T: FromTable + Default>(
    into: &mut T,
    root: &Section<'_>,
    value: &Spanned<DeValue<'_>>,
    report: &mut Report,
) {
    let span = root.span_in_source(value.span());
    match value.get_ref().as_table() {
        Some(entries) => *into = T::read(&Section::new(entries, span), report).unwrap_or_default(),
        None => report.error(not_a_table(T::TABLE.header, value.get_ref(), &span)),
    }
}

/// `[[name]]`, as many as are written.
fn tables<T: FromTable>(
    root: &Section<'_>,
    value: &Spanned<DeValue<'_>>,
    report: &mut Report,
) -> std::vec::IntoIter<(Span, T)> {
    let header = T::TABLE.header;
    let mut tables = Vec::new();
    for item in value.get_ref().as_array().into_iter().flatten() {
        let span = root.span_in_source(item.span());
        match item.get_ref().as_table() {
            None => report.error(not_a_table(header, item.get_ref(), &span)),
            Some(entries) => {
                let table = T::read(&Section::new(entries, span.clone()), report);
                tables.extend(table.map(|table| (span, table)));
            }
        }
    }
    if !value.get_ref().is_array() {
        report.error(not_a_table(header, value.get_ref(), &root.span_in_source(value.span())));
    }
    tables.into_iter()
}

/// `[table.NAME]`, all of them: each with its name and the span of the name.
fn named_tables<T: FromTable>(
    root: &Section<'_>,
    value: &Spanned<DeValue<'_>>,
    report: &mut Report,
) -> Vec<(String, Span, T)> {
    let header = T::TABLE.header;
    let Some(named) = value.get_ref().as_table() else {
        report.error(not_a_table(header, value.get_ref(), &root.span_in_source(value.span())));
        return Vec::new();
    };
    let mut tables = Vec::new();
    for (key, value) in named {
        let span = root.span_in_source(key.span());
        let Some(entries) = value.get_ref().as_table() else {
            report.error(not_a_table(header, value.get_ref(), &span));
            continue;
        };
        let table = T::read(&Section::new(entries, span.clone()), report);
        tables.extend(table.map(|table| (key.get_ref().to_string(), span, table)));
    }
    tables
}

/// The teams whose names are valid.
fn teams(tables: Vec<(String, Span, TeamTable)>, report: &mut Report) -> Vec<RawTeam> {
    let mut teams = Vec::new();
    for (name, span, table) in tables {
        match team_name(&name) {
            Ok(_) => teams.push(RawTeam { name, span, table }),
            Err(reason) => report.error(Diagnostic::at(&span, "wrong name of a team").label(reason)),
        }
    }
    teams
}

/// A `[[user]]` must contain its name; a user file has it in its file name.
fn user_with_name(span: Span, table: UserTable, report: &mut Report) -> Option<RawUser> {
    match &table.name {
        Optional::Written(name) => Some(RawUser { name: name.value.clone(), span, file: None, table }),
        Optional::Invalid => None,
        Optional::Absent => {
            report.error(Diagnostic::at(&span, "[[user]] lacks `name`"));
            None
        }
    }
}

fn not_a_table(header: &str, value: &DeValue<'_>, span: &Span) -> Diagnostic {
    let label = match value {
        DeValue::Table(_) => format!("write its header with double brackets, {header}"),
        other => format!("expected a table, under its header {header}; found {}", kind_of(other)),
    };
    Diagnostic::at(span, format!("this must be written as {header}")).label(label)
}

fn unknown_table(word: &str, span: &Span) -> Diagnostic {
    let diagnostic = Diagnostic::at(span, format!("unknown key `{word}`"));
    if let Some(table) = TABLES.iter().find(|table| table.setting(word).is_some()) {
        return diagnostic.help(format!("`{word}` belongs under {}", table.header));
    }
    let headers = TABLES.iter().map(|table| table.header).filter(|header| header.starts_with('['));
    let headers: Vec<&str> = headers.map(table_name).collect();
    suggest(diagnostic, word, &headers)
}

/// The name in a header: `user` of `[[user]]`.
fn table_name(header: &str) -> &str {
    header.trim_matches(['[', ']']).split('.').next().unwrap_or_default()
}
