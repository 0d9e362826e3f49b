//! Which modules of a crate know which: downward as drawn, and never in a circle.
//!
//! The drawing stands in the header of the crate's `lib.rs`, behind the line [`TITLE`]: rows of module names,
//! from the top to the bottom. A module may use modules of lower rows only.

use std::collections::{BTreeMap, BTreeSet};

use crate::tidy::{
    Finding,
    source::Source,
    tokens::Token,
    tree::{File, Tree},
};

/// The line of a crate's header in front of the drawing.
const TITLE: &str = "//! Modules, each above those that it may use:";

/// The crates whose `lib.rs` has a drawing.
const DRAWN: [&str; 6] = ["engine", "gateway", "ledger", "policy", "proto", "sys"];

/// The crates without circles of files.
const PRODUCT: [&str; 8] = ["admin", "engine", "gateway", "ledger", "policy", "proto", "sys", "tollgate"];

/// A module's path within its crate; the crate's root is empty.
type Module = Vec<String>;

/// One file uses another of its crate.
struct Arrow<'a> {
    from: &'a Module,
    to: &'a Module,
    path: &'a str,
    line: usize,
}

/// Top-level modules use each other as drawn.
pub(super) fn drawn(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for crate_name in DRAWN {
        let root = format!("{crate_name}/src/lib.rs");
        let Some(file) = tree.file(&root) else { continue };
        let modules = Modules::of(tree, crate_name);
        let Some(rows) = drawing(file) else {
            findings.push(Finding::new(&root, 1, format!("draw the modules behind the line `{TITLE}`")));
            continue;
        };
        let row_of: BTreeMap<&str, usize> = (0..)
            .zip(&rows)
            .flat_map(|(row, names)| names.iter().map(move |name| (name.as_str(), row)))
            .collect();
        for name in modules.top_level().filter(|name| !row_of.contains_key(name)) {
            findings.push(Finding::new(&root, 1, format!("`{name}` is not in the drawing of modules")));
        }
        for Arrow { from, to, path, line } in modules.arrows() {
            let (Some(from), Some(to)) = (from.first(), to.first()) else { continue };
            let is_upward = row_of.get(from.as_str()) >= row_of.get(to.as_str());
            if from != to && is_upward {
                let text = format!(
                    "`{from}` must not use `{to}`: arrows run downward as drawn in `{root}`; pass what it \
                     needs as an argument, or move the shared item below both"
                );
                findings.push(Finding::new(path, line, text));
            }
        }
    }
    findings
}

/// No file uses one that uses it, by whatever way, but for a parent and its children.
pub(super) fn circles(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for crate_name in PRODUCT {
        let modules = Modules::of(tree, crate_name);
        let arrows: Vec<Arrow<'_>> =
            modules.arrows().into_iter().filter(|arrow| !is_family(arrow.from, arrow.to)).collect();
        let mut targets: BTreeMap<&Module, BTreeSet<&Module>> = BTreeMap::new();
        for arrow in &arrows {
            targets.entry(arrow.from).or_default().insert(arrow.to);
        }
        let mut reported = BTreeSet::new();
        for arrow in &arrows {
            if reaches(&targets, arrow.to, arrow.from) && reported.insert((arrow.from, arrow.to)) {
                let text = format!(
                    "`{}` and `{}` use each other, directly or through others: move the shared item below \
                     both",
                    arrow.from.join("::"),
                    arrow.to.join("::"),
                );
                findings.push(Finding::new(arrow.path, arrow.line, text));
            }
        }
    }
    findings
}

/// Whether one of two modules contains the other.
fn is_family(one: &Module, other: &Module) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

fn reaches(targets: &BTreeMap<&Module, BTreeSet<&Module>>, from: &Module, to: &Module) -> bool {
    let (mut seen, mut waiting) = (BTreeSet::from([from]), vec![from]);
    while let Some(module) = waiting.pop() {
        if module == to {
            return true;
        }
        let next = targets.get(module).into_iter().flatten().copied();
        waiting.extend(next.filter(|module| seen.insert(module)));
    }
    false
}

/// The rows of names in the block behind [`TITLE`].
fn drawing(root: &File) -> Option<Vec<Vec<String>>> {
    let mut lines = root.text.lines().skip_while(|line| *line != TITLE).skip(1);
    lines.find(|line| *line == "//! ```text")?;
    let rows = lines.take_while(|line| *line != "//! ```");
    let names = |line: &str| line.trim_start_matches("//!").split_whitespace().map(str::to_owned).collect();
    Some(rows.map(names).collect())
}

/// The modules of a crate that are files, without those of tests.
struct Modules<'a>(BTreeMap<Module, &'a Source>);

impl<'a> Modules<'a> {
    fn of(tree: &'a Tree, crate_name: &str) -> Modules<'a> {
        let folder = format!("{crate_name}/src/");
        let product = tree.sources.iter().filter(|source| !source.is_test);
        let modules = product.filter_map(|source| {
            let stem = source.path.strip_prefix(&folder)?.strip_suffix(".rs")?;
            let is_root = matches!(stem, "lib" | "main");
            let module = if is_root { Vec::new() } else { stem.split('/').map(str::to_owned).collect() };
            Some((module, source))
        });
        Modules(modules.collect())
    }

    fn top_level(&self) -> impl Iterator<Item = &str> {
        self.0.keys().filter(|module| module.len() == 1).map(|module| module[0].as_str())
    }

    fn arrows(&self) -> Vec<Arrow<'_>> {
        let mut arrows = Vec::new();
        // A `use` is among the tokens as it stands, and among the uses spelled out.
        let mut seen = BTreeSet::new();
        for (from, source) in &self.0 {
            let in_code = paths(&source.tokens);
            let in_uses = source.uses.iter().flat_map(|tokens| paths(tokens));
            for (path, line) in in_code.into_iter().chain(in_uses) {
                if source.is_test_line(line) {
                    continue;
                }
                let to = self.resolve(from, &path);
                if let Some(to) =
                    to.filter(|to| *to != from && !to.is_empty() && seen.insert((from, *to, line)))
                {
                    arrows.push(Arrow { from, to, path: &source.path, line });
                }
            }
        }
        arrows
    }

    /// The file in which the first words of `path`, as it stands in module `from`, are found.
    fn resolve(&self, from: &Module, path: &[&str]) -> Option<&Module> {
        let mut absolute = match path.first()? {
            &"crate" => Vec::new(),
            _ => from.clone(),
        };
        for word in path {
            match *word {
                "crate" | "self" => {}
                "super" => drop(absolute.pop()),
                name => absolute.push(name.to_owned()),
            }
        }
        loop {
            if let Some((module, _)) = self.0.get_key_value(&absolute) {
                return Some(module);
            }
            absolute.pop()?;
        }
    }
}

/// Each path in `tokens` that begins at the crate, at the module or above it, with its line.
fn paths(tokens: &[Token]) -> Vec<(Vec<&str>, usize)> {
    let mut found = Vec::new();
    let is_separator = |at: usize| {
        let is_colon = |at: usize| tokens.get(at).is_some_and(|token| token.text == ":");
        is_colon(at) && is_colon(at + 1)
    };
    let mut at = 0;
    while at < tokens.len() {
        let first = &tokens[at];
        let begins = matches!(first.text.as_str(), "crate" | "super" | "self") && is_separator(at + 1);
        let is_inner = at >= 2 && is_separator(at - 2);
        if !begins || is_inner {
            at += 1;
            continue;
        }
        let mut path = vec![first.text.as_str()];
        at += 1;
        while is_separator(at) && tokens.get(at + 2).is_some_and(|token| is_word(&token.text)) {
            path.push(&tokens[at + 2].text);
            at += 3;
        }
        found.push((path, first.line));
    }
    found
}

fn is_word(text: &str) -> bool {
    text.starts_with(|character: char| character.is_alphabetic() || character == '_')
}
