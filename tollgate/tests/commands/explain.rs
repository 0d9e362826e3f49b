//! `tollgate explain`.

use serde_json::json;

use super::{TestDir, check_runs};

/// No process listens at this name server: no test sends a query beyond this machine.
const CONFIGURATION: &str = r#"
[dns]
servers = ["127.0.0.1:9"]
timeout = "100ms"
[destinations.github]
to = ["github.com:443", "*.github.com:443"]
[destinations.corp]
to = ["*.corp:5432", "10.20.0.0/16"]
class = "internal"
[[user]]
name = "ci"
from = ["10.1.0.0/16"]
allow = ["@github", "@corp", "*.invalid:443"]
deny = ["gist.github.com"]
[[user]]
name = "gone"
from = ["10.2.0.0/16"]
allow = ["@github"]
disabled = true
"#;

#[test]
fn decisions_are_explained() {
    let dir = TestDir::new(&[("tollgate.toml", CONFIGURATION)]);
    check_runs(
        &dir,
        &[
            (
                "explain --user ci --to api.github.com:443 --address 192.30.255.113",
                0,
                "ALLOW: A rule allows this destination. [@github[1] *.github.com:443]",
            ),
            // A private address behind an allowed public name.
            (
                "explain --user ci --to api.github.com:443 --address 10.0.0.1",
                1,
                "DENY: The destination is a private address;",
            ),
            // Of a mixed DNS answer only admitted addresses may be dialled.
            (
                "explain --user ci --to api.github.com:443 --address 10.0.0.1 --address 192.30.255.113",
                0,
                "ALLOW: A rule allows this destination.",
            ),
            ("explain --user ci --to db.corp:5432 --address 10.9.9.9", 0, "Counts as internal."),
            ("explain --user ci --to 10.20.1.1:22", 0, "[@corp[1] 10.20.0.0/16]"),
            ("explain --user ci --to gist.github.com:443", 1, "DENY: A deny rule forbids this destination."),
            ("explain --user ci --to github.com:22 --address 192.30.255.113", 1, "allowed on another port"),
            ("explain --user ci --to [2001:db8::1]:443", 1, "DENY: No rule allows this address"),
            ("explain --user ci --to [::ffff:10.20.1.1]:22", 0, "10.20.1.1"),
            ("explain --user ci --to 127.0.0.1:3128", 1, "DENY: This address is the gateway's own"),
            (
                "explain --user gone --to github.com:443 --address 192.30.255.113",
                1,
                "DENY: The user is disabled",
            ),
            // The code is the one that the log has.
            ("explain --user gone --to github.com:443 --json", 1, "\"code\": \"user_disabled\""),
            ("explain --user cu --to github.com:443", 1, "there is no user `cu`"),
            ("explain --user ci --to x.invalid:443", 1, "DENY: The destination's name "),
            ("explain --user ci --to x.invalid:443", 1, "addresses    none: "),
            // The address families alternate, whatever the order of the DNS answer.
            (
                "explain --user ci --to api.github.com:443 --address 192.30.255.113 --address \
                 2606:50c0:8000::154 --address 2606:50c0:8000::155",
                0,
                "[2606:50c0:8000::154]:443, then 192.30.255.113:443, then [2606:50c0:8000::155]:443",
            ),
        ],
    );
}

#[test]
fn denial_prints_the_rule_to_write() {
    let set = "\n[destinations.lab]\nto = [\"*.lab.test:443\"]\naddresses = [\"198.18.0.0/15\"]\n";
    let configuration = CONFIGURATION.replace("@github\", \"@corp", "@github\", \"@lab") + set;
    let dir = TestDir::new(&[("tollgate.toml", &configuration)]);
    let for_names = "\nWith this set, and `@NAME` added to `allow` of user `ci`, it would be allowed:\n\n  \
                     [destinations.NAME]\n  ";
    check_runs(
        &dir,
        &[
            ("explain --user ci --to a.lab.test:443 --address 198.18.0.7", 0, "Counts as internal."),
            ("explain --user ci --to 198.18.0.7:443", 1, "  allow = [\"198.18.0.7:443\"]\n"),
            ("explain --user ci --to a.test:443", 1, "  allow = [\"a.test:443\"]\n"),
            (
                "explain --user ci --to a.lab.test:443 --address 192.0.2.7",
                1,
                &format!("{for_names}to = [\"a.lab.test:443\"]\n  addresses = [\"192.0.2.7\"]\n"),
            ),
        ],
    );
    let denied = dir.run("explain --user ci --to gist.github.com:443");
    assert!(
        !denied.out.contains("would be allowed"),
        "no rule opens what a deny rule closes: {}",
        denied.out
    );
}

/// The configuration that README shows behaves as its text says.
#[test]
fn readme_sample_decides_as_documented() {
    let readme = include_str!("../../../README.md");
    let (_, sample) = readme.split_once("```toml\n").unwrap();
    let (sample, _) = sample.split_once("```").unwrap();
    let dir = TestDir::new(&[("tollgate.toml", sample)]);
    let checked = dir.run("check");
    assert_eq!((checked.code, checked.err.as_str()), (0, ""), "{}", checked.out);
    assert!(!checked.out.contains("any name is resolved"), "{}", checked.out);
    check_runs(
        &dir,
        &[
            ("explain --user ci --to api.github.com:443 --address 140.82.121.6", 0, "Counts as external."),
            ("explain --user ci --to db.corp:5432 --address 172.16.0.5", 0, "Counts as internal."),
            ("explain --user ci --to 10.20.1.1:22", 0, "[@corp[1] 10.20.0.0/16]"),
            ("explain --user ci --to c2vjcmv0.attacker.test:443", 1, "it is not resolved"),
            ("explain --user ci --to host.corp:22", 1, "allowed on another port"),
        ],
    );
}

#[test]
fn every_step_is_shown() {
    let dir = TestDir::new(&[("tollgate.toml", CONFIGURATION)]);
    let run =
        dir.run("explain --user ci --to api.github.com:443 --address 192.30.255.113 --address 127.0.0.1");
    let expected = "\
user            ci
destination     api.github.com:443
name            the rules let it be resolved; each address is then judged
192.30.255.113  public. A rule allows this destination. [@github[1] *.github.com:443] Counts as external.
";
    assert!(run.out.starts_with(expected), "{}", run.out);
}

#[test]
fn json_has_the_facts_of_the_text() {
    let dir = TestDir::new(&[("tollgate.toml", CONFIGURATION)]);
    let (code, value) = dir.json("explain --user ci --to db.corp:5432 --address 10.9.9.9 --json");
    let rule = "@corp[0] *.corp:5432";
    let reason = "A rule allows this destination.";
    let expected = json!({
        "user": "ci",
        "host": "db.corp",
        "port": 5432,
        "name": null,
        "addresses": [{
            "address": "10.9.9.9",
            "address_class": "private",
            "allowed": true,
            "class": "internal",
            "code": "allowed",
            "reason": reason,
            "rule": rule,
        }],
        "decision": { "allowed": true, "code": "allowed", "reason": reason, "rule": rule },
        "dials": ["10.9.9.9:5432"],
        "remedy": null,
    });
    assert_eq!((code, value), (0, expected));

    let (code, value) = dir.json("explain --user ci --to gist.github.com:443 --json");
    assert_eq!((code, &value["addresses"]), (1, &json!([])));
    assert_eq!(value["name"], value["decision"]);
    assert_eq!(value["decision"]["rule"], "user:ci/deny[0] gist.github.com");
}
