//! The builder: compiles sets and users to a policy, or reports every mistake at once.
//!
//! Guarantees: each set is compiled once and shared by all its users; a user's index is the position in which
//! it was added.
//!
//! Not handled here: the line of a mistake in the configuration; [`Location`] has the set or user and the
//! rule.

use std::collections::BTreeMap;
use std::fmt;

use ipnet::IpNet;
use thiserror::Error;

use crate::address;
use crate::decide::{Policy, User};
use crate::fingerprint;
use crate::list::{List, RULES_MAX, SetRules, UserRules};
use crate::rules::{self, Rule};

/// Collects the sets and users of a policy.
#[derive(Debug, Default)]
pub struct Builder {
    sets: Vec<RawSet>,
    users: Vec<RawUser>,
}

#[derive(Debug)]
struct RawSet {
    name: String,
    set: SetRules,
}

#[derive(Debug)]
struct RawUser {
    name: String,
    rules: UserRules,
}

impl Builder {
    /// A policy without sets or users.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a set.
    pub fn set(&mut self, name: impl Into<String>, set: SetRules) -> &mut Self {
        self.sets.push(RawSet { name: name.into(), set });
        self
    }

    /// Adds a user.
    pub fn user(&mut self, name: impl Into<String>, rules: UserRules) -> &mut Self {
        self.users.push(RawUser { name: name.into(), rules });
        self
    }

    /// Compiles the policy, or returns all mistakes.
    pub fn build(self) -> Result<Policy, Vec<BuildError>> {
        let errors = self.find_mistakes();
        if !errors.is_empty() {
            return Err(errors);
        }
        let by_set: BTreeMap<&str, u32> = self.sets.iter().map(|set| set.name.as_str()).zip(0..).collect();
        let mut lists: Vec<List> = Vec::with_capacity(self.sets.len() + self.users.len());
        lists.extend(self.sets.iter().map(|raw| List::compile(&format!("@{}", raw.name), &raw.set)));
        let mut users = Vec::with_capacity(self.users.len());
        for RawUser { name, rules } in &self.users {
            let allow = add_lists(&mut lists, &by_set, name, ListKind::Allow, &rules.allow);
            let deny = add_lists(&mut lists, &by_set, name, ListKind::Deny, &rules.deny);
            let resolve_for_networks = rules.resolve_for_networks;
            users.push(User { name: name.as_str().into(), allow, deny, resolve_for_networks });
        }
        let fingerprint = fingerprint::fingerprint(
            self.sets.iter().map(|raw| (&*raw.name, &raw.set)),
            self.users.iter().map(|raw| (&*raw.name, &raw.rules)),
        );
        let set_names = self.sets.into_iter().map(|raw| raw.name).collect();
        Ok(Policy::new(lists.into(), users.into(), (set_names, fingerprint)))
    }

    fn find_mistakes(&self) -> Vec<BuildError> {
        let mut errors = Vec::new();
        let mut sets: BTreeMap<&str, ()> = BTreeMap::new();
        for RawSet { name, set } in &self.sets {
            let location = |rule| Location { owner: Owner::Set(name.clone()), rule };
            check_name(name, sets.insert(name, ()).is_none(), location(None), &mut errors);
            check_length(set.rules.len() + set.addresses.len(), location(None), &mut errors);
            check_addresses(set, location, &mut errors);
            for (index, reference) in references(&set.rules) {
                let mistake = Mistake::NestedSet { reference: reference.into() };
                errors.push(BuildError { location: location(Some((ListKind::Set, index))), mistake });
            }
        }
        let mut users: BTreeMap<&str, ()> = BTreeMap::new();
        for user in &self.users {
            let location = |rule| Location { owner: Owner::User(user.name.clone()), rule };
            check_name(&user.name, users.insert(&user.name, ()).is_none(), location(None), &mut errors);
            for (kind, rules) in [(ListKind::Allow, &user.rules.allow), (ListKind::Deny, &user.rules.deny)] {
                check_length(rules.len(), location(None), &mut errors);
                for (index, reference) in references(rules).filter(|(_, name)| !sets.contains_key(name)) {
                    let mistake = Mistake::UnknownSet {
                        reference: reference.into(),
                        known: describe_known_sets(&sets),
                    };
                    errors.push(BuildError { location: location(Some((kind, index))), mistake });
                }
            }
        }
        errors
    }
}

/// Why a policy cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{location}: {mistake}")]
pub struct BuildError {
    /// The location of the mistake.
    pub location: Location,
    /// The mistake.
    pub mistake: Mistake,
}

/// The location of a mistake in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The set or user with the mistake.
    pub owner: Owner,
    /// The list and the rule's position in it, if one rule has the mistake.
    pub rule: Option<(ListKind, usize)>,
}

/// The owner of a list of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The set of this name.
    Set(String),
    /// The user of this name.
    User(String),
}

/// The list of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListKind {
    /// The rules of a set.
    Set,
    /// The addresses that a set opens to its names.
    Addresses,
    /// A user's allowed targets.
    Allow,
    /// A user's denied targets.
    Deny,
}

impl fmt::Display for Location {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.owner {
            Owner::Set(name) => write!(formatter, "set {name:?}")?,
            Owner::User(name) => write!(formatter, "user {name:?}")?,
        }
        match self.rule {
            None => Ok(()),
            Some((ListKind::Set, index)) => write!(formatter, ", rule {index}"),
            Some((ListKind::Addresses, index)) => write!(formatter, ", network {index} of its addresses"),
            Some((ListKind::Allow, index)) => write!(formatter, ", allow rule {index}"),
            Some((ListKind::Deny, index)) => write!(formatter, ", deny rule {index}"),
        }
    }
}

/// A mistake in a policy, with its remedy.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "each variant's text is its documentation")]
pub enum Mistake {
    #[error(
        "the name is not usable; \
         write 1 to 64 letters, digits and . _ - + @, beginning with a letter, a digit or _"
    )]
    Name,
    #[error("the name is given twice; rename one of the two")]
    Duplicate,
    #[error("there is no set {reference:?}; {known}")]
    UnknownSet { reference: Box<str>, known: String },
    #[error("a set cannot refer to the set {reference:?}; write that set's rules out, or refer to both")]
    NestedSet { reference: Box<str> },
    #[error(
        "{network} holds public addresses, which every name may lead to that a rule allows; \
         write networks without any, as in 198.18.0.0/15"
    )]
    PublicAddresses { network: IpNet },
    #[error("the set opens addresses to its names and holds no name; write one among its destinations")]
    AddressesWithoutName,
    #[error("{count} rules in one list; at most {RULES_MAX} are possible")]
    TooManyRules { count: usize },
}

/// The lists of a user: their own rules as one list, if they have any, then each referenced set once.
fn add_lists(
    lists: &mut Vec<List>,
    by_set: &BTreeMap<&str, u32>,
    user: &str,
    kind: ListKind,
    rules: &[Rule],
) -> Box<[u32]> {
    let mut indexes = Vec::new();
    if rules.iter().any(|rule| rule.set_reference().is_none()) {
        let list = if kind == ListKind::Deny { "deny" } else { "allow" };
        indexes.push(u32::try_from(lists.len()).expect("memory holds fewer than 2^32 lists"));
        let own = SetRules { rules: rules.to_vec(), ..SetRules::default() };
        lists.push(List::compile(&format!("user:{user}/{list}"), &own));
    }
    for (_, reference) in references(rules) {
        let set = by_set[reference];
        if !indexes.contains(&set) {
            indexes.push(set);
        }
    }
    indexes.into()
}

fn references(rules: &[Rule]) -> impl Iterator<Item = (usize, &str)> {
    rules.iter().enumerate().filter_map(|(index, rule)| Some((index, rule.set_reference()?)))
}

fn check_name(name: &str, is_unique: bool, location: Location, errors: &mut Vec<BuildError>) {
    if !rules::is_label_name(name) {
        errors.push(BuildError { location, mistake: Mistake::Name });
    } else if !is_unique {
        errors.push(BuildError { location, mistake: Mistake::Duplicate });
    }
}

fn check_length(count: usize, location: Location, errors: &mut Vec<BuildError>) {
    if count > RULES_MAX {
        errors.push(BuildError { location, mistake: Mistake::TooManyRules { count } });
    }
}

fn check_addresses(
    set: &SetRules,
    location: impl Fn(Option<(ListKind, usize)>) -> Location,
    errors: &mut Vec<BuildError>,
) {
    for (index, network) in set.addresses.iter().map(|network| rules::unmapped(*network)).enumerate() {
        if !address::is_wholly_non_public(network) {
            let mistake = Mistake::PublicAddresses { network };
            errors.push(BuildError { location: location(Some((ListKind::Addresses, index))), mistake });
        }
    }
    if !set.addresses.is_empty() && !set.rules.iter().any(Rule::is_by_name) {
        errors.push(BuildError { location: location(None), mistake: Mistake::AddressesWithoutName });
    }
}

/// The names of the sets for a message; a long list is cut.
fn describe_known_sets(sets: &BTreeMap<&str, ()>) -> String {
    const SHOWN_MAX: usize = 8;
    if sets.is_empty() {
        return "no set is defined".to_owned();
    }
    let shown: Vec<_> = sets.keys().take(SHOWN_MAX).copied().collect();
    let more = if sets.len() > SHOWN_MAX { ", ..." } else { "" };
    format!("the sets are {}{more}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::{Builder, SetRules, UserRules};
    use crate::list::SetClass;
    use crate::rules::Rule;

    fn rules(texts: &[&str]) -> Vec<Rule> {
        texts.iter().map(|text| Rule::parse(text).expect("a rule")).collect()
    }

    #[test]
    fn set_is_compiled_once_for_all_users() {
        let mut builder = Builder::new();
        let (class, rules_of_set) = (Some(SetClass::Internal), rules(&["*.corp", "10.0.0.0/8"]));
        builder.set("corp", SetRules { class, rules: rules_of_set, ..SetRules::default() });
        for number in 0..100 {
            let (allow, deny) = (rules(&["@corp", "@corp"]), rules(&["@corp"]));
            builder.user(format!("plain{number}"), UserRules { allow, deny, ..UserRules::default() });
            let allow = rules(&["@corp", "github.com"]);
            builder.user(format!("own{number}"), UserRules { allow, ..UserRules::default() });
        }
        let policy = builder.build().expect("no mistakes");
        let counts = |name: &str| policy.list_counts(policy.user(name).expect("a user"));
        let all = 1 + 100; // the set, and the users with rules of their own
        assert_eq!(counts("plain7"), (all, 1));
        assert_eq!(counts("own7"), (all, 2));
    }

    #[test]
    fn user_index_is_the_order_of_addition() {
        let mut builder = Builder::new();
        let names = ["zoe", "adam", "mia", "Adam", "ad"];
        for name in names {
            builder.user(name, UserRules::default());
        }
        let policy = builder.build().expect("no mistakes");
        for (position, name) in names.into_iter().enumerate() {
            let user = policy.user(name).expect("a known user");
            assert_eq!((user.as_usize(), policy.user_name(user)), (position, name));
        }
        for unknown in ["", "a", "zoe ", "ZOE", "zz"] {
            assert_eq!(policy.user(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn empty_policy_has_no_users() {
        let policy = Builder::new().build().expect("no mistakes");
        assert_eq!(policy.user("me"), None);
    }
}
