//! Whole decisions, as tables.
//!
//! ```text
//! set NAME [internal|external] = RULE...
//! addresses NAME = NETWORK...                     of the set
//! own ADDRESS:PORT...
//! user NAME allow = RULE...
//! user NAME deny = RULE...
//! user NAME resolves                              for network rules
//! NAME TARGET => resolve                          the name may be resolved
//! NAME TARGET => deny CODE RULE                   denied without resolving
//! NAME TARGET [ADDRESS] => allow CLASS RULE       the verdict on this resolved address
//! NAME TARGET [ADDRESS] => deny CODE RULE
//! ```
//!
//! A target is `host:port`; a host that parses as an address is one. `-` means no rule. A line with an
//! address whose name is denied already gives `unresolved: ` and the denial. `==` begins another policy.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use policy::{Builder, Host, NameVerdict, Outcome, Policy, Rule, SetClass, SetRules, UserRules, Verdict};

use crate::table;

fn check(file: &str) {
    table::check(file, |case, context| {
        let policy = build(context).unwrap_or_else(|errors| panic!("{file}: {errors}"));
        decide(&policy, case)
    });
}

#[test]
fn names_match_on_label_borders() {
    check("decisions-names.txt");
}

#[test]
fn name_and_address_must_both_be_allowed() {
    check("decisions-both-must-allow.txt");
}

#[test]
fn deny_beats_allow() {
    check("decisions-deny.txt");
}

#[test]
fn addresses_are_judged_by_networks() {
    check("decisions-addresses.txt");
}

#[test]
fn own_listeners_are_never_reachable() {
    check("decisions-own.txt");
}

#[test]
fn billing_class_follows_the_rule() {
    check("decisions-billing.txt");
}

#[test]
fn all_mistakes_are_reported_at_once() {
    table::check("build-errors.txt", |case, context| {
        let mut lines = context.to_vec();
        lines.extend(case.split("; ").map(str::to_owned));
        build(&lines).map_or_else(|errors| errors, |_| "fine".to_owned())
    });
}

/// Builds a policy from its lines; on mistakes returns their texts joined by ` | `.
fn build(lines: &[String]) -> Result<Policy, String> {
    let mut builder = Builder::new();
    let mut own: Vec<SocketAddr> = Vec::new();
    let mut sets: Vec<(&str, SetRules)> = Vec::new();
    let mut users: Vec<(&str, UserRules)> = Vec::new();
    for line in lines {
        let (head, rules) = line.split_once('=').unwrap_or((line, ""));
        let words: Vec<&str> = head.split_whitespace().collect();
        match words[..] {
            ["set", name, ref class @ ..] => {
                let class = class.first().map(|class| match *class {
                    "internal" => SetClass::Internal,
                    "external" => SetClass::External,
                    other => panic!("{other} is no class"),
                });
                sets.push((name, SetRules { class, rules: parse(rules), addresses: Vec::new() }));
            }
            ["addresses", name] => {
                let (_, set) = sets.iter_mut().find(|(known, _)| *known == name).expect("a set");
                let networks = rules.split_whitespace();
                set.addresses.extend(networks.map(|text| text.parse::<IpNet>().expect("a network")));
            }
            ["own", ref listeners @ ..] => {
                own.extend(listeners.iter().map(|text| text.parse::<SocketAddr>().expect("a listener")));
            }
            ["user", name, list] => {
                let known = users.iter().position(|(known, _)| *known == name && list != "again");
                let at = known.unwrap_or_else(|| {
                    users.push((name, UserRules::default()));
                    users.len() - 1
                });
                let user_rules = &mut users[at].1;
                match list {
                    "allow" => user_rules.allow.extend(parse(rules)),
                    "deny" => user_rules.deny.extend(parse(rules)),
                    "resolves" => user_rules.resolve_for_networks = true,
                    "again" => {}
                    other => panic!("{other} is no list"),
                }
            }
            _ => panic!("unknown line: {line}"),
        }
    }
    for (name, set) in sets {
        builder.set(name, set);
    }
    for (name, rules) in users {
        builder.user(name, rules);
    }
    let built = builder.build();
    let mut policy =
        built.map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join(" | "))?;
    policy.set_own(&own);
    Ok(policy)
}

fn parse(rules: &str) -> Vec<Rule> {
    rules
        .split_whitespace()
        .map(|rule| Rule::parse(rule).unwrap_or_else(|error| panic!("{rule}: {error}")))
        .collect()
}

fn decide(policy: &Policy, case: &str) -> String {
    let words: Vec<&str> = case.split_whitespace().collect();
    let (user, target, resolved) = match words[..] {
        [user, target] => (user, target, None),
        [user, target, address] => (user, target, Some(address.trim_matches(['[', ']']))),
        _ => panic!("{case} is no case"),
    };
    let target = table::unescape(target);
    let user = policy.user(user).expect("a user of the policy");
    let (host, port) = target.rsplit_once(':').expect("a host and a port");
    let port = port.parse().expect("a port");
    let literal = host.trim_matches(['[', ']']).parse::<IpAddr>().ok();
    let name = policy.judge_name(user, literal.map_or(Host::Name(host), Host::Address), port);
    let resolved = resolved.map(|address| address.parse().expect("a resolved address")).or(literal);
    match (name, resolved) {
        (NameVerdict::Denied(verdict), Some(_)) if literal.is_none() => {
            format!("unresolved: {}", show(policy, &verdict))
        }
        (NameVerdict::Denied(verdict), _) => show(policy, &verdict),
        (NameVerdict::Judged(_), None) => "resolve".to_owned(),
        (NameVerdict::Judged(_), Some(address)) => {
            show(policy, &policy.judge_address(user, &name, address, port))
        }
    }
}

fn show(policy: &Policy, verdict: &Verdict) -> String {
    let rule = verdict.rule.map_or("-", |rule| policy.rule_text(rule));
    match verdict.outcome {
        Outcome::Allow => {
            assert_eq!(verdict.reason.code(), "allowed");
            format!("allow {} {rule}", verdict.class)
        }
        Outcome::Deny => format!("deny {} {rule}", verdict.reason.code()),
    }
}
