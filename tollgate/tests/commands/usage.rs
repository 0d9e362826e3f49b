//! `tollgate usage`.

use std::net::SocketAddr;

use ledger::record::{Class, CloseReason, Flow, Identity, Legs, Protocol, Uncertain};
use ledger::{Ledger, OpenSettings};
use serde_json::json;
use sys::clock::WallNanos;

use super::{TestDir, check_runs};

const DAY_NANOS: u64 = 86_400 * 1_000_000_000;

/// 2026-01-01 00:00:00 UTC.
const NEW_YEAR: u64 = 20_454 * DAY_NANOS;

/// A directory whose ledger has some flows: time of the end, user, host, class, up, down.
fn test_dir(flows: &[(u64, &str, &str, Class, u64, u64)]) -> TestDir {
    let dir = TestDir::new(&[("tollgate.toml", "")]);
    let settings =
        OpenSettings { segment_bytes: 1 << 20, ..OpenSettings::new(&dir.path("tollgate-data"), 1, 64) };
    let (ledger, mut flow_writers) = Ledger::open(&settings).unwrap();
    for (id, &(closed, user, host, class, up, down)) in (1..).zip(flows) {
        let flow = Flow {
            id,
            opened: WallNanos(closed - 1),
            closed: WallNanos(closed),
            account: 0,
            policy: 0,
            set: 0,
            user,
            host,
            port: 443,
            address: None,
            client: SocketAddr::from(([192, 0, 2, 1], 40_000)),
            class,
            protocol: Protocol::HttpConnect,
            rule: "",
            reason: CloseReason::ClientClosed,
            requests: 0,
            legs: Legs::default(),
            uncertain: Uncertain::default(),
        };
        let mut live = flow_writers[0].open(&Identity::new(&flow)).unwrap();
        flow_writers[0].counters(&mut live).up().1.around(up as usize, || Ok(up as usize)).unwrap();
        flow_writers[0].counters(&mut live).down().1.around(down as usize, || Ok(down as usize)).unwrap();
        flow_writers[0].close(live, flow.closed, flow.reason);
    }
    drop(flow_writers);
    ledger.close().unwrap();
    dir
}

fn some() -> TestDir {
    test_dir(&[
        (NEW_YEAR - 1, "ci", "github.com", Class::External, 5, 7),
        (NEW_YEAR, "ci", "github.com", Class::External, 1_230_000_000, 45_600),
        (NEW_YEAR + DAY_NANOS - 1, "ann", "db.corp", Class::Internal, 100, 200),
        (NEW_YEAR + DAY_NANOS, "ann", "=cmd|' /C calc'!A0", Class::External, 0, 1),
    ])
}

#[test]
fn usage_is_grouped_for_people() {
    let dir = some();
    let by_user = "\
user   flows       up     down     both
ci         2  1.23 GB  45.6 kB  1.23 GB
ann        2    100 B    201 B    301 B
total      4  1.23 GB  45.8 kB  1.23 GB
";
    assert_eq!(dir.run("usage").out, by_user);
    let by_day = "\
day         flows       up     down     both
2025-12-31      1      5 B      7 B     12 B
2026-01-01      2  1.23 GB  45.8 kB  1.23 GB
2026-01-02      1      0 B      1 B      1 B
total           4  1.23 GB  45.8 kB  1.23 GB
";
    assert_eq!(dir.run("usage --by day").out, by_day);
    check_runs(
        &dir,
        &[
            ("usage --by host", 0, "db.corp"),
            ("usage --by class", 0, "internal"),
            ("usage --by hour", 0, "2026-01-01T23:00Z"),
            ("usage --by month", 0, "2025-12"),
        ],
    );
}

#[test]
fn usage_is_exact_for_programs() {
    let dir = some();
    let sums = |flows: u64, up: u64, down: u64, uncertain_down: u64| {
        json!({
            "flows": flows, "live": 0, "requests": 0, "up": up, "down": down,
            "uncertain_up": 0, "uncertain_down": uncertain_down,
        })
    };
    let row = |class: &str, mut sums: serde_json::Value| {
        sums["class"] = json!(class);
        sums
    };
    let expected = json!({
        "by": "class",
        "rows": [
            row("external", sums(3, 1_230_000_005, 45_608, 0)),
            row("internal", sums(1, 100, 200, 0)),
        ],
        "total": sums(4, 1_230_000_105, 45_808, 0),
        "missing": [],
        "right": true,
        "problems": [],
        "accepted": [],
    });
    assert_eq!(dir.json("usage --by class --json"), (0, expected));
    let csv = "host,flows,up,down,live,uncertain_up,uncertain_down,requests\r\n\
               github.com,2,1230000005,45607,0,0,0,0\r\n\
               db.corp,1,100,200,0,0,0,0\r\n\
               '=cmd|' /C calc'!A0,1,0,1,0,0,0,0\r\n";
    assert_eq!(dir.run("usage --by host --csv").out, csv);
}

#[test]
fn usage_is_filtered_by_span_user_host_and_class() {
    let dir = some();
    #[track_caller]
    fn check(dir: &TestDir, options: &str, flows: u64) {
        let (code, value) = dir.json(&format!("usage --json {options}"));
        assert_eq!((code, &value["total"]["flows"]), (0, &flows.into()), "{options}");
    }
    check(&dir, "--since 2026-01-01", 3);
    check(&dir, "--until 2025-12-31", 1);
    check(&dir, "--since 2026-01-01 --until 2026-01-01", 2);
    check(&dir, "--since 2026-01-01 --until 2026-01-01 --user ann", 1);
    check(&dir, "--until 2026-01-01T00:00:00Z", 1);
    check(&dir, "--since 2026-01-01T01:00:00+01:00", 3);
    check(&dir, "--class external", 3);
    check(&dir, "--class internal --user ann", 1);
    check(&dir, "--host github.com", 2);
    check(&dir, "--since 36500d", 4);
    std::fs::remove_file(dir.path("tollgate-data/usage-202512.db")).unwrap();
    // The sums exist, and the missing month is reported.
    let (code, value) = dir.json("usage --json --until 2025-12-31");
    assert_eq!((code, &value["total"]["flows"], &value["right"]), (1, &1.into(), &false.into()));
    let problem = value["problems"][0].as_str().unwrap();
    assert!(problem.contains("usage-202512.db is missing"), "{problem}");
    let (code, value) = dir.json("usage --json --until 2025-12-31 --host github.com");
    assert_eq!((code, &value["total"]["flows"]), (1, &0.into()));
    let incomplete = dir.run("usage --by host").out;
    assert!(incomplete.contains("the ledger has the flows of 2025-12 only as sums"), "{incomplete}");
}

#[test]
fn usage_by_several_keys_has_a_row_per_combination() {
    let dir = some();
    let by_both = "\
user   host                flows       up     down     both
ci     github.com              2  1.23 GB  45.6 kB  1.23 GB
ann    db.corp                 1    100 B    200 B    300 B
ann    =cmd|' /C calc'!A0      1      0 B      1 B      1 B
total                          4  1.23 GB  45.8 kB  1.23 GB
";
    assert_eq!(dir.run("usage --by user,host").out, by_both);
    assert_eq!(dir.run("usage --by user --by host,user").out, by_both, "each key once");
    let csv = "month,user,flows,up,down,live,uncertain_up,uncertain_down,requests\r\n\
               2025-12,ci,1,5,7,0,0,0,0\r\n\
               2026-01,ci,1,1230000000,45600,0,0,0,0\r\n\
               2026-01,ann,2,100,201,0,0,0,0\r\n";
    assert_eq!(dir.run("usage --by month,user --csv").out, csv);
    let (code, value) = dir.json("usage --by port,protocol --json");
    assert_eq!((code, &value["by"]), (0, &json!("port,protocol")));
    let row = &value["rows"][0];
    assert_eq!(
        (&row["port"], &row["protocol"], &row["flows"]),
        (&json!(443), &json!("http_connect"), &json!(4))
    );
    check_runs(
        &dir,
        &[("usage --by listener", 2, "invalid value 'listener'"), ("usage --help", 0, "listener")],
    );
}

#[test]
fn usage_of_an_unknown_user_suggests_a_name() {
    let dir = some();
    dir.write(
        "tollgate.toml",
        "[[user]]\nname = \"idle\"\nfrom = [\"192.0.2.0/24\"]\nallow = [\"a.example\"]\n",
    );
    let none = "user   flows   up  down  both\ntotal      0  0 B   0 B   0 B\n";
    assert_eq!(dir.run("usage --user idle").out, none, "configured, and without any usage");
    check_runs(
        &dir,
        &[
            ("usage --user ann", 0, "total      2"),
            ("usage --user ghost", 1, "there is no user `ghost`"),
            ("usage --user idel", 1, "did you mean `idle`?"),
            ("usage --set github", 1, "there is no set `github` in `[destinations]`"),
            ("usage --user anm --json", 1, "did you mean `ann`?"),
        ],
    );
}

#[test]
fn usage_without_a_ledger_fails() {
    let dir = TestDir::new(&[("tollgate.toml", "[ledger]\ndirectory = \"elsewhere\"\n")]);
    check_runs(&dir, &[("usage", 1, "there is no ledger in elsewhere")]);
    dir.write("elsewhere/ledger.db", "this is no database, and much too short for one");
    assert_eq!(dir.run("usage").code, 1);
    assert_eq!(dir.run("usage --json").out, "", "no answer is better than a wrong one");
}
