//! The named sets of the configuration: a number for each, which a name keeps for ever.
//!
//! Guarantees: a number is on stable storage before any row has it, and is never given to another name.

use std::collections::{BTreeMap, HashMap};

use rusqlite::Connection;
use rusqlite::types::ValueRef;

use super::checksum;
use super::details::{DetailKind, DetailTables};

/// The named sets of a ledger.
#[derive(Debug, Default)]
pub(crate) struct NamedSets {
    by_name: HashMap<String, i64>,
    /// The name of each number; empty if it is not known.
    names: BTreeMap<i64, String>,
}

/// A set's number and its name.
pub(crate) type NamedSet = (i64, String);

impl NamedSets {
    /// Reads the sets.
    pub(crate) fn read(connection: &Connection) -> rusqlite::Result<NamedSets> {
        let mut sets = NamedSets::default();
        let mut select = connection.prepare("SELECT * FROM named_set")?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            checksum::check(row, "named_set")?;
            sets.note((row.get("number")?, row.get("name")?));
        }
        Ok(sets)
    }

    /// The name of a set; empty for flows that no set admitted.
    pub(crate) fn name(&self, number: i64) -> String {
        match self.names.get(&number) {
            _ if number == 0 => String::new(),
            Some(name) if !name.is_empty() => name.clone(),
            _ => format!("set {number}"),
        }
    }

    /// All known names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// The number of the set `name`, if it has one.
    pub(crate) fn find(&self, name: &str) -> Option<i64> {
        self.by_name.get(name).copied()
    }

    /// Whether an entry with this set tells something new.
    pub(crate) fn lacks(&self, number: i64) -> bool {
        number > 0 && !self.names.contains_key(&number)
    }

    /// The sets in `names` that have no number, with the next ones.
    pub(crate) fn number(&self, names: &[String]) -> Vec<NamedSet> {
        let last = self.names.last_key_value().map_or(0, |(last, _)| *last);
        let new = names.iter().filter(|name| self.find(name).is_none());
        (last + 1..=u16::MAX.into()).zip(new.cloned()).collect()
    }

    /// Stores the number and the name of each set in the details of `file`.
    pub(crate) fn learn(&mut self, connection: &Connection, file: &Connection) -> rusqlite::Result<()> {
        for table in DetailTables::read(file)?.all().filter(|table| !table.is_hourly) {
            let rule = if table.kind == DetailKind::Flow { "min(rule)" } else { "''" };
            let mut select = file.prepare(&format!(
                "SELECT set_number, {rule} FROM {} WHERE set_number > 0 GROUP BY set_number",
                table.name
            ))?;
            let mut rows = select.query([])?;
            while let Some(row) = rows.next()? {
                let (number, rule): (i64, String) = (row.get(0)?, row.get(1)?);
                if self.lacks(number) {
                    let set = (number, name_in_rule(&rule).to_owned());
                    put(connection, &set)?;
                    self.note(set);
                }
            }
        }
        Ok(())
    }

    /// Notes a stored set.
    pub(crate) fn note(&mut self, (number, name): NamedSet) {
        if !name.is_empty() {
            self.by_name.insert(name.clone(), number);
        }
        self.names.insert(number, name);
    }
}

/// The name of the set that a rule's text begins with, as in `@corp[1] 10.20.0.0/16`; empty if there is none.
pub(crate) fn name_in_rule(rule: &str) -> &str {
    rule.strip_prefix('@').and_then(|rule| rule.split_once('[')).map_or("", |(name, _)| name)
}

/// Stores a set.
pub(crate) fn put(connection: &Connection, (number, name): &NamedSet) -> rusqlite::Result<()> {
    let values = [ValueRef::Integer(*number), ValueRef::Text(name.as_bytes())];
    checksum::put(connection, "INSERT INTO named_set VALUES (?1, ?2, ?3)", &values)
}
