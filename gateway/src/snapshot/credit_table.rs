//! The quotas and rates of a configuration, with their state.
//!
//! Guarantees: a quota that a reload does not change keeps what is spent, under another limit too; so does a
//! rate. A quota of a team is counted anew from the ledger when its members change.
//!
//! Not handled here: what was spent before this process knew a quota (`server::quotas`).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use policy::Policy;
use sys::clock::WallNanos;
use sys::rate_limit::RateLimit;

use crate::config::{Config, Direction, Quota, Rates, Scope};
use crate::credit::quota_meter::{Coverage, Owner, QuotaTerms};
use crate::credit::{Limits, QuotaMeter, SetId, SetIds};

/// What identifies a quota in each configuration: its owner and its key.
type QuotaName = (Owner, String);

/// What identifies a rate: its owner, and whether it is that of bytes toward the destination.
type RateName = (Owner, bool);

/// The quotas and rates of a configuration.
#[derive(Debug, Default)]
pub(crate) struct CreditTable {
    /// In the order of the users.
    limits: Vec<Limits>,
    quotas: BTreeMap<QuotaName, Arc<QuotaMeter>>,
    rates: HashMap<RateName, Arc<RateLimit>>,
    /// The team of each user that has one.
    teams: HashMap<Box<str>, Box<str>>,
    /// In the order of the policy's sets.
    set_ids: Vec<SetId>,
    known_sets: Vec<Box<str>>,
}

impl CreditTable {
    /// The table of `config`, which follows `previous`.
    pub(crate) fn new(config: &Config, previous: &CreditTable, now: WallNanos) -> CreditTable {
        let mut sets = SetIds::of(&previous.known_sets);
        let set_ids = config.policy.sets().iter().map(|name| sets.id(name)).collect();
        let mut table = CreditTable { set_ids, ..CreditTable::default() };
        table.teams = members(config);
        let recounted = table.teams_with_new_members(config, previous);
        let mut builder = Builder { table, previous, sets, recounted, now };
        let mut by_team: Vec<Limits> = Vec::new();
        for team in &config.teams {
            let above = team.parent.map(|parent| &by_team[parent]);
            let limits = builder.limits(&Owner::Team(team.name.clone()), (&team.quotas, team.rates), above);
            by_team.push(limits);
        }
        for user in &config.users {
            let above = user.team.map(|team| &by_team[team]);
            let owner = Owner::User((*user.name).into());
            let limits = builder.limits(&owner, (&user.quotas, user.rates), above);
            builder.table.limits.push(limits);
        }
        builder.table.known_sets = builder.sets.into_names();
        builder.table
    }

    /// The limits of the user at this position; `None` if nothing limits it.
    pub(crate) fn limits(&self, user: usize) -> Option<&Limits> {
        self.limits.get(user).filter(|limits| !limits.is_empty())
    }

    /// Whether anything is limited.
    pub(crate) fn is_empty(&self) -> bool {
        self.quotas.is_empty() && self.rates.is_empty()
    }

    /// The number of the set that has `rule`, or of none.
    pub(crate) fn set_of(&self, policy: &Policy, rule: Option<policy::RuleId>) -> SetId {
        let position = rule.and_then(|rule| policy.set_of(rule));
        position.and_then(|position| self.set_ids.get(position)).copied().unwrap_or(SetId::NONE)
    }

    /// All quotas, by owner and key.
    pub(crate) fn quotas(&self) -> impl Iterator<Item = &Arc<QuotaMeter>> {
        self.quotas.values()
    }

    /// The quotas of which it is not known what was used, or what the users that count now have used.
    pub(crate) fn unsettled(&self, now: WallNanos) -> impl Iterator<Item = &Arc<QuotaMeter>> {
        self.quotas().filter(move |quota| quota.awaits_recount() || !quota.status(now).is_known)
    }

    /// The name of a set by its number in this process.
    pub(crate) fn set_name(&self, set: SetId) -> &str {
        set.position().and_then(|position| self.known_sets.get(position)).map_or("", |name| name)
    }

    /// The teams whose members, or those of a team below, are other users than before. A user that was
    /// removed still counts for its last team.
    fn teams_with_new_members(&self, config: &Config, previous: &CreditTable) -> HashSet<Box<str>> {
        let mut changed = HashSet::new();
        let moved = self.teams.iter().filter(|(user, team)| previous.teams.get(*user) != Some(*team));
        let left = previous
            .teams
            .iter()
            .filter(|(user, team)| config.user(user).is_some() && self.teams.get(*user) != Some(*team));
        let position: HashMap<&str, usize> = config.teams.iter().map(|team| &*team.name).zip(0..).collect();
        for (_, team) in moved.chain(left) {
            let mut at = position.get(&**team).copied();
            while let Some(team) = at {
                changed.insert(config.teams[team].name.clone());
                at = config.teams[team].parent;
            }
        }
        changed
    }
}

fn members(config: &Config) -> HashMap<Box<str>, Box<str>> {
    let team = |user: &crate::config::User| Some(((*user.name).into(), user.team_name.clone()?));
    config.users.iter().filter_map(team).collect()
}

/// A table that is being built.
struct Builder<'p> {
    table: CreditTable,
    previous: &'p CreditTable,
    sets: SetIds,
    /// Teams whose quotas count anew.
    recounted: HashSet<Box<str>>,
    now: WallNanos,
}

impl Builder<'_> {
    /// The limits of `owner`, which has its own and those of its team, `above`.
    fn limits(
        &mut self,
        owner: &Owner,
        (quotas, rates): (&[Quota], Rates),
        above: Option<&Limits>,
    ) -> Limits {
        let mut limits = Limits::default();
        limits.quotas.extend(quotas.iter().map(|quota| self.quota(owner, quota)));
        limits.rates_up.extend(rates.up.map(|rate| self.rate(owner, true, rate)));
        limits.rates_down.extend(rates.down.map(|rate| self.rate(owner, false, rate)));
        if let Some(above) = above {
            limits.quotas.extend(above.quotas.iter().cloned());
            limits.rates_up.extend(above.rates_up.iter().cloned());
            limits.rates_down.extend(above.rates_down.iter().cloned());
        }
        limits
    }

    fn quota(&mut self, owner: &Owner, quota: &Quota) -> Arc<QuotaMeter> {
        let name = (owner.clone(), quota.key());
        let is_recounted = matches!(owner, Owner::Team(team) if self.recounted.contains(team));
        let meter = match self.previous.quotas.get(&name) {
            Some(meter) => {
                meter.set_limit(quota.limit, self.now);
                if is_recounted {
                    meter.request_recount();
                }
                Arc::clone(meter)
            }
            None => {
                let coverage = match &quota.of {
                    Scope::All => Coverage::All,
                    Scope::Class(class) => Coverage::Class(*class),
                    Scope::Set(set) => Coverage::Set(self.sets.id(set)),
                };
                let terms = QuotaTerms {
                    owner: owner.clone(),
                    key: name.1.as_str().into(),
                    calendar: quota.calendar.clone(),
                    up: quota.direction != Direction::Down,
                    down: quota.direction != Direction::Up,
                    coverage,
                };
                Arc::new(QuotaMeter::new(terms, quota.limit, self.now))
            }
        };
        self.table.quotas.insert(name, Arc::clone(&meter));
        meter
    }

    fn rate(&mut self, owner: &Owner, is_up: bool, rate: u64) -> Arc<RateLimit> {
        let name = (owner.clone(), is_up);
        let known = self.previous.rates.get(&name);
        let limit = known.map_or_else(|| Arc::new(RateLimit::new(rate)), Arc::clone);
        limit.set_rate(rate);
        self.table.rates.insert(name, Arc::clone(&limit));
        limit
    }
}
