//! A compiled list of rules: a user's allow or deny list, or a set that many users share.
//!
//! Guarantees: a list is immutable; lookups allocate nothing.
//!
//! Not handled here: the choice among several matching rules (`decide.rs`), and references to sets among a
//! user's rules (`builder.rs` turns them into further lists).

use std::fmt::Write as _;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::address::{self, AddressClass};
use crate::host::{NAME_BYTES_MAX, NameRule, NameTable, RECORD_BYTES_MAX};
use crate::ports::PortRange;
use crate::ranges::{Key, RangeTable};
use crate::rules::{self, LABEL_NAME_BYTES_MAX, Rule, RuleTarget};
use crate::verdict::BillingClass;

/// The most rules in one list. Offsets of texts and names within a list have 32 bits.
pub const RULES_MAX: usize = 1 << 23;

/// The longest text of a rule: `user:NAME/allow[INDEX] `, then `*.NAME:PORT-PORT`.
const TEXT_BYTES_MAX: usize = 5 + LABEL_NAME_BYTES_MAX + 6 + 10 + 1 + 2 + NAME_BYTES_MAX + 12;

const _: () = assert!(RULES_MAX * TEXT_BYTES_MAX <= u32::MAX as usize);
const _: () = assert!(RULES_MAX * RECORD_BYTES_MAX < u32::MAX as usize);

/// The declared class of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SetClass {
    /// Internal destinations: its rules by name open private, CGNAT and loopback addresses too, and its flows
    /// count as internal.
    Internal,
    /// External destinations: its flows count as external, regardless of their address.
    External,
}

impl From<SetClass> for BillingClass {
    fn from(class: SetClass) -> Self {
        match class {
            SetClass::Internal => Self::Internal,
            SetClass::External => Self::External,
        }
    }
}

/// The content of a set.
#[derive(Clone, Debug, Default)]
pub struct SetRules {
    /// The declared class. Without one, each flow counts by its address.
    pub class: Option<SetClass>,
    /// Its destinations, without references to other sets.
    pub rules: Vec<Rule>,
    /// Networks without public addresses to which the set's names may resolve; they are open to these names
    /// only.
    pub addresses: Vec<IpNet>,
}

/// A user's rules, references to sets among them, and the reach of network rules.
#[derive(Clone, Debug, Default)]
pub struct UserRules {
    /// Allowed targets.
    pub allow: Vec<Rule>,
    /// Denied targets; they take precedence over `allow`.
    pub deny: Vec<Rule>,
    /// Whether any name may be resolved on the ports of network rules, so that these rules can match the
    /// resolved addresses.
    pub resolve_for_networks: bool,
}

/// A compiled list.
#[derive(Debug)]
pub(crate) struct List {
    /// The declared class of the set.
    pub(crate) class: Option<SetClass>,
    pub(crate) names: NameTable,
    networks: Networks,
    /// The networks to which the list's names may resolve, as rules for any port.
    name_addresses: Networks,
    /// The ports of all network rules: sorted, merged.
    network_ports: Box<[PortRange]>,
    texts: Box<str>,
    /// The end of each rule's text in `texts`.
    text_ends: Box<[u32]>,
}

impl List {
    /// Compiles a set, or a user's own rules like a set; references to sets only get their text. Each text
    /// begins with `label`.
    pub(crate) fn compile(label: &str, SetRules { class, rules, addresses }: &SetRules) -> Self {
        assert!(rules.len() + addresses.len() <= RULES_MAX, "the builder refuses lists over RULES_MAX");
        let mut names = Vec::new();
        let mut networks = Vec::new();
        let mut network_ports = Vec::new();
        for (index, rule) in (0..).zip(rules) {
            let ports = rule.ports;
            match &rule.target {
                RuleTarget::Name(name) => {
                    names.push((name.clone(), NameRule { ports, is_below: false, index }))
                }
                RuleTarget::Below(name) => {
                    names.push((name.clone(), NameRule { ports, is_below: true, index }))
                }
                RuleTarget::Network(network) => {
                    network_ports.push(ports);
                    networks.push((*network, ports, index));
                }
                RuleTarget::Set(_) => {}
            }
        }
        let (texts, text_ends) = build_texts(label, rules);
        let addresses = addresses.iter().map(|network| rules::unmapped(*network));
        let name_addresses = (0..).zip(addresses).map(|(index, network)| (network, PortRange::ANY, index));
        Self {
            class: *class,
            names: NameTable::build(names),
            networks: Networks::build(networks),
            name_addresses: Networks::build(name_addresses),
            network_ports: merge(network_ports),
            texts,
            text_ends,
        }
    }

    /// The rules whose network contains this address, for any ports: narrowest network first, then in the
    /// order of the list. The address must not be IPv4-mapped.
    pub(crate) fn network_rules(&self, address: IpAddr) -> impl Iterator<Item = &NetworkRule> {
        self.networks.rules_holding(address)
    }

    /// Whether a name of this list may resolve to this address of this class. The address must not be
    /// IPv4-mapped.
    pub(crate) fn opens_to_names(&self, class: AddressClass, address: IpAddr) -> bool {
        use AddressClass::{Cgnat, Loopback, Private, Public};
        let by_class = match class {
            Public => true,
            Private | Cgnat | Loopback => self.class == Some(SetClass::Internal),
            _ => false,
        };
        by_class || self.name_addresses.rules_holding(address).any(|rule| rule.opens(class, address))
    }

    /// Whether the list has a network rule.
    pub(crate) fn has_network_rules(&self) -> bool {
        !self.network_ports.is_empty()
    }

    /// Whether some network rule includes this port, so that a resolved address could still be allowed.
    pub(crate) fn has_network_rule_for(&self, port: u16) -> bool {
        let at = self.network_ports.partition_point(|ports| ports.last < port);
        self.network_ports.get(at).is_some_and(|ports| ports.contains(port))
    }

    /// The text of the rule at this position.
    pub(crate) fn text(&self, index: u32) -> &str {
        let index = index as usize;
        let start = index.checked_sub(1).map_or(0, |before| self.text_ends[before]);
        &self.texts[start as usize..self.text_ends[index] as usize]
    }
}

/// A rule for a network or an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetworkRule {
    pub(crate) ports: PortRange,
    /// The rule's position in its list.
    pub(crate) index: u32,
    /// Bits of the network's prefix.
    pub(crate) length: u8,
    /// Whether no address of the network is public.
    opens_non_public: bool,
}

impl NetworkRule {
    /// Whether this rule opens an address of this class inside its network.
    pub(crate) fn opens(&self, class: AddressClass, address: IpAddr) -> bool {
        use AddressClass::{
            Cgnat, LinkLocal, Loopback, Metadata, Multicast, Own, Private, Public, Reserved, Unspecified,
        };
        match class {
            Public => true,
            Private | Cgnat | Loopback | LinkLocal | Reserved => self.opens_non_public,
            Metadata => self.length == if address.is_ipv4() { 32 } else { 128 },
            Multicast | Unspecified | Own => false,
        }
    }
}

/// Network rules of both address families.
#[derive(Debug)]
struct Networks {
    v4: FamilyNetworks<u32>,
    v6: FamilyNetworks<u128>,
}

impl Networks {
    /// Builds the tables from each rule's network, ports and index.
    fn build(rules: impl IntoIterator<Item = (IpNet, PortRange, u32)>) -> Self {
        let mut v4 = Vec::new();
        let mut v6 = Vec::new();
        for (network, ports, index) in rules {
            let opens_non_public = address::is_wholly_non_public(network);
            let rule = NetworkRule { ports, index, length: network.prefix_len(), opens_non_public };
            match network {
                IpNet::V4(net) => v4.push((net.network().to_bits(), net.broadcast().to_bits(), rule)),
                IpNet::V6(net) => v6.push((net.network().to_bits(), net.broadcast().to_bits(), rule)),
            }
        }
        Self { v4: FamilyNetworks::build(v4), v6: FamilyNetworks::build(v6) }
    }

    fn rules_holding(&self, address: IpAddr) -> impl Iterator<Item = &NetworkRule> {
        let (v4, v6) = match address {
            IpAddr::V4(address) => (Some(self.v4.rules_holding(address.to_bits())), None),
            IpAddr::V6(address) => (None, Some(self.v6.rules_holding(address.to_bits()))),
        };
        v4.into_iter().flatten().chain(v6.into_iter().flatten())
    }
}

/// The network rules of one address family.
#[derive(Debug)]
struct FamilyNetworks<K> {
    table: RangeTable<K>,
    /// The end of each network's rules in `rules`.
    rule_ends: Box<[u32]>,
    rules: Box<[NetworkRule]>,
}

impl<K: Key> FamilyNetworks<K> {
    fn build(mut entries: Vec<(K, K, NetworkRule)>) -> Self {
        entries.sort_by_key(|(first, last, rule)| (*first, std::cmp::Reverse(*last), rule.index));
        let same_network =
            |left: &(K, K, NetworkRule), right: &(K, K, NetworkRule)| (left.0, left.1) == (right.0, right.1);
        let mut networks = Vec::new();
        let mut rule_ends = Vec::new();
        let mut rules = Vec::with_capacity(entries.len());
        for network in entries.chunk_by(same_network) {
            networks.push((network[0].0, network[0].1));
            rules.extend(network.iter().map(|(_, _, rule)| *rule));
            rule_ends.push(u32::try_from(rules.len()).expect("RULES_MAX fits 32 bits"));
        }
        Self { table: RangeTable::build(&networks), rule_ends: rule_ends.into(), rules: rules.into() }
    }

    fn rules_holding(&self, address: K) -> impl Iterator<Item = &NetworkRule> {
        self.table.holding(address).flat_map(|network| {
            let start = network.checked_sub(1).map_or(0, |before| self.rule_ends[before]);
            &self.rules[start as usize..self.rule_ends[network] as usize]
        })
    }
}

fn build_texts(label: &str, rules: &[Rule]) -> (Box<str>, Box<[u32]>) {
    let mut texts = String::new();
    let mut ends = Vec::with_capacity(rules.len());
    for (index, rule) in rules.iter().enumerate() {
        write!(texts, "{label}[{index}] {rule}").expect("writing to a String cannot fail");
        ends.push(u32::try_from(texts.len()).expect("RULES_MAX keeps all texts within 4 GiB"));
    }
    (texts.into(), ends.into())
}

/// Sorts port ranges and merges overlapping ones.
fn merge(mut ranges: Vec<PortRange>) -> Box<[PortRange]> {
    ranges.sort_unstable_by_key(|range| range.first);
    ranges.dedup_by(|next, previous| {
        let overlaps = next.first <= previous.last;
        if overlaps {
            previous.last = previous.last.max(next.last);
        }
        overlaps
    });
    ranges.into()
}
