//! The terms of `docs/glossary.md`: words and names that it retires are not used.

use crate::tidy::{
    Finding,
    prose::{self, Prose},
    tree::{File, Tree},
};

const GLOSSARY: &str = "docs/glossary.md";

/// The section that lists the retired words, each as code.
const WORDS_TITLE: &str = "## Words";

/// The product, its automation and its documents; files of the root belong to them.
const FOLDERS: [&str; 14] = [
    ".ci", ".github", "admin", "docs", "engine", "fuzz", "gateway", "lab", "ledger", "policy", "proto",
    "sys", "tollgate", "xtask",
];

/// Folders of inputs and of generated files, which stay as they are.
const DATA_FOLDERS: [&str; 4] = ["corpus", "runs", "seeds", "testdata"];

/// Files that keep their words: others wrote them, or databases have checksums of them.
const KEPT_FILES: [&str; 3] = [GLOSSARY, "Cargo.lock", "ledger/src/database/schema/ledger_db.rs"];

/// Comments, texts, documents and function names hold no retired word.
pub(super) fn words(tree: &Tree) -> Vec<Finding> {
    let Some(glossary) = tree.file(GLOSSARY) else { return Vec::new() };
    let retired = retired_words(glossary);
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| is_prose(&file.path)) {
        let is_rust = file.path.ends_with(".rs");
        let texts = if is_rust { prose::of_rust(&file.text) } else { prose::of_text(&file.text) };
        for Prose { line, text } in texts {
            for word in text.split(|character: char| !character.is_alphanumeric() && character != '_') {
                if retired.iter().any(|retired| retired.eq_ignore_ascii_case(word)) {
                    findings.push(Finding::new(&file.path, line, instead_of(word)));
                }
            }
        }
    }
    for source in tree.sources.iter().filter(|source| is_prose(&source.path)) {
        for function in &source.functions {
            if let Some(word) = function.name.split('_').find(|part| retired.iter().any(|it| it == part)) {
                findings.push(Finding::new(&source.path, *function.lines.start(), instead_of(word)));
            }
        }
    }
    findings
}

/// No name of code is one that the glossary has replaced by its term.
pub(super) fn names(tree: &Tree) -> Vec<Finding> {
    let Some(glossary) = tree.file(GLOSSARY) else { return Vec::new() };
    let retired = retired_names(glossary);
    let mut findings = Vec::new();
    for source in &tree.sources {
        for token in &source.tokens {
            if let Some((name, term)) = retired.iter().find(|(name, _)| *name == token.text) {
                let text = format!("`{name}` is retired: the term is `{term}` ({GLOSSARY})");
                findings.push(Finding::new(&source.path, token.line, text));
            }
        }
    }
    findings
}

fn instead_of(word: &str) -> String {
    format!("`{word}`: make a component the subject: the connection, the thread, the user; see {GLOSSARY}")
}

fn is_prose(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let has_prose =
        [".rs", ".md", ".toml", ".sh", ".yml", ".yaml"].iter().any(|ending| name.ends_with(ending));
    let is_in_folder = path.split_once('/').is_none_or(|(folder, _)| FOLDERS.contains(&folder));
    has_prose
        && is_in_folder
        && !KEPT_FILES.iter().any(|kept| path.ends_with(kept))
        && !path.split('/').any(|part| DATA_FOLDERS.contains(&part))
}

/// The words of the section [`WORDS_TITLE`].
fn retired_words(glossary: &File) -> Vec<&str> {
    let lines = glossary.text.lines().skip_while(|line| *line != WORDS_TITLE).skip(1);
    let section = lines.take_while(|line| !line.starts_with("## "));
    section.flat_map(codes).filter(|code| code.chars().all(char::is_alphabetic)).collect()
}

/// The names of the last column of each table, with the term of the first.
fn retired_names(glossary: &File) -> Vec<(&str, &str)> {
    let rows = glossary.text.lines().filter(|line| line.starts_with('|'));
    let columns = rows.filter_map(|row| {
        let mut columns = row.trim_matches('|').split('|').map(str::trim);
        let (term, _, retired) = (columns.next()?, columns.next()?, columns.next()?);
        Some((term, retired))
    });
    columns.flat_map(|(term, retired)| codes(retired).map(move |name| (name, term))).collect()
}

/// What stands between backticks.
fn codes(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}
