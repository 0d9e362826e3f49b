//! Planted violations: each rule finds exactly what it forbids.

mod cases;

use std::collections::BTreeSet;

use super::{
    rules::{RULES, calls::BANS},
    tree::{File, Tree},
};
use cases::cases;

/// The findings of one rule in the given files: for each its file, line and the start of its text.
struct Case {
    rule: &'static str,
    files: Vec<(&'static str, String)>,
    expected: Vec<&'static str>,
}

#[test]
fn each_rule_finds_only_what_it_forbids() {
    for Case { rule, files, expected } in cases() {
        let found = findings(rule, &files);
        let agrees = found.len() == expected.len()
            && found.iter().zip(&expected).all(|(found, expected)| found.starts_with(expected));
        assert!(agrees, "{rule} over {files:#?}\nfound    {found:#?}\nexpected {expected:#?}");
    }
}

#[test]
fn each_rule_has_a_planted_violation() {
    let cases = cases();
    let planted: BTreeSet<&str> =
        cases.iter().filter(|case| !case.expected.is_empty()).map(|case| case.rule).collect();
    let untested: Vec<&str> =
        RULES.iter().map(|rule| rule.name).filter(|name| !planted.contains(name)).collect();
    assert!(untested.is_empty(), "rules without a planted violation: {untested:?}");
}

#[test]
fn banned_calls_are_found_outside_tests_only() {
    for ban in &BANS {
        for (path, pattern) in ban.patterns.iter().map(|pattern| ("/src/planted.rs", pattern)) {
            let path: &'static str = String::leak(ban.crates[0].to_owned() + path);
            let rest = if pattern.ends_with('<') { "u8>()" } else { "" };
            let call = format!("inside_a_macro! {{ x {pattern}{rest} }}");
            let code = format!("//! Planted.\n{call}\n#[cfg(test)]\nmod tests {{\n    {call}\n}}\n");
            let found = findings("banned_call", &[(path, code)]);
            let expected = format!("{path}:2: `{pattern}`: ");
            assert!(found.iter().any(|finding| finding.starts_with(&expected)), "{pattern}: {found:?}");
            assert!(found.iter().all(|finding| finding.contains(".rs:2: ")), "{pattern}: {found:?}");
        }
    }
}

fn findings(rule: &str, files: &[(&str, String)]) -> Vec<String> {
    let files = files.iter().map(|(path, text)| File { path: (*path).to_owned(), text: text.clone() });
    let tree = Tree::of(files.collect());
    let rule = RULES.iter().find(|candidate| candidate.name == rule).expect("the case names a rule");
    (rule.check)(&tree).iter().map(ToString::to_string).collect()
}
