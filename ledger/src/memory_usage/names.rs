//! The names of accounts and sets, as numberings and entries have given them.

use std::collections::{BTreeMap, BTreeSet};

use crate::numbering::{Names as Named, Numbers, UserNames};
use crate::record::Flow;

/// Names and numbers.
#[derive(Clone, Default)]
pub(super) struct Names {
    /// The account of each name.
    accounts: BTreeMap<String, u32>,
    /// The present name of each account.
    users: BTreeMap<u32, String>,
    /// The name of each set.
    sets: BTreeMap<u16, String>,
    /// The team of each account that has one.
    teams: BTreeMap<u32, String>,
}

impl Names {
    /// Gives numbers to `names`.
    pub(super) fn number(&mut self, names: &Named) -> Numbers {
        let holds = |names: &Names, user: &UserNames| {
            names.account(&user.name).filter(|account| names.user(*account) == user.name)
        };
        let mut taken: BTreeSet<u32> = names.users.iter().filter_map(|user| holds(self, user)).collect();
        let mut accounts = Vec::new();
        for user in &names.users {
            let account = holds(self, user).unwrap_or_else(|| {
                let known = [&user.name].into_iter().chain(&user.former);
                let free = known.filter_map(|name| self.account(name)).find(|known| !taken.contains(known));
                free.unwrap_or_else(|| self.next_account())
            });
            taken.insert(account);
            self.name(&user.name, account);
            self.teams.insert(account, user.team.clone());
            accounts.push(account);
        }
        for set in &names.sets {
            if self.set(set).is_none() {
                let next = self.sets.keys().next_back().map_or(1, |last| last + 1);
                self.sets.insert(next, set.clone());
            }
        }
        let sets = names.sets.iter().filter_map(|set| self.set(set)).collect();
        Numbers { accounts, sets, policy: 0, notes: Vec::new() }
    }

    /// Learns the names in an entry; returns the account to which a flow belongs that begins with it.
    pub(super) fn learn(&mut self, flow: &Flow<'_>) -> u32 {
        if flow.set > 0 && !self.sets.contains_key(&flow.set) {
            let name = flow.rule.strip_prefix('@').and_then(|rule| rule.split('[').next());
            self.sets.insert(flow.set, name.unwrap_or_default().to_owned());
        }
        let is_new = flow.account > 0 && !self.users.contains_key(&flow.account);
        if is_new || self.account(flow.user).is_none() {
            let account = if flow.account > 0 { flow.account } else { self.next_account() };
            self.name(flow.user, account);
        }
        if flow.account > 0 { flow.account } else { self.accounts[flow.user] }
    }

    /// The account of a name.
    pub(super) fn account(&self, name: &str) -> Option<u32> {
        self.accounts.get(name).copied()
    }

    /// The present name of an account.
    pub(super) fn user(&self, account: u32) -> String {
        self.users[&account].clone()
    }

    /// The team of an account; empty for none.
    pub(super) fn team(&self, account: u32) -> &str {
        self.teams.get(&account).map_or("", String::as_str)
    }

    /// The names of all teams.
    pub(super) fn teams(&self) -> BTreeSet<String> {
        self.teams.values().filter(|team| !team.is_empty()).cloned().collect()
    }

    /// All names of `accounts`, present and earlier ones.
    pub(super) fn all_of(&self, accounts: &BTreeSet<u32>) -> BTreeSet<String> {
        let known = self.accounts.iter().filter(|(_, account)| accounts.contains(account));
        let present = accounts.iter().map(|account| self.user(*account));
        known.map(|(name, _)| name.clone()).chain(present).collect()
    }

    /// The number of a set.
    pub(super) fn set(&self, name: &str) -> Option<u16> {
        self.sets.iter().find(|(_, known)| !known.is_empty() && *known == name).map(|(number, _)| *number)
    }

    /// The name of a set; empty for none.
    pub(super) fn set_name(&self, number: u16) -> String {
        match self.sets.get(&number) {
            None => String::new(),
            Some(name) if name.is_empty() => format!("set {number}"),
            Some(name) => name.clone(),
        }
    }

    /// The names of all sets.
    pub(super) fn sets(&self) -> BTreeSet<String> {
        self.sets.values().filter(|name| !name.is_empty()).cloned().collect()
    }

    fn next_account(&self) -> u32 {
        self.users.keys().next_back().map_or(1, |last| last + 1)
    }

    fn name(&mut self, name: &str, account: u32) {
        self.accounts.insert(name.to_owned(), account);
        self.users.insert(account, name.to_owned());
    }
}
