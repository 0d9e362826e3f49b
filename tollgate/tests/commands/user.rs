//! `tollgate user`.

use std::fs;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use gateway::users::{PasswordHash, TokenHash};

use super::{TestDir, check_runs, mode};

/// The value of a key in a user file that `tollgate` wrote.
fn value(text: &str, key: &str) -> String {
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{key} = "))).expect(key);
    line.trim_matches('"').to_owned()
}

/// The word after a label in the output.
fn printed_value(out: &str, label: &str) -> String {
    let line = out.lines().find_map(|line| line.strip_prefix(label)).expect(label);
    line.split_whitespace().next().unwrap().to_owned()
}

#[test]
fn generated_password_is_printed_once() {
    let dir = TestDir::new(&[]);
    let run = dir.run("user add ci --allow GitHub.com:443 --allow *.github.com:443 --deny 192.0.2.0/24");
    assert_eq!(run.code, 0, "{}", run.err);
    let password = printed_value(&run.out, "password: ");
    let expected = format!(
        "user ci, in tollgate-data/users.d/ci.toml\n\
         password: {password} (shown this once; only its hash is kept)\n\
         proxy: http://ci:{password}@127.0.0.1:3128\n\
         To apply this to a running gateway: tollgate reload (with the same --config, if any)\n"
    );
    assert_eq!(run.out, expected);

    let path = dir.path("tollgate-data/users.d/ci.toml");
    assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
    let text = dir.read("tollgate-data/users.d/ci.toml");
    assert!(!text.contains(&password));
    let hash: PasswordHash = value(&text, "password").parse().unwrap();
    assert!(hash.verify(password.as_bytes()));
    assert_eq!(value(&text, "allow"), "[\"github.com:443\", \"*.github.com:443\"]");
    assert_eq!(value(&text, "deny"), "[\"192.0.2.0/24\"]");
    check_runs(
        &dir,
        &[("check", 0, "1 user"), ("user add ci", 1, "user `ci` exists, in tollgate-data/users.d/ci.toml")],
    );
}

#[test]
fn resolve_for_networks_option_is_written_to_the_file() {
    let dir = TestDir::new(&[]);
    let run = dir.run("user add ci --allow 0.0.0.0/0:443 --resolve-for-networks");
    assert_eq!(run.code, 0, "{}", run.err);
    assert_eq!(value(&dir.read("tollgate-data/users.d/ci.toml"), "resolve_for_networks"), "true");
    check_runs(&dir, &[("check", 0, "any name is resolved for ci,")]);
}

#[test]
fn password_is_read_from_standard_input() {
    let dir = TestDir::new(&[("tollgate.toml", "")]);
    let run = dir.run_with("user add ci --allow a.example --password-stdin", b"correct horse\r\n");
    assert_eq!(run.code, 0, "{}", run.err);
    assert!(!run.out.contains("correct horse"), "a chosen password is not printed: {}", run.out);
    let hash: PasswordHash = value(&dir.read("users.d/ci.toml"), "password").parse().unwrap();
    assert!(hash.verify(b"correct horse"));
}

#[test]
fn bad_passwords_are_refused() {
    let dir = TestDir::new(&[("tollgate.toml", "")]);
    let long = vec![b'a'; 256];
    for (input, printed) in [
        (&b""[..], "a password has 8 to 255 bytes"),
        (b"short\n", "a password has 8 to 255 bytes"),
        (&long, "a password has 8 to 255 bytes"),
        (b"correct horse\nbattery staple\n", "standard input has more than one line"),
        (b"correct\0horse\n", "no control characters"),
        (b"correct \xff horse\n", "not UTF-8"),
    ] {
        let run = dir.run_with("user add ci --allow a.example --password-stdin", input);
        assert_eq!((run.code, run.out.as_str()), (1, ""), "{printed}");
        assert!(run.err.contains(printed), "{}", run.err);
    }
    assert!(!dir.path("users.d").exists(), "nothing was written");
}

#[test]
fn generated_token_is_printed_once() {
    let dir = TestDir::new(&[("tollgate.toml", "[[listener]]\naddress = \"0.0.0.0:4000\"\n")]);
    let (code, printed_value) = dir.json("user add ci --allow a.example --token --json");
    assert_eq!(
        (code, &printed_value["user"], &printed_value["file"]),
        (0, &"ci".into(), &"users.d/ci.toml".into())
    );
    let token = printed_value["token"].as_str().unwrap();
    assert!(token.starts_with("tgt_"));
    let hash: TokenHash = value(&dir.read("users.d/ci.toml"), "token").parse().unwrap();
    assert!(hash.verify(token.as_bytes()));
    let run = dir.run("user passwd ci --token");
    assert!(run.out.contains("@127.0.0.1:4000\n"), "a wildcard is no address for a client: {}", run.out);
    let hash: TokenHash = value(&dir.read("users.d/ci.toml"), "token").parse().unwrap();
    assert!(!hash.verify(token.as_bytes()), "the old token is gone");
}

#[test]
fn user_with_a_source_address_needs_no_secret() {
    let dir = TestDir::new(&[("tollgate.toml", "")]);
    let run = dir.run("user add ci --allow a.example --from 10.1.0.0/16 --from 192.0.2.7 --connections 50");
    assert_eq!(run.code, 0, "{}", run.err);
    assert!(!run.out.contains("password") && !run.out.contains("token"), "{}", run.out);
    let text = dir.read("users.d/ci.toml");
    assert_eq!(value(&text, "from"), "[\"10.1.0.0/16\", \"192.0.2.7/32\"]");
    assert_eq!(value(&text, "connections"), "50");
    assert!(!text.contains("password") && !text.contains("token"));
}

#[test]
fn invalid_change_is_not_written() {
    let dir = TestDir::new(&[
        ("tollgate.toml", "[destinations.corp]\nto = [\"db.corp:5432\"]\n"),
        ("users.d/apps.toml", "from = [\"10.0.0.0/8\"]\nallow = [\"@corp\"]\n"),
    ]);
    check_runs(
        &dir,
        &[
            ("user add ci --allow @crop", 1, "did you mean `corp`?"),
            (
                "user add ci --allow @corp --from 10.0.0.0/8",
                1,
                "`from` of users `apps` and `ci` has the same network",
            ),
            ("user add ci --allow @corp --connections 0", 1, "out of bounds: from 1 to 1_000_000"),
        ],
    );
    assert_eq!(fs::read_dir(dir.path("users.d")).unwrap().count(), 1);
}

#[test]
fn edit_keeps_comments_and_formatting() {
    let text = "# For the build machines, see the wiki.\n\
                token = \"blake2b:KEY:HASH\" # made in May\n\
                allow = [\n  \"a.example\", # the mirror\n]\n";
    let token = TokenHash::make("tgt_old").unwrap().to_text();
    let text = text.replace("blake2b:KEY:HASH", &token);
    let dir = TestDir::new(&[("tollgate.toml", ""), ("users.d/ci.toml", &text)]);
    let run = dir.run("user disable ci");
    assert_eq!(run.code, 0, "{}", run.err);
    assert!(run.out.starts_with("user ci is disabled, in users.d/ci.toml\n"), "{}", run.out);
    assert_eq!(dir.read("users.d/ci.toml"), format!("{text}disabled = true\n"));
    check_runs(&dir, &[("user disable ci", 0, ""), ("user list", 0, "disabled")]);
    assert_eq!(
        dir.read("users.d/ci.toml"),
        format!("{text}disabled = true\n"),
        "a second `disable` changes nothing"
    );

    let run = dir.run("user enable ci");
    assert!(run.out.starts_with("user ci is enabled, in users.d/ci.toml\n"), "{}{}", run.out, run.err);
    assert_eq!(dir.read("users.d/ci.toml"), text);
    check_runs(&dir, &[("user enable ci", 0, ""), ("user list", 0, "active")]);
    assert_eq!(dir.read("users.d/ci.toml"), text, "a second `enable` changes nothing");
    check_runs(&dir, &[("user disable ci", 0, "")]);

    let run = dir.run("user passwd ci --yes");
    assert_eq!(run.code, 0, "{}", run.err);
    let edited = dir.read("users.d/ci.toml");
    let hash: PasswordHash = value(&edited, "password").parse().unwrap();
    assert!(hash.verify(printed_value(&run.out, "password: ").as_bytes()));
    assert!(!edited.contains("blake2b"), "the token was removed");
    assert!(
        edited.contains("see the wiki")
            && edited.contains("# the mirror")
            && edited.contains("disabled = true")
    );
    assert_eq!(mode(&dir.path("users.d/ci.toml")), 0o600);
}

#[test]
fn configuration_file_users_are_not_edited() {
    let text = "[[user]]\nname = \"ci\"\nfrom = [\"10.0.0.0/8\"]\nallow = [\"a.example\"]\n";
    let dir = TestDir::new(&[("tollgate.toml", text)]);
    check_runs(
        &dir,
        &[
            ("user add ci", 1, "user `ci` exists, in tollgate.toml"),
            ("user disable ci", 1, "user `ci` is defined in tollgate.toml: write `disabled = true` there"),
            ("user enable ci", 1, "user `ci` is defined in tollgate.toml: remove `disabled = true` there"),
            (
                "user remove ci --yes",
                1,
                "user `ci` is defined in tollgate.toml: remove the `[[user]]` table there",
            ),
            ("user disable cu", 1, "there is no user `cu`"),
            ("user enable cu", 1, "there is no user `cu`"),
            ("user remove cu", 1, "there is no user `cu`"),
            ("user passwd cu", 1, "there is no user `cu`"),
        ],
    );
    let run = dir.run("user passwd ci");
    assert_eq!(run.code, 0, "{}", run.err);
    let hash: PasswordHash = value(&run.out, "password").parse().unwrap();
    assert!(hash.verify(printed_value(&run.out, "password: ").as_bytes()));
    assert_eq!(dir.read("tollgate.toml"), text);
}

/// Regression: `user passwd` replaced a token by a password without a warning, and the token's clients were
/// refused from the next reload on.
#[test]
fn token_is_replaced_by_password_only_with_consent() {
    let token = TokenHash::make("tgt_old").unwrap().to_text();
    let text = format!("token = \"{token}\"\nallow = [\"a.example\"]\n");
    let dir = TestDir::new(&[("tollgate.toml", ""), ("users.d/ci.toml", &text)]);
    check_runs(
        &dir,
        &[
            ("user passwd ci", 1, "nothing was changed: user `ci` has a token"),
            ("user passwd ci --json", 1, "--yes does it without asking"),
        ],
    );
    let run = dir.run_with("user passwd ci --password-stdin", b"yes and no\n");
    assert_eq!((run.code, run.out.as_str()), (1, ""), "a password on standard input is no confirmation");
    assert_eq!(dir.read("users.d/ci.toml"), text);
    let run = dir.run_with("user passwd ci --password-stdin --yes", b"correct horse\n");
    assert_eq!(run.code, 0, "{}", run.err);
    let text = dir.read("users.d/ci.toml");
    assert!(text.contains("password = ") && !text.contains("token"), "{text}");
    // Without a token nothing is lost, and `--token` explicitly replaces a token.
    check_runs(&dir, &[("user passwd ci", 0, "password: "), ("user passwd ci --token", 0, "token: ")]);
    check_runs(&dir, &[("user passwd ci --token", 0, "token: ")]);
}

#[test]
fn user_is_removed_only_with_consent() {
    let dir = TestDir::new(&[
        ("tollgate.toml", "[[listener]]\naddress = \"127.0.0.1:0\"\n"),
        ("users.d/ci.toml", "from = [\"10.0.0.0/8\"]\nallow = [\"a.example\"]\n"),
    ]);
    check_runs(
        &dir,
        &[
            ("user remove ci", 1, "nothing was changed: users.d/ci.toml is deleted for good"),
            ("check", 0, "1 user"),
        ],
    );
    let run = dir.run_with("user remove ci", b"y\n");
    assert_eq!(run.code, 1, "a pipe is no terminal: {}", run.out);
    let listener =
        "[[listener]]\naddress = \"127.0.0.1:0\"\nkind = \"forward\"\nto = \"a.example:1\"\nuser = \"ci\"\n";
    dir.write("tollgate.toml", listener);
    check_runs(
        &dir,
        &[("user remove ci --yes", 1, "nothing was changed, because the configuration would be invalid")],
    );
    assert!(dir.path("users.d/ci.toml").exists(), "a listener forwards for it");
    dir.write("tollgate.toml", "");
    check_runs(
        &dir,
        &[
            ("user remove ci --yes", 0, "user ci is removed\nThe ledger keeps what ci used"),
            ("user remove ci --yes", 1, "there is no user `ci`"),
            ("user list", 0, ""),
        ],
    );
    assert_eq!(fs::read_dir(dir.path("users.d")).unwrap().count(), 0);
}

#[test]
fn users_are_listed() {
    let dir = TestDir::new(&[
        ("tollgate.toml", "[[user]]\nname = \"ci\"\nfrom = [\"10.0.0.0/8\"]\nallow = [\"a.example\"]\n"),
        (
            "users.d/ann.toml",
            "allow = [\"a.example\", \"b.example\", \"c.example\", \"d.example\"]\ndisabled = true\n",
        ),
    ]);
    let expected = "\
user  state     known by    connections  allow                                       deny  file
ci    active    10.0.0.0/8         1000  a.example                                         tollgate.toml
ann   disabled                     1000  a.example, b.example, c.example and 1 more        users.d/ann.toml
";
    assert_eq!(dir.run("user list").out, expected);
    let (code, users) = dir.json("user list --json");
    assert_eq!(code, 0);
    assert_eq!(users[1]["allow"].as_array().unwrap().len(), 4);
    assert_eq!(users[0]["from"], serde_json::json!(["10.0.0.0/8"]));
    assert_eq!((&users[0]["disabled"], &users[1]["disabled"]), (&false.into(), &true.into()));
    assert!(!users.to_string().contains("argon2"), "hashes are not listed");
}

/// Regression: two commands that read, checked and wrote concurrently each undid the other's change, and both
/// reported success: a leaked password was valid again.
#[test]
fn commands_that_change_users_wait_for_each_other() {
    let dir = TestDir::new(&[("tollgate.toml", ""), ("users.d/ci.toml", "allow = [\"a.example\"]\n")]);
    let lock = fs::File::open(dir.path("users.d")).unwrap();
    lock.lock().unwrap();
    let waits = |id: u32| {
        // The entry of a process that waits for a lock: "NUMBER: -> FLOCK ADVISORY WRITE PROCESS ..."
        // (proc(5)).
        let locks = fs::read_to_string("/proc/locks").unwrap();
        let id = id.to_string();
        locks.lines().any(|line| line.contains("->") && line.split_whitespace().any(|field| field == id))
    };
    for command in ["user disable ci", "user passwd ci", "user remove ci --yes"] {
        let mut child = dir.command(command).stdout(Stdio::null()).spawn().unwrap();
        while !waits(child.id()) {
            assert!(child.try_wait().unwrap().is_none(), "{command} did not wait");
            thread::sleep(Duration::from_millis(1));
        }
        // A change by another command meanwhile.
        let text = format!("# before {command}\n{}", dir.read("users.d/ci.toml"));
        fs::write(dir.path("users.d/ci.toml"), &text).unwrap();
        lock.unlock().unwrap();
        assert!(child.wait().unwrap().success());
        lock.lock().unwrap();
        if !command.contains("remove") {
            assert!(dir.read("users.d/ci.toml").starts_with(&text[..text.find('\n').unwrap()]));
        }
    }
    let run = |command: &str| dir.command(command).stdout(Stdio::null()).spawn().unwrap();
    let mut added = run("user add ci --from 10.0.0.0/8 --allow a.example");
    while !waits(added.id()) {
        thread::sleep(Duration::from_millis(1));
    }
    assert!(!dir.path("users.d/ci.toml").exists());
    lock.unlock().unwrap();
    assert!(added.wait().unwrap().success());
    assert!(dir.path("users.d/ci.toml").exists());
}
