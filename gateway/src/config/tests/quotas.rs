//! Teams, quotas and rates: what a correct configuration means, its bounds and its warnings.

use jiff::tz::TimeZone;
use ledger::record::Class;

use super::*;
use crate::credit::calendar::{Calendar, Per};

const TEAMS: &str = r#"
[quotas]
zone = "Asia/Kolkata"
thresholds = [100, 50, 50]
[destinations.paste]
to = ["paste.example:443"]
[teams.build]
parent = "engineering"
quota = [{ limit = "2TB", per = "month" }]
rate = "1Gbit/s"
[teams.engineering]
[[teams.engineering.quota]]
limit = "3TiB"
per = "month"
zone = "UTC"
anchor = 31
[[user]]
name = "ci"
team = "build"
from = ["10.1.0.0/16"]
allow = ["@paste"]
quota = [
    { limit = "20GB", per = "day", of = "external" },
    { limit = "50MB", per = "day", of = "@paste", direction = "up", zone = "UTC" },
    { limit = "1kB", per = "total", of = "internal", direction = "down" },
]
rate = "100Mbit/s"
rate_up = "50Mbit/s"
"#;

const ANN: &str = "from = [\"10.2.0.0/16\"]\nallow = [\"a.example\"]\nrate_down = \"8kbit/s\"\n\
    quota = [{ limit = \"1GB\", per = \"hour\" }]\nteam = \"engineering\"\n";

#[test]
fn teams_quotas_and_rates_load_as_written() {
    let config = Files::new(&[("tollgate.toml", TEAMS), ("users.d/ann.toml", ANN)]).load();
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    let kolkata = TimeZone::get("Asia/Kolkata").unwrap();
    assert_eq!(config.quotas, Quotas { zone: kolkata.clone(), thresholds: vec![50, 100] });

    let [engineering, build] = &config.teams[..] else { panic!("two teams") };
    assert_eq!((&*engineering.name, engineering.parent), ("engineering", None));
    assert_eq!((&*build.name, build.parent), ("build", Some(0)), "a parent comes first");
    assert_eq!(engineering.rates, Rates::default());
    assert_eq!(build.rates, Rates { up: Some(1_000_000_000), down: Some(1_000_000_000) });
    let limits = [&engineering.quotas[0], &build.quotas[0]].map(|quota| quota.limit);
    assert_eq!(limits, [3 << 40, 2_000_000_000_000]);
    let keys = |quotas: &[Quota]| quotas.iter().map(Quota::key).collect::<Vec<_>>();
    assert_eq!(keys(&engineering.quotas), ["month@31/all/both"]);
    assert_eq!(keys(&build.quotas), ["month[Asia/Kolkata]/all/both"]);

    let (ci, ann) = (config.user("ci").unwrap(), config.user("ann").unwrap());
    assert_eq!((ci.team, ann.team), (Some(1), Some(0)));
    assert_eq!(ann.team_name.as_deref(), Some("engineering"));
    assert_eq!(ci.rates, Rates { up: Some(50_000_000), down: Some(100_000_000) });
    assert_eq!(ann.rates, Rates { up: None, down: Some(8_000) });
    let expected = ["day[Asia/Kolkata]/external/both", "day/@paste/up", "total/internal/down"];
    assert_eq!(keys(&ci.quotas), expected);
    let external = Quota {
        limit: 20_000_000_000,
        calendar: Calendar::new(Per::Day, kolkata, 1),
        of: Scope::Class(Class::External),
        direction: Direction::Both,
    };
    assert_eq!(ci.quotas[0], external);
    assert_eq!(ci.quotas[1].of, Scope::Set("paste".into()));
}

#[test]
fn configuration_without_quotas_has_the_defaults() {
    let config = Files::new(&[("tollgate.toml", "[teams]\n")]).load();
    assert_eq!(config.quotas, Quotas { zone: TimeZone::UTC, thresholds: vec![80, 85, 95, 100] });
    assert!(config.teams.is_empty());
}

#[test]
fn order_of_teams_is_no_change_of_a_user() {
    let load = |text: &str, ann: &str| {
        Files::new(&[("tollgate.toml", &format!("{TEAMS}{text}")), ("users.d/ann.toml", ann)]).load()
    };
    let before = load("", ANN);
    let after = load("[teams.aa]\n[[user]]\nname = \"x\"\nteam = \"aa\"\n", ANN);
    let is_same =
        |after: &Config, name: &str| before.user(name).unwrap().is_written_as(after.user(name).unwrap());
    assert_ne!(before.user("ci").unwrap().team, after.user("ci").unwrap().team);
    assert!(is_same(&after, "ci") && is_same(&after, "ann"));
    for (from, to) in [
        ("team = \"engineering\"", "team = \"build\""),
        ("team = \"engineering\"", ""),
        ("\"1GB\"", "\"2GB\""),
        ("\"hour\"", "\"day\""),
        ("\"8kbit/s\"", "\"9kbit/s\""),
    ] {
        assert!(!is_same(&load("", &ANN.replace(from, to)), "ann"), "{from} to {to}");
    }
}

#[test]
fn counts_of_teams_and_quotas_are_bounded() {
    let first_error = |text: &str| {
        let errors = Config::load(&Files::new(&[("tollgate.toml", text)]).options()).map(|_| ());
        errors.map_err(|ConfigErrors(findings)| findings.iter().next().unwrap().message)
    };
    let user = "[[user]]\nname = \"ci\"\nfrom = [\"10.0.0.0/8\"]\nallow = [\"a.example\"]\n";
    let quotas = |count: u8| {
        let item = |anchor| format!("{{ limit = \"1GB\", per = \"month\", anchor = {anchor} }}, ");
        format!("{user}quota = [{}]\n", (1..=count).map(item).collect::<String>())
    };
    assert_eq!(first_error(&quotas(16)), Ok(()));
    assert_eq!(first_error(&quotas(17)), Err("more than 16 quotas of user `ci`".into()));
    let teams = |count| (0..count).map(|team| format!("[teams.t{team}]\n")).collect::<String>();
    assert_eq!(first_error(&teams(10_000)), Ok(()));
    assert_eq!(first_error(&teams(10_001)), Err("more than 10000 teams".into()));
    assert_eq!(first_error("[quotas]\nthresholds = [1, 2, 3, 4, 5, 6, 7, 8]"), Ok(()));
    let nine = "[quotas]\nthresholds = [1, 2, 3, 4, 5, 6, 7, 8, 9]";
    assert_eq!(first_error(nine), Err("more than 8 thresholds".into()));
    let chain = |levels| {
        let team = |level| format!("[teams.t{level}]\nparent = \"t{}\"\n", level - 1);
        format!("[teams.t1]\n{}", (2..=levels).map(team).collect::<String>())
    };
    assert_eq!(first_error(&chain(8)), Ok(()));
    assert_eq!(first_error(&chain(9)), Err("team `t9` is on level 9 of its tree".into()));
    // A long chain without a beginning is a cycle, and takes no time that grows with its square.
    let cycle = chain(9_999).replace("[teams.t1]\n", "[teams.t1]\nparent = \"t9999\"\n");
    assert_eq!(first_error(&cycle), Err("team `t1` is part of itself".into()));
}

#[test]
fn quotas_without_effect_and_empty_teams_warn() {
    let text = r#"
[teams.all]
quota = [{ limit = "10GB", per = "day" }, { limit = "1GB", per = "day", direction = "up" }]
[teams.build]
parent = "all"
quota = [{ limit = "10GB", per = "day" }, { limit = "2GB", per = "day", direction = "up" }]
[teams.none]
[[user]]
name = "ci"
team = "build"
from = ["10.1.0.0/16"]
allow = ["a.example"]
quota = [
    { limit = "11GB", per = "day" },
    { limit = "20GB", per = "day", of = "external" },
    { limit = "20GB", per = "day", zone = "Asia/Kolkata" },
    { limit = "1TB", per = "total", zone = "Asia/Kolkata" },
]
"#;
    let warnings = Files::new(&[("tollgate.toml", text)]).load().warnings;
    let warnings: Vec<_> = warnings.iter().map(|warning| (warning.line.unwrap(), warning.message)).collect();
    let expected = [
        (6, "a quota of team `build` has no effect: team `all` has a smaller one"),
        (7, "team `none` has no users and no teams"),
        (14, "a quota of user `ci` has no effect: team `build` has a smaller one"),
        (17, "`zone` of a quota with `per = \"total\"` has no effect"),
    ];
    assert_eq!(warnings, expected.map(|(line, message)| (line, message.to_owned())));
}
