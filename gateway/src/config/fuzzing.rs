//! Entry points of the fuzz target `config`: a configuration from texts in memory.
//!
//! Only builds with the feature `fuzzing` have this module. `fuzz/src` states what must hold.

use std::ops::Range;
use std::path::PathBuf;

use super::report::{Report, SourceText};
use super::source::Sources;
use super::{Config, ConfigErrors, Findings, LoadOptions, Origin};
use crate::users::USERS_DIRECTORY;

/// Files here do not exist: nothing is read from the disk.
const DIRECTORY: &str = "/nonexistent";

/// The configuration of file `main` with `users`, each the name and the text of a user file.
///
/// # Errors
/// All errors at once.
///
/// # Panics
/// When a name is not that of a user.
pub fn load(main: &str, users: &[(&str, &str)]) -> Result<Config, ConfigErrors> {
    let path = PathBuf::from(DIRECTORY).join("tollgate.toml");
    let users_directory = PathBuf::from(DIRECTORY).join(USERS_DIRECTORY);
    let named =
        |path: &PathBuf, text: &str| SourceText { name: path.display().to_string(), text: text.to_owned() };
    let mut sources = vec![named(&path, main)];
    let mut user_files = Vec::new();
    for (name, text) in users {
        let path = users_directory.join(format!("{name}.toml"));
        sources.push(named(&path, text));
        user_files.push((name.parse().expect("a user's name"), path, sources.len() - 1));
    }
    let sources = Sources {
        origin: Origin::File(path),
        users_directory,
        sources,
        main: Some(0),
        users: user_files,
        has_all_users: true,
    };
    Config::from_sources(&LoadOptions::default(), sources, Report::default())
}

/// The spans of all findings, each with the text that it points into.
pub fn spans(findings: &Findings) -> Vec<(&str, Range<usize>)> {
    findings.spans().collect()
}
