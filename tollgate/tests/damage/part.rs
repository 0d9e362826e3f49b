//! A part of a ledger that can be damaged: one file by its role, or several that belong together.
//!
//! Guarantees: each file that a gateway leaves belongs to a part.

use std::fs;
use std::path::{Path, PathBuf};

/// One or more files of a ledger.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Part {
    Identity,
    Lock,
    FirstSegment,
    MiddleSegment,
    CurrentSegment,
    SpareSegment,
    NewSegment,
    Journal,
    Sums,
    SumsLog,
    SumsIndex,
    Month,
    MonthLog,
    MonthIndex,
    Table,
    BothDatabases,
    SumsAndLog,
    MonthAndLog,
    AllButJournal,
    AllButDatabases,
}

impl Part {
    pub(crate) const ALL: [Part; 20] = [
        Part::Identity,
        Part::Lock,
        Part::FirstSegment,
        Part::MiddleSegment,
        Part::CurrentSegment,
        Part::SpareSegment,
        Part::NewSegment,
        Part::Journal,
        Part::Sums,
        Part::SumsLog,
        Part::SumsIndex,
        Part::Month,
        Part::MonthLog,
        Part::MonthIndex,
        Part::Table,
        Part::BothDatabases,
        Part::SumsAndLog,
        Part::MonthAndLog,
        Part::AllButJournal,
        Part::AllButDatabases,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Part::Identity => "identity",
            Part::Lock => "LOCK",
            Part::FirstSegment => "the first segment",
            Part::MiddleSegment => "a middle segment",
            Part::CurrentSegment => "the current segment",
            Part::SpareSegment => "the spare segment",
            Part::NewSegment => "segment-new",
            Part::Journal => "the journal",
            Part::Sums => "ledger.db",
            Part::SumsLog => "ledger.db-wal",
            Part::SumsIndex => "ledger.db-shm",
            Part::Month => "usage-M.db",
            Part::MonthLog => "usage-M.db-wal",
            Part::MonthIndex => "usage-M.db-shm",
            Part::Table => "the live table",
            Part::BothDatabases => "both databases",
            Part::SumsAndLog => "ledger.db and -wal",
            Part::MonthAndLog => "usage-M.db and -wal",
            Part::AllButJournal => "all but the journal",
            Part::AllButDatabases => "all but the databases",
        }
    }

    /// Its files in `tree`, as relative paths; empty if there are none.
    pub(crate) fn files(self, tree: &Path) -> Vec<PathBuf> {
        let matching = |wanted: fn(&str) -> bool| -> Vec<PathBuf> {
            let all = all_files(tree);
            all.into_iter().filter(|path| wanted(&path.display().to_string())).collect()
        };
        match self {
            Part::Identity => matching(|path| path == "data/identity"),
            Part::Lock => matching(|path| path == "data/LOCK"),
            Part::FirstSegment => segments_with_header(tree).into_iter().take(1).collect(),
            Part::MiddleSegment => {
                let with_header = segments_with_header(tree);
                // Neither the first nor the last one.
                let inner = with_header.get(1..with_header.len().saturating_sub(1)).unwrap_or_default();
                inner.get(inner.len() / 2).cloned().into_iter().collect()
            }
            Part::CurrentSegment => {
                segments_with_header(tree).into_iter().skip(1).next_back().into_iter().collect()
            }
            Part::SpareSegment => {
                let with_header = segments_with_header(tree);
                let all = matching(|path| path.starts_with("data/journal/segment-0"));
                all.into_iter().filter(|path| !with_header.contains(path)).take(1).collect()
            }
            Part::NewSegment => matching(|path| path.starts_with("data/journal/segment-new")),
            Part::Journal => matching(|path| path.starts_with("data/journal/")),
            Part::Sums => matching(|path| path == "data/ledger.db"),
            Part::SumsLog => matching(|path| path == "data/ledger.db-wal"),
            Part::SumsIndex => matching(|path| path == "data/ledger.db-shm"),
            Part::Month => matching(|path| path.starts_with("data/usage-") && path.ends_with(".db")),
            Part::MonthLog => matching(|path| path.starts_with("data/usage-") && path.ends_with(".db-wal")),
            Part::MonthIndex => matching(|path| path.starts_with("data/usage-") && path.ends_with(".db-shm")),
            Part::Table => matching(|path| path.starts_with("table/")),
            Part::BothDatabases => matching(|path| path.ends_with(".db")),
            Part::SumsAndLog => matching(|path| path == "data/ledger.db" || path == "data/ledger.db-wal"),
            Part::MonthAndLog => matching(|path| {
                path.starts_with("data/usage-") && (path.ends_with(".db") || path.ends_with(".db-wal"))
            }),
            Part::AllButJournal => matching(|path| !path.starts_with("data/journal/")),
            Part::AllButDatabases => matching(|path| !path.contains(".db")),
        }
    }

    /// Whether it is several files that belong together, and are replaced by name.
    pub(crate) fn is_group(self) -> bool {
        use Part::{AllButDatabases, AllButJournal, BothDatabases, Journal, MonthAndLog, SumsAndLog};
        matches!(self, Journal | BothDatabases | SumsAndLog | MonthAndLog | AllButJournal | AllButDatabases)
    }

    pub(crate) fn is_segment(self) -> bool {
        use Part::{CurrentSegment, FirstSegment, MiddleSegment, SpareSegment};
        matches!(self, FirstSegment | MiddleSegment | CurrentSegment | SpareSegment)
    }

    /// A message about this part must contain one of these words.
    pub(crate) fn words(self) -> &'static [&'static str] {
        match self {
            Part::Identity => &["identity"],
            Part::Lock => &["LOCK"],
            Part::Table => &["live table", ".live", "table/"],
            Part::Sums | Part::SumsLog | Part::SumsIndex | Part::SumsAndLog => &["ledger.db"],
            Part::Month | Part::MonthLog | Part::MonthIndex | Part::MonthAndLog => &["usage-"],
            Part::BothDatabases => &["ledger.db", "usage-"],
            Part::AllButJournal => &["identity", "ledger.db", "usage-", "database", "live table", "LOCK"],
            Part::AllButDatabases => &["identity", "journal", "segment", "live table", "LOCK"],
            _ => &["journal", "segment", "Segment"],
        }
    }
}

/// Every plain file of the ledger below `tree`, in order.
pub(crate) fn all_files(tree: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for below in ["data", "data/journal", "table"] {
        let Ok(entries) = fs::read_dir(tree.join(below)) else { continue };
        let files =
            entries.map_while(Result::ok).filter(|entry| entry.file_type().is_ok_and(|it| it.is_file()));
        found.extend(files.map(|entry| Path::new(below).join(entry.file_name())));
    }
    found.sort();
    found
}

/// Segments with a header, in order.
fn segments_with_header(tree: &Path) -> Vec<PathBuf> {
    let mut segments = all_files(tree);
    segments.retain(|path| {
        let name = path.display().to_string();
        let number = name.strip_prefix("data/journal/segment-").and_then(|number| number.parse::<u64>().ok());
        let Some(number) = number else { return false };
        let bytes = fs::read(tree.join(path)).unwrap_or_default();
        bytes.starts_with(b"TOLLJRNL") && bytes.get(16..24) == Some(&number.to_le_bytes())
    });
    segments
}
