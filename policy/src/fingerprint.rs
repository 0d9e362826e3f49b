//! The fingerprint of a policy: by it the ledger tells one version of the rules from another.
//!
//! Guarantees: equal policies have equal fingerprints, on every machine and with every version of the
//! program. Any change of a set, a user's rules or their order changes it.
//!
//! Hashed are lines: `set NAME CLASS`, `user NAME REACH`, and for each rule one of `to`, `opens`, `allow` and
//! `deny` with its text. No name or rule has a line break.

use std::fmt::{self, Write};

use blake2::digest::consts::U32;
use blake2::{Blake2b, Digest};

use crate::list::{SetClass, SetRules, UserRules};

/// A hash by BLAKE2b-256.
pub type Fingerprint = [u8; 32];

/// Hashes text without a copy of it.
struct Hasher(Blake2b<U32>);

impl Write for Hasher {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text);
        Ok(())
    }
}

/// The fingerprint of these sets and users.
pub(crate) fn fingerprint<'a>(
    sets: impl Iterator<Item = (&'a str, &'a SetRules)>,
    users: impl Iterator<Item = (&'a str, &'a UserRules)>,
) -> Fingerprint {
    let mut hasher = Hasher(Blake2b::default());
    write_all(&mut hasher, sets, users).expect("hashing does not fail");
    hasher.0.finalize().into()
}

fn write_all<'a>(
    out: &mut impl Write,
    sets: impl Iterator<Item = (&'a str, &'a SetRules)>,
    users: impl Iterator<Item = (&'a str, &'a UserRules)>,
) -> fmt::Result {
    for (name, SetRules { class, rules, addresses }) in sets {
        let class = match class {
            None => "any",
            Some(SetClass::Internal) => "internal",
            Some(SetClass::External) => "external",
        };
        writeln!(out, "set {name} {class}")?;
        rules.iter().try_for_each(|rule| writeln!(out, "to {rule}"))?;
        addresses.iter().try_for_each(|network| writeln!(out, "opens {network}"))?;
    }
    for (name, UserRules { allow, deny, resolve_for_networks }) in users {
        writeln!(out, "user {name} {}", if *resolve_for_networks { "resolves" } else { "by-name" })?;
        allow.iter().try_for_each(|rule| writeln!(out, "allow {rule}"))?;
        deny.iter().try_for_each(|rule| writeln!(out, "deny {rule}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::Builder;
    use crate::rules::Rule;

    fn rules(texts: &[&str]) -> Vec<Rule> {
        texts.iter().map(|text| Rule::parse(text).expect("a rule")).collect()
    }

    fn sample(set: SetRules, user: UserRules) -> Fingerprint {
        let mut builder = Builder::new();
        builder.set("corp", set).user("ann", user);
        builder.build().expect("no mistakes").fingerprint()
    }

    #[test]
    fn every_rule_counts() {
        let set = SetRules { class: Some(SetClass::Internal), rules: rules(&["*.corp"]), addresses: vec![] };
        let user = UserRules {
            allow: rules(&["@corp", "a.example:443"]),
            deny: vec![],
            resolve_for_networks: false,
        };
        let first = sample(set.clone(), user.clone());
        assert_eq!(sample(set.clone(), user.clone()), first);
        let others = [
            sample(SetRules { class: None, ..set.clone() }, user.clone()),
            sample(SetRules { rules: rules(&["*.corp:443"]), ..set.clone() }, user.clone()),
            sample(SetRules { addresses: vec!["10.0.0.0/8".parse().unwrap()], ..set.clone() }, user.clone()),
            sample(set.clone(), UserRules { resolve_for_networks: true, ..user.clone() }),
            sample(set.clone(), UserRules { deny: rules(&["a.example"]), ..user.clone() }),
            sample(set.clone(), UserRules { allow: vec![], deny: user.allow.clone(), ..user.clone() }),
        ];
        for (index, other) in others.iter().enumerate() {
            assert!(*other != first && !others[..index].contains(other), "{index}");
        }
    }

    /// The ledger keeps fingerprints: another algorithm would make a new version of an unchanged policy.
    #[test]
    fn fingerprint_stays() {
        let set = SetRules { class: None, rules: rules(&["*.corp", "[2001:db8::1]:22"]), addresses: vec![] };
        let allow = rules(&["@corp", "10.0.0.0/8:1-9"]);
        let found = sample(set, UserRules { allow, ..UserRules::default() });
        let text: String = found.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text, "5486c0a226af0073552a3c576149ee8962d662fc651ff9124532407bc143c342");
    }
}
