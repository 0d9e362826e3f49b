//! The range table against two oracles: a prefix trie of another crate, and a scan of all networks.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};
use prefix_trie::PrefixMap;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};

use super::RangeTable;

fn config() -> Config {
    Config { cases: 512, rng_seed: RngSeed::Fixed(7), failure_persistence: None, ..Config::default() }
}

/// Sorts, drops duplicates and builds; ids are positions in the returned networks.
fn table_v4(networks: &[Ipv4Net]) -> (Vec<Ipv4Net>, RangeTable<u32>) {
    let mut networks: Vec<_> = networks.iter().map(Ipv4Net::trunc).collect();
    networks.sort_by_key(|net| (net.network(), net.prefix_len()));
    networks.dedup();
    let ends: Vec<_> =
        networks.iter().map(|net| (net.network().to_bits(), net.broadcast().to_bits())).collect();
    let table = RangeTable::build(&ends);
    (networks, table)
}

fn table_v6(networks: &[Ipv6Net]) -> (Vec<Ipv6Net>, RangeTable<u128>) {
    let mut networks: Vec<_> = networks.iter().map(Ipv6Net::trunc).collect();
    networks.sort_by_key(|net| (net.network(), net.prefix_len()));
    networks.dedup();
    let ends: Vec<_> =
        networks.iter().map(|net| (net.network().to_bits(), net.broadcast().to_bits())).collect();
    let table = RangeTable::build(&ends);
    (networks, table)
}

/// Looks up one address and compares the networks that contain it, narrowest first.
fn check(networks: &[&str], address: &str, expected: &str) {
    let parsed: Vec<Ipv4Net> = networks.iter().map(|net| net.parse().expect("a network")).collect();
    let (networks, table) = table_v4(&parsed);
    let address: Ipv4Addr = address.parse().expect("an address");
    let found: Vec<_> = table.holding(address.to_bits()).map(|id| networks[id].to_string()).collect();
    assert_eq!(found.join(" "), expected, "{address} in {networks:?}");
}

#[test]
fn empty_table_holds_nothing() {
    check(&[], "0.0.0.0", "");
    check(&[], "255.255.255.255", "");
}

#[test]
fn nested_networks_are_found_narrowest_first() {
    let networks = ["10.0.0.0/8", "10.20.0.0/16", "10.20.30.0/24", "10.20.30.40/32"];
    check(&networks, "9.255.255.255", "");
    check(&networks, "10.0.0.0", "10.0.0.0/8");
    check(&networks, "10.20.0.0", "10.20.0.0/16 10.0.0.0/8");
    check(&networks, "10.20.30.39", "10.20.30.0/24 10.20.0.0/16 10.0.0.0/8");
    check(&networks, "10.20.30.40", "10.20.30.40/32 10.20.30.0/24 10.20.0.0/16 10.0.0.0/8");
    check(&networks, "10.20.30.41", "10.20.30.0/24 10.20.0.0/16 10.0.0.0/8");
    check(&networks, "10.20.31.0", "10.20.0.0/16 10.0.0.0/8");
    check(&networks, "10.21.0.0", "10.0.0.0/8");
    check(&networks, "11.0.0.0", "");
}

#[test]
fn networks_sharing_an_end_keep_their_borders() {
    let networks = ["0.0.0.0/0", "0.0.0.0/8", "0.0.0.0/32", "255.0.0.0/8", "255.255.255.255/32"];
    check(&networks, "0.0.0.0", "0.0.0.0/32 0.0.0.0/8 0.0.0.0/0");
    check(&networks, "0.0.0.1", "0.0.0.0/8 0.0.0.0/0");
    check(&networks, "1.0.0.0", "0.0.0.0/0");
    check(&networks, "254.255.255.255", "0.0.0.0/0");
    check(&networks, "255.255.255.254", "255.0.0.0/8 0.0.0.0/0");
    check(&networks, "255.255.255.255", "255.255.255.255/32 255.0.0.0/8 0.0.0.0/0");
}

#[test]
fn adjacent_networks_stay_separate() {
    let networks = ["10.0.0.0/25", "10.0.0.128/25", "10.0.1.0/24"];
    check(&networks, "10.0.0.127", "10.0.0.0/25");
    check(&networks, "10.0.0.128", "10.0.0.128/25");
    check(&networks, "10.0.1.0", "10.0.1.0/24");
    check(&networks, "10.0.2.0", "");
}

/// Addresses that are dense enough for nested networks: few distinct bits, in few positions.
fn dense_v4() -> impl Strategy<Value = u32> {
    prop_oneof![
        any::<u32>(),
        (0_u32..4, 0_u32..4, 0_u32..16).prop_map(|(high, middle, low)| high << 30 | middle << 20 | low),
        Just(u32::MAX),
        Just(0),
    ]
}

fn dense_v6() -> impl Strategy<Value = u128> {
    prop_oneof![
        any::<u128>(),
        (0_u128..4, 0_u128..4, 0_u128..16).prop_map(|(high, middle, low)| high << 126 | middle << 60 | low),
        Just(u128::MAX),
        Just(0),
    ]
}

/// Compares the table with a scan of all networks and with a trie, at every border and at `$others`.
macro_rules! check_agreement {
    ($networks:expr, $table:expr, $others:expr, $net:ty, $address:ty) => {{
        let (networks, table): (Vec<$net>, _) = ($networks, $table);
        let trie: PrefixMap<$net, usize> = networks.iter().copied().zip(0..).collect();
        let edges = networks.iter().flat_map(|net| {
            let (first, last) = (net.network().to_bits(), net.broadcast().to_bits());
            [first, last, first.wrapping_sub(1), last.wrapping_add(1)]
        });
        for bits in edges.chain($others).collect::<BTreeSet<_>>() {
            let address = <$address>::from_bits(bits);
            let found: Vec<usize> = table.holding(bits).collect();
            let mut expected: Vec<usize> =
                (0..networks.len()).filter(|id| networks[*id].contains(&address)).collect();
            expected.sort_by_key(|id| std::cmp::Reverse(networks[*id].prefix_len()));
            prop_assert_eq!(&found, &expected, "{}", address);
            let mut covering: Vec<usize> = trie.cover(&address.into()).map(|(_, id)| *id).collect();
            covering.reverse();
            prop_assert_eq!(&found, &covering, "{}", address);
        }
    }};
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn ipv4_table_agrees_with_trie_and_linear_scan(
        raw in vec((dense_v4(), 0_u8..=32), 0..60),
        others in vec(dense_v4(), 0..20),
    ) {
        let raw: Vec<_> = raw.into_iter()
            .map(|(bits, length)| Ipv4Net::new(bits.into(), length).expect("a length up to 32"))
            .collect();
        let (networks, table) = table_v4(&raw);
        check_agreement!(networks, table, others, Ipv4Net, Ipv4Addr);
    }

    #[test]
    fn ipv6_table_agrees_with_trie_and_linear_scan(
        raw in vec((dense_v6(), 0_u8..=128), 0..60),
        others in vec(dense_v6(), 0..20),
    ) {
        let raw: Vec<_> = raw.into_iter()
            .map(|(bits, length)| Ipv6Net::new(bits.into(), length).expect("a length up to 128"))
            .collect();
        let (networks, table) = table_v6(&raw);
        check_agreement!(networks, table, others, Ipv6Net, Ipv6Addr);
    }
}
