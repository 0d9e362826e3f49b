//! The accounts of users: a number for each, which stays when the name changes or the user is removed and
//! added again.
//!
//! Guarantees: a name has one account for ever. A number is on stable storage before any row has it, and is
//! never given to another account.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rusqlite::functions::FunctionFlags;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, TransactionBehavior};

use super::checksum;
use super::details::DetailTables;

/// The accounts of a ledger, by name. Several names may have one account.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    by_name: HashMap<String, i64>,
    /// The present name of each account, and since when it has it.
    names: HashMap<i64, (i64, String)>,
    /// The greatest number in use.
    last: i64,
}

impl Accounts {
    /// Reads the accounts.
    pub(crate) fn read(connection: &Connection) -> rusqlite::Result<Accounts> {
        let mut accounts = Accounts::default();
        let mut select = connection.prepare("SELECT * FROM account")?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            checksum::check(row, "account")?;
            accounts.note(row.get("name")?, row.get("account")?, row.get("named_ns")?);
        }
        Ok(accounts)
    }

    /// The present name of an account.
    pub(crate) fn name(&self, account: i64) -> String {
        self.names.get(&account).map_or_else(|| format!("account {account}"), |(_, name)| name.clone())
    }

    /// The account of `name`, if it has one.
    pub(crate) fn find(&self, name: &str) -> Option<i64> {
        self.by_name.get(name).copied()
    }

    /// Gives each of `names` an account, on stable storage: the one that it is named with, else the one that
    /// it has, else the next one. `named_ns` is the present moment.
    pub(crate) fn ensure<'n>(
        &mut self,
        connection: &mut Connection,
        names: impl Iterator<Item = (&'n str, i64)>,
        named_ns: i64,
    ) -> rusqlite::Result<()> {
        let new: Vec<(&str, i64)> = names.filter(|(name, _)| !self.by_name.contains_key(*name)).collect();
        if new.is_empty() {
            return Ok(());
        }
        connection.pragma_update(None, "synchronous", "FULL")?;
        let stored = self.store_new(connection, &new, named_ns);
        // The mode of all other commits, also after a failure.
        connection.pragma_update(None, "synchronous", "NORMAL").and(stored)
    }

    fn store_new(
        &mut self,
        connection: &mut Connection,
        new: &[(&str, i64)],
        named_ns: i64,
    ) -> rusqlite::Result<()> {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let added = self.assign(new.iter().copied());
        added.iter().try_for_each(|(name, account)| put(&transaction, name, *account, named_ns))?;
        transaction.commit()?;
        added.into_iter().for_each(|(name, account)| self.note(name, account, named_ns));
        Ok(())
    }

    /// Gives an account to each name in the details of `file`, the one that its rows have.
    pub(crate) fn learn(&mut self, connection: &Connection, file: &Connection) -> rusqlite::Result<()> {
        let mut found: Vec<(String, i64)> = Vec::new();
        for table in DetailTables::read(file)?.all() {
            let account = if table.is_hourly { "0" } else { "account" };
            let mut select =
                file.prepare(&format!("SELECT DISTINCT user, {account} FROM {} ORDER BY 1, 2", table.name))?;
            let names = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
            for name in names {
                found.push(name?);
            }
        }
        let unknown = found.iter().filter(|(name, _)| !self.by_name.contains_key(name));
        for (name, account) in self.assign(unknown.map(|(name, account)| (name.as_str(), *account))) {
            put(connection, &name, account, 0)?;
            self.note(name, account, 0);
        }
        Ok(())
    }

    /// Registers the SQL function `account_of` in `connection`: the account of a name, or null.
    pub(crate) fn install(self: &Arc<Self>, connection: &Connection) -> rusqlite::Result<()> {
        let accounts = Arc::clone(self);
        let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
        connection.create_scalar_function("account_of", 1, flags, move |call| {
            Ok(accounts.find(call.get_raw(0).as_str().unwrap_or_default()))
        })
    }

    /// The accounts of `names`, of which none is known.
    pub(crate) fn assign<'n>(&self, names: impl Iterator<Item = (&'n str, i64)>) -> Vec<(String, i64)> {
        let (mut added, mut last) = (HashSet::new(), self.last);
        let mut in_order = Vec::new();
        for (name, account) in names {
            if !added.insert(name) {
                continue;
            }
            let account = if account > 0 { account } else { last + 1 };
            last = last.max(account);
            in_order.push((name.to_owned(), account));
        }
        in_order
    }

    /// Stores all of them in `connection`, which has none.
    pub(crate) fn store(&self, connection: &Connection) -> rusqlite::Result<()> {
        self.by_name.iter().try_for_each(|(name, account)| put(connection, name, *account, 0))
    }

    pub(crate) fn note(&mut self, name: String, account: i64, named_ns: i64) {
        self.last = self.last.max(account);
        let present = self.names.entry(account).or_insert((i64::MIN, String::new()));
        *present = std::mem::take(present).max((named_ns, name.clone()));
        self.by_name.insert(name, account);
    }
}

/// Stores the account of a name.
pub(crate) fn put(connection: &Connection, name: &str, account: i64, named_ns: i64) -> rusqlite::Result<()> {
    let values = [ValueRef::Text(name.as_bytes()), ValueRef::Integer(account), ValueRef::Integer(named_ns)];
    checksum::put(connection, "INSERT INTO account VALUES (?1, ?2, ?3, ?4)", &values)
}
