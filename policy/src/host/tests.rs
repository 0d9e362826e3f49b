//! The name table against a naive model, and the iteration over suffixes.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};

use super::{EMPTY_SLOT, NAME_BYTES_MAX, NameRule, NameTable, Suffixes, is_canonical};
use crate::ports::PortRange;

fn config() -> Config {
    Config { cases: 512, rng_seed: RngSeed::Fixed(11), failure_persistence: None, ..Config::default() }
}

fn table(names: &[String]) -> NameTable {
    let rule = |index| NameRule { ports: PortRange::ANY, is_below: index % 2 == 1, index };
    NameTable::build(names.iter().map(|name| name.as_str().into()).zip((0..).map(rule)).collect())
}

/// The rule indexes that the table returns for each suffix of a name, shortest suffix first.
fn look_up(table: &NameTable, name: &str) -> Vec<Vec<u32>> {
    let indexes = |suffix| table.rules_at(&suffix).map(|rule| rule.index).collect();
    Suffixes::new(name).map(indexes).collect()
}

/// The same by string comparison.
fn look_up_naively(names: &[String], name: &str) -> Vec<Vec<u32>> {
    let labels: Vec<&str> = name.split('.').collect();
    let suffixes = (0..labels.len()).rev().map(|from| labels[from..].join("."));
    let indexes = |suffix: String| {
        (0..).zip(names).filter(|(_, rule_name)| **rule_name == suffix).map(|(index, _)| index).collect()
    };
    suffixes.map(indexes).collect()
}

#[test]
fn suffixes_grow_by_label_up_to_the_whole_name() {
    let seen: Vec<_> = Suffixes::new("api.eu.example.com")
        .map(|suffix| (String::from_utf8_lossy(suffix.bytes).into_owned(), suffix.is_whole))
        .collect();
    let expected =
        [("com", false), ("example.com", false), ("eu.example.com", false), ("api.eu.example.com", true)];
    assert_eq!(seen, expected.map(|(text, is_whole)| (text.to_owned(), is_whole)));
}

#[test]
fn single_label_is_the_whole_name() {
    let seen: Vec<_> = Suffixes::new("localhost").map(|suffix| suffix.is_whole).collect();
    assert_eq!(seen, [true]);
}

#[test]
fn empty_table_finds_no_rule() {
    assert_eq!(look_up(&table(&[]), "a.b"), vec![Vec::<u32>::new(); 2]);
}

/// Names with the same slot and the same tag still differ by their bytes.
#[test]
fn equal_hashes_are_told_apart_by_bytes() {
    let names: Vec<String> = ["aa.test", "bb.test"].map(String::from).into();
    let table = table(&names);
    let mut suffix = Suffixes::new("bb.test").last().expect("a name has suffixes");
    assert_eq!(table.rules_at(&suffix).map(|rule| rule.index).collect::<Vec<_>>(), [1]);
    suffix.bytes = b"cc.test";
    assert!(table.rules_at(&suffix).next().is_none(), "the hash of bb.test with other bytes must not match");
}

#[test]
fn table_is_at_most_half_full() {
    for count in [1, 2, 3, 4, 5, 1000, 1024, 1025] {
        let names: Vec<_> = (0..count).map(|number| format!("host{number}.example.com")).collect();
        let table = table(&names);
        let used = table.slots.iter().filter(|slot| slot.record != EMPTY_SLOT.record).count();
        assert_eq!(used, count);
        assert!(used * 2 <= table.slots.len(), "{used} of {}", table.slots.len());
    }
}

/// A poor hash would make lookups of common names slow without making them wrong.
#[test]
fn chains_stay_short_for_100_000_names() {
    let names: Vec<_> =
        (0..100_000).map(|number| format!("host-{number}.region{}.example.com", number % 40)).collect();
    let table = table(&names);
    let longest = table.slots.split(|slot| slot.record == EMPTY_SLOT.record).map(<[_]>::len).max();
    assert!(longest < Some(64), "the longest run of used slots is {longest:?}");
}

#[test]
fn is_canonical_refuses_other_spellings() {
    let long = format!("{}.a", "a".repeat(NAME_BYTES_MAX - 2));
    for name in ["a", "a.b", "_dmarc.example.com", "xn--bcher-kva.de", "a-.b", "1.2.3.4.in-addr.arpa", &long]
    {
        assert!(is_canonical(name), "{name}");
    }
    let too_long = format!("a{long}");
    let others = [
        "",
        ".",
        "a.",
        ".a",
        "a..b",
        "A.b",
        "a b",
        "a\0.b",
        "a/b",
        "bücher.de",
        "a:1",
        "[::1]",
        "%2e",
        "*.a",
        "@a",
    ];
    for name in others.iter().chain([&too_long.as_str()]) {
        assert!(!is_canonical(name), "{name:?}");
    }
}

/// Names over a tiny alphabet, so that they share suffixes and differ by one byte or one dot.
fn name() -> impl Strategy<Value = String> {
    vec("[ab]{1,2}", 1..5).prop_map(|labels| labels.join("."))
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn table_agrees_with_string_comparison(names in vec(name(), 0..40), queries in vec(name(), 1..20)) {
        let table = table(&names);
        for name in queries.iter().chain(&names) {
            prop_assert_eq!(look_up(&table, name), look_up_naively(&names, name), "{}", name);
        }
    }

    #[test]
    fn walk_yields_every_suffix_of_any_name(name in "[a-z0-9_-]{1,8}(\\.[a-z0-9_-]{1,8}){0,12}") {
        prop_assert!(is_canonical(&name));
        let seen: Vec<_> = Suffixes::new(&name).map(|suffix| suffix.bytes.to_vec()).collect();
        let labels: Vec<&str> = name.split('.').collect();
        let suffixes = (0..labels.len()).rev().map(|from| labels[from..].join(".").into_bytes());
        prop_assert_eq!(seen, suffixes.collect::<Vec<_>>());
    }
}
