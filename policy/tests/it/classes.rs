//! Address classes: a table of borders, neighbours and disguises.

use policy::{AddressClass, classify};

use crate::table;

#[test]
fn every_address_has_its_class() {
    table::check("classes.txt", |address, _| {
        classify(address.parse().expect("an address")).as_str().to_owned()
    });
}

/// Where an address carries two others, the later class holds: reaching further in must never look harmless.
#[test]
fn classes_are_ordered_from_open_to_closed() {
    use AddressClass::{
        Cgnat, LinkLocal, Loopback, Metadata, Multicast, Ours, Private, Public, Reserved, Unspecified,
    };
    let order =
        [Public, Private, Cgnat, Loopback, LinkLocal, Reserved, Metadata, Multicast, Unspecified, Ours];
    assert!(order.is_sorted());
}
