//! Users and destinations: from their tables to users that can be identified and a policy that judges them.
//!
//! Guarantees: a name means one user, and so does a source address. Every set that a rule refers to exists.
//!
//! Not handled here: the meaning of rules (crate `policy`) and the identification of clients (`identity`).

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use ipnet::IpNet;
use policy::rules::Rule;
use policy::{
    BuildError, Builder, ListKind, Mistake, Owner, Policy, SetClass, SetRules, UserIndex, UserRules,
};

use super::quota::{self, Quota, Rates};
use super::raw::{RawConfig, RawDestination, RawUser};
use super::read::Located;
use super::report::{Diagnostic, Report, Span};
use super::team::Team;
use crate::config::settings::{DestinationClass, UserTable};
use crate::users::{Credential, PasswordHash, TokenHash, UserName};

/// Most users: each costs every reactor thread an account.
const USERS_MAX: usize = 100_000;

/// Most distinct costs of passwords: a login takes as long as one hash of each, some 50 ms.
const PASSWORD_COSTS_MAX: usize = 8;

/// A user whose flows are admitted and billed.
#[derive(Clone, Debug)]
pub struct User {
    /// The name.
    pub name: UserName,
    /// Earlier names, the last one first.
    pub former_names: Vec<UserName>,
    /// The user in this configuration's policy; as a number, the position in [`super::Config::users`].
    pub index: UserIndex,
    /// A password or token; `None` for a user that is identified only by the source address or by a forward
    /// listener.
    pub credential: Option<Credential>,
    /// Source networks. An address belongs to the user with the smallest network that holds it.
    pub from: Vec<IpNet>,
    /// Allowed destinations, in the text form of rules.
    pub allow: Vec<String>,
    /// Denied destinations.
    pub deny: Vec<String>,
    /// Most concurrent connections.
    pub connections_max: u32,
    /// The team, as an index of [`super::Config::teams`].
    pub team: Option<usize>,
    /// The team's name.
    pub team_name: Option<Box<str>>,
    /// What the user may move, besides the quotas of the team.
    pub quotas: Vec<Quota>,
    /// How fast, besides the rates of the team.
    pub rates: Rates,
    /// Whether the user is denied, whatever they present.
    pub disabled: bool,
    /// The user file; `None` for a user of the configuration itself.
    pub file: Option<PathBuf>,
}

impl User {
    /// Whether `other` has the same settings, in whatever file. The team is the same if its name is.
    pub(crate) fn is_written_as(&self, other: &User) -> bool {
        let User {
            name,
            former_names,
            index: _,
            credential,
            from,
            allow,
            deny,
            connections_max,
            team: _,
            team_name,
            quotas,
            rates,
            disabled,
            file: _,
        } = other;
        self.name == *name
            && self.former_names == *former_names
            && self.credential == *credential
            && self.from == *from
            && self.allow == *allow
            && self.deny == *deny
            && self.connections_max == *connections_max
            && self.team_name == *team_name
            && self.quotas == *quotas
            && self.rates == *rates
            && self.disabled == *disabled
    }
}

/// Reports users that are ambiguous, or that no client can be.
pub(super) fn check(raw: &RawConfig, report: &mut Report) {
    let mut seen: HashMap<&str, &RawUser> = HashMap::new();
    for user in &raw.users {
        match seen.get(&*user.name) {
            None => _ = seen.insert(&user.name, user),
            Some(first) => report.error(
                Diagnostic::at(name_span(user), format!("two users are called `{}`", user.name))
                    .related(name_span(first), "the first is here"),
            ),
        }
        if let (Some(password), Some(token)) = (user.table.password.written(), user.table.token.written()) {
            let title = format!("user `{}` has a password and a token", user.name);
            report.error(
                Diagnostic::at(&token.span, title)
                    .related(&password.span, "remove one of the two")
                    .help("a second user with the same rules can have the other"),
            );
        }
    }
    check_former_names(&raw.users, report);
    check_costs(&raw.users, report);
    if let Some(user) = raw.users.get(USERS_MAX) {
        report.error(Diagnostic::at(&user.span, format!("more than {USERS_MAX} users")));
    }
    check_sources(&raw.users, report);
    warn_unusable_users(raw, report);
}

/// The policy; `None` if errors were reported.
pub(super) fn policy(raw: &RawConfig, report: &mut Report) -> Option<Policy> {
    let mut builder = Builder::new();
    for RawDestination { name, span, table } in &raw.destinations {
        if table.to.is_empty() {
            let title = format!("the destinations of `{name}` are empty");
            report.error(Diagnostic::at(span, title).help("write them as `to = [\"HOST:PORT\", ...]`"));
        }
        let class = table.class.written().map(|class| match class.value {
            DestinationClass::Internal => SetClass::Internal,
            DestinationClass::External => SetClass::External,
        });
        let addresses = table.addresses.iter().map(|network| network.value).collect();
        builder.set(name, SetRules { class, rules: rules(&table.to), addresses });
    }
    let mut by_name: HashMap<&str, &RawUser> = HashMap::new();
    for user in &raw.users {
        // A second user of the same name was reported already.
        if let Entry::Vacant(vacant) = by_name.entry(&user.name) {
            vacant.insert(user);
            let UserTable { allow, deny, resolve_for_networks, .. } = &user.table;
            let (allow, deny, resolve_for_networks) = (rules(allow), rules(deny), *resolve_for_networks);
            builder.user(&*user.name, UserRules { allow, deny, resolve_for_networks });
        }
    }
    let built = builder.build().map_err(|mistakes| {
        let locator = MistakeLocator { raw, users: &by_name };
        mistakes.iter().for_each(|mistake| report.error(locator.diagnostic(mistake)));
    });
    let policy = built.ok()?;
    warn_needless_resolving(&by_name, &policy, report);
    Some(policy)
}

/// Warns of users for which `resolve_for_networks` has no effect.
fn warn_needless_resolving(users: &HashMap<&str, &RawUser>, policy: &Policy, report: &mut Report) {
    for user in users.values().filter(|user| user.table.resolve_for_networks) {
        if policy.user(&user.name).is_some_and(|index| !policy.resolves_any_name(index)) {
            let title = format!("`resolve_for_networks` of user `{}` has no effect", user.name);
            let help = "no network stands in `allow`; rules by name need no such setting";
            report.warning(Diagnostic::at(name_span(user), title).help(help));
        }
    }
}

/// The users, in the order of the policy. [`check`] must have found no error.
pub(super) fn resolve(raw: RawConfig, policy: &Policy, teams: &[Team]) -> Vec<User> {
    let connections_default = raw.limits.connections_per_user;
    let zone = raw.quotas.zone;
    let team_index: HashMap<&str, usize> = teams.iter().map(|team| &*team.name).zip(0..).collect();
    let texts = |rules: &[Located<Rule>]| rules.iter().map(|rule| rule.value.to_string()).collect();
    let resolve = |RawUser { name, table, file, .. }: RawUser| User {
        former_names: table.former_names.iter().map(|name| name.value.clone()).collect(),
        index: policy.user(&name).expect("the policy was built from these users"),
        credential: credential(table.password.into_value(), table.token.into_value()),
        from: table.from.iter().map(|network| network.value).collect(),
        allow: texts(&table.allow),
        deny: texts(&table.deny),
        connections_max: table.connections.into_value().unwrap_or(connections_default),
        team: table.team.written().and_then(|team| team_index.get(team.as_str()).copied()),
        team_name: table.team.written().map(|team| team.as_str().into()),
        quotas: quota::resolve(&table.quota, &zone),
        rates: Rates::new(&table.rate, &table.rate_up, &table.rate_down),
        disabled: table.disabled,
        name,
        file,
    };
    raw.users.into_iter().map(resolve).collect()
}

fn credential(password: Option<PasswordHash>, token: Option<TokenHash>) -> Option<Credential> {
    password.map(Credential::Password).or(token.map(Credential::Token))
}

fn rules(located: &[Located<Rule>]) -> Vec<Rule> {
    located.iter().map(|rule| rule.value.clone()).collect()
}

pub(super) fn name_span(user: &RawUser) -> &Span {
    user.table.name.written().map_or(&user.span, |name| &name.span)
}

/// Warns of a user whose bound is that of the gateway: they may take every connection, and there are other
/// users.
pub(super) fn warn_unshared_limit(raw: &RawConfig, report: &mut Report) {
    let (all, default) = (raw.limits.connections, raw.limits.connections_per_user);
    let bound = |user: &RawUser| user.table.connections.written().map_or(default, |own| own.value);
    let mut enabled = raw.users.iter().filter(|user| !user.table.disabled);
    let Some(user) = enabled.clone().find(|user| bound(user) >= all) else { return };
    if enabled.nth(1).is_none() {
        return;
    }
    let span = user.table.connections.written().map_or(name_span(user), |own| &own.span);
    let title = format!("user `{}` may take every connection of the gateway", &*user.name);
    let help = format!("`connections` of one user, or `connections_per_user`, belongs below {all}");
    report.warning(Diagnostic::at(span, title).help(help));
}

/// Reports an earlier name that two users have, or that is a present one.
fn check_former_names(users: &[RawUser], report: &mut Report) {
    let present: HashMap<&str, &RawUser> = users.iter().map(|user| (&*user.name, user)).collect();
    let mut seen: HashMap<&str, &Located<UserName>> = HashMap::new();
    for user in users {
        for former in &user.table.former_names {
            let name = &*former.value;
            if let Some(other) = present.get(name) {
                let title =
                    format!("`{name}` in `former_names` of user `{}` is the name of a user", user.name);
                let help = "remove it here: from now on the name has an account of its own";
                let diagnostic = Diagnostic::at(&former.span, title).help(help);
                report.error(diagnostic.related(name_span(other), "this one"));
            }
            if let Some(first) = seen.insert(name, former) {
                let title = format!("`{name}` stands twice in `former_names`");
                let help = "one user has the usage under an earlier name";
                report
                    .error(Diagnostic::at(&former.span, title).related(&first.span, "first here").help(help));
            }
        }
    }
}

/// Reports many distinct costs of passwords. A login computes a hash of each, so that its time reveals no
/// user.
fn check_costs(users: &[RawUser], report: &mut Report) {
    let mut costs = BTreeMap::new();
    for password in users.iter().filter_map(|user| user.table.password.written()) {
        costs.entry(password.value.cost()).or_insert(&password.span);
    }
    let count = costs.len();
    let spans: Vec<&Span> = costs.into_values().collect();
    let [first, .., last] = spans[..] else { return };
    let title = format!("the password hashes of users have {count} different argon2 costs");
    let diagnostic = Diagnostic::at(last, title).related(first, "this one has another cost").help(
        "each log-in takes as long as all of them together, or its time would tell users apart; \
         `tollgate user passwd NAME` gives a user the usual cost",
    );
    if count > PASSWORD_COSTS_MAX {
        report.error(diagnostic.label(format!("at most {PASSWORD_COSTS_MAX} are served")));
    } else {
        report.warning(diagnostic);
    }
}

/// Reports a network of two users. Where networks of two users nest, the innermost decides.
fn check_sources(users: &[RawUser], report: &mut Report) {
    let mut seen: HashMap<IpNet, (&Located<IpNet>, &RawUser)> = HashMap::new();
    for user in users {
        for network in &user.table.from {
            let (first, other) = *seen.entry(network.value).or_insert((network, user));
            if other.name != user.name {
                let title =
                    format!("`from` of users `{}` and `{}` has the same network", other.name, user.name);
                report.error(
                    Diagnostic::at(&network.span, title)
                        .label(format!("a client from {} could be either", network.value))
                        .related(&first.span, format!("`{}`", other.name)),
                );
            }
        }
    }
}

/// Warns of users that no client can be, that every client is, or that may reach nothing.
fn warn_unusable_users(raw: &RawConfig, report: &mut Report) {
    let forwarded: Vec<&UserName> =
        raw.listeners.iter().filter_map(|listener| listener.user.written()).map(|user| &user.value).collect();
    for user in &raw.users {
        let table = &user.table;
        let has_credential = table.password.written().is_some() || table.token.written().is_some();
        let is_identifiable = has_credential || !table.from.is_empty();
        if !is_identifiable && !forwarded.contains(&&user.name) {
            let title = format!("no client can be user `{}`", user.name);
            let help = "it has no `password`, no `token`, no `from`, and no listener forwards for it";
            report.warning(Diagnostic::at(name_span(user), title).help(help));
        }
        for everywhere in table.from.iter().filter(|network| network.prefix_len() == 0) {
            let title = format!("`from` of user `{}` holds every address", user.name);
            let diagnostic = Diagnostic::at(&everywhere.span, title);
            let label = "each client that reaches a listener is this user, without credentials";
            report.warning(diagnostic.label(label).help("name the networks of the user's own machines"));
        }
        if table.allow.is_empty() {
            let title = format!("user `{}` may go nowhere: `allow` is empty", user.name);
            report.warning(Diagnostic::at(name_span(user), title));
        }
    }
}

/// Finds the span of a mistake of the policy.
struct MistakeLocator<'a> {
    raw: &'a RawConfig,
    users: &'a HashMap<&'a str, &'a RawUser>,
}

impl MistakeLocator<'_> {
    fn diagnostic(&self, BuildError { location, mistake }: &BuildError) -> Diagnostic {
        let span = self.span(&location.owner, location.rule);
        match mistake {
            Mistake::UnknownSet { reference, .. } => quota::unknown_set(self.raw, span, reference),
            other => {
                // The texts contain the error and, after a semicolon, the remedy.
                let text = other.to_string();
                let (title, help) = text.split_once("; ").unwrap_or((&text, ""));
                let diagnostic = Diagnostic::at(span, title);
                if help.is_empty() { diagnostic } else { diagnostic.help(help) }
            }
        }
    }

    fn span(&self, owner: &Owner, rule: Option<(ListKind, usize)>) -> &Span {
        match owner {
            Owner::Set(name) => {
                let set = self.raw.destinations.iter().find(|set| set.name == *name);
                let set = set.expect("the policy was built from these sets");
                let span = rule.and_then(|(kind, index)| match kind {
                    ListKind::Addresses => set.table.addresses.get(index).map(|network| &network.span),
                    _ => set.table.to.get(index).map(|rule| &rule.span),
                });
                span.unwrap_or(&set.span)
            }
            Owner::User(name) => {
                let user = self.users[name.as_str()];
                let list = |kind| if kind == ListKind::Deny { &user.table.deny } else { &user.table.allow };
                let rule = rule.and_then(|(kind, index)| list(kind).get(index));
                rule.map_or(name_span(user), |rule| &rule.span)
            }
        }
    }
}
