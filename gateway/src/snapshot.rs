//! A snapshot: one loaded configuration with the accounts of its users, as every thread reads it.
//!
//! Guarantees: immutable, but for the accounts' atomics. A request keeps the snapshot under which its client
//! was identified, until its flow has ended or its relay begins. So indexes of one configuration never meet
//! another's tables. The next request of the connection takes the snapshot that is current then.
//!
//! Not handled here: loading (`config`) and swapping (`server`).

mod credit_table;

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;

use ledger::record::Class;
use policy::{BillingClass, UserIndex, Verdict};
use sys::clock;

use crate::account::Account;
use crate::budget::Budget;
use crate::config::Config;
use crate::credit::{Destination, FlowCredit, Limits};
use crate::identity::{CredentialCache, IdentityIndex};
use crate::numbers::PolicyNumbers;

pub(crate) use self::credit_table::CreditTable;

/// A thread's handle to its snapshot. Connections clone it by a count that belongs to the thread: a shared
/// count would be a cache line on which all threads contend.
#[derive(Debug)]
pub(crate) struct SnapshotHandle(pub(crate) Arc<Snapshot>);

impl Deref for SnapshotHandle {
    type Target = Snapshot;

    fn deref(&self) -> &Snapshot {
        &self.0
    }
}

/// A configuration with the state that belongs to its users.
#[derive(Debug)]
pub struct Snapshot {
    /// The configuration.
    pub config: Config,
    /// In the order of `config.users`.
    accounts: Vec<Arc<Account>>,
    /// The numbers of its sets and its policy.
    pub(crate) numbers: PolicyNumbers,
    /// The quotas and rates of its users and teams.
    pub(crate) credit: CreditTable,
    /// What all users together may have open.
    pub(crate) budget: Arc<Budget>,
    /// By which `identity` finds the user of an address.
    pub(crate) identity_index: IdentityIndex,
    /// Credentials that were verified.
    pub(crate) credential_cache: Arc<CredentialCache>,
}

impl Snapshot {
    /// The first snapshot of a process.
    pub(crate) fn first(config: Config, budget: Arc<Budget>) -> Snapshot {
        let credential_cache = Arc::new(CredentialCache::new(&config.auth));
        Snapshot::with_accounts(config, &HashMap::new(), &CreditTable::default(), budget, credential_cache)
    }

    /// The snapshot after this one. Users that stay keep their accounts, so what they have open still counts.
    /// Users that are gone or disabled are revoked. Verified credentials stay cached, unless the cache's
    /// settings changed: a new password has another key, and no lookup is made for a user that is gone.
    pub fn next(&self, config: Config) -> Snapshot {
        let previous: HashMap<&str, &Arc<Account>> =
            self.accounts.iter().map(|account| (account.name(), account)).collect();
        let credential_cache = match self.credential_cache.matches(&config.auth) {
            true => Arc::clone(&self.credential_cache),
            false => Arc::new(CredentialCache::new(&config.auth)),
        };
        let budget = Arc::clone(&self.budget);
        let next = Snapshot::with_accounts(config, &previous, &self.credit, budget, credential_cache);
        for (name, account) in previous {
            if next.config.user(name).is_none() {
                account.revoke();
            }
        }
        next
    }

    /// The account of a user.
    ///
    /// # Panics
    /// If the index is from another configuration with more users.
    pub fn account(&self, user: UserIndex) -> &Arc<Account> {
        &self.accounts[user.as_usize()]
    }

    /// The limits of a user; `None` if nothing limits it.
    pub(crate) fn limits(&self, user: UserIndex) -> Option<&Limits> {
        self.credit.limits(user.as_usize())
    }

    /// What quotas see of a destination that `verdict` allows.
    pub(crate) fn destination(&self, verdict: &Verdict) -> Destination {
        let class = match verdict.class {
            BillingClass::External => Class::External,
            BillingClass::Internal => Class::Internal,
        };
        Destination { class, set: self.credit.set_of(&self.config.policy, verdict.rule) }
    }

    /// The credit of a flow of `user` to `destination`; `None` if nothing limits it.
    pub(crate) fn flow_credit(&self, user: UserIndex, destination: Destination) -> Option<Box<FlowCredit>> {
        FlowCredit::new(self.limits(user)?, destination, clock::steady_wall())
    }

    /// The accounts, in the order of the users.
    pub(crate) fn accounts(&self) -> impl Iterator<Item = &Arc<Account>> {
        self.accounts.iter()
    }

    fn with_accounts(
        config: Config,
        previous: &HashMap<&str, &Arc<Account>>,
        previous_credit: &CreditTable,
        budget: Arc<Budget>,
        credential_cache: Arc<CredentialCache>,
    ) -> Snapshot {
        budget.set_connections_max(config.limits.connections);
        let accounts = config.users.iter().map(|user| {
            // A revoked account stays revoked, because a thread may not have ended its connections yet. So a
            // user that is enabled again gets a new one.
            let previous = previous.get(&*user.name).filter(|account| !account.is_revoked());
            let account = previous.map_or_else(
                || Arc::new(Account::new(&user.name, user.connections_max)),
                |account| Arc::clone(account),
            );
            account.set_connections_max(user.connections_max);
            if user.disabled {
                account.revoke();
            }
            account
        });
        let accounts = accounts.collect();
        let identity_index = IdentityIndex::new(&config.users);
        let numbers = PolicyNumbers::new(&config.policy);
        let credit = CreditTable::new(&config, previous_credit, clock::steady_wall());
        Snapshot { config, accounts, numbers, credit, budget, identity_index, credential_cache }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LoadOptions;

    fn config(settings: &str) -> Config {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tollgate.toml");
        let user = "[[user]]\nname = \"ann\"\nfrom = [\"10.0.0.0/8\"]\nallow = [\"a.example\"]\n";
        std::fs::write(&path, format!("{user}{settings}")).unwrap();
        Config::load(&LoadOptions { path: Some(path), ..LoadOptions::default() }).unwrap()
    }

    /// Threads may miss the snapshot in between. Even so, what was open when the user was disabled must end.
    #[test]
    fn reenabled_user_gets_a_new_account() {
        let account = |snapshot: &Snapshot| Arc::clone(snapshot.accounts.first().unwrap());
        let first = Snapshot::first(config(""), Budget::new(Vec::new()));
        let stayed = first.next(config("connections = 5"));
        assert!(Arc::ptr_eq(&account(&first), &account(&stayed)));
        let disabled = stayed.next(config("disabled = true"));
        let enabled = disabled.next(config(""));
        assert!(account(&first).is_revoked() && account(&disabled).is_revoked());
        assert!(!account(&enabled).is_revoked());
    }
}
