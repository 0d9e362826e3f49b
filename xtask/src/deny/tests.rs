//! Planted violations: each check finds exactly what it forbids.

use super::{check, config::Config, packages};

const CONFIG: &str = r#"
[graph]
targets = []
all-features = true
[advisories]
db-urls = ["https://example.com/advisories"]
unmaintained = "all"
ignore = []
[licenses]
allow = ["MIT", "Apache-2.0"]
unused-allowed-license = "deny"
[bans]
multiple-versions = "deny"
wildcards = "deny"
allow-wildcard-paths = true
deny = [{ crate = "openssl", use-instead = "rustls" }]
skip = []
[sources]
unknown-registry = "deny"
unknown-git = "deny"
"#;

/// Packages as [`findings`] takes them, and the start of each finding.
type Case<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str]);

/// The findings for two compliant packages and the given ones: each `name version licence`, and further
/// members of its JSON.
fn findings(config: &str, others: &[(&str, &str)]) -> Vec<String> {
    let mut list = Vec::new();
    for (package, extra) in
        [("ours 1.0.0 MIT/Apache-2.0", ""), ("theirs 1.0.0 Apache-2.0", "")].iter().chain(others)
    {
        let mut fields = package.splitn(3, ' ');
        let mut next = || fields.next().expect("name, version and licence are given");
        let (name, version, licence) = (next(), next(), next());
        let licence = if licence == "-" { "null".to_owned() } else { format!("{licence:?}") };
        list.push(format!(r#"{{"name":"{name}","version":"{version}","license":{licence}{extra}}}"#));
    }
    let packages = packages::parse_metadata(&format!(r#"{{"packages":[{}]}}"#, list.join(",")))
        .expect("the metadata is valid");
    check(&Config::parse(config).expect("the configuration is valid"), &packages)
        .expect("the licences are known")
}

#[test]
fn each_check_finds_only_what_it_forbids() {
    let registry = concat!(r#","source":"registry+https://github.com/rust-lang/crates"#, r#".io-index""#);
    let mirror = r#","source":"registry+https://example.com/index""#;
    let git = r#","source":"git+https://example.com/a""#;
    let wild = r#","dependencies":[
        {"name":"x","req":"*"}, {"name":"y","req":"*","path":"/y"}, {"name":"z","req":"^1"}]"#;
    let cases: [Case<'_>; 10] = [
        (&[("a 1.0.0 (MIT OR GPL-3.0-only) AND Apache-2.0", registry)], &[]),
        (
            &[("a 1.0.0 GPL-3.0-only AND MIT", "")],
            &["a@1.0.0: licence `GPL-3.0-only AND MIT` is not allowed"],
        ),
        (&[("a 1.0.0 Apache-2.0 WITH LLVM-exception", "")], &["a@1.0.0: licence `Apache-2.0 WITH"]),
        (&[("a 1.0.0 Freeware", "")], &["a@1.0.0: licence `Freeware` is no SPDX expression"]),
        (&[("a 1.0.0 -", "")], &["a@1.0.0: declares no licence"]),
        (&[("openssl 1.0.0 MIT", "")], &["openssl@1.0.0: banned, use rustls instead"]),
        (&[("theirs 2.0.0 MIT", "")], &["theirs@1.0.0, theirs@2.0.0: one version is enough"]),
        (&[("a 1.0.0 MIT", git)], &["a@1.0.0: comes from git+https://example.com/a"]),
        (&[("a 1.0.0 MIT", mirror)], &["a@1.0.0: comes from registry+https://example.com/index"]),
        (&[("a 1.0.0 MIT", wild)], &["a@1.0.0: `x = \"*\"` takes any version"]),
    ];
    for (packages, expected) in cases {
        let found = findings(CONFIG, packages);
        let agrees =
            found.len() == expected.len() && found.iter().zip(expected).all(|(f, e)| f.starts_with(e));
        assert!(agrees, "{packages:?}\nfound    {found:#?}\nexpected {expected:#?}");
    }
}

#[test]
fn unused_exception_is_found() {
    let skip = CONFIG.replace("skip = []", "skip = [{ crate = \"theirs@1.0.0\", reason = \"old\" }]");
    assert!(findings(&skip, &[("theirs 2.0.0 MIT", "")]).is_empty());
    assert_eq!(findings(&skip, &[]), ["deny.toml: the skip of `theirs@1.0.0` is unused: remove it"]);
    let allow = CONFIG.replace("\"MIT\",", "\"MIT\", \"ISC\",");
    assert_eq!(findings(&allow, &[]), ["deny.toml: no package has the licence `ISC`: remove it"]);
}

#[test]
fn unenforced_setting_is_refused() {
    let parse_error = |from: &str, to: &str| {
        let changed = CONFIG.replace(from, to);
        assert_ne!(changed, CONFIG);
        Config::parse(&changed).err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert_eq!(
        parse_error("skip = []", "skip = []\nskip-tree = []"),
        "[bans] skip-tree is not enforced: add it to xtask/src/deny, or remove it"
    );
    assert_eq!(
        parse_error("unknown-git = \"deny\"", "unknown-git = \"warn\""),
        "[sources] unknown-git: only the value `deny` is enforced"
    );
    assert_eq!(parse_error("wildcards = \"deny\"\n", ""), "[bans] wildcards is missing");
    assert_eq!(
        parse_error(", use-instead = \"rustls\"", ""),
        "[bans] deny: each needs `crate` and `use-instead`"
    );
    assert_eq!(
        parse_error("ignore = []", "ignore = [{ id = \"RUSTSEC-2026-9001\" }]"),
        "[advisories] ignore: each needs `id` and `reason`"
    );
    assert_eq!(
        parse_error("[\"https://example.com/advisories\"]", "[]"),
        "[advisories] db-urls: 0 URLs, but exactly one is supported"
    );
}
