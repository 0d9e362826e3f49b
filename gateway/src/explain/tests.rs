//! Compares explanations with a plain model of admission, over random policies and answers.
//! `tollgate/tests/it/explaining.rs` compares them with a running gateway.

use std::cell::Cell;

use policy::{Host as Request, NameVerdict, Policy};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::RngSeed;

use super::*;
use crate::config::LoadOptions;

const NAMES: &[&str] = &["test", "a.test", "b.a.test", "lab.test", "x.lab.test", "localhost"];

const ADDRESSES: &[&str] = &[
    "93.184.216.34",
    "2606:2800:220:1::1",
    "10.20.0.5",
    "127.0.0.1",
    "::1",
    "169.254.169.254",
    "198.18.0.7",
    "fd12::1",
    "64:ff9b::10.20.0.5",
    "::ffff:10.20.0.5",
    "0.0.0.0",
    "224.0.0.1",
];

const RULES: &[&str] = &[
    "a.test",
    "*.a.test",
    "*.test",
    "b.a.test:443",
    "*.lab.test:3128",
    "0.0.0.0/0",
    "::/0:443",
    "10.0.0.0/8",
    "198.18.0.0/15:443",
    "127.0.0.1",
    "93.184.216.34",
    "localhost",
    "@inside",
    "@lab",
    "@paid",
];

const SETS: &str = r#"
[destinations.inside]
to = ["*.a.test", "10.20.0.0/16", "localhost"]
class = "internal"
[destinations.lab]
to = ["*.lab.test", "b.a.test"]
addresses = ["198.18.0.0/15", "10.20.0.5", "127.0.0.0/8", "fd00::/8"]
[destinations.paid]
to = ["*.test:443", "0.0.0.0/0:80"]
class = "external"
[[listener]]
address = "0.0.0.0:3128"
"#;

fn configuration() -> impl Strategy<Value = Config> {
    let lists = (vec(select(RULES), 0..6), vec(select(RULES), 0..3), any::<bool>());
    lists.prop_map(|(allow, deny, resolves)| {
        let user = format!(
            "{SETS}[[user]]\nname = \"ci\"\nfrom = [\"10.1.0.0/16\"]\nallow = {allow:?}\ndeny = {deny:?}\n\
             resolve_for_networks = {resolves}\n"
        );
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tollgate.toml");
        std::fs::write(&path, user).unwrap();
        let local_addresses = vec!["10.20.0.5".parse().unwrap()];
        let given = LoadOptions { path: Some(path), local_addresses, ..LoadOptions::default() };
        Config::load(&given).unwrap_or_else(|errors| panic!("{errors}"))
    })
}

/// What a resolver returns.
fn answer() -> impl Strategy<Value = Result<Answer, ResolveError>> {
    let found = vec(select(ADDRESSES), 1..5).prop_map(|texts| {
        let found: Vec<IpAddr> = texts.iter().map(|text| text.parse().unwrap()).collect();
        Ok(Answer::from_addresses(&found).unwrap())
    });
    let error = select(&[ResolveError::NotFound, ResolveError::Timeout][..]).prop_map(Err);
    prop_oneof![8 => found, 1 => error]
}

/// Code, rule and addresses to dial, step by step as `admission` does it; and whether the name was looked up.
fn expected_outcome(
    policy: &Policy,
    user: UserIndex,
    target: &Target,
    answer: &Result<Answer, ResolveError>,
) -> (String, Option<String>, Vec<SocketAddr>, bool) {
    let port = target.port.get();
    let rule = |verdict: &Verdict| verdict.rule.map(|rule| policy.rule_text(rule).to_owned());
    let denied = |verdict: &Verdict, is_looked_up| {
        (verdict.reason.code().to_owned(), rule(verdict), Vec::new(), is_looked_up)
    };
    let host = match &target.host {
        Host::Name(name) => Request::Name(name.as_str()),
        Host::Address(address) => Request::Address(*address),
    };
    let name = policy.judge_name(user, host, port);
    if let NameVerdict::Denied(verdict) = &name {
        return denied(verdict, false);
    }
    let is_looked_up = matches!(host, Request::Name(_));
    let found = match (&target.host, answer) {
        (Host::Address(address), _) => vec![*address],
        (Host::Name(_), Ok(answer)) => answer.addresses().to_vec(),
        (Host::Name(_), Err(_)) => return ("dns".to_owned(), None, Vec::new(), true),
    };
    let judged: Vec<(SocketAddr, Verdict)> = found
        .iter()
        .map(|&address| (SocketAddr::new(address, port), policy.judge_address(user, &name, address, port)))
        .collect();
    let (allowed, rejected): (Vec<_>, Vec<_>) = judged.iter().partition(|(_, verdict)| verdict.is_allowed());
    let Some((first, verdict)) = allowed.first() else {
        return denied(&rejected[0].1, is_looked_up);
    };
    // The first address's family begins, then the families alternate.
    let in_family =
        |is_ipv6| allowed.iter().map(|(address, _)| *address).filter(move |it| it.is_ipv6() == is_ipv6);
    let (mut own, mut other) = (in_family(first.is_ipv6()), in_family(!first.is_ipv6()));
    let mut dials = Vec::new();
    while dials.len() < allowed.len() {
        dials.extend(own.next());
        dials.extend(other.next());
    }
    (verdict.reason.code().to_owned(), rule(verdict), dials, is_looked_up)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 600, rng_seed: RngSeed::Fixed(29), failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn explanation_matches_admission(
        config in configuration(),
        questions in vec((any::<bool>(), select(NAMES), select(ADDRESSES), answer()), 1..10),
        port in select(&[80_u16, 443, 3128, 9128][..]),
    ) {
        let user = config.user("ci").unwrap().index;
        for (is_name, name, address, answer) in questions {
            let host = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
            let text = format!("{}:{port}", if is_name { name } else { &host });
            let target = Target::parse_authority(text.as_bytes()).unwrap();
            let lookups = Cell::new(0);
            let explanation = explain_by(&config, user, &target, |looked_up| {
                lookups.set(lookups.get() + 1);
                assert_eq!(looked_up, name);
                Ok(answer.clone())
            })
            .unwrap();
            let (code, rule, dials, is_looked_up) = expected_outcome(&config.policy, user, &target, &answer);
            let outcome = &explanation.outcome;
            prop_assert_eq!(outcome.code, &code, "{} {:?}", text, answer);
            prop_assert_eq!(&outcome.rule, &rule, "{} {:?}", text, answer);
            prop_assert_eq!(&outcome.dials, &dials, "{} {:?}", text, answer);
            prop_assert_eq!(outcome.allowed, !dials.is_empty());
            prop_assert_eq!(lookups.get(), usize::from(is_looked_up), "{} is looked up", text);
        }
    }
}
