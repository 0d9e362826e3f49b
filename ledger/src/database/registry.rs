//! The numbers that stand in entries and rows: of accounts, of named sets, and of the policy's versions; and
//! the team of each account.
//!
//! Guarantees: a number is on stable storage before any row has it. So what is computed from a number is of
//! the same account or set for ever, also if the database is an older copy than the journal: the numbers in
//! the journal's entries are taken over, and a start tells of them before the first one is applied.

use std::sync::Arc;

use rusqlite::functions::FunctionFlags;
use rusqlite::{Connection, TransactionBehavior};

use super::accounts::{Accounts, Naming};
use super::named_sets::{self, NamedSet, NamedSets};
use super::policies::PolicyVersion;
use super::teams::{self, AccountTeam, Teams};
use crate::entry::Entry;
use crate::numbering::{Names, Numbers};

/// The numbers of a ledger.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    pub(crate) accounts: Accounts,
    pub(crate) sets: NamedSets,
    pub(crate) policy: PolicyVersion,
    pub(crate) teams: Teams,
}

/// What a registry lacks.
#[derive(Default)]
struct Additions {
    namings: Vec<Naming>,
    sets: Vec<NamedSet>,
    policy: Option<PolicyVersion>,
    teams: Vec<AccountTeam>,
}

impl Registry {
    /// Reads the numbers.
    pub(crate) fn read(connection: &Connection) -> rusqlite::Result<Registry> {
        Ok(Registry {
            accounts: Accounts::read(connection)?,
            sets: NamedSets::read(connection)?,
            policy: PolicyVersion::read(connection)?,
            teams: Teams::read(connection)?,
        })
    }

    /// Stores the numbers in the details of `files` that are new.
    pub(crate) fn learn(&mut self, connection: &Connection, files: &[Connection]) -> rusqlite::Result<()> {
        self.accounts.learn(connection, files)?;
        files.iter().try_for_each(|file| {
            self.sets.learn(connection, file)?;
            self.policy.learn(connection, file)
        })
    }

    /// The account of a flow: its own, or that of its user's name.
    pub(crate) fn account(&self, account: u32, user: &str) -> i64 {
        match i64::from(account) {
            0 => self.accounts.find(user).unwrap_or(0),
            account => account,
        }
    }

    /// Registers the SQL function `account_of` in `connection`: the account of a name, or null.
    pub(crate) fn install(self: &Arc<Self>, connection: &Connection) -> rusqlite::Result<()> {
        let registry = Arc::clone(self);
        let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
        connection.create_scalar_function("account_of", 1, flags, move |call| {
            Ok(registry.accounts.find(call.get_raw(0).as_str().unwrap_or_default()))
        })
    }

    /// Brings the numbers of `names` to stable storage. `now_ns` is the present moment.
    pub(crate) fn number(
        &mut self,
        connection: &mut Connection,
        names: &Names,
        now_ns: i64,
    ) -> rusqlite::Result<Numbers> {
        let numbered = self.accounts.number(&names.users, now_ns);
        let (sets, policy) = (self.sets.number(&names.sets), self.policy.number(names.policy));
        let policy = Some(policy).filter(|policy| *policy != self.policy);
        let teams = self.teams.number(&names.users, &numbered.accounts);
        self.add(connection, Additions { namings: numbered.namings, sets, policy, teams }, now_ns)?;
        let mut notes = numbered.notes;
        notes.extend(names.sets.iter().find(|name| self.sets.find(name).is_none()).map(|name| {
            format!(
                "set `{name}` has no number, since the ledger has had {} sets: its flows count as of no set",
                u16::MAX
            )
        }));
        let set = |name: &String| self.sets.find(name).and_then(|set| u16::try_from(set).ok()).unwrap_or(0);
        Ok(Numbers {
            accounts: numbered
                .accounts
                .into_iter()
                .map(|account| u32::try_from(account).unwrap_or(0))
                .collect(),
            sets: names.sets.iter().map(set).collect(),
            policy: u32::try_from(self.policy.version).unwrap_or(0),
            notes,
        })
    }

    /// Brings the numbers of `entries` to stable storage. `now_ns` is the present moment.
    pub(crate) fn ensure(
        &mut self,
        connection: &mut Connection,
        entries: &[Entry],
        now_ns: i64,
    ) -> rusqlite::Result<()> {
        let mut users = Vec::new();
        let mut new = Additions::default();
        let mut policy = self.policy.version;
        for flow in entries.iter().filter_map(Entry::flow) {
            if self.accounts.lacks(flow.user, flow.account.into()) {
                users.push((flow.user, i64::from(flow.account)));
            }
            let set = i64::from(flow.set);
            if self.sets.lacks(set) && new.sets.iter().all(|(known, _)| *known != set) {
                new.sets.push((set, named_sets::name_in_rule(flow.rule).to_owned()));
            }
            policy = policy.max(flow.policy.into());
        }
        new.namings = self.accounts.assign(users.into_iter(), now_ns);
        new.policy = (policy > self.policy.version).then(|| PolicyVersion::unknown(policy));
        self.add(connection, new, now_ns)
    }

    fn add(&mut self, connection: &mut Connection, new: Additions, now_ns: i64) -> rusqlite::Result<()> {
        if new.is_empty() {
            return Ok(());
        }
        connection.pragma_update(None, "synchronous", "FULL")?;
        let stored = new.store(connection, now_ns);
        // The mode of all other commits, also after a failure.
        connection.pragma_update(None, "synchronous", "NORMAL").and(stored)?;
        new.namings.into_iter().for_each(|naming| self.accounts.note(naming));
        new.sets.into_iter().for_each(|set| self.sets.note(set));
        new.teams.into_iter().for_each(|team| self.teams.note(team));
        self.policy = new.policy.unwrap_or(self.policy);
        Ok(())
    }
}

impl Additions {
    fn is_empty(&self) -> bool {
        let Additions { namings, sets, policy, teams } = self;
        namings.is_empty() && sets.is_empty() && policy.is_none() && teams.is_empty()
    }

    fn store(&self, connection: &mut Connection, now_ns: i64) -> rusqlite::Result<()> {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        self.namings.iter().try_for_each(|naming| naming.put(&transaction))?;
        self.sets.iter().try_for_each(|set| named_sets::put(&transaction, set))?;
        self.policy.map_or(Ok(()), |policy| policy.put(&transaction, now_ns))?;
        self.teams.iter().try_for_each(|team| teams::put(&transaction, team, now_ns))?;
        transaction.commit()
    }
}
