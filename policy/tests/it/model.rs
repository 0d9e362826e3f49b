//! Whole decisions against a slow and simple model: it stores rules as strings and numbers, scans all of them
//! each time, and shares no code with the crate.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::LazyLock;

use ipnet::{IpNet, Ipv4Net};
use policy::{Builder, Host, NameVerdict, Policy, Remedy, Rule, SetClass, SetRules, UserRules, classify};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, RngSeed};

/// What a rule matches, in the model.
#[derive(Clone, Debug)]
enum Holds {
    Name(String),
    Below(String),
    Network(IpNet),
    /// By the set's number.
    Set(usize),
}

#[derive(Clone, Debug)]
struct ModelRule {
    holds: Holds,
    first_port: u16,
    last_port: u16,
}

#[derive(Clone, Debug)]
struct ModelSet {
    class: Option<SetClass>,
    rules: Vec<ModelRule>,
    /// The addresses to which the set's names may resolve.
    addresses: Vec<IpNet>,
}

#[derive(Clone, Debug)]
struct Configuration {
    sets: Vec<ModelSet>,
    allow: Vec<ModelRule>,
    deny: Vec<ModelRule>,
    resolve_for_networks: bool,
    own: Vec<SocketAddr>,
}

/// A rule of a list, with its text and its set's class and addresses.
struct Candidate<'a> {
    rule: &'a ModelRule,
    class: Option<SetClass>,
    addresses: &'a [IpNet],
    text: String,
}

impl Candidate<'_> {
    /// Whether this rule, if it is by name, admits this address of this class.
    fn admits(&self, class: &str, address: IpAddr) -> bool {
        let by_class = match class {
            "public" => true,
            "private" | "cgnat" | "loopback" => self.class == Some(SetClass::Internal),
            _ => false,
        };
        let holding = self.addresses.iter().filter(|network| network.contains(&address));
        by_class || holding.into_iter().any(|network| opens(network, class))
    }
}

impl ModelRule {
    fn text(&self) -> String {
        let holds = match &self.holds {
            Holds::Set(number) => return format!("@set{number}"),
            Holds::Name(name) => name.clone(),
            Holds::Below(name) => format!("*.{name}"),
            Holds::Network(network) if network.prefix_len() < network.max_prefix_len() => network.to_string(),
            Holds::Network(IpNet::V4(network)) => network.addr().to_string(),
            Holds::Network(IpNet::V6(network)) => format!("[{}]", network.addr()),
        };
        match (self.first_port, self.last_port) {
            (1, 65535) => holds,
            (first, last) if first == last => format!("{holds}:{first}"),
            (first, last) => format!("{holds}:{first}-{last}"),
        }
    }

    fn holds_port(&self, port: u16) -> bool {
        (self.first_port..=self.last_port).contains(&port)
    }

    /// How narrowly the rule matches this name, in bytes; `None` if it does not.
    fn holds_name(&self, name: &str) -> Option<usize> {
        match &self.holds {
            Holds::Name(own) if own == name => Some(1000),
            Holds::Below(above) if name.ends_with(&format!(".{above}")) => Some(above.len()),
            _ => None,
        }
    }

    /// How narrowly the rule matches this address, in bits; `None` if it does not.
    fn holds_address(&self, address: IpAddr) -> Option<usize> {
        match &self.holds {
            Holds::Network(network) if network.contains(&address) => Some(network.prefix_len().into()),
            _ => None,
        }
    }

    fn opens(&self, class: &str) -> bool {
        if let Holds::Network(network) = &self.holds { opens(network, class) } else { false }
    }
}

/// Whether a network opens its addresses of this class.
fn opens(network: &IpNet, class: &str) -> bool {
    match class {
        "public" => true,
        "metadata" => network.prefix_len() == network.max_prefix_len(),
        "multicast" | "unspecified" => false,
        _ => is_non_public(network),
    }
}

impl Configuration {
    /// The user's own rules, then their sets in the order of the first reference.
    fn candidates<'a>(&'a self, list: &'a [ModelRule], label: &str) -> Vec<Candidate<'a>> {
        let candidates = |rules: &'a [ModelRule], class, addresses: &'a [IpNet], label: &str| {
            let numbered = rules.iter().enumerate().filter(|(_, rule)| !matches!(rule.holds, Holds::Set(_)));
            let with_text = |(index, rule): (usize, &'a ModelRule)| Candidate {
                rule,
                class,
                addresses,
                text: format!("{label}[{index}] {}", rule.text()),
            };
            numbered.map(with_text).collect::<Vec<_>>()
        };
        let mut all = candidates(list, None, &[], label);
        let mut seen = Vec::new();
        for rule in list {
            if let Holds::Set(number) = rule.holds
                && !seen.contains(&number)
            {
                seen.push(number);
                let ModelSet { class, rules, addresses } = &self.sets[number];
                all.extend(candidates(rules, *class, addresses, &format!("@set{number}")));
            }
        }
        all
    }

    fn build(&self) -> Policy {
        self.build_with(None)
    }

    /// The policy, with a remedy as a further set of the user's.
    fn build_with(&self, remedy: Option<&Remedy>) -> Policy {
        let parse = |rules: &[ModelRule]| -> Vec<Rule> {
            rules.iter().map(|rule| Rule::parse(&rule.text()).expect("the model writes rules")).collect()
        };
        let mut builder = Builder::new();
        for (number, ModelSet { class, rules, addresses }) in self.sets.iter().enumerate() {
            let set = SetRules { class: *class, rules: parse(rules), addresses: addresses.clone() };
            builder.set(format!("set{number}"), set);
        }
        let (mut allow, deny) = (parse(&self.allow), parse(&self.deny));
        if let Some(Remedy { rule, address }) = remedy {
            let addresses = address.iter().map(|address| IpNet::from(*address)).collect();
            builder.set("remedy", SetRules { class: None, rules: vec![rule.clone()], addresses });
            allow.push(Rule::parse("@remedy").expect("a reference"));
        }
        builder.user("ci", UserRules { allow, deny, resolve_for_networks: self.resolve_for_networks });
        let mut policy = builder.build().expect("the model's policy has no mistakes");
        policy.set_own(&self.own);
        policy
    }

    fn is_own(&self, address: IpAddr, port: u16) -> bool {
        let spellings: Vec<IpAddr> =
            [address].into_iter().chain(embedded(address).into_iter().map(IpAddr::V4)).collect();
        self.own.iter().any(|own| {
            own.port() == port
                && spellings.iter().any(|spelling| {
                    own.ip() == *spelling
                        || (own.ip().is_unspecified()
                            && ["loopback", "unspecified"].contains(&model_class(*spelling))
                            && (own.is_ipv6() || spelling.is_ipv4()))
                })
        })
    }

    /// The name's verdict, or `None` if the address decides.
    fn judge_name(&self, name: &str, port: u16) -> Option<String> {
        let deny = self.candidates(&self.deny, "user:ci/deny");
        if let Some(rule) = narrowest(&deny, |rule| rule.holds_name(name).filter(|_| rule.holds_port(port))) {
            return Some(format!("deny denied_by_rule {}", rule.text));
        }
        let allow = self.candidates(&self.allow, "user:ci/allow");
        let has_name = allow.iter().any(|it| it.rule.holds_name(name).is_some() && it.rule.holds_port(port));
        let is_network = |it: &Candidate<'_>| matches!(it.rule.holds, Holds::Network(_));
        let has_network = allow.iter().any(|it| is_network(it) && it.rule.holds_port(port));
        if has_name || (has_network && self.resolve_for_networks) {
            return None;
        }
        Some(match narrowest(&allow, |rule| rule.holds_name(name)) {
            Some(rule) => format!("deny no_rule_for_port {}", rule.text),
            None if has_network => "deny no_rule_for_name -".to_owned(),
            None => "deny no_rule -".to_owned(),
        })
    }

    fn judge_address(&self, name: Option<&str>, address: IpAddr, port: u16) -> String {
        let address = address.to_canonical();
        let class = model_class(address);
        if self.is_own(address, port) {
            return "deny own_address -".to_owned();
        }
        if ["multicast", "unspecified"].contains(&class) {
            return format!("deny {class}_address -");
        }
        let deny = self.candidates(&self.deny, "user:ci/deny");
        for spelling in [address].into_iter().chain(embedded(address).into_iter().map(IpAddr::V4)) {
            let denied = |rule: &ModelRule| rule.holds_address(spelling).filter(|_| rule.holds_port(port));
            if let Some(rule) = narrowest(&deny, denied) {
                return format!("deny denied_by_rule {}", rule.text);
            }
        }
        let allow = self.candidates(&self.allow, "user:ci/allow");
        let by_name = |rule: &ModelRule| rule.holds_name(name?);
        let named: Vec<_> = allow.iter().filter(|it| it.rule.holds_port(port)).collect();
        let admitting: Vec<_> = named.iter().copied().filter(|it| it.admits(class, address)).collect();
        let admitting = narrowest_of(&admitting, by_name);
        let opening = |rule: &ModelRule| rule.holds_address(address).filter(|_| rule.opens(class));
        if let Some(rule) = admitting.or_else(|| narrowest_of(&named, opening)) {
            let external = match rule.class {
                Some(declared) => declared == SetClass::External,
                None => class == "public",
            };
            return format!("allow {} {}", if external { "external" } else { "internal" }, rule.text);
        }
        let holding = |rule: &ModelRule| rule.holds_address(address);
        if let Some(rule) = narrowest_of(&named, by_name).or_else(|| narrowest_of(&named, holding)) {
            return format!("deny {class}_address {}", rule.text);
        }
        match narrowest(&allow, by_name).or_else(|| narrowest(&allow, opening)) {
            Some(rule) => format!("deny no_rule_for_port {}", rule.text),
            None => "deny no_rule -".to_owned(),
        }
    }
}

/// The first of the candidates that match most narrowly.
fn narrowest<'a, 'b>(
    candidates: &'b [Candidate<'a>],
    holds: impl Fn(&ModelRule) -> Option<usize>,
) -> Option<&'b Candidate<'a>> {
    narrowest_of(&candidates.iter().collect::<Vec<_>>(), holds)
}

fn narrowest_of<'a, 'b>(
    candidates: &[&'b Candidate<'a>],
    holds: impl Fn(&ModelRule) -> Option<usize>,
) -> Option<&'b Candidate<'a>> {
    let most = candidates.iter().filter_map(|it| holds(it.rule)).max()?;
    candidates.iter().copied().find(|it| holds(it.rule) == Some(most))
}

/// Special blocks; the longest block that contains an address gives its class.
const BLOCKS: &[(&str, &str)] = &[
    ("0.0.0.0/0", "public"),
    ("0.0.0.0/8", "unspecified"),
    ("10.0.0.0/8", "private"),
    ("172.16.0.0/12", "private"),
    ("192.168.0.0/16", "private"),
    ("100.64.0.0/10", "cgnat"),
    ("100.100.100.200/32", "metadata"),
    ("127.0.0.0/8", "loopback"),
    ("169.254.0.0/16", "link_local"),
    ("169.254.169.254/32", "metadata"),
    ("169.254.169.252/32", "metadata"),
    ("169.254.170.2/32", "metadata"),
    ("169.254.170.23/32", "metadata"),
    ("169.254.42.42/32", "metadata"),
    ("169.254.0.23/32", "metadata"),
    ("168.63.129.16/32", "metadata"),
    ("192.0.0.0/24", "reserved"),
    ("192.0.0.192/32", "metadata"),
    ("192.0.2.0/24", "reserved"),
    ("192.88.99.0/24", "reserved"),
    ("198.18.0.0/15", "reserved"),
    ("198.51.100.0/24", "reserved"),
    ("203.0.113.0/24", "reserved"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),
    ("255.255.255.255/32", "multicast"),
    ("::/0", "reserved"),
    ("::/128", "unspecified"),
    ("::1/128", "loopback"),
    ("2000::/3", "public"),
    ("2001::/23", "reserved"),
    ("2001:db8::/32", "reserved"),
    ("3fff::/20", "reserved"),
    ("fc00::/7", "private"),
    ("fd00:ec2::/32", "metadata"),
    ("fd20:ce::254/128", "metadata"),
    ("fd00:c1::a9fe:a9fe/128", "metadata"),
    ("fd00:42::42/128", "metadata"),
    ("fd00:a9fe:a9fe::1/128", "metadata"),
    ("fd00:100::100:200/128", "metadata"),
    ("fe80::/10", "link_local"),
    ("fe80::a9fe:a9fe/128", "metadata"),
    ("fec0::/10", "private"),
    ("ff00::/8", "multicast"),
];

static BLOCK_NETS: LazyLock<Vec<(IpNet, &str)>> =
    LazyLock::new(|| BLOCKS.iter().map(|(net, class)| (net.parse().expect("a network"), *class)).collect());

const SEVERITY: [&str; 9] = [
    "public",
    "private",
    "cgnat",
    "loopback",
    "link_local",
    "reserved",
    "metadata",
    "multicast",
    "unspecified",
];

fn model_class(address: IpAddr) -> &'static str {
    let by_block = || {
        let holding = BLOCK_NETS.iter().filter(|(net, _)| net.contains(&address));
        holding.max_by_key(|(net, _)| net.prefix_len()).expect("a default for each family").1
    };
    let embedded_class =
        || embedded(address).into_iter().map(|it| model_class(it.into())).max_by_key(|class| severity(class));
    let IpAddr::V6(v6) = address.to_canonical() else {
        return if address.is_ipv4() { by_block() } else { model_class(address.to_canonical()) };
    };
    match embedded_class() {
        Some("public") if v6.octets()[..8] == [0; 8] => "reserved",
        Some(class) => class,
        None => by_block(),
    }
}

fn severity(class: &str) -> usize {
    SEVERITY.iter().position(|known| *known == class).expect("a known class")
}

/// The IPv4 addresses that an IPv6 address embeds, read octet by octet as in the RFCs' drawings.
fn embedded(address: IpAddr) -> Vec<Ipv4Addr> {
    let IpAddr::V6(v6) = address.to_canonical() else { return Vec::new() };
    let octets = v6.octets();
    let at = |positions: [usize; 4]| Ipv4Addr::from(positions.map(|position| octets[position]));
    let last = at([12, 13, 14, 15]);
    if v6.is_unspecified() || v6.is_loopback() {
        return Vec::new();
    }
    match octets {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ..] => vec![last],
        [0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, ..] => vec![last],
        [0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0, ..] => vec![last],
        [0, 0x64, 0xff, 0x9b, 0, 1, ..] => {
            let inner = ["private", "cgnat", "loopback", "link_local", "metadata"];
            let others = [at([6, 7, 9, 10]), at([7, 9, 10, 11]), at([9, 10, 11, 12])];
            let is_inner = |it: &Ipv4Addr| inner.contains(&model_class((*it).into()));
            [last].into_iter().chain(others.into_iter().filter(is_inner)).collect()
        }
        [0x20, 0x01, 0, 0, ..] => {
            vec![at([4, 5, 6, 7]), Ipv4Addr::from(last.octets().map(|octet| !octet))]
        }
        [0x20, 0x02, ..] => vec![at([2, 3, 4, 5])],
        _ => Vec::new(),
    }
}

/// Addresses at which the class may change, on both sides of each border.
static BORDERS: LazyLock<Vec<IpAddr>> = LazyLock::new(|| {
    let mut borders = Vec::new();
    for (net, _) in BLOCK_NETS.iter() {
        match net {
            IpNet::V4(net) => borders.extend(borders_v4(net).map(|bits| IpAddr::V4(bits.into()))),
            IpNet::V6(net) => {
                let (first, last) = (net.network().to_bits(), net.broadcast().to_bits());
                let around = [first.wrapping_sub(1), first, last, last.wrapping_add(1)];
                borders.extend(around.map(|bits| IpAddr::V6(bits.into())));
            }
        }
    }
    let v4: Vec<u128> = borders.iter().filter_map(|it| Some(u128::from(u32::from(as_v4(*it)?)))).collect();
    let bases = |it: u128| {
        [
            0x0064_ff9b << 96 | it,
            0x0064_ff9b_0001 << 80 | it,
            0x2002 << 112 | it << 80,
            (0x2002 << 112 | it << 80) + (1 << 80) - 1,
            0x2001_0000 << 96 | it << 64 | !0x0808_0808_u32 as u128,
            0x2001_0000 << 96 | 0x0808_0808 << 64 | !(it as u32) as u128,
        ]
    };
    borders.extend(v4.into_iter().flat_map(bases).map(|bits| IpAddr::V6(bits.into())));
    borders
});

fn borders_v4(net: &Ipv4Net) -> impl Iterator<Item = u32> + use<> {
    let (first, last) = (net.network().to_bits(), net.broadcast().to_bits());
    [first.wrapping_sub(1), first, last, last.wrapping_add(1)].into_iter()
}

fn as_v4(address: IpAddr) -> Option<Ipv4Addr> {
    if let IpAddr::V4(address) = address { Some(address) } else { None }
}

/// Whether no address of a network is public. Classes change at borders only, so only these are checked.
fn is_non_public(network: &IpNet) -> bool {
    let ends = [network.network(), network.broadcast()];
    let inside = BORDERS.iter().copied().filter(|border| network.contains(border));
    inside.chain(ends).chain(teredo_corner(network)).all(|address| model_class(address) != "public")
}

/// For a part of Teredo space: an address with a public server and a public client, if the part contains it.
fn teredo_corner(network: &IpNet) -> Option<IpAddr> {
    let IpNet::V6(net) = network else { return None };
    let mask = net.netmask().to_bits();
    let public = 0x2001_0000_u128 << 96 | 0x0808_0808 << 64 | !0x0808_0808_u32 as u128;
    let corner = IpAddr::V6((net.network().to_bits() | (public & !mask)).into());
    network.contains(&corner).then_some(corner)
}

fn name() -> impl Strategy<Value = String> {
    vec(select(&["a", "b", "ab"][..]), 1..4).prop_map(|labels| labels.join("."))
}

fn port() -> impl Strategy<Value = u16> {
    select(&[80_u16, 81, 443, 65535][..])
}

/// Addresses on borders, addresses that embed others, and any address.
fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        4 => any::<prop::sample::Index>().prop_map(|index| *index.get(&BORDERS)),
        2 => select(NEAR).prop_map(|text| text.parse().expect("an address")),
        1 => any::<Ipv4Addr>().prop_map(IpAddr::V4),
        1 => any::<Ipv6Addr>().prop_map(IpAddr::V6),
    ]
}

const NEAR: &[&str] = &[
    "8.8.8.8",
    "10.0.0.1",
    "10.20.0.1",
    "127.0.0.1",
    "::1",
    "169.254.169.254",
    "168.63.129.16",
    "fd12::1",
    "2606:4700::1",
    "64:ff9b::8.8.8.8",
    "64:ff9b::10.0.0.1",
    "64:ff9b::127.0.0.1",
    "2002:a00:1::",
    "fe80::1",
    "64:ff9b:1:a9fe:a9:fe00:808:808",
    "::ffff:10.0.0.1",
    "::ffff:8.8.8.8",
    "::10.0.0.1",
    "0.0.0.0",
    "::",
];

/// Any network around such an address. Of the local NAT64 space only the whole and single addresses are
/// drawn, for which the crate's result is exact.
fn network() -> impl Strategy<Value = IpNet> {
    (address(), 0_u8..=128, any::<bool>()).prop_map(|(address, length, is_long)| {
        let address = address.to_canonical();
        let bits_max = if address.is_ipv4() { 32 } else { 128 };
        let length = if is_long { bits_max - length % 9 } else { length % (bits_max + 1) };
        let net = IpNet::new(address, length).expect("a length in range").trunc();
        let local: IpNet = "64:ff9b:1::/48".parse().expect("a network");
        if net != local && local.contains(&net) { IpNet::from(address) } else { net }
    })
}

fn rule(sets: usize) -> impl Strategy<Value = ModelRule> {
    let holds = prop_oneof![
        3 => name().prop_map(Holds::Name),
        3 => name().prop_map(Holds::Below),
        6 => network().prop_map(Holds::Network),
        2 => (0..sets.max(1)).prop_map(Holds::Set),
    ];
    (holds, prop_oneof![Just((1, 65535)), port().prop_map(|port| (port, port)), Just((80, 443))])
        .prop_map(|(holds, (first_port, last_port))| ModelRule { holds, first_port, last_port })
        .prop_filter("no set to refer to", move |rule| sets > 0 || !matches!(rule.holds, Holds::Set(_)))
}

fn configuration() -> impl Strategy<Value = Configuration> {
    let class = select(&[None, Some(SetClass::Internal), Some(SetClass::External)][..]);
    let listener = (select(&["127.0.0.1", "0.0.0.0", "::", "::1", "10.0.0.1"][..]), port())
        .prop_map(|(address, port)| SocketAddr::new(address.parse().expect("an address"), port));
    let set = (class, vec(rule(0), 0..6), vec(network(), 0..4)).prop_map(|(class, rules, mut addresses)| {
        // The builder refuses a set that has addresses and no name, and networks with public addresses.
        let has_name = |rule: &ModelRule| !matches!(rule.holds, Holds::Network(_));
        addresses.retain(|network| rules.iter().any(has_name) && is_non_public(network));
        ModelSet { class, rules, addresses }
    });
    let sets = vec(set, 1..4);
    let own = prop_oneof![3 => Just(Vec::new()), 1 => vec(listener, 1..3)];
    let lists = (vec(rule(1), 0..8), vec(rule(1), 0..3), any::<bool>());
    (sets, lists, own, any::<prop::sample::Index>()).prop_map(
        |(sets, (mut allow, mut deny, resolve_for_networks), own, shift)| {
            // The strategy draws references to one set only; spread them over all sets.
            for (number, rule) in allow.iter_mut().chain(&mut deny).enumerate() {
                if let Holds::Set(set) = &mut rule.holds {
                    *set = (number + shift.index(sets.len())) % sets.len();
                }
            }
            Configuration { sets, allow, deny, resolve_for_networks, own }
        },
    )
}

/// An address to test: inside a network of the configuration, or `other`.
fn choose_address(
    configuration: &Configuration,
    index: prop::sample::Index,
    other: IpAddr,
    bits: u128,
) -> IpAddr {
    let rules = configuration
        .sets
        .iter()
        .flat_map(|set| &set.rules)
        .chain(&configuration.allow)
        .chain(&configuration.deny);
    let networks: Vec<&IpNet> = rules
        .filter_map(|rule| if let Holds::Network(network) = &rule.holds { Some(network) } else { None })
        .chain(configuration.sets.iter().flat_map(|set| &set.addresses))
        .collect();
    if networks.is_empty() || bits.is_multiple_of(4) {
        return other;
    }
    match index.get(&networks) {
        IpNet::V4(net) => {
            IpAddr::V4((net.network().to_bits() | (bits as u32 & net.hostmask().to_bits())).into())
        }
        IpNet::V6(net) => IpAddr::V6((net.network().to_bits() | (bits & net.hostmask().to_bits())).into()),
    }
}

fn config(cases: u32, seed: u64) -> Config {
    Config { cases, rng_seed: RngSeed::Fixed(seed), failure_persistence: None, ..Config::default() }
}

fn show(policy: &Policy, verdict: &policy::Verdict) -> String {
    let rule = verdict.rule.map_or("-", |rule| policy.rule_text(rule));
    if verdict.is_allowed() {
        format!("allow {} {rule}", verdict.class)
    } else {
        format!("deny {} {rule}", verdict.reason.code())
    }
}

proptest! {
    #![proptest_config(config(4000, 17))]

    #[test]
    fn decisions_agree_with_the_model(
        configuration in configuration(),
        questions in vec((name(), port(), any::<prop::sample::Index>(), address(), any::<u128>()), 1..12),
    ) {
        let policy = configuration.build();
        let user = policy.user("ci").expect("the user");
        for (name, port, index, other, bits) in questions {
            let address = choose_address(&configuration, index, other, bits);
            let judged = policy.judge_name(user, Host::Name(&name), port);
            let got = show(&policy, &policy.judge_address(user, &judged, address, port));
            let early = configuration.judge_name(&name, port);
            prop_assert_eq!(matches!(judged, NameVerdict::Denied(_)), early.is_some(), "{}:{}", name, port);
            let expected = early.unwrap_or_else(|| configuration.judge_address(Some(&name), address, port));
            prop_assert_eq!(got, expected, "{}:{} [{}]", name, port, address);

            let judged = policy.judge_name(user, Host::Address(address), port);
            let got = show(&policy, &policy.judge_address(user, &judged, address, port));
            let expected = configuration.judge_address(None, address, port);
            prop_assert_eq!(matches!(judged, NameVerdict::Denied(_)), expected.starts_with("deny"));
            prop_assert_eq!(got, expected, "{} port {}", address, port);

            // The verdict on a literal address and port applies to no other.
            if !matches!(judged, NameVerdict::Denied(_)) {
                for (address, port) in [(other, port), (address, port ^ 1)] {
                    let got = show(&policy, &policy.judge_address(user, &judged, address, port));
                    let expected = configuration.judge_address(None, address, port);
                    prop_assert_eq!(got, expected, "{} port {}", address, port);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(config(4000, 23))]

    /// The remedy of a denial allows the request, and opens nothing else.
    #[test]
    fn remedy_allows_only_what_was_denied(
        configuration in configuration(),
        (name, other_name) in (name(), name()),
        port in port(),
        is_literal in any::<bool>(),
        (index, other, bits) in (any::<prop::sample::Index>(), address(), any::<u128>()),
    ) {
        let address = choose_address(&configuration, index, other, bits);
        let host = if is_literal { Host::Address(address) } else { Host::Name(&name) };
        let policy = configuration.build();
        let verdict = |policy: &Policy, host, address, port| {
            let user = policy.user("ci").expect("the user");
            policy.judge_address(user, &policy.judge_name(user, host, port), address, port)
        };
        let denied = verdict(&policy, host, address, port);
        // The address is passed as after a lookup, also for a name that is not resolved.
        let Some(remedy) = Remedy::for_denial(denied.reason, host, port, Some(address)) else {
            let class = policy.address_class(address, port);
            let is_closed = ["multicast", "unspecified", "ours"].contains(&class.as_str());
            let is_decided = ["allowed", "denied_by_rule", "own_address"].contains(&denied.reason.code());
            prop_assert!(is_closed || is_decided, "{:?} has no remedy", denied);
            return Ok(());
        };
        let remedied = configuration.build_with(Some(&remedy));
        let verdict_now = verdict(&remedied, host, address, port);
        // A name that was denied before resolving may still resolve to a denied address.
        let is_closed = ["denied_by_rule", "own_address"].contains(&verdict_now.reason.code());
        prop_assert!(verdict_now.is_allowed() || is_closed, "{} gives {:?}", remedy, verdict_now);
        if other_name != name && !is_literal {
            let [before, after] =
                [&policy, &remedied].map(|policy| verdict(policy, Host::Name(&other_name), address, port));
            prop_assert_eq!(before.is_allowed(), after.is_allowed(), "{} opens {}", remedy, other_name);
        }
        let other_port = port ^ 2;
        let [before, after] = [&policy, &remedied].map(|policy| verdict(policy, host, address, other_port));
        prop_assert_eq!(before.is_allowed(), after.is_allowed(), "{} opens port {}", remedy, other_port);
    }
}

proptest! {
    #![proptest_config(config(20_000, 19))]

    #[test]
    fn classes_agree_with_the_model(address in address()) {
        prop_assert_eq!(classify(address).as_str(), model_class(address), "{}", address);
    }

    /// One network and the addresses in it: the strictest test of what a network opens.
    #[test]
    fn network_openings_agree_with_the_model(
        network in network(),
        bits in any::<u128>(),
        index in any::<prop::sample::Index>(),
    ) {
        let rule = ModelRule { holds: Holds::Network(network), first_port: 1, last_port: 65535 };
        let configuration = Configuration {
            sets: Vec::new(),
            allow: vec![rule],
            deny: Vec::new(),
            resolve_for_networks: false,
            own: Vec::new(),
        };
        let policy = configuration.build();
        let user = policy.user("ci").expect("the user");
        let inside = choose_address(&configuration, index, network.network(), bits);
        let borders = BORDERS.iter().copied().filter(|border| network.contains(border)).take(40);
        for address in borders.chain([inside, network.network(), network.broadcast()]) {
            let judged = policy.judge_name(user, Host::Address(address), 443);
            let got = show(&policy, &policy.judge_address(user, &judged, address, 443));
            let expected = configuration.judge_address(None, address, 443);
            prop_assert_eq!(got, expected, "{} in {}", address, network);
        }
    }
}
