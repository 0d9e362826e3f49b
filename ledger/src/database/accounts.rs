//! The accounts of users: a number for each, which stays when the name changes or the user is removed and
//! added again.
//!
//! Guarantees: a number is on stable storage before any row has it, and is never given to another account. A
//! name keeps its account, unless the account's user was renamed and another user has the name now.

use std::collections::{BTreeSet, HashMap, HashSet};

use rusqlite::Connection;
use rusqlite::types::ValueRef;

use super::checksum::{self, Checker};
use super::details::DetailTables;
use crate::numbering::{AccountsAhead, UserNames};

/// The accounts of a ledger, by name. Several names may have one account.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    by_name: HashMap<String, i64>,
    /// The present name of each account, and since when it has it.
    names: HashMap<i64, (i64, String)>,
    /// The greatest number in use.
    last: i64,
    /// Those in entries that are not applied yet.
    ahead: AccountsAhead,
}

impl Accounts {
    /// Reads the accounts.
    pub(crate) fn read(connection: &Connection) -> rusqlite::Result<Accounts> {
        let mut accounts = Accounts::default();
        let mut select = connection.prepare("SELECT * FROM account")?;
        let columns = ["name", "account", "named_ns", "crc"];
        let [name, account, named_ns, crc] = columns.map(|name| select.column_index(name));
        let (name, account, named_ns, mut checker) = (name?, account?, named_ns?, Checker::new(0, crc?));
        let mut rows = select.query([])?;
        // Each command reads all of them, and there may be very many.
        while let Some(row) = rows.next()? {
            checker.check(row, "account")?;
            let (name, account, named_ns) = (row.get(name)?, row.get(account)?, row.get(named_ns)?);
            accounts.note(Naming { name, account, named_ns });
        }
        Ok(accounts)
    }

    /// The present name of an account.
    pub(crate) fn name(&self, account: i64) -> String {
        self.names.get(&account).map_or_else(|| format!("account {account}"), |(_, name)| name.clone())
    }

    /// The present names of `accounts`, and those that they had before.
    pub(crate) fn all_names(&self, accounts: &HashSet<i64>) -> BTreeSet<String> {
        let known = self.by_name.iter().filter(|(_, account)| accounts.contains(account));
        let present = accounts.iter().map(|account| self.name(*account));
        known.map(|(name, _)| name.clone()).chain(present).collect()
    }

    /// Whether an account has a name.
    pub(crate) fn has_name(&self, account: i64) -> bool {
        self.names.contains_key(&account)
    }

    /// The account of `name`, if it has one.
    pub(crate) fn find(&self, name: &str) -> Option<i64> {
        self.by_name.get(name).copied()
    }

    /// Whether an entry with this user and account, 0 if it is not known, tells something new.
    pub(crate) fn lacks(&self, name: &str, account: i64) -> bool {
        !self.by_name.contains_key(name) || (account > 0 && !self.names.contains_key(&account))
    }

    /// The accounts of `users`, and the names to be stored for that. `now_ns` is the present moment.
    pub(crate) fn number(&self, users: &[UserNames], now_ns: i64) -> Numbered {
        let holds = |user: &&UserNames| {
            let account = self.find(&user.name)?;
            (self.name(account) == user.name).then_some(account)
        };
        let mut plan =
            Plan { taken: users.iter().filter_map(|user| holds(&user)).collect(), last: self.last };
        let mut numbered = Numbered::default();
        for user in users {
            let account = holds(&user).unwrap_or_else(|| plan.account_of(self, user));
            let has_other = |former: &&String| self.find(former).is_some_and(|other| other != account);
            numbered.notes.extend(user.former.iter().find(has_other).map(|former| {
                format!(
                    "user `{}` has account {account}, and its former name `{former}` another one, with \
                     usage of its own: the two stay apart. Remove `{former}` from its `former_names`",
                    user.name
                )
            }));
            if holds(&user) != Some(account) {
                // Later than the present name, also if the clock went back.
                let named_ns = self.names.get(&account).map_or(now_ns, |(named, _)| now_ns.max(named + 1));
                numbered.namings.push(Naming { name: user.name.clone(), account, named_ns });
            }
            numbered.accounts.push(account);
        }
        numbered
    }

    /// Stores the accounts that the details of `files` have, and gives one to each name of a version without
    /// accounts.
    pub(crate) fn learn(&mut self, connection: &Connection, files: &[Connection]) -> rusqlite::Result<()> {
        // First all accounts that rows have, so that no name gets the number of another one.
        for is_hourly in [false, true] {
            let mut found: Vec<(String, i64)> = Vec::new();
            for file in files {
                for table in DetailTables::read(file)?.all().filter(|table| table.is_hourly == is_hourly) {
                    let account = if is_hourly { "0" } else { "account" };
                    let select = format!("SELECT DISTINCT user, {account} FROM {} ORDER BY 1, 2", table.name);
                    let mut select = file.prepare(&select)?;
                    let names = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
                    names.into_iter().try_for_each(|name| name.map(|name| found.push(name)))?;
                }
            }
            let new = found.iter().filter(|(name, account)| self.lacks(name, *account));
            let namings = self.assign(new.map(|(name, account)| (name.as_str(), *account)), 0);
            namings.iter().try_for_each(|naming| naming.put(connection))?;
            namings.into_iter().for_each(|naming| self.note(naming));
        }
        Ok(())
    }

    /// Keeps the accounts of entries that come for those entries alone.
    pub(crate) fn expect(&mut self, ahead: AccountsAhead) {
        self.last = self.last.max(ahead.last().into());
        self.ahead = ahead;
    }

    /// The accounts of `names`, of which none is known: the one that a name comes with, else the one that it
    /// comes with later, else the next one. `named_ns` is the present moment.
    pub(crate) fn assign<'n>(
        &self,
        names: impl Iterator<Item = (&'n str, i64)>,
        named_ns: i64,
    ) -> Vec<Naming> {
        let (mut added, mut last) = (HashSet::new(), self.last);
        let mut namings = Vec::new();
        for (name, account) in names {
            if !added.insert(name) {
                continue;
            }
            let known = (account > 0).then_some(account).or_else(|| self.ahead.find(name).map(i64::from));
            let account = known.unwrap_or(last + 1);
            last = last.max(account);
            namings.push(Naming { name: name.to_owned(), account, named_ns });
        }
        namings
    }

    /// Stores all of them in `connection`, which has none.
    pub(crate) fn store(&self, connection: &Connection) -> rusqlite::Result<()> {
        self.by_name.iter().try_for_each(|(name, account)| {
            Naming { name: name.clone(), account: *account, named_ns: 0 }.put(connection)
        })
    }

    /// Notes a stored name.
    pub(crate) fn note(&mut self, Naming { name, account, named_ns }: Naming) {
        self.last = self.last.max(account);
        let present = self.names.entry(account).or_insert((i64::MIN, String::new()));
        if (present.0, present.1.as_str()) < (named_ns, name.as_str()) {
            *present = (named_ns, name.clone());
        }
        self.by_name.insert(name, account);
    }
}

/// The accounts that a numbering gives.
struct Plan {
    /// Accounts of users under their present names.
    taken: HashSet<i64>,
    last: i64,
}

impl Plan {
    /// The account of a user that is not the present name of one: its own or a former name's, unless another
    /// user has that.
    fn account_of(&mut self, accounts: &Accounts, user: &UserNames) -> i64 {
        let known = std::iter::once(&user.name).chain(&user.former).filter_map(|name| accounts.find(name));
        let account = known.into_iter().find(|account| !self.taken.contains(account)).unwrap_or_else(|| {
            self.last += 1;
            self.last
        });
        self.taken.insert(account);
        account
    }
}

/// What [`Accounts::number`] gives.
#[derive(Debug, Default)]
pub(crate) struct Numbered {
    /// In the order of the users.
    pub(crate) accounts: Vec<i64>,
    pub(crate) namings: Vec<Naming>,
    /// What does not go as the configuration says, each in sentences.
    pub(crate) notes: Vec<String>,
}

/// The name of an account, since a moment.
#[derive(Clone, Debug)]
pub(crate) struct Naming {
    pub(crate) name: String,
    pub(crate) account: i64,
    pub(crate) named_ns: i64,
}

impl Naming {
    pub(crate) fn put(&self, connection: &Connection) -> rusqlite::Result<()> {
        let name = ValueRef::Text(self.name.as_bytes());
        let values = [name, ValueRef::Integer(self.account), ValueRef::Integer(self.named_ns)];
        checksum::put(connection, "INSERT OR REPLACE INTO account VALUES (?1, ?2, ?3, ?4)", &values)
    }
}
