//! `tollgate check`.

use serde_json::json;

use super::{TestDir, check_runs};

#[test]
fn valid_configuration_loads_at_any_path() {
    let dir = TestDir::new(&[
        ("etc/mine.toml", "[[listener]]\naddress = \"127.0.0.1:4000\"\n"),
        ("etc/users.d/ci.toml", "from = [\"10.0.0.0/8\"]\nallow = [\"a.example:443\"]\n"),
    ]);
    let fine = "etc/mine.toml: fine; 1 user, listening on 127.0.0.1:4000\n";
    let embedded = "no configuration file, built-in defaults: fine; 0 users, listening on 127.0.0.1:3128\n";
    check_runs(
        &dir,
        &[
            ("check --config etc/mine.toml", 0, fine),
            ("--config etc/mine.toml check", 0, fine),
            ("check", 0, embedded),
        ],
    );
    dir.write("tollgate.toml", "");
    assert_eq!(dir.run("check").out, "tollgate.toml: fine; 0 users, listening on 127.0.0.1:3128\n");
}

#[test]
fn every_error_is_reported_with_code_78() {
    let dir = TestDir::new(&[
        ("tollgate.toml", "[limits]\nconnections = 0\n[timeouts]\nidel = \"5m\"\n"),
        ("users.d/ci.toml", "allow = [\"@corp\"]\n"),
    ]);
    let run = dir.run("check");
    assert_eq!((run.code, run.out.as_str()), (78, ""));
    let expected = "\
error: wrong value for `connections`
 --> tollgate.toml:2:15
  |
2 | connections = 0
  |               ^ out of bounds: from 1 to 1_000_000

error: unknown key `idel` in [timeouts]
 --> tollgate.toml:4:1
  |
4 | idel = \"5m\"
  | ^^^^
  |
  = help: did you mean `idle`?

error: there is no set `@corp`
 --> users.d/ci.toml:1:10
  |
1 | allow = [\"@corp\"]
  |          ^^^^^^^
  |
  = help: write a table [destinations.corp]
";
    assert_eq!(run.err, expected);
}

#[test]
fn findings_are_printed_as_json() {
    let dir = TestDir::new(&[("tollgate.toml", "[limits]\nconnections = 0\n")]);
    let error = json!({
        "file": "tollgate.toml",
        "line": 2,
        "column": 15,
        "message": "wrong value for `connections`",
        "detail": "out of bounds: from 1 to 1_000_000",
        "help": null,
    });
    let expected = json!({ "ok": false, "errors": [error], "warnings": [], "resolve_any_name": [] });
    assert_eq!(dir.json("check --json"), (78, expected));

    dir.write("tollgate.toml", "[[user]]\nname = \"ci\"\nallow = [\"a.example\"]\n");
    let warning = json!({
        "file": "tollgate.toml",
        "line": 2,
        "column": 8,
        "message": "no client can be user `ci`",
        "detail": null,
        "help": "it has no `password`, no `token`, no `from`, and no listener forwards for it",
    });
    let expected = json!({ "ok": true, "errors": [], "warnings": [warning], "resolve_any_name": [] });
    assert_eq!(dir.json("check --json"), (0, expected));
}

#[test]
fn users_with_resolve_for_networks_are_listed() {
    let user = |name: &str, network: u8, rest: &str| {
        format!("[[user]]\nname = \"{name}\"\nfrom = [\"10.{network}.0.0/16\"]\n{rest}\n")
    };
    let wide = "allow = [\"0.0.0.0/0:443\"]";
    let resolves = "resolve_for_networks = true";
    let set = "[destinations.corp]\nto = [\"*.corp:443\", \"10.20.0.0/16\"]\n";
    let configuration = [
        user("literal", 1, wide),
        user("wide", 2, &format!("{wide}\n{resolves}")),
        user("corp", 3, &format!("allow = [\"@corp\"]\n{resolves}")),
        user("gone", 4, &format!("{wide}\n{resolves}\ndisabled = true")),
        user("idle", 5, &format!("allow = [\"a.example\"]\n{resolves}")),
        set.to_owned(),
    ];
    let dir = TestDir::new(&[("tollgate.toml", &configuration.concat())]);
    let run = dir.run("check");
    assert_eq!(run.code, 0, "{}", run.err);
    assert!(
        run.out.ends_with("\nany name is resolved for wide, corp, by `resolve_for_networks`\n"),
        "{}",
        run.out
    );
    assert!(run.err.contains("`resolve_for_networks` of user `idle` has no effect"), "{}", run.err);
    assert!(!run.err.contains("user `wide`"), "{}", run.err);
    assert_eq!(dir.json("check --json").1["resolve_any_name"], json!(["wide", "corp"]));
}

#[test]
fn every_command_refuses_a_wrong_configuration() {
    let dir = TestDir::new(&[("tollgate.toml", "[limits]\nconnections = 0\n")]);
    for line in [
        "check",
        "reload",
        "user list",
        "user add ci",
        "user disable ci",
        "user passwd ci",
        "usage",
        "doctor",
        "doctor --json",
    ] {
        let run = dir.run(line);
        assert_eq!((run.code, run.out.as_str()), (78, ""), "{line}");
        assert!(run.err.starts_with("error: wrong value for `connections`\n"), "{line}: {}", run.err);
    }
    check_runs(
        &dir,
        &[
            ("explain --user ci --to a.example:443", 78, "wrong value for `connections`"),
            ("check --config missing.toml", 78, "cannot read missing.toml: No such file or directory"),
            ("check --config /", 78, "cannot read /: it is not a regular file"),
        ],
    );
}

#[test]
fn printed_settings_equal_the_documentation() {
    let page = include_str!("../../../docs/settings.md");
    let run = TestDir::new(&[]).run("check --settings");
    assert_eq!((run.code, run.out.as_str()), (0, page));
}

#[test]
fn example_configuration_is_valid() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/tollgate.toml");
    let run = TestDir::new(&[]).run(&format!("check --config {example}"));
    assert_eq!(run.code, 0, "{}", run.err);
    assert_eq!(run.err, "", "an example gives no cause for warnings");
}

/// Regression: messages named `tollgate.toml` or `users.d/ci.toml` without their directory.
#[test]
fn files_are_named_by_their_absolute_paths() {
    let dir = TestDir::new(&[("tollgate.toml", "[limits]\nconnections = 0\n"), ("users.d/ci.toml/x", "")]);
    let printed = |line: &str| {
        let output = dir.command(line).output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let path = |name: &str| dir.path(name).display().to_string();
    for line in ["check", "check --config tollgate.toml", "check --config ./tollgate.toml"] {
        let printed = printed(line);
        assert!(printed.contains(&format!("--> {}:2:15", path("tollgate.toml"))), "{printed}");
        assert!(
            printed.contains(&format!("cannot read {}: it is not", path("users.d/ci.toml"))),
            "{printed}"
        );
    }
    dir.write("tollgate.toml", "");
    std::fs::remove_dir_all(dir.path("users.d")).unwrap();
    assert!(printed("check").contains(&format!("{}: fine; 0 users", path("tollgate.toml"))));
    assert!(printed("user add ci").contains(&format!("user ci, in {}\n", path("users.d/ci.toml"))));
    std::fs::remove_file(dir.path("tollgate.toml")).unwrap();
    let path = path("tollgate-data/users.d/ann.toml");
    assert!(printed("user add ann").contains(&format!("user ann, in {path}\n")));
}
