//! Address classes: the scope of an IP address, which decides whether a rule may open it.
//!
//! Guarantees: every address has exactly one class. An address that embeds an IPv4 address has the class of
//! the embedded one. IPv6 is public only inside 2000::/3: an allow-list, so that unassigned space is never
//! public.
//!
//! Not handled here: the gateway's own listeners (`own.rs`).
//!
//! Sources: the IANA special-purpose address registries (RFC 6890 and successors), RFC 6052 and
//! RFC 8215 (NAT64), RFC 3056 (6to4), RFC 4380 (Teredo), RFC 4291 (IPv4-compatible), RFC 2765
//! (IPv4-translated), and the clouds' own documentation for their metadata services.
//!
//! A network-specific NAT64 prefix (RFC 6052 section 2.2, a part of a network's own global space) looks like
//! any other global address; where one is routed, the operator closes it with a deny rule.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// The class of an address. Later variants are harder to open: if one IPv6 address embeds two IPv4 addresses,
/// the later class counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AddressClass {
    /// Global unicast: routed on the Internet.
    Public,
    /// RFC 1918, unique local (fc00::/7) and the deprecated site-local space (fec0::/10).
    Private,
    /// Carrier-grade NAT and overlay networks, 100.64.0.0/10 (RFC 6598).
    Cgnat,
    /// 127.0.0.0/8 and ::1.
    Loopback,
    /// 169.254.0.0/16 and fe80::/10.
    LinkLocal,
    /// Documentation, benchmarking, protocol assignments, 240.0.0.0/4 and all unassigned IPv6 space.
    Reserved,
    /// A cloud's metadata, credential or host service; one of them has a public address.
    Metadata,
    /// Multicast and the limited broadcast address: no single peer.
    Multicast,
    /// 0.0.0.0/8 and ::, which Linux connects to the machine itself.
    Unspecified,
    /// An address and port on which the gateway itself listens.
    Own,
}

impl AddressClass {
    /// The class in logs and metrics, in snake case.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Private => "private",
            Self::Cgnat => "cgnat",
            Self::Loopback => "loopback",
            Self::LinkLocal => "link_local",
            Self::Reserved => "reserved",
            Self::Metadata => "metadata",
            Self::Multicast => "multicast",
            Self::Unspecified => "unspecified",
            Self::Own => "ours",
        }
    }
}

impl fmt::Display for AddressClass {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// The class of an address. Never [`AddressClass::Own`], which depends on the port and the listeners.
pub fn classify(address: IpAddr) -> AddressClass {
    match address.to_canonical() {
        IpAddr::V4(address) => classify_v4(address),
        IpAddr::V6(address) => classify_v6(address),
    }
}

/// The IPv4 addresses that a packet to this IPv6 address may reach, at most four.
pub(crate) fn embedded(address: Ipv6Addr) -> impl Iterator<Item = Ipv4Addr> {
    let bits = address.to_bits();
    let low = v4_at(bits, 96);
    let readings = match Ipv4Embedding::from_address(address) {
        Ipv4Embedding::None => [None; 4],
        Ipv4Embedding::Nat64 | Ipv4Embedding::Obsolete => [Some(low), None, None, None],
        Ipv4Embedding::SixToFour => [Some(v4_at(bits, 16)), None, None, None],
        Ipv4Embedding::Teredo => [Some(v4_at(bits, 32)), Some(teredo_client(bits)), None, None],
        Ipv4Embedding::LocalNat64 => {
            let [by_48, by_56, by_64] = local_nat64_readings(bits).map(|v4| is_internal(v4).then_some(v4));
            [Some(low), by_48, by_56, by_64]
        }
    };
    readings.into_iter().flatten()
}

/// Whether no address of this network is public. Only such a network opens non-public addresses.
///
/// Exact except inside the local NAT64 space: there a network that is not part of one /96 counts as partly
/// public, and opens less, never more.
pub(crate) fn is_wholly_non_public(network: IpNet) -> bool {
    match network {
        IpNet::V4(network) => is_wholly_non_public_v4(network),
        IpNet::V6(network) => is_wholly_non_public_v6(network),
    }
}

/// How an IPv6 address embeds an IPv4 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ipv4Embedding {
    None,
    /// 64:ff9b::/96, the well-known NAT64 prefix: the last 32 bits.
    Nat64,
    /// 64:ff9b:1::/48, for NAT64 prefixes of the operator's choice. Public only for a prefix of 96 bits, with
    /// the address in the last 32; the readings of shorter prefixes can only close it.
    LocalNat64,
    /// 2002::/16: the 32 bits after the prefix.
    SixToFour,
    /// 2001::/32: the server after the prefix, the client inverted in the last 32 bits.
    Teredo,
    /// IPv4-compatible ::/96 and IPv4-translated ::ffff:0:0:0/96: the last 32 bits. Both are obsolete, so no
    /// public host uses them.
    Obsolete,
}

impl Ipv4Embedding {
    fn from_address(address: Ipv6Addr) -> Self {
        match address.segments() {
            [0, 0, 0, 0, 0, 0, 0, 0 | 1] => Self::None,
            [0, 0, 0, 0, 0, 0, _, _] | [0, 0, 0, 0, 0xffff, 0, _, _] => Self::Obsolete,
            [0x64, 0xff9b, 0, 0, 0, 0, _, _] => Self::Nat64,
            [0x64, 0xff9b, 1, ..] => Self::LocalNat64,
            [0x2001, 0, ..] => Self::Teredo,
            [0x2002, ..] => Self::SixToFour,
            _ => Self::None,
        }
    }
}

/// The prefixes of embeddings in which some addresses are public.
const PARTLY_PUBLIC_EMBEDDINGS: [Ipv6Net; 4] = [
    Ipv6Net::new_assert(Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96),
    Ipv6Net::new_assert(Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0), 48),
    Ipv6Net::new_assert(Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 32),
    Ipv6Net::new_assert(Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
];

/// Metadata, credential and host services on IPv4.
const METADATA_V4: [Ipv4Addr; 9] = [
    Ipv4Addr::new(169, 254, 169, 254), // AWS, Google, Azure, OpenStack and most others
    Ipv4Addr::new(169, 254, 170, 2),   // AWS ECS task credentials
    Ipv4Addr::new(169, 254, 170, 23),  // AWS EKS pod identity
    Ipv4Addr::new(169, 254, 169, 252), // Google GKE, on the node
    Ipv4Addr::new(169, 254, 42, 42),   // Scaleway
    Ipv4Addr::new(169, 254, 0, 23),    // Tencent
    Ipv4Addr::new(100, 100, 100, 200), // Alibaba, inside CGNAT space
    Ipv4Addr::new(192, 0, 0, 192),     // Oracle Classic
    Ipv4Addr::new(168, 63, 129, 16),   // Azure's host agent: a public address
];

/// Metadata services on IPv6, besides Amazon's block (see [`is_metadata_v6`]).
const METADATA_V6: [Ipv6Addr; 6] = [
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254), // Google
    Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe), // Oracle
    Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42),  // Scaleway
    Ipv6Addr::new(0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1), // Akamai
    Ipv6Addr::new(0xfd00, 0x100, 0, 0, 0, 0, 0x100, 0x200), // Alibaba
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0xa9fe, 0xa9fe), // OpenStack, Akamai
];

/// A range of addresses of one class, both ends inclusive.
struct Block<K> {
    first: K,
    last: K,
    class: AddressClass,
}

const fn v4([a, b, c, d]: [u8; 4], prefix_length: u8, class: AddressClass) -> Block<u32> {
    let first = Ipv4Addr::new(a, b, c, d).to_bits();
    Block { first, last: first | (u32::MAX >> prefix_length), class }
}

const fn v6(high: u32, prefix_length: u8, class: AddressClass) -> Block<u128> {
    let first = (high as u128) << 96;
    Block { first, last: first | (u128::MAX >> prefix_length), class }
}

/// The non-public space of IPv4, sorted and disjoint; the gaps are public.
const BLOCKS_V4: [Block<u32>; 16] = [
    v4([0, 0, 0, 0], 8, AddressClass::Unspecified),
    v4([10, 0, 0, 0], 8, AddressClass::Private),
    v4([100, 64, 0, 0], 10, AddressClass::Cgnat),
    v4([127, 0, 0, 0], 8, AddressClass::Loopback),
    v4([169, 254, 0, 0], 16, AddressClass::LinkLocal),
    v4([172, 16, 0, 0], 12, AddressClass::Private),
    v4([192, 0, 0, 0], 24, AddressClass::Reserved), // protocol assignments
    v4([192, 0, 2, 0], 24, AddressClass::Reserved), // documentation
    v4([192, 88, 99, 0], 24, AddressClass::Reserved), // 6to4 relays, withdrawn by RFC 7526
    v4([192, 168, 0, 0], 16, AddressClass::Private),
    v4([198, 18, 0, 0], 15, AddressClass::Reserved), // benchmarking
    v4([198, 51, 100, 0], 24, AddressClass::Reserved), // documentation
    v4([203, 0, 113, 0], 24, AddressClass::Reserved), // documentation
    v4([224, 0, 0, 0], 4, AddressClass::Multicast),
    Block { first: 0xf000_0000, last: 0xffff_fffe, class: AddressClass::Reserved }, // class E
    Block { first: u32::MAX, last: u32::MAX, class: AddressClass::Multicast },      // limited broadcast
];

/// The non-public space of IPv6, sorted and disjoint, apart from embeddings; the gaps are public.
const BLOCKS_V6: [Block<u128>; 12] = [
    Block { first: 0, last: 0, class: AddressClass::Unspecified },
    Block { first: 1, last: 1, class: AddressClass::Loopback },
    Block { first: 2, last: (0x2000_u128 << 112) - 1, class: AddressClass::Reserved },
    v6(0x2001_0000, 23, AddressClass::Reserved), // protocol assignments
    v6(0x2001_0db8, 32, AddressClass::Reserved), // documentation
    v6(0x3fff_0000, 20, AddressClass::Reserved), // documentation, RFC 9637
    Block { first: 0x4000_u128 << 112, last: (0xfc00_u128 << 112) - 1, class: AddressClass::Reserved },
    v6(0xfc00_0000, 7, AddressClass::Private),
    v6(0xfe00_0000, 9, AddressClass::Reserved),
    v6(0xfe80_0000, 10, AddressClass::LinkLocal),
    v6(0xfec0_0000, 10, AddressClass::Private), // site-local, RFC 3879
    v6(0xff00_0000, 8, AddressClass::Multicast),
];

fn classify_v4(address: Ipv4Addr) -> AddressClass {
    if METADATA_V4.contains(&address) {
        return AddressClass::Metadata;
    }
    class_in(&BLOCKS_V4, address.to_bits())
}

fn classify_v6(address: Ipv6Addr) -> AddressClass {
    let embedded_class = || embedded(address).map(classify_v4).max();
    match Ipv4Embedding::from_address(address) {
        Ipv4Embedding::None if is_metadata_v6(address) => AddressClass::Metadata,
        Ipv4Embedding::None => class_in(&BLOCKS_V6, address.to_bits()),
        Ipv4Embedding::Obsolete => {
            embedded_class().filter(|class| *class != AddressClass::Public).unwrap_or(AddressClass::Reserved)
        }
        Ipv4Embedding::Nat64
        | Ipv4Embedding::LocalNat64
        | Ipv4Embedding::SixToFour
        | Ipv4Embedding::Teredo => embedded_class().expect("each of these embeddings has an address"),
    }
}

/// Amazon has metadata (::254), pod credentials (::23), DNS and time in fd00:ec2::/32, which is unique local
/// space; on IPv4 the same services are link-local.
fn is_metadata_v6(address: Ipv6Addr) -> bool {
    matches!(address.segments(), [0xfd00, 0xec2, ..]) || METADATA_V6.contains(&address)
}

fn class_in<K: Copy + Ord>(blocks: &[Block<K>], address: K) -> AddressClass {
    let at_or_after = blocks.partition_point(|block| block.last < address);
    blocks
        .get(at_or_after)
        .filter(|block| block.first <= address)
        .map_or(AddressClass::Public, |block| block.class)
}

/// The 32 bits that start at this bit of an IPv6 address, counted from the left.
fn v4_at(bits: u128, first_bit: u8) -> Ipv4Addr {
    Ipv4Addr::from_bits((bits >> (96 - first_bit)) as u32)
}

/// A Teredo client's address: its bits are inverted so that translators do not rewrite it.
fn teredo_client(bits: u128) -> Ipv4Addr {
    Ipv4Addr::from_bits(!(bits as u32))
}

/// The addresses that translators with prefixes of 48, 56 and 64 bits read (RFC 6052 section 2.2). They skip
/// bits 64 to 71 and ignore the bits after the address, so a hostile DNS answer may have a public address at
/// the end and an internal one here.
fn local_nat64_readings(bits: u128) -> [Ipv4Addr; 3] {
    let without_skipped = (bits >> 64 << 56) | (bits & (u128::MAX >> 72));
    [48, 56, 64].map(|first_bit| Ipv4Addr::from_bits((without_skipped >> (88 - first_bit)) as u32))
}

/// Whether the address may be of a host that the Internet cannot reach. The other non-public classes result
/// from the unused bits of an honest local NAT64 address, so they do not count.
fn is_internal(address: Ipv4Addr) -> bool {
    use AddressClass::{Cgnat, LinkLocal, Loopback, Metadata, Private};
    matches!(classify_v4(address), Private | Cgnat | Loopback | LinkLocal | Metadata)
}

fn is_wholly_non_public_v4(network: Ipv4Net) -> bool {
    if network.prefix_len() == 32 {
        return classify_v4(network.addr()) != AddressClass::Public;
    }
    is_covered(&BLOCKS_V4, network.network().to_bits(), network.broadcast().to_bits(), |last| last + 1)
}

fn is_wholly_non_public_v6(network: Ipv6Net) -> bool {
    let address = network.network();
    let length = network.prefix_len();
    if length == 128 {
        return classify_v6(address) != AddressClass::Public;
    }
    if PARTLY_PUBLIC_EMBEDDINGS.iter().any(|prefix| prefix.contains(&network)) {
        return is_embedded_network_non_public(address, length);
    }
    let contains_embedding_prefix = PARTLY_PUBLIC_EMBEDDINGS.iter().any(|prefix| network.contains(prefix));
    !contains_embedding_prefix
        && is_covered(&BLOCKS_V6, address.to_bits(), network.broadcast().to_bits(), |last| last + 1)
}

/// As [`is_wholly_non_public`], for a network inside one of the partly public embeddings, by its embedded
/// addresses.
fn is_embedded_network_non_public(address: Ipv6Addr, length: u8) -> bool {
    let bits = address.to_bits();
    let is_embedded_non_public = |first_bit: u8| {
        let embedded_length = length.saturating_sub(first_bit).min(32);
        Ipv4Net::new(v4_at(bits, first_bit), embedded_length)
            .is_ok_and(|net| is_wholly_non_public_v4(net.trunc()))
    };
    match Ipv4Embedding::from_address(address) {
        Ipv4Embedding::Nat64 => is_embedded_non_public(96),
        Ipv4Embedding::SixToFour => is_embedded_non_public(16),
        Ipv4Embedding::Teredo => {
            let client = Ipv4Net::new(teredo_client(bits), length.saturating_sub(96));
            is_embedded_non_public(32) || client.is_ok_and(|net| is_wholly_non_public_v4(net.trunc()))
        }
        Ipv4Embedding::LocalNat64 => {
            let [by_48, by_56, _] = local_nat64_readings(bits);
            length >= 96 && (is_embedded_non_public(96) || is_internal(by_48) || is_internal(by_56))
        }
        Ipv4Embedding::Obsolete | Ipv4Embedding::None => false,
    }
}

/// Whether the blocks have no gap between two addresses, both inclusive.
fn is_covered<K: Copy + Ord>(blocks: &[Block<K>], first: K, last: K, successor: impl Fn(K) -> K) -> bool {
    let mut next = first;
    for block in blocks.iter().skip_while(|block| block.last < first) {
        if block.first > next {
            return false;
        }
        if block.last >= last {
            return true;
        }
        next = successor(block.last);
    }
    false
}
