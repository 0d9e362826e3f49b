//! The team of each account, as it was last numbered.
//!
//! Guarantees: a user that is removed keeps its last team, and a renamed one its account and so its team. An
//! account without a row is in no team.

use std::collections::{BTreeSet, HashMap, HashSet};

use rusqlite::Connection;
use rusqlite::types::ValueRef;

use super::checksum;
use crate::numbering::UserNames;

/// An account and its team; empty if it has none any more.
pub(crate) type AccountTeam = (i64, String);

/// The teams of a ledger's accounts.
#[derive(Debug, Default)]
pub(crate) struct Teams {
    by_account: HashMap<i64, String>,
}

impl Teams {
    /// Reads the teams; none from a file of a version without them.
    pub(crate) fn read(connection: &Connection) -> rusqlite::Result<Teams> {
        let mut teams = Teams::default();
        if !connection.table_exists(None, "account_team")? {
            return Ok(teams);
        }
        let mut select = connection.prepare("SELECT * FROM account_team")?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            checksum::check(row, "account_team")?;
            teams.note((row.get("account")?, row.get("team")?));
        }
        Ok(teams)
    }

    /// The team of an account; empty if it has none.
    pub(crate) fn of(&self, account: i64) -> &str {
        self.by_account.get(&account).map_or("", String::as_str)
    }

    /// The accounts of `team`; none if its name is empty.
    pub(crate) fn accounts(&self, team: &str) -> HashSet<i64> {
        let members = self.by_account.iter().filter(|(_, of)| !team.is_empty() && *of == team);
        members.map(|(account, _)| *account).collect()
    }

    /// The names of all teams that have an account.
    pub(crate) fn names(&self) -> BTreeSet<String> {
        self.by_account.values().filter(|team| !team.is_empty()).cloned().collect()
    }

    /// The teams of `users`, which have `accounts`, that are not stored yet.
    pub(crate) fn number(&self, users: &[UserNames], accounts: &[i64]) -> Vec<AccountTeam> {
        let pairs = accounts.iter().zip(users).filter(|(account, user)| self.of(**account) != user.team);
        pairs.map(|(account, user)| (*account, user.team.clone())).collect()
    }

    /// Notes a stored team.
    pub(crate) fn note(&mut self, (account, team): AccountTeam) {
        self.by_account.insert(account, team);
    }
}

/// Stores the team of an account, which it has since `since_ns`.
pub(crate) fn put(
    connection: &Connection,
    (account, team): &AccountTeam,
    since_ns: i64,
) -> rusqlite::Result<()> {
    let (team, since) = (ValueRef::Text(team.as_bytes()), ValueRef::Integer(since_ns));
    let values = [ValueRef::Integer(*account), team, since];
    checksum::put(connection, "INSERT OR REPLACE INTO account_team VALUES (?1, ?2, ?3, ?4)", &values)
}
