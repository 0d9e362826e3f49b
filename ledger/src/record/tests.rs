//! Records that round-trip, and bytes that are refused.

use std::net::Ipv6Addr;

use proptest::prelude::*;

use super::*;
use crate::limits::{HOST_BYTES_MAX, RULE_BYTES_MAX, USER_BYTES_MAX};

/// A sample flow for tests.
pub(crate) const FLOW: Flow<'_> = Flow {
    id: u128::MAX - 7,
    opened: WallNanos(1),
    closed: WallNanos(u64::MAX),
    account: 7,
    policy: 8,
    set: 9,
    user: "ci",
    host: "example.com",
    port: 443,
    address: None,
    client: SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 50_000),
    class: Class::External,
    protocol: Protocol::Socks5,
    rule: "user:ci/allow[0] example.com:443",
    reason: CloseReason::ClientReset,
    requests: 3,
    legs: Legs { client_rx: 1, upstream_tx: 2, upstream_rx: 3, client_tx: u64::MAX },
    uncertain: Uncertain { up: 1, down: 0 },
};

#[test]
fn record_round_trips() {
    for address in [None, Some("192.0.2.1"), Some("2001:db8::1"), Some("::"), Some("0.0.0.0")] {
        let address = address.map(|text| text.parse().unwrap());
        let flow = Flow { address, ..FLOW };
        let record = Record::new(&flow);
        assert_eq!(record.flow(), flow);
        assert!(!record.identity().is_cut());
    }
}

#[test]
fn copy_replaces_every_byte() {
    let long = Flow { user: &"u".repeat(64), host: &"h".repeat(253), ..FLOW };
    let short = Flow { user: "", host: "", rule: "", ..FLOW };
    let records = [FLOW, long, short].map(|flow| Record::new(&flow));
    for (from, to) in records.iter().flat_map(|from| records.iter().map(move |to| (from, to))) {
        let mut record = *from;
        record.copy_from(to);
        // Compares all bytes, including unused ones.
        assert_eq!(record, *to);
    }
}

#[test]
fn mapped_addresses_become_ipv4() {
    let flow = Flow { address: Some("::ffff:192.0.2.1".parse().unwrap()), ..FLOW };
    assert_eq!(Record::new(&flow).flow().address, Some("192.0.2.1".parse().unwrap()));
}

#[test]
fn long_text_is_cut_at_a_character_and_flagged() {
    let check = |host: &str, expected_bytes: usize| {
        let record = Record::new(&Flow { host, ..FLOW });
        assert_eq!(record.flow().host, &host[..expected_bytes]);
        assert_eq!(record.identity().is_cut(), expected_bytes < host.len());
    };
    check("", 0);
    check("a\0b", 3);
    check(&"x".repeat(253), 253);
    check(&"x".repeat(255), 253);
    check(&format!("{}é", "x".repeat(252)), 252);
    check(&format!("{}𝄞", "x".repeat(250)), 250);
    check(&format!("{}𝄞", "x".repeat(249)), 253);
    let long = Flow { user: &"u".repeat(65), rule: &"r".repeat(RULE_BYTES_MAX), ..FLOW };
    let record = Record::new(&long);
    assert_eq!(record.flow(), Flow { user: &long.user[..64], ..long });
    assert!(record.identity().is_cut());
}

#[test]
fn malformed_identity_bytes_are_refused() {
    let identity = Identity::new(&Flow { address: Some("2001:db8::1".parse().unwrap()), ..FLOW });
    let bytes = identity.bytes();
    assert_eq!(Identity::parse(bytes), Ok(identity));
    for length in 0..bytes.len() {
        assert!(Identity::parse(&bytes[..length]).is_err(), "{length} bytes of {}", bytes.len());
    }
    assert!(Identity::parse(&[bytes, &[0]].concat()).is_err());
    for (at, wrong) in [(38, 0), (38, 3), (39, 0), (39, 9), (40, 16), (40, 64), (41, 200)] {
        let mut changed = bytes.to_vec();
        changed[at] = wrong;
        assert!(Identity::parse(&changed).is_err(), "{wrong} at {at}");
    }
    let mut changed = bytes.to_vec();
    *changed.last_mut().unwrap() = 0xff;
    assert_eq!(Identity::parse(&changed), Err(MalformedRecord("a text that is not UTF-8")));
}

/// Lengths in one byte each allow more than the bounds that `docs/ledger-format.md` promises.
#[test]
fn identity_text_beyond_its_bound_is_refused() {
    let identity = Identity::new(&Flow { user: &"u".repeat(USER_BYTES_MAX), ..FLOW });
    let mut changed = identity.bytes().to_vec();
    // The user takes the first byte of the rule.
    changed[41] += 1;
    changed[42] -= 1;
    assert_eq!(Identity::parse(&changed), Err(MalformedRecord("a text beyond its bound")));
}

#[test]
fn close_reasons_are_listed_by_number() {
    for (reason, number) in CloseReason::ALL.into_iter().zip(1..) {
        assert_eq!((reason as u8, CloseReason::from_number(number)), (number, Some(reason)));
    }
    assert_eq!(CloseReason::from_number(0), None);
    assert_eq!(CloseReason::from_number(16), None);
}

proptest! {
    #[test]
    fn any_bytes_are_parsed_or_refused(bytes: Vec<u8>) {
        if let Ok(identity) = Identity::parse(&bytes) {
            prop_assert_eq!(identity.bytes(), &bytes[..]);
        }
    }

    #[test]
    fn any_text_survives_up_to_its_bound(user: String, host: String, rule: String) {
        let record = Record::new(&Flow { user: &user, host: &host, rule: &rule, ..FLOW });
        let flow = record.flow();
        for (text, input, bound) in [
            (flow.user, &user, USER_BYTES_MAX),
            (flow.host, &host, HOST_BYTES_MAX),
            (flow.rule, &rule, RULE_BYTES_MAX),
        ] {
            prop_assert!(input.starts_with(text));
            prop_assert!(text.len() == input.len() || text.len() > bound - 4);
        }
    }
}
