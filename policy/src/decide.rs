//! The compiled policy and its two decisions: may a name be resolved, and may an address be dialled.
//!
//! Guarantees: a decision reads immutable memory, allocates nothing and takes no lock. Its verdict has the
//! reason and the rule. The caller must dial exactly the judged address.
//!
//! The header of the crate numbers the rules of a decision.

use std::net::{IpAddr, SocketAddr};

use crate::address::{self, AddressClass};
use crate::fingerprint::Fingerprint;
use crate::host::{self, Host, Suffixes};
use crate::list::{List, NetworkRule};
use crate::own::OwnAddresses;
use crate::verdict::{BillingClass, MissingRule, Outcome, Reason, RuleId, Verdict};

/// An immutable compiled policy. A new configuration replaces it as a whole; its ids and indexes are valid
/// for it only.
#[derive(Debug)]
pub struct Policy {
    /// The sets in the order of their addition, then the users' own lists.
    lists: Box<[List]>,
    users: Box<[User]>,
    /// Indexes of `users`, sorted by their names.
    by_name: Box<[u32]>,
    own: OwnAddresses,
    /// The names of the sets.
    sets: Box<[String]>,
    fingerprint: Fingerprint,
}

/// A user: lists of rules in the order of evaluation, their own first.
#[derive(Debug)]
pub(crate) struct User {
    pub(crate) name: Box<str>,
    pub(crate) allow: Box<[u32]>,
    pub(crate) deny: Box<[u32]>,
    /// Whether any name may be resolved on the ports of network rules.
    pub(crate) resolve_for_networks: bool,
}

/// A user of a policy: the position in which the builder added it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UserIndex(u32);

impl UserIndex {
    /// The position, for tables indexed by user.
    pub const fn as_usize(self) -> usize {
        self.0 as usize
    }
}

/// The verdict before the name is resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameVerdict<'n> {
    /// Denied already; the name must not be resolved.
    Denied(Verdict),
    /// The address decides: call [`Policy::judge_address`].
    Judged(NameMatch<'n>),
}

/// The allow rules that a name matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NameMatch<'n> {
    /// The name; `None` for a literal address.
    name: Option<&'n str>,
    /// The verdict that allowed a literal address.
    literal: Option<LiteralVerdict>,
    /// The rule that admits public addresses.
    rule: Option<RuleId>,
    /// A rule that matches on another port.
    other_port: Option<RuleId>,
}

/// The verdict on a literal address, and its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LiteralVerdict {
    request: (UserIndex, IpAddr, u16),
    verdict: Verdict,
}

impl Policy {
    pub(crate) fn new(
        lists: Box<[List]>,
        users: Box<[User]>,
        (sets, fingerprint): (Box<[String]>, Fingerprint),
    ) -> Self {
        let mut by_name: Vec<u32> = (0..).take(users.len()).collect();
        by_name.sort_unstable_by_key(|index| &users[*index as usize].name);
        Self { lists, users, by_name: by_name.into(), own: OwnAddresses::default(), sets, fingerprint }
    }

    /// Sets the addresses on which the gateway listens; all requests to them are denied. For a listener on a
    /// wildcard address the caller passes the addresses of all interfaces. The wildcard itself may be passed
    /// too, and closes all of loopback.
    pub fn set_own(&mut self, listeners: &[SocketAddr]) {
        self.own = OwnAddresses::new(listeners);
    }

    /// The user of this name.
    pub fn user(&self, name: &str) -> Option<UserIndex> {
        let found = self.by_name.binary_search_by(|index| (*self.users[*index as usize].name).cmp(name));
        found.ok().map(|at| UserIndex(self.by_name[at]))
    }

    /// A user's name.
    ///
    /// # Panics
    /// If the index is from another policy with more users.
    pub fn user_name(&self, user: UserIndex) -> &str {
        &self.users[user.as_usize()].name
    }

    /// Whether names without a rule are resolved for this user: on the ports of network rules, if the user
    /// may resolve names for them.
    ///
    /// # Panics
    /// If the index is from another policy with more users.
    pub fn resolves_any_name(&self, user: UserIndex) -> bool {
        let user = &self.users[user.as_usize()];
        user.resolve_for_networks && user.allow.iter().any(|list| self.list(*list).has_network_rules())
    }

    /// Whether the user's allow lists have a rule by name.
    ///
    /// # Panics
    /// If the index is from another policy with more users.
    pub fn has_rules_by_name(&self, user: UserIndex) -> bool {
        self.users[user.as_usize()].allow.iter().any(|list| !self.list(*list).names.is_empty())
    }

    /// The names of the sets, in the order of their addition.
    pub fn sets(&self) -> &[String] {
        &self.sets
    }

    /// The position in [`Policy::sets`] of the set that has this rule, if one has it.
    pub fn set_of(&self, rule: RuleId) -> Option<usize> {
        Some(rule.list as usize).filter(|list| *list < self.sets.len())
    }

    /// The fingerprint of all rules.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// A rule with its position in the configuration: `user:ci/allow[0] github.com:443` or
    /// `@corp[1] 10.20.0.0/16`. Printable ASCII without quotes.
    ///
    /// # Panics
    /// If the id is from another policy with more rules.
    pub fn rule_text(&self, rule: RuleId) -> &str {
        self.lists[rule.list as usize].text(rule.index)
    }

    /// The class of an address, including [`AddressClass::Own`].
    pub fn address_class(&self, address: IpAddr, port: u16) -> AddressClass {
        let address = address.to_canonical();
        if self.own.contains(address, port) { AddressClass::Own } else { address::classify(address) }
    }

    /// The addresses through which a connection to this one would reach a listener on a wildcard address, if
    /// they are local to this machine: the address itself, and the IPv4 addresses that it embeds. Local
    /// addresses can change at any time, so the caller asks the kernel.
    pub fn reached_if_local(&self, address: IpAddr, port: u16) -> impl Iterator<Item = IpAddr> {
        self.own.reached_if_local(address.to_canonical(), port)
    }

    /// Judges the requested host, before it is resolved. For an address this is the whole judgement, and
    /// [`Policy::judge_address`] only repeats it.
    ///
    /// # Panics
    /// If the index is from another policy with more users.
    pub fn judge_name<'n>(&self, user: UserIndex, host: Host<'n>, port: u16) -> NameVerdict<'n> {
        let known = &self.users[user.as_usize()];
        match host {
            Host::Name(name) => self.judge_host_name(known, name, port),
            Host::Address(address) => {
                let mut names = NameMatch::default();
                let verdict = self.judge(known, &names, address, port);
                if !verdict.is_allowed() {
                    return NameVerdict::Denied(verdict);
                }
                names.literal = Some(LiteralVerdict { request: (user, address, port), verdict });
                NameVerdict::Judged(names)
            }
        }
    }

    /// Judges an address to which the judged name resolved, or the requested address. Only an address that is
    /// allowed here may be dialled, on this port and for this user.
    ///
    /// # Panics
    /// If the index is from another policy with more users.
    pub fn judge_address(
        &self,
        user: UserIndex,
        name: &NameVerdict<'_>,
        address: IpAddr,
        port: u16,
    ) -> Verdict {
        match name {
            NameVerdict::Denied(verdict) => *verdict,
            NameVerdict::Judged(NameMatch { literal: Some(literal), .. })
                if literal.request == (user, address, port) =>
            {
                literal.verdict
            }
            NameVerdict::Judged(names) => self.judge(&self.users[user.as_usize()], names, address, port),
        }
    }

    fn judge_host_name<'n>(&self, user: &User, name: &'n str, port: u16) -> NameVerdict<'n> {
        let deny = |reason, rule| {
            NameVerdict::Denied(Verdict {
                outcome: Outcome::Deny,
                reason,
                rule,
                class: BillingClass::External,
            })
        };
        if !host::is_canonical(name) {
            return deny(Reason::MalformedName, None);
        }
        let (denied, _) = self.match_name(&user.deny, name, port, |_| true);
        if denied.is_some() {
            return deny(Reason::DeniedByRule, denied);
        }
        let (rule, other_port) = self.match_name(&user.allow, name, port, |_| true);
        let allowed = NameMatch { name: Some(name), literal: None, rule, other_port };
        if allowed.rule.is_some() {
            return NameVerdict::Judged(allowed);
        }
        // A DNS query sends the name out, so a name without a matching rule must not be resolved.
        let has_network = user.allow.iter().any(|list| self.list(*list).has_network_rule_for(port));
        let missing_rule = match (allowed.missing_rule(), has_network, user.resolve_for_networks) {
            (_, true, true) => return NameVerdict::Judged(allowed),
            (MissingRule::NameOrNetwork, true, false) => MissingRule::NameOrResolving,
            (MissingRule::NameOrNetwork, false, false) => MissingRule::Name,
            (missing_rule, ..) => missing_rule,
        };
        deny(Reason::NoRule(missing_rule), allowed.other_port)
    }

    /// The narrowest rule for this name on this port, and on another one, in the lists for which `includes`
    /// is true. A longer suffix comes later and replaces a shorter one; for one suffix the first list counts.
    fn match_name(
        &self,
        lists: &[u32],
        name: &str,
        port: u16,
        includes: impl Fn(&List) -> bool,
    ) -> (Option<RuleId>, Option<RuleId>) {
        let mut found = (None, None);
        for suffix in Suffixes::new(name) {
            let mut at_suffix = (None, None);
            for &list in lists.iter().filter(|list| includes(self.list(**list))) {
                let rules = self.list(list).names.rules_at(&suffix);
                for rule in rules.filter(|rule| rule.is_below != suffix.is_whole) {
                    let slot = if rule.ports.contains(port) { &mut at_suffix.0 } else { &mut at_suffix.1 };
                    slot.get_or_insert(RuleId { list, index: rule.index });
                }
            }
            found = (at_suffix.0.or(found.0), at_suffix.1.or(found.1));
        }
        found
    }

    /// The rule by name that admits this address of this class. A list opens a non-public address depending
    /// on its class and addresses, so for those the name is matched again.
    fn find_admitting_rule(
        &self,
        user: &User,
        names: &NameMatch<'_>,
        class: AddressClass,
        address: IpAddr,
        port: u16,
    ) -> Option<RuleId> {
        let rule = names.rule?;
        if class == AddressClass::Public {
            return Some(rule);
        }
        self.match_name(&user.allow, names.name?, port, |list| list.opens_to_names(class, address)).0
    }

    fn judge(&self, user: &User, names: &NameMatch<'_>, address: IpAddr, port: u16) -> Verdict {
        let address = address.to_canonical();
        let class = self.address_class(address, port);
        let deny = |reason, rule| Verdict {
            outcome: Outcome::Deny,
            reason,
            rule,
            class: BillingClass::of_address(class),
        };
        match class {
            AddressClass::Own => return deny(Reason::OwnAddress, None),
            AddressClass::Multicast | AddressClass::Unspecified => {
                return deny(Reason::AddressForbidden(class), None);
            }
            _ => {}
        }
        if let Some(rule) = self.find_denying_network(user, address, port) {
            return deny(Reason::DeniedByRule, Some(rule));
        }
        if let Some(rule) = self.find_admitting_rule(user, names, class, address, port) {
            return self.allow(rule, class);
        }
        let networks = self.match_networks(&user.allow, address, port, |rule| rule.opens(class, address));
        if let Some((rule, _)) = networks.rule {
            return self.allow(rule, class);
        }
        let without_length = |found: Option<(RuleId, u8)>| found.map(|(rule, _)| rule);
        if let Some(rule) = names.rule.or(without_length(networks.closed)) {
            return deny(Reason::AddressForbidden(class), Some(rule));
        }
        match names.other_port.or(without_length(networks.other_port)) {
            Some(rule) => deny(Reason::NoRule(MissingRule::Port), Some(rule)),
            None => deny(Reason::NoRule(names.missing_rule()), None),
        }
    }

    fn allow(&self, rule: RuleId, class: AddressClass) -> Verdict {
        let by_set = self.list(rule.list).class.map(BillingClass::from);
        let class = by_set.unwrap_or(BillingClass::of_address(class));
        Verdict { outcome: Outcome::Allow, reason: Reason::Allowed, rule: Some(rule), class }
    }

    /// The deny rule for this address, or for an IPv4 address that it embeds.
    fn find_denying_network(&self, user: &User, address: IpAddr, port: u16) -> Option<RuleId> {
        let denied = |address| Some(self.match_networks(&user.deny, address, port, |_| true).rule?.0);
        if user.deny.is_empty() {
            return None;
        }
        denied(address).or_else(|| match address {
            IpAddr::V4(_) => None,
            IpAddr::V6(v6) => address::embedded(v6).find_map(|embedded| denied(embedded.into())),
        })
    }

    /// The narrowest rules that contain this address; of equally narrow ones the first list's.
    fn match_networks(
        &self,
        lists: &[u32],
        address: IpAddr,
        port: u16,
        opens: impl Fn(&NetworkRule) -> bool,
    ) -> NetworkMatch {
        let mut found = NetworkMatch::default();
        for &list in lists {
            for rule in self.list(list).network_rules(address) {
                let narrowest = match (opens(rule), rule.ports.contains(port)) {
                    (true, true) => &mut found.rule,
                    (true, false) => &mut found.other_port,
                    (false, true) => &mut found.closed,
                    (false, false) => continue,
                };
                if narrowest.is_none_or(|(_, length)| length < rule.length) {
                    *narrowest = Some((RuleId { list, index: rule.index }, rule.length));
                }
            }
        }
        found
    }

    /// The number of all lists, and of a user's allow lists.
    #[cfg(test)]
    pub(crate) fn list_counts(&self, user: UserIndex) -> (usize, usize) {
        (self.lists.len(), self.users[user.as_usize()].allow.len())
    }

    fn list(&self, index: u32) -> &List {
        &self.lists[index as usize]
    }
}

/// The network rules that an address matched, each with the length of its prefix.
#[derive(Default)]
struct NetworkMatch {
    /// The rule that opens the address.
    rule: Option<(RuleId, u8)>,
    /// A rule that contains the address and does not open its class.
    closed: Option<(RuleId, u8)>,
    /// A rule that opens the address on another port.
    other_port: Option<(RuleId, u8)>,
}

impl NameMatch<'_> {
    /// The kind of rule that would allow the request, if none matched.
    fn missing_rule(&self) -> MissingRule {
        match self {
            Self { other_port: Some(_), .. } => MissingRule::Port,
            Self { name: None, .. } => MissingRule::Network,
            _ => MissingRule::NameOrNetwork,
        }
    }
}
