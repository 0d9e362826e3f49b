//! deny.toml, parsed into the settings that `deny` enforces.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow, bail};
use toml::de::{DeTable, DeValue};

/// The variable settings. Those of [`FIXED_SETTINGS`] must have the enforced value in the file.
pub(super) struct Config {
    pub(super) targets: Vec<String>,
    pub(super) allowed_licences: Vec<String>,
    /// For each banned crate its replacement.
    pub(super) banned: BTreeMap<String, String>,
    /// `name@version` of packages that are allowed beside another version.
    pub(super) skipped: Vec<String>,
    /// The git URL of the advisory database.
    pub(super) advisories_url: String,
    /// Identifiers of advisories that are accepted.
    pub(super) ignored_advisories: Vec<String>,
}

/// Settings of which one value alone is enforced. They stay in the file for its readers and for cargo-deny.
const FIXED_SETTINGS: [(&str, &str, &str); 8] = [
    ("graph", "all-features", "true"),
    ("advisories", "unmaintained", "all"),
    ("licenses", "unused-allowed-license", "deny"),
    ("bans", "multiple-versions", "deny"),
    ("bans", "wildcards", "deny"),
    ("bans", "allow-wildcard-paths", "true"),
    ("sources", "unknown-registry", "deny"),
    ("sources", "unknown-git", "deny"),
];

const LIST_SETTINGS: [(&str, &str); 6] = [
    ("graph", "targets"),
    ("advisories", "db-urls"),
    ("advisories", "ignore"),
    ("licenses", "allow"),
    ("bans", "deny"),
    ("bans", "skip"),
];

impl Config {
    /// Parses the file's text.
    ///
    /// # Errors
    /// The file is malformed, or a setting would not be enforced.
    pub(super) fn parse(text: &str) -> Result<Config> {
        let file = DeTable::parse(text)?.into_inner();
        reject_unknown(&file)?;
        for (section, key, enforced) in FIXED_SETTINGS {
            let found = setting(&file, section, key)?;
            if scalar(found).as_deref() != Some(enforced) {
                bail!("[{section}] {key}: only the value `{enforced}` is enforced");
            }
        }
        let firsts = |pairs: Vec<(String, String)>| pairs.into_iter().map(|(first, _)| first).collect();
        let urls = texts(&file, "advisories", "db-urls")?;
        let [advisories_url] = <[String; 1]>::try_from(urls).map_err(|urls| {
            anyhow!("[advisories] db-urls: {} URLs, but exactly one is supported", urls.len())
        })?;
        Ok(Config {
            targets: texts(&file, "graph", "targets")?,
            allowed_licences: texts(&file, "licenses", "allow")?,
            banned: pairs(&file, "bans", "deny", ["crate", "use-instead"])?.into_iter().collect(),
            skipped: firsts(pairs(&file, "bans", "skip", ["crate", "reason"])?),
            advisories_url,
            ignored_advisories: firsts(pairs(&file, "advisories", "ignore", ["id", "reason"])?),
        })
    }
}

fn reject_unknown(file: &DeTable<'_>) -> Result<()> {
    for (section, table) in file {
        let section = section.get_ref().as_ref();
        let table = table.get_ref().as_table().with_context(|| format!("{section} is not a section"))?;
        for key in table.keys().map(|key| key.get_ref().as_ref()) {
            let is_known = FIXED_SETTINGS.iter().any(|(s, k, _)| (*s, *k) == (section, key));
            if !is_known && !LIST_SETTINGS.contains(&(section, key)) {
                bail!("[{section}] {key} is not enforced: add it to xtask/src/deny, or remove it");
            }
        }
    }
    Ok(())
}

fn setting<'a>(file: &'a DeTable<'_>, section: &str, key: &str) -> Result<&'a DeValue<'a>> {
    let table = file.get(section).and_then(|table| table.get_ref().as_table());
    let value =
        table.and_then(|table| table.get(key)).with_context(|| format!("[{section}] {key} is missing"))?;
    Ok(value.get_ref())
}

fn list<'a>(file: &'a DeTable<'_>, section: &str, key: &str) -> Result<Vec<&'a DeValue<'a>>> {
    let array = setting(file, section, key)?.as_array();
    let array = array.with_context(|| format!("[{section}] {key} is not a list"))?;
    Ok(array.iter().map(|item| item.get_ref()).collect())
}

fn texts(file: &DeTable<'_>, section: &str, key: &str) -> Result<Vec<String>> {
    let texts: Option<Vec<String>> = list(file, section, key)?.into_iter().map(scalar).collect();
    texts.with_context(|| format!("[{section}] {key}: each item must be a string"))
}

/// The two fields of each table in a list.
fn pairs(file: &DeTable<'_>, section: &str, key: &str, fields: [&str; 2]) -> Result<Vec<(String, String)>> {
    let [first, second] = fields;
    let pair = |table: &DeValue<'_>| Some((field(table, first)?, field(table, second)?));
    let pairs: Option<Vec<_>> = list(file, section, key)?.into_iter().map(pair).collect();
    pairs.with_context(|| format!("[{section}] {key}: each needs `{first}` and `{second}`"))
}

fn field(table: &DeValue<'_>, key: &str) -> Option<String> {
    scalar(table.as_table()?.get(key)?.get_ref())
}

fn scalar(value: &DeValue<'_>) -> Option<String> {
    value.as_str().map(str::to_owned).or_else(|| value.as_bool().map(|value| value.to_string()))
}
