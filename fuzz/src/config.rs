//! The invariants of the configuration: every error points into its text, and an accepted text gives the same
//! configuration each time.

use gateway::config::fuzzing::{load, spans};
use gateway::config::{Config, ConfigErrors, Findings, Severity};
use gateway::users::{Edit, edited, quoted};
use policy::Host;
use toml::de::DeTable;

/// The users of the user files.
const NAMES: [&str; 3] = ["a", "b", "c"];

/// Targets about which each configuration is asked.
const HOSTS: [(Host<'static>, u16); 3] =
    [(Host::Name("example.com"), 443), (Host::Name("db.corp"), 5432), (Host::Name("a"), 80)];

/// A configuration file; behind NUL each, up to three user files.
pub fn config(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    let mut texts = text.split('\0');
    let main = texts.next().expect("a split yields at least one part");
    let users: Vec<(&str, &str)> = NAMES.into_iter().zip(texts).collect();
    assert_load(main, &users);
    for (_, text) in &users {
        assert_edits(text);
        assert_quoted(text);
    }
}

fn assert_load(main: &str, users: &[(&str, &str)]) {
    match (load(main, users), load(main, users)) {
        (Ok(config), Ok(again)) => {
            assert_findings(&config.warnings, Severity::Warning);
            assert_same(&config, &again);
        }
        (Err(ConfigErrors(findings)), Err(ConfigErrors(again))) => {
            assert!(!findings.is_empty());
            assert_findings(&findings, Severity::Error);
            assert_eq!(findings, again);
        }
        (one, other) => panic!("accepted once and refused once: {one:?}, {other:?}"),
    }
}

/// Each finding points into its text, between characters, and can be shown.
fn assert_findings(findings: &Findings, severity: Severity) {
    for (text, span) in spans(findings) {
        assert!(text.get(span.clone()).is_some(), "{span:?} is not in {text:?}");
    }
    for styled in [false, true] {
        assert_eq!(findings.render(severity, styled).is_empty(), findings.is_empty());
    }
    assert_eq!(findings.iter().count(), findings.len());
    for finding in findings.iter() {
        assert!(!finding.message.is_empty());
        assert!(finding.line.is_none_or(|line| line > 0) && finding.column.is_none_or(|column| column > 0));
        assert_eq!(finding.line.is_some(), finding.file.is_some());
    }
}

fn assert_same(one: &Config, other: &Config) {
    assert_eq!(shown(one), shown(other));
    assert_eq!(one.warnings, other.warnings);
    for (user, again) in one.users.iter().zip(&other.users) {
        for (host, port) in HOSTS {
            let verdict = one.policy.judge_name(user.index, host, port);
            assert_eq!(
                format!("{verdict:?}"),
                format!("{:?}", other.policy.judge_name(again.index, host, port))
            );
        }
    }
}

/// All settings as text.
fn shown(config: &Config) -> String {
    let Config { listeners, network, admin, accept, threads, limits, .. } = config;
    let Config { timeouts, dns, ledger, log, auth, users, .. } = config;
    format!(
        "{listeners:?} {network:?} {admin:?} {accept:?} {threads:?} {limits:?} {timeouts:?} {dns:?} \
         {ledger:?} {log:?} {auth:?} {users:?}"
    )
}

/// An edit of a valid user file changes its key, and nothing else.
fn assert_edits(text: &str) {
    let edits = [Edit::Set("disabled", "true"), Edit::Remove("token"), Edit::Remove("password")];
    let edited = edited(text, &edits);
    let Ok(config) = load("", &[("a", text)]) else { return };
    let text = edited.expect("a valid file can be edited");
    let edited = load("", &[("a", &text)]).unwrap_or_else(|errors| panic!("{text:?}: {errors}"));
    let (before, after) = (&config.users[0], &edited.users[0]);
    assert!(after.disabled && after.credential.is_none(), "{text:?}");
    assert_eq!(
        (&before.from, &before.allow, &before.deny, before.connections_max),
        (&after.from, &after.allow, &after.deny, after.connections_max),
        "{text:?}"
    );
}

/// A quoted text is read as that text.
fn assert_quoted(text: &str) {
    let entry = format!("text = {}", quoted(text));
    let table = DeTable::parse(&entry).unwrap_or_else(|error| panic!("{entry:?}: {error}"));
    let value = table.get_ref().get("text").expect("the key was written");
    assert_eq!(value.get_ref().as_str(), Some(text));
}
