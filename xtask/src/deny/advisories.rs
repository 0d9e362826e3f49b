//! Advisories in the format of the RustSec database: `crates/<package>/<id>.md`, a Markdown file that begins
//! with a block of TOML.
//!
//! Guarantees: an unreadable advisory on a locked package is an error. A withdrawn advisory affects nothing.
//! Not handled here: the table `affected`, which narrows an advisory to functions and systems. That needs a
//! human judgement.
//!
//! The crate `rustsec` reads the same format, but brings git and an HTTP client, more than a hundred
//! packages. `toml` and `semver` are in Cargo.lock already. The two differ on pre-releases: `semver` never
//! matches a pre-release against a requirement that names none. So a patched pre-release may be reported
//! wrongly, and an affected one is never missed.

use std::{
    collections::BTreeSet,
    fmt, fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use semver::{Version, VersionReq};
use toml::de::{DeTable, DeValue};

/// Each advisory that affects one of `packages` and is not ignored, and each ignored identifier that is
/// unused.
pub(super) fn check(
    database: &Path,
    ignored: &[String],
    packages: &[(String, Version)],
) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    let mut unused: BTreeSet<&String> = ignored.iter().collect();
    for (name, version) in packages {
        for advisory in advisories_in(&database.join("crates").join(name))? {
            if !advisory.affects(version) {
                continue;
            }
            if ignored.contains(&advisory.id) {
                unused.remove(&advisory.id);
                continue;
            }
            findings.push(format!("{name}@{version}: {advisory}"));
        }
    }
    findings.extend(
        unused.iter().map(|id| format!("deny.toml: the ignored `{id}` affects no package: remove it")),
    );
    Ok(findings)
}

/// The fields of an advisory that the check reads.
struct Advisory {
    id: String,
    /// The file's `informational` (`unsound`, `unmaintained`, `notice`); without it `vulnerable`.
    kind: String,
    title: String,
    is_withdrawn: bool,
    /// Fixed versions, and versions that never had the fault.
    patched: Vec<VersionReq>,
    unaffected: Vec<VersionReq>,
}

impl fmt::Display for Advisory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Advisory { id, kind, title, patched, .. } = self;
        write!(f, "{id}, {kind}: {title}: ")?;
        if patched.is_empty() {
            let remedy = "remove the package, or ignore the advisory with a reason in deny.toml";
            return write!(f, "no release fixes it: {remedy}");
        }
        let patched: Vec<String> = patched.iter().map(ToString::to_string).collect();
        write!(f, "use {}, or ignore the advisory with a reason in deny.toml", patched.join(" or "))
    }
}

impl Advisory {
    fn parse(text: &str) -> Result<Advisory> {
        let (front, body) = text
            .trim_start()
            .strip_prefix("```toml")
            .and_then(|rest| rest.split_once("\n```"))
            .context("the file does not begin with a block of TOML")?;
        let file = DeTable::parse(front)?.into_inner();
        let text = |key: &str| value(&file, "advisory", key).and_then(DeValue::as_str).map(str::to_owned);
        let title = body.lines().find_map(|line| line.strip_prefix("# "));
        Ok(Advisory {
            id: text("id").context("[advisory] id is missing")?,
            kind: text("informational").unwrap_or_else(|| "vulnerable".to_owned()),
            title: title.context("the file has no title")?.trim().to_owned(),
            is_withdrawn: value(&file, "advisory", "withdrawn").is_some(),
            patched: requirements(&file, "patched")?,
            unaffected: requirements(&file, "unaffected")?,
        })
    }

    fn affects(&self, version: &Version) -> bool {
        let mut sound = self.patched.iter().chain(&self.unaffected);
        !self.is_withdrawn && !sound.any(|requirement| requirement.matches(version))
    }
}

/// The advisories in a package's folder, sorted by file name; most packages have no folder.
fn advisories_in(folder: &Path) -> Result<Vec<Advisory>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| folder.display().to_string())?,
    };
    let paths: Result<BTreeSet<_>, _> = entries.map(|entry| entry.map(|entry| entry.path())).collect();
    let is_advisory = |path: &&PathBuf| path.extension().is_some_and(|ending| ending == "md");
    let read = |path: &PathBuf| -> Result<Advisory> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Advisory::parse(&text).with_context(|| path.display().to_string())
    };
    paths?.iter().filter(is_advisory).map(read).collect()
}

fn value<'a>(file: &'a DeTable<'_>, section: &str, key: &str) -> Option<&'a DeValue<'a>> {
    Some(file.get(section)?.get_ref().as_table()?.get(key)?.get_ref())
}

/// The requirements of `[versions]` under `key`; empty without the key.
fn requirements(file: &DeTable<'_>, key: &str) -> Result<Vec<VersionReq>> {
    let Some(list) = value(file, "versions", key) else { return Ok(Vec::new()) };
    let list = list.as_array().with_context(|| format!("[versions] {key} is not a list"))?;
    let read = |item: &DeValue<'_>| -> Result<VersionReq> {
        let text = item.as_str().with_context(|| format!("[versions] {key}: each item must be a string"))?;
        text.parse().with_context(|| format!("[versions] {key}: `{text}`"))
    };
    list.iter().map(|item| read(item.get_ref())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small database, and a lock file with packages of it.
    const TESTDATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/advisories");

    fn findings(ignored: &[&str], packages: &[(&str, &str)]) -> Result<Vec<String>> {
        let parse = |(name, version): &(&str, &str)| {
            (name.to_string(), version.parse().expect("the version is valid"))
        };
        let packages: Vec<(String, Version)> = packages.iter().map(parse).collect();
        let ignored: Vec<String> = ignored.iter().map(ToString::to_string).collect();
        check(Path::new(TESTDATA), &ignored, &packages)
    }

    #[test]
    fn only_affected_versions_are_found() {
        let remedy = "use >=1.2.3, <2.0.0 or >=2.0.1, or ignore the advisory with a reason in deny.toml";
        let leak =
            |version: &str| format!("kettle@{version}: RUSTSEC-2026-9001, vulnerable: It leaks: {remedy}");
        let unmaintained = "lantern@3.0.0: RUSTSEC-2026-9002, unmaintained: Its author has left: no release \
            fixes it: remove the package, or ignore the advisory with a reason in deny.toml";
        let cases: [(&str, &str, Option<String>); 12] = [
            ("kettle", "0.9.9", None),
            ("kettle", "1.0.0", Some(leak("1.0.0"))),
            ("kettle", "1.2.2", Some(leak("1.2.2"))),
            ("kettle", "1.2.3", None),
            ("kettle", "1.9.0", None),
            ("kettle", "2.0.0", Some(leak("2.0.0"))),
            ("kettle", "2.0.1", None),
            // Older than the patched 2.0.1: affected.
            ("kettle", "2.0.1-rc.1", Some(leak("2.0.1-rc.1"))),
            ("lantern", "3.0.0", Some(unmaintained.to_owned())),
            // Its advisory was withdrawn.
            ("anvil", "1.0.0", None),
            ("spoon", "1.0.0", None),
            // A prefix of a name that has an advisory.
            ("kett", "1.0.0", None),
        ];
        for (name, version, expected) in cases {
            let found = findings(&[], &[(name, version)]).expect("the advisories are readable");
            assert_eq!(found, Vec::from_iter(expected), "{name} {version}");
        }
    }

    #[test]
    fn unused_ignore_is_found() {
        let packages = [("kettle", "1.0.0"), ("lantern", "3.0.0")];
        assert_eq!(
            findings(&["RUSTSEC-2026-9001", "RUSTSEC-2026-9002"], &packages)
                .expect("the advisories are readable")
                .len(),
            0
        );
        assert_eq!(
            findings(&["RUSTSEC-2026-9001"], &[("kettle", "1.2.3")]).expect("the advisories are readable"),
            ["deny.toml: the ignored `RUSTSEC-2026-9001` affects no package: remove it"]
        );
    }

    #[test]
    fn unreadable_advisory_is_an_error() {
        let error_text = |name: &str| {
            format!("{:#}", findings(&[], &[(name, "1.0.0")]).expect_err("the advisory is damaged"))
        };
        assert!(
            error_text("damaged").ends_with(
                "RUSTSEC-2026-9004.md: [versions] patched: `yes`: unexpected character \
            'y' while parsing major version number"
            ),
            "{}",
            error_text("damaged")
        );
        assert!(Advisory::parse("# A title\n").is_err());
        assert!(Advisory::parse("```toml\n[advisory]\n```\n# A title\n").is_err());
    }

    #[test]
    fn workspace_packages_have_no_advisories() {
        let lock = fs::read_to_string(Path::new(TESTDATA).join("lock.toml")).expect("the file exists");
        let locked = crate::deny::packages::locked_packages(&lock).expect("the lock file is valid");
        let found = check(Path::new(TESTDATA), &[], &locked).expect("the advisories are readable");
        assert_eq!(locked.len(), 2);
        assert!(found.len() == 1 && found[0].starts_with("lantern@3.0.0: "), "{found:?}");
    }
}
