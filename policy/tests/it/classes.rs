//! Address classes: a table of borders, neighbours and disguises.

use std::net::IpAddr;

use ipnet::IpNet;
use policy::{AddressClass, classify};

use crate::table;

#[test]
fn classes_match_the_table() {
    table::check("classes.txt", |address, _| {
        classify(address.parse().expect("an address")).as_str().to_owned()
    });
}

/// If an address embeds two others, the later class counts: the more internal one must win.
#[test]
fn classes_are_ordered_from_open_to_closed() {
    use AddressClass::{
        Cgnat, LinkLocal, Loopback, Metadata, Multicast, Own, Private, Public, Reserved, Unspecified,
    };
    let order =
        [Public, Private, Cgnat, Loopback, LinkLocal, Reserved, Metadata, Multicast, Unspecified, Own];
    assert!(order.is_sorted());
}

/// Each network in the class table of `docs/policy.md` has its class, at least at its first addresses.
#[test]
fn policy_page_lists_the_classes() {
    let page = include_str!("../../../docs/policy.md");
    let (_, rows) = page.split_once("| class | addresses |").expect("the table of classes");
    let rows = rows.lines().skip(2).take_while(|line| line.starts_with('|'));
    let mut classes = 0;
    for row in rows {
        // The odd parts of the split are the texts in backticks: the class, then its networks.
        let mut quoted = row.split('`').skip(1).step_by(2);
        let class = quoted.next().expect("a class");
        for text in quoted {
            let alone = || text.parse::<IpAddr>().map(IpNet::from);
            let network: IpNet = text.parse().or_else(|_| alone()).expect("a network or an address");
            assert_eq!(classify(network.network()).as_str(), class, "{text}");
            let second = network.hosts().next().expect("a network has an address");
            assert_eq!(classify(second).as_str(), class, "{text}");
        }
        classes += 1;
    }
    assert_eq!(classes, 8, "each class but public and ours");
}
