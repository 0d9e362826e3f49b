//! Rules on the text of every committed file, of any language.

use crate::tidy::{Finding, tree::Tree};

// Each word is written in two parts, since this file must obey its own rules.
const POSTPONED: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX")];
const MACHINE_PATHS: [&str; 4] =
    [concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/wo", "rk/"), concat!("/Us", "ers/")];
const REGISTRY_HOSTS: [&str; 8] = [
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("pythonhosted", ".org"),
    concat!("registry.npmjs", ".org"),
    concat!("deb.debian", ".org"),
    concat!("security.debian", ".org"),
    concat!("proxy.golang", ".org"),
    concat!("repo.maven", ".apache"),
];

/// Folders of test inputs, whose bytes must not change.
const DATA_FOLDERS: [&str; 2] = ["seeds", "testdata"];

/// Cargo writes the registry's address into it.
const LOCK_FILE: &str = "Cargo.lock";

/// No line ends in blanks or a carriage return, and the last line ends with a line feed.
pub(super) fn whitespace(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_data = |path: &str| path.split('/').any(|part| DATA_FOLDERS.contains(&part));
    for file in tree.files.iter().filter(|file| !is_data(&file.path)) {
        for (index, line) in file.text.split('\n').enumerate() {
            if line.ends_with([' ', '\t', '\r']) {
                findings.push(Finding::new(
                    &file.path,
                    index + 1,
                    "remove the whitespace at the end of the line",
                ));
            }
        }
        if !file.text.is_empty() && !file.text.ends_with('\n') {
            let line = file.text.lines().count();
            findings.push(Finding::new(&file.path, line, "end the last line with a line feed"));
        }
    }
    findings
}

/// The repository has no notes on pending work: these belong in the issue tracker.
pub(super) fn postponed_work(tree: &Tree) -> Vec<Finding> {
    find(tree, &POSTPONED, is_word, "do it now, or leave it out and open an issue")
}

/// No file contains a path of one machine.
pub(super) fn machine_path(tree: &Tree) -> Vec<Finding> {
    let begins_path = |before: Option<char>, _: Option<char>| !before.is_some_and(is_path_character);
    find(
        tree,
        &MACHINE_PATHS,
        begins_path,
        "a path of one machine: make it relative, or read it from the environment",
    )
}

/// No file names a registry's host: each machine configures its own mirror.
pub(super) fn registry_host(tree: &Tree) -> Vec<Finding> {
    find(tree, &REGISTRY_HOSTS, is_word, "a registry's host: leave it to the client settings of the machine")
}

/// The lines with one of `needles`, for which `accepts` approves the characters before and after it.
fn find(
    tree: &Tree,
    needles: &[&str],
    accepts: fn(Option<char>, Option<char>) -> bool,
    remedy: &str,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| file.path.rsplit('/').next() != Some(LOCK_FILE)) {
        for (index, line) in file.text.lines().enumerate() {
            for needle in needles {
                let matches = |(at, _): (usize, &str)| {
                    accepts(line[..at].chars().next_back(), line[at + needle.len()..].chars().next())
                };
                if line.match_indices(needle).any(matches) {
                    findings.push(Finding::new(&file.path, index + 1, format!("`{needle}`: {remedy}")));
                }
            }
        }
    }
    findings
}

fn is_word(before: Option<char>, after: Option<char>) -> bool {
    let continues = |character: Option<char>| character.is_some_and(|it| it.is_alphanumeric() || it == '_');
    !continues(before) && !continues(after)
}

fn is_path_character(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '.' | '_' | '-' | '}')
}
