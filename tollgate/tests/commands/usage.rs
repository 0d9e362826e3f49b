//! `tollgate usage`.

use std::net::SocketAddr;

use ledger::Ledger;
use ledger::record::{Class, CloseReason, Flow, Legs, Protocol, Record};
use serde_json::json;
use sys::clock::WallNanos;

use super::{Room, check_runs};

const DAY_NANOS: u64 = 86_400 * 1_000_000_000;

/// 2026-01-01 00:00:00 UTC.
const NEW_YEAR: u64 = 20_454 * DAY_NANOS;

/// A room whose ledger holds some flows: moment of the end, user, host, class, up, down.
fn room(flows: &[(u64, &str, &str, Class, u64, u64)]) -> Room {
    let room = Room::new(&[("tollgate.toml", "")]);
    let (ledger, mut inlets) = Ledger::open(&room.path("tollgate-data"), 1).unwrap();
    for (id, &(closed, user, host, class, up, down)) in (1..).zip(flows) {
        let flow = Flow {
            id,
            opened: WallNanos(closed - 1),
            closed: WallNanos(closed),
            user,
            host,
            port: 443,
            address: None,
            client: SocketAddr::from(([192, 0, 2, 1], 40_000)),
            class,
            protocol: Protocol::HttpConnect,
            rule: "",
            reason: CloseReason::ClientClosed,
            legs: Legs { upstream_tx: up, client_tx: down, ..Legs::default() },
        };
        inlets[0].push(&Record::new(&flow)).unwrap();
    }
    drop(inlets);
    ledger.close().unwrap();
    room
}

fn some() -> Room {
    room(&[
        (NEW_YEAR - 1, "ci", "github.com", Class::External, 5, 7),
        (NEW_YEAR, "ci", "github.com", Class::External, 1_230_000_000, 45_600),
        (NEW_YEAR + DAY_NANOS - 1, "ann", "db.corp", Class::Internal, 100, 200),
        (NEW_YEAR + DAY_NANOS, "ann", "=cmd|' /C calc'!A0", Class::External, 0, 1),
    ])
}

#[test]
fn usage_is_grouped_for_people() {
    let room = some();
    let by_user = "\
user   flows       up     down     both
ci         2  1.23 GB  45.6 kB  1.23 GB
ann        2    100 B    201 B    301 B
total      4  1.23 GB  45.8 kB  1.23 GB
";
    assert_eq!(room.run("usage").out, by_user);
    let by_day = "\
day         flows       up     down     both
2025-12-31      1      5 B      7 B     12 B
2026-01-01      2  1.23 GB  45.8 kB  1.23 GB
2026-01-02      1      0 B      1 B      1 B
total           4  1.23 GB  45.8 kB  1.23 GB
";
    assert_eq!(room.run("usage --by day").out, by_day);
    check_runs(&room, &[("usage --by host", 0, "db.corp"), ("usage --by class", 0, "internal")]);
}

#[test]
fn usage_is_exact_for_programs() {
    let room = some();
    let expected = json!({
        "by": "class",
        "rows": [
            { "class": "external", "flows": 3, "up": 1_230_000_005_u64, "down": 45_608 },
            { "class": "internal", "flows": 1, "up": 100, "down": 200 },
        ],
        "total": { "flows": 4, "up": 1_230_000_105_u64, "down": 45_808 },
    });
    assert_eq!(room.json("usage --by class --json"), (0, expected));
    let csv = "host,flows,up,down\r\n\
               github.com,2,1230000005,45607\r\n\
               db.corp,1,100,200\r\n\
               '=cmd|' /C calc'!A0,1,0,1\r\n";
    assert_eq!(room.run("usage --by host --csv").out, csv);
}

#[test]
fn usage_is_of_a_span_a_user_a_host_and_a_class() {
    let room = some();
    #[track_caller]
    fn check(room: &Room, options: &str, flows: u64) {
        let (code, value) = room.json(&format!("usage --json {options}"));
        assert_eq!((code, &value["total"]["flows"]), (0, &flows.into()), "{options}");
    }
    check(&room, "--since 2026-01-01", 3);
    check(&room, "--until 2025-12-31", 1);
    check(&room, "--since 2026-01-01 --until 2026-01-01", 2);
    check(&room, "--since 2026-01-01 --until 2026-01-01 --user ann", 1);
    check(&room, "--until 2026-01-01T00:00:00Z", 1);
    check(&room, "--since 2026-01-01T01:00:00+01:00", 3);
    check(&room, "--user nobody", 0);
    check(&room, "--class external", 3);
    check(&room, "--class internal --user ann", 1);
    check(&room, "--host github.com", 2);
    check(&room, "--since 36500d", 4);
    let none = "user   flows   up  down  both\ntotal      0  0 B   0 B   0 B\n";
    assert_eq!(room.run("usage --user nobody").out, none);
}

#[test]
fn a_ledger_is_needed() {
    let room = Room::new(&[("tollgate.toml", "[ledger]\ndirectory = \"elsewhere\"\n")]);
    check_runs(&room, &[("usage", 1, "there is no ledger in elsewhere")]);
    room.write("elsewhere/ledger.db", "this is no database, and much too short for one");
    assert_eq!(room.run("usage").code, 1);
    assert_eq!(room.run("usage --json").out, "", "no answer is better than a wrong one");
}
