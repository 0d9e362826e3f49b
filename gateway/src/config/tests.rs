//! The findings for each mistake in a configuration, and the meaning of a correct one.
//!
//! Each directory of `testdata/config` holds a wrong configuration and, in `expected.txt`, all findings about
//! it. `UPDATE=1 cargo test -p gateway config` writes the expectations; review the difference.

use std::fs;
use std::time::Duration;

use policy::{AddressClass, Host};
use tempfile::TempDir;

use super::*;
use crate::config::settings::LogTarget;

mod quotas;

const CASES: &str = "testdata/config";

#[test]
fn every_mistake_is_explained() {
    let mut cases: Vec<_> = fs::read_dir(CASES).unwrap().map(|case| case.unwrap().path()).collect();
    cases.sort();
    assert!(cases.len() >= 13, "the test cases are missing");
    let wrong = cases.iter().filter(|case| !explains(case)).count();
    assert_eq!(wrong, 0, "the differences are printed above");
}

/// Whether a wrong configuration is explained as expected; if not, prints both texts.
fn explains(case: &Path) -> bool {
    let options = LoadOptions { path: Some(case.join("tollgate.toml")), ..LoadOptions::default() };
    let errors = Config::load(&options).expect_err("each case is wrong").to_string();
    let directory = source::absolute(case);
    let rendered = errors.replace(&format!("{}/", directory.display()), "") + "\n";
    let path = case.join("expected.txt");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &rendered).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    if rendered != expected {
        println!("{}\n--- rendered\n{rendered}--- expected\n{expected}", case.display());
    }
    rendered == expected
}

/// Files in a directory of their own.
struct Files(TempDir);

impl Files {
    fn new(files: &[(&str, &str)]) -> Files {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Files(directory)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn options(&self) -> LoadOptions {
        LoadOptions { path: Some(self.path("tollgate.toml")), ..LoadOptions::default() }
    }

    #[track_caller]
    fn load(&self) -> Config {
        Config::load(&self.options()).unwrap_or_else(|errors| panic!("{errors}"))
    }
}

const TWO_USERS: &str = r#"
[[listener]]
address = "127.0.0.1:3128"
[[listener]]
address = "127.0.0.1:15432"
kind = "forward"
to = "db.corp:5432"
user = "ci"
[timeouts]
idle = "1h"
lifetime = "30d"
[limits]
connections_per_user = 7
[accept]
strategy = "handoff"
[dns]
servers = ["192.0.2.53", "[2001:db8::53]:5353"]
[log]
to = "tollgate.log"
[destinations.corp]
to = ["*.corp:5432"]
class = "internal"
[[user]]
name = "ci"
from = ["10.1.0.0/16"]
allow = ["@corp", "Example.COM:443"]
connections = 500
"#;

#[test]
fn full_configuration_loads_as_written() {
    let files = Files::new(&[("tollgate.toml", TWO_USERS), ("users.d/ann.toml", "allow = [\"a.example\"]")]);
    let config = files.load();
    assert_eq!(config.origin, Origin::File(files.path("tollgate.toml")));
    assert_eq!(config.users_directory, files.path("users.d"));
    assert_eq!(config.ledger.directory, files.path("tollgate-data"));
    assert_eq!(config.log.to, LogTarget::File(files.path("tollgate.log")));
    assert_eq!(config.timeouts.idle, Duration::from_secs(3600));
    assert_eq!(config.timeouts.lifetime, Some(Duration::from_secs(30 * 86_400)));
    assert_eq!(config.timeouts.greeting, Duration::from_secs(10), "a default");
    assert_eq!(config.accept.strategy.name(), "handoff");
    let servers = ["192.0.2.53:53".parse().unwrap(), "[2001:db8::53]:5353".parse().unwrap()];
    assert_eq!(config.dns.server_addresses(), servers);

    let names: Vec<&str> = config.users.iter().map(|user| &*user.name).collect();
    assert_eq!(names, ["ci", "ann"]);
    for (position, user) in config.users.iter().enumerate() {
        assert_eq!(user.index.as_usize(), position);
        assert_eq!(config.user(&user.name).unwrap().name, user.name);
    }
    let [ci, ann] = &config.users[..] else { panic!("two users") };
    assert_eq!((ci.connections_max, ann.connections_max), (500, 7));
    assert_eq!(ci.from, ["10.1.0.0/16".parse().unwrap()]);
    assert_eq!(ci.allow, ["@corp", "example.com:443"]);
    assert_eq!((&ci.file, &ann.file), (&None, &Some(files.path("users.d/ann.toml"))));
    assert!(config.user("unknown").is_none());

    let to = proto::target::Target::parse_authority(b"db.corp:5432").unwrap();
    let ingresses: Vec<&Ingress> = config.listeners.iter().map(|listener| &listener.ingress).collect();
    assert_eq!(ingresses, [&Ingress::Mixed, &Ingress::Forward { to, user: ci.index }]);
}

#[test]
fn missing_file_loads_the_defaults() {
    let config = Config::load(&LoadOptions::default()).unwrap();
    assert_eq!(config.origin, Origin::Embedded);
    let directory = source::absolute(Path::new("tollgate-data"));
    assert_eq!(config.users_directory, directory.join("users.d"));
    assert_eq!(config.ledger.directory, directory);
    let listener = Listener { address: "127.0.0.1:3128".parse().unwrap(), ingress: Ingress::Mixed };
    assert_eq!(config.listeners, [listener]);
    assert_eq!(config.admin.address, "127.0.0.1:9128".parse().unwrap());
    assert!(config.users.is_empty() && config.warnings.is_empty());
}

#[test]
fn wildcard_listener_owns_every_local_address() {
    let files = Files::new(&[("tollgate.toml", "[[listener]]\naddress = \"0.0.0.0:3128\"\n")]);
    let local_addresses = vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
    let mut config = Config::load(&LoadOptions { local_addresses, ..files.options() }).unwrap();
    config.add_own_addresses(["127.0.0.1:40000".parse().unwrap()]);
    let is_own = |text: &str| {
        let address: SocketAddr = text.parse().unwrap();
        config.policy.address_class(address.ip(), address.port()) == AddressClass::Own
    };
    for address in ["192.0.2.1:3128", "127.0.0.1:3128", "127.0.0.1:9128", "127.0.0.1:40000"] {
        assert!(is_own(address), "{address}");
    }
    for address in ["192.0.2.1:3129", "192.0.2.2:3128", "127.0.0.1:40001", "[2001:db8::1]:3128"] {
        assert!(!is_own(address), "{address}");
    }
}

#[test]
fn reload_never_falls_back_to_the_defaults() {
    let files = Files::new(&[("tollgate.toml", "[timeouts]\nidle = \"1h\"\n")]);
    let running = files.load().file().map(Path::to_path_buf);
    assert_eq!(running, Some(files.path("tollgate.toml")));
    let reload =
        |path| Config::load(&LoadOptions { path, running: running.clone(), ..LoadOptions::default() });
    // Named on the command line, or found in the working directory.
    let paths = [running.clone(), None];
    assert!(paths.clone().into_iter().all(|path| reload(path).is_ok()));
    let is_refused_with = |expected: &str| {
        paths
            .iter()
            .all(|path| reload(path.clone()).is_err_and(|errors| errors.to_string().contains(expected)))
    };
    fs::write(files.path("tollgate.toml"), " \n").unwrap();
    assert!(is_refused_with("tollgate.toml is empty"));
    // An empty file was never in use: all users are in user files.
    assert_eq!(files.load().file(), None);
    fs::remove_file(files.path("tollgate.toml")).unwrap();
    assert!(is_refused_with("cannot read"));
}

#[test]
fn command_line_destinations_go_to_the_first_user() {
    let files = Files::new(&[("tollgate.toml", ""), ("users.d/me.toml", ""), ("users.d/you.toml", "")]);
    let allow = vec!["a.example:443".to_owned()];
    let config = Config::load(&LoadOptions { allow, ..files.options() }).unwrap();
    let is_allowed = |user: &str| {
        let user = config.user(user).unwrap();
        matches!(
            config.policy.judge_name(user.index, Host::Name("a.example"), 443),
            policy::NameVerdict::Judged(_)
        )
    };
    assert!(is_allowed("me") && !is_allowed("you"));

    let allow = vec!["https://a.example".to_owned()];
    let errors = Config::load(&LoadOptions { allow, ..files.options() }).unwrap_err().to_string();
    assert!(errors.starts_with("error: wrong destination for `--allow`\n --> --allow:1:1\n"), "{errors}");

    let files = Files::new(&[("tollgate.toml", "")]);
    let allow = vec!["a.example".to_owned()];
    let errors = Config::load(&LoadOptions { allow, ..files.options() }).unwrap_err().to_string();
    assert!(errors.starts_with("error: there is no user `me`\n"), "{errors}");
}

#[test]
fn draft_is_checked_like_a_written_file() {
    let files = Files::new(&[("tollgate.toml", ""), ("users.d/ci.toml", "from = [\"10.0.0.0/8\"]")]);
    let draft = |name: &str, text: &str| {
        let draft = Some((files.path("users.d").join(name), Some(text.to_owned())));
        Config::load(&LoadOptions { draft, ..files.options() })
    };
    let config = draft("new.toml", "from = [\"192.0.2.0/24\"]").unwrap();
    assert!(config.user("new").is_some() && config.user("ci").is_some());
    assert!(draft("new.toml", "from = [\"10.1.0.0/16\"]").is_ok(), "the smaller network wins");
    let errors = draft("new.toml", "from = [\"10.0.0.0/8\"]").unwrap_err().to_string();
    assert!(errors.starts_with("error: `from` of users `ci` and `new` has the same network\n"), "{errors}");
    let config = draft("ci.toml", "from = [\"10.1.0.0/16\"]").unwrap();
    assert_eq!(
        config.user("ci").unwrap().from,
        ["10.1.0.0/16".parse().unwrap()],
        "the draft replaces the file"
    );
    assert!(!files.path("users.d/new.toml").exists());
    let deleted = Some((files.path("users.d/ci.toml"), None));
    assert!(Config::load(&LoadOptions { draft: deleted, ..files.options() }).unwrap().users.is_empty());
}

#[test]
fn distinct_password_costs_warn_and_are_bounded() {
    let user = |memory_kib: usize| {
        let salt_and_hash = "c29tZXNhbHRzb21lc2FsdA$RdescudvJCsgt3ub+b27ltmRu8nyhAs7XVvNS0fKwVo";
        let password = format!("$argon2id$v=19$m={memory_kib},t=1,p=1${salt_and_hash}");
        format!("[[user]]\nname = \"u{memory_kib}\"\nallow = [\"a.example\"]\npassword = \"{password}\"\n")
    };
    let load = |costs: usize| {
        let text: String = (0..costs).map(|n| user(8 + n)).collect();
        let files = Files::new(&[("tollgate.toml", &text)]);
        Config::load(&files.options())
    };
    assert!(load(1).unwrap().warnings.is_empty());
    let warned = load(8).unwrap().warnings.iter().next().unwrap().message;
    assert_eq!(warned, "the password hashes of users have 8 different argon2 costs");
    let errors = load(9).unwrap_err().to_string();
    let expected = "error: the password hashes of users have 9 different argon2 costs\n";
    assert!(errors.starts_with(expected), "{errors}");
    assert!(!errors.contains("Rdescud"), "{errors}");
}

#[test]
fn unusable_users_and_unread_files_warn() {
    let files = Files::new(&[
        ("tollgate.toml", "[[user]]\nname = \"ci\"\n"),
        ("tollgate-data/users.d/me.toml", "allow = [\"a.example\"]"),
    ]);
    let warnings: Vec<String> = files.load().warnings.iter().map(|warning| warning.message).collect();
    let orphaned =
        format!("the user files in {} are not read", files.path("tollgate-data/users.d").display());
    assert_eq!(
        warnings,
        [orphaned.as_str(), "no client can be user `ci`", "user `ci` may go nowhere: `allow` is empty",]
    );
}

#[test]
fn world_writable_file_warns() {
    use std::os::unix::fs::PermissionsExt;

    let user = "from = [\"10.0.0.0/8\"]\nallow = [\"a.example\"]";
    let files = Files::new(&[("tollgate.toml", ""), ("users.d/me.toml", user)]);
    let warnings = || files.load().warnings.iter().map(|warning| warning.message).collect::<Vec<_>>();
    let set_mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    for (path, narrow) in [("tollgate.toml", 0o664), ("users.d", 0o775), ("users.d/me.toml", 0o600)] {
        let path = files.path(path);
        set_mode(&path, narrow);
        assert!(warnings().is_empty(), "{:?}", warnings());
        set_mode(&path, narrow | 0o002);
        assert_eq!(warnings(), [format!("every account of this machine may write {}", path.display())]);
        set_mode(&path, narrow);
    }
}

#[test]
fn user_able_to_take_every_connection_warns() {
    let check = |text: &str, expected: &[&str]| {
        let text = format!("[limits]\nconnections = 10\nconnections_per_user = 9\n{text}");
        let files = Files::new(&[("tollgate.toml", &text)]);
        let warnings: Vec<String> = files.load().warnings.iter().map(|warning| warning.message).collect();
        assert_eq!(warnings, expected, "{text}");
    };
    let user = |name: &str, address: &str, more: &str| {
        format!("[[user]]\nname = \"{name}\"\nfrom = [\"{address}/32\"]\nallow = [\"a.example\"]\n{more}\n")
    };
    let (ann, ben) = (user("ann", "10.0.0.1", "connections = 10"), user("ben", "10.0.0.2", ""));
    check(&ben, &[]);
    check(&ann, &[]);
    check(&format!("{ben}{}", user("eve", "10.0.0.3", "")), &[]);
    check(&format!("{ben}{ann}"), &["user `ann` may take every connection of the gateway"]);
    check(&format!("{ben}{}", user("ann", "10.0.0.1", "connections = 10\ndisabled = true")), &[]);
}

#[test]
fn denied_forward_listener_warns() {
    let forward = |port: u16, to: &str| {
        let address = format!("[[listener]]\naddress = \"127.0.0.1:{port}\"\n");
        address + &format!("kind = \"forward\"\nto = \"{to}\"\nuser = \"ci\"\n")
    };
    let configuration = [
        forward(4001, "db.corp:5432"),
        forward(4002, "10.20.0.5:5432"),
        forward(4003, "other.corp:5432"),
        "[[user]]\nname = \"ci\"\nallow = [\"db.corp:5432\", \"10.20.0.0/16\"]\n".to_owned(),
    ];
    let files = Files::new(&[("tollgate.toml", &configuration.concat())]);
    let warnings: Vec<_> = files.load().warnings.iter().collect();
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    assert_eq!(
        (warning.line, &*warning.message),
        (Some(14), "the rules of user `ci` deny every connection of this listener")
    );
    assert!(warning.help.as_ref().is_some_and(|help| help.contains("resolve_for_networks")), "{warning:?}");
}

#[test]
fn open_or_userless_configuration_warns() {
    let warnings = |text: &str, locals: &[&str]| {
        let files = Files::new(&[("tollgate.toml", text)]);
        let local_addresses = locals.iter().map(|local| local.parse().unwrap()).collect();
        let config = Config::load(&LoadOptions { local_addresses, ..files.options() }).unwrap();
        config.warnings.iter().map(|warning| warning.message).collect::<Vec<_>>()
    };
    assert_eq!(warnings("", &[]), ["there are no users: every request is refused"]);
    for (network, is_wide) in [("0.0.0.0/0", true), ("::/0", true), ("10.0.0.0/8", false)] {
        let user = format!("[[user]]\nname = \"ci\"\nfrom = [\"{network}\"]\nallow = [\"a.example\"]\n");
        let expected: &[&str] = if is_wide { &["`from` of user `ci` holds every address"] } else { &[] };
        assert_eq!(warnings(&user, &[]), expected);
    }
    let user = "[[user]]\nname = \"ci\"\nfrom = [\"10.0.0.0/8\"]\nallow = [\"a.example\"]\n";
    let (public, private) = ("93.184.215.14", "10.1.2.3");
    for (admin, locals, expected) in [
        ("93.184.215.14:9128", vec![], Some(public)),
        ("0.0.0.0:9128", vec![private, public], Some(public)),
        ("[::]:9128", vec![private, public], Some(public)),
        ("0.0.0.0:9128", vec![private, "2606:2800:21f::1"], None),
        ("10.1.2.3:9128", vec![public], None),
        ("127.0.0.1:9128", vec![public], None),
    ] {
        let expected = expected
            .map(|public| format!("[admin] has no password and is reachable at a public address, {public}"));
        let text = format!("{user}[admin]\naddress = \"{admin}\"\n");
        assert_eq!(warnings(&text, &locals), Vec::from_iter(expected), "{admin} {locals:?}");
    }
}

/// A user whose file cannot be read was reported as missing, too.
#[test]
fn unreadable_user_is_reported_once() {
    let forward =
        "[[listener]]\naddress = \"127.0.0.1:1\"\nkind = \"forward\"\nto = \"a:1\"\nuser = \"ci\"\n";
    let messages = |files: &Files| {
        let options = LoadOptions { allow: vec!["a.example".to_owned()], ..files.options() };
        let ConfigErrors(findings) = Config::load(&options).unwrap_err();
        findings.iter().map(|finding| finding.message).collect::<Vec<_>>()
    };
    let path = |files: &Files, name| files.path(name).display().to_string();
    let files = Files::new(&[("tollgate.toml", forward), ("users.d", "no directory")]);
    let directory = path(&files, "users.d");
    assert_eq!(messages(&files), [format!("cannot read {directory}: Not a directory (os error 20)")]);
    let files = Files::new(&[("tollgate.toml", forward), ("users.d/ci.toml/x", "")]);
    let file = path(&files, "users.d/ci.toml");
    assert_eq!(messages(&files), [format!("cannot read {file}: it is not a regular file")]);
    let files = Files::new(&[("tollgate.toml", forward), ("users.d/ci.toml", "allow = 1")]);
    let others = ["wrong value for `allow`", "there is no user `me`"];
    assert_eq!(messages(&files), others, "`ci` exists, and every file was read");
    let files = Files::new(&[("tollgate.toml", forward)]);
    let missing = ["there is no user `ci`", "there is no user `me`"];
    assert_eq!(messages(&files), missing, "every file was read");
}

#[test]
fn findings_have_positions_for_programs() {
    let files =
        Files::new(&[("tollgate.toml", "# \u{e9}\n[limits]\nx = 1 # \u{e9}\nconnections = \"\u{e9}\"")]);
    let ConfigErrors(findings) = Config::load(&files.options()).unwrap_err();
    let file = Some(files.path("tollgate.toml").display().to_string());
    let positions: Vec<_> =
        findings.iter().map(|finding| (finding.file, finding.line, finding.column)).collect();
    assert_eq!(positions, [(file.clone(), Some(3), Some(1)), (file, Some(4), Some(15))]);
}

#[test]
fn long_list_of_errors_is_cut() {
    let text: String = (0..200).map(|n| format!("key{n} = 1\n")).collect();
    let files = Files::new(&[("tollgate.toml", &text)]);
    let ConfigErrors(findings) = Config::load(&files.options()).unwrap_err();
    assert_eq!(findings.len(), 200);
    let rendered = findings.render(Severity::Error, false);
    assert!(rendered.ends_with("\n\nand 150 more"), "{rendered}");
}

#[test]
fn dangling_link_and_device_are_errors() {
    let files = Files::new(&[("tollgate.toml", ""), ("users.d/real.toml", "")]);
    std::os::unix::fs::symlink("nowhere", files.path("users.d/link.toml")).unwrap();
    std::os::unix::fs::symlink("real.toml", files.path("users.d/good.toml")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", files.path("users.d/zero.toml")).unwrap();
    let ConfigErrors(findings) = Config::load(&files.options()).unwrap_err();
    let messages: Vec<String> = findings.iter().map(|finding| finding.message).collect();
    let directory = files.path("users.d").display().to_string();
    assert_eq!(
        messages,
        [
            format!("cannot read {directory}/link.toml: No such file or directory (os error 2)"),
            format!("cannot read {directory}/zero.toml: it is not a regular file"),
        ]
    );
}

/// The pieces of broken configurations.
const PIECES: [&str; 48] = [
    "[",
    "]",
    "[[",
    "]]",
    "{",
    "}",
    "=",
    ",",
    ".",
    "#",
    "\"",
    "'",
    "\"\"\"",
    "'''",
    "\\",
    "\n",
    "\r\n",
    "\r",
    "\t",
    " ",
    "\0",
    "\u{feff}",
    "\u{e9}",
    "\u{1f980}",
    "[[user]]\n",
    "[[listener]]\n",
    "[limits]\n",
    "[destinations.a]\n",
    "[quotas]\n",
    "[teams.a]\n",
    "name",
    "team",
    "parent",
    "quota",
    "{ limit = \"1GB\", per = \"day\" }",
    "per",
    "\"a\"",
    "password",
    "token",
    "allow",
    "to",
    "connections",
    "\"@a\"",
    "\"10.0.0.0/8\"",
    "1",
    "9999999999999999999999",
    "true",
    "2026-01-01",
];

proptest::proptest! {
    /// Any text is rejected with an error and not with a panic, and every span lies within it.
    #[test]
    fn any_broken_text_is_explained(pieces in proptest::collection::vec(0..PIECES.len(), 0..40)) {
        let text: String = pieces.into_iter().map(|piece| PIECES[piece]).collect();
        let files = Files::new(&[("tollgate.toml", &text)]);
        let draft = Some((files.path("users.d/ci.toml"), Some(text.clone())));
        if let Err(errors) = Config::load(&LoadOptions { draft, ..files.options() }) {
            proptest::prop_assert!(!errors.to_string().is_empty());
            for finding in errors.0.iter() {
                let lines = text.split('\n').count();
                proptest::prop_assert!(finding.line.is_none_or(|line| 1 <= line && line <= lines));
            }
        }
    }
}
