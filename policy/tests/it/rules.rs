//! Parsing rules: tables of texts with their canonical forms or errors, and properties.

use policy::Rule;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};

use crate::table;

/// Parses one rule and returns its canonical form, or `error: ` and the text.
fn read(text: &str) -> String {
    match Rule::parse(text) {
        Ok(rule) => rule.to_string(),
        Err(error) => format!("error: {error}"),
    }
}

fn check(file: &str) {
    table::check(file, |input, _| read(&table::unescape(input)));
}

#[test]
fn valid_rules_have_one_canonical_form() {
    check("rules-good.txt");
}

#[test]
fn bad_name_errors_name_the_remedy() {
    check("rules-bad-names.txt");
}

#[test]
fn bad_address_errors_name_the_remedy() {
    check("rules-bad-addresses.txt");
}

#[test]
fn bad_port_errors_name_the_remedy() {
    check("rules-bad-ports.txt");
}

/// Texts at the length limits are too long for a table.
#[test]
fn lengths_are_bounded() {
    let label = "a".repeat(63);
    assert_eq!(read(&format!("{label}.com")), format!("{label}.com"));
    assert!(read(&format!("{label}a.com")).starts_with("error: a part of a name has 64 bytes; at most 63"));
    let name = format!("{label}.{label}.{label}.{}", "a".repeat(61));
    assert_eq!(name.len(), 253);
    assert_eq!(read(&format!("*.{name}:1-65535")), format!("*.{name}"));
    assert!(read(&format!("{name}a:1")).starts_with("error: a name has 254 bytes; at most 253"));
    assert!(read(&"a".repeat(2049)).starts_with("error: a rule has 2049 bytes"));
    let set = "s".repeat(64);
    assert_eq!(read(&format!("@{set}")), format!("@{set}"));
    assert!(read(&format!("@{set}s")).starts_with("error: @sss"));
}

#[test]
fn set_reference_returns_the_set() {
    assert_eq!(Rule::parse("@corp").expect("a reference").set_reference(), Some("corp"));
    assert_eq!(Rule::parse("corp").expect("a name").set_reference(), None);
}

fn config() -> Config {
    Config { cases: 4096, rng_seed: RngSeed::Fixed(13), failure_persistence: None, ..Config::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn any_text_parses_or_errors(text in any::<String>()) {
        let _ = Rule::parse(&text);
    }

    /// Texts made of the grammar's own pieces reach the parser's corner cases much more often.
    #[test]
    fn near_rules_never_panic_and_rules_round_trip(
        pieces in prop::collection::vec(prop::sample::select(PIECES), 0..8),
    ) {
        let text = pieces.concat();
        match Rule::parse(&text) {
            Ok(rule) => {
                let canonical = rule.to_string();
                prop_assert!(canonical.is_ascii(), "{:?} gave {:?}", text, canonical);
                prop_assert!(!canonical.contains(['"', '\\', ' ', '\0']), "{:?} gave {:?}", text, canonical);
                prop_assert_eq!(Rule::parse(&canonical), Ok(rule), "{:?} gave {:?}", text, canonical);
            }
            Err(error) => {
                let shown = error.to_string();
                prop_assert!(!shown.contains(char::is_control), "{:?} gave {:?}", text, shown);
                prop_assert!(shown.len() < 500, "{:?} gave {:?}", text, shown);
            }
        }
    }
}

const PIECES: &[&str] = &[
    "*",
    ".",
    "*.",
    "@",
    ":",
    "::",
    "[",
    "]",
    "/",
    "//",
    "-",
    "%",
    "0",
    "00",
    "1",
    "10",
    "32",
    "96",
    "128",
    "129",
    "255",
    "256",
    "443",
    "65535",
    "65536",
    "99999999999999999999",
    "0x7f",
    "x",
    "xn--",
    "xn--bcher-kva",
    "bücher",
    "ß",
    "。",
    "１",
    "\u{200d}",
    "\u{202e}",
    "\u{feff}",
    "\0",
    "\n",
    " ",
    "+",
    ",",
    "com",
    "CORP",
    "_a",
    "-b",
    "10.0.0.0",
    "127.0.0.1",
    "0.0.0.0",
    "::ffff:",
    "fe80::1",
    "2001:db8::",
    "64:ff9b::",
    "http://",
    "localhost",
];
