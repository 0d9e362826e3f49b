//! The code and the sentence of every reason, as a table.

use policy::{AddressClass, MissingRule, Reason};

use crate::table;

const REASONS: [Reason; 18] = [
    Reason::Allowed,
    Reason::DeniedByRule,
    Reason::NoRule(MissingRule::NameOrNetwork),
    Reason::NoRule(MissingRule::Name),
    Reason::NoRule(MissingRule::NameOrResolving),
    Reason::NoRule(MissingRule::Network),
    Reason::NoRule(MissingRule::Port),
    Reason::AddressForbidden(AddressClass::Public),
    Reason::AddressForbidden(AddressClass::Private),
    Reason::AddressForbidden(AddressClass::Cgnat),
    Reason::AddressForbidden(AddressClass::Loopback),
    Reason::AddressForbidden(AddressClass::LinkLocal),
    Reason::AddressForbidden(AddressClass::Reserved),
    Reason::AddressForbidden(AddressClass::Metadata),
    Reason::AddressForbidden(AddressClass::Multicast),
    Reason::AddressForbidden(AddressClass::Unspecified),
    Reason::OwnAddress,
    Reason::MalformedName,
];

#[test]
fn every_reason_has_a_code_and_a_sentence() {
    table::check("reasons.txt", |name, _| {
        let reason = REASONS.iter().find(|reason| format!("{reason:?}") == name).expect("a reason");
        format!("{}: {reason}", reason.code())
    });
}

/// Sentences go into response bodies and header parameters.
#[test]
fn sentences_are_plain_ascii() {
    for reason in REASONS {
        let sentence = reason.to_string();
        assert!(sentence.is_ascii() && !sentence.contains(['"', '\\']), "{sentence}");
        assert!(
            sentence.ends_with('.') && sentence.starts_with(|first: char| first.is_ascii_uppercase()),
            "{sentence}"
        );
    }
}
