//! Runs of requests: one flow bills those of a connection, and never another user's or destination's.

use std::collections::BTreeMap;

use ledger::SqliteUsage;
use ledger::query::{Filter, FlowRow, Usage};
use serde_json::Value;

use crate::harness::{Gateway, TestDir};
use crate::origin::{Origin, exchange, ok};
use crate::peers::basic;

/// More than a test here makes.
const FLOWS_MAX: usize = 1000;

fn flows(gateway: &mut Gateway) -> Vec<FlowRow> {
    gateway.stop();
    let usage = SqliteUsage::open(&gateway.path("tollgate-data")).unwrap();
    usage.flows(&Filter::default(), FLOWS_MAX).unwrap()
}

/// Checks that the lines of each flow's requests add up to its bill; returns the lines.
#[track_caller]
fn check_lines(gateway: &Gateway, flows: &[FlowRow]) -> Vec<Value> {
    let lines = gateway.events("close");
    let mut sums: BTreeMap<String, (u64, u64, u64)> = BTreeMap::new();
    for line in &lines {
        let sum = sums.entry(line["flow_id"].as_str().unwrap().to_owned()).or_default();
        let bytes = |key: &str| line[key].as_u64().unwrap();
        *sum = (sum.0 + 1, sum.1 + bytes("upstream_tx"), sum.2 + bytes("client_tx"));
        assert_eq!(line["request_number"], sum.0, "{line}");
    }
    let billed = flows.iter().map(|flow| (format!("{:032x}", flow.id), (flow.up, flow.down)));
    let logged = sums.iter().map(|(id, (_, up, down))| (id.clone(), (*up, *down)));
    assert_eq!(billed.collect::<BTreeMap<_, _>>(), logged.collect());
    assert_eq!(sums.values().map(|sum| sum.0).sum::<u64>(), gateway.requests());
    lines
}

/// A client may change its user from one request to the next: the bytes of a request are its user's, and
/// those of the user before stay theirs.
#[test]
fn changed_credentials_bill_another_user() {
    let (first, second) = (Origin::responding(ok("first")), Origin::responding(ok("second")));
    let dir = TestDir::new("");
    dir.add_user("ann", "correct horse", "--allow 127.0.0.0/8");
    dir.add_user("ben", "battery staple", "--allow 127.0.0.0/8");
    let mut gateway = Gateway::start_in(dir);
    let line = |name, password| format!("Proxy-Authorization: {}\r\n", basic(name, password));
    let (ann, ben) = (line("ann", "correct horse"), line("ben", "battery staple"));
    let (wrong, none) = (line("ann", "wrong"), String::new());
    let mut stream = gateway.connect();
    let steps = [
        (&first, &ann, 200),
        (&first, &ann, 200),
        (&first, &ben, 200),
        (&first, &wrong, 407),
        (&first, &none, 407),
        (&first, &ann, 200),
        (&second, &ann, 200),
        (&first, &ann, 200),
    ];
    for (origin, credentials, status) in steps {
        assert_eq!(exchange(&mut stream, origin.ask("GET", "/", credentials)).status, status);
    }
    drop(stream);
    let flows = flows(&mut gateway);
    let lines = check_lines(&gateway, &flows);
    let users: Vec<_> = lines.iter().map(|line| line["user"].as_str().unwrap()).collect();
    assert_eq!(users, ["ann", "ann", "ben", "ann", "ann", "ann"]);
    for line in &lines {
        let id = line["flow_id"].as_str().unwrap();
        let flow = flows.iter().find(|flow| format!("{:032x}", flow.id) == id).unwrap();
        let logged = (line["user"].as_str(), line["requested_port"].as_u64());
        assert_eq!(logged, (Some(&*flow.user), Some(flow.port.into())), "{flow:?}");
    }
    assert!(flows.len() >= 5, "another user, a denial and another destination each end a run: {flows:#?}");
}

#[test]
fn kept_connection_is_one_row_and_survives_a_kill() {
    const REQUESTS: u64 = 20;
    let origin = Origin::responding(ok("hello"));
    let mut gateway = Gateway::local("");
    let mut stream = gateway.connect();
    let (mut up, mut down, mut last) = (0, 0, 0);
    for _ in 0..REQUESTS {
        let response = exchange(&mut stream, origin.get("/"));
        last = response.head.len() as u64 + 5;
        (up, down) = (up + origin.next().head.len() as u64, down + last);
    }
    gateway.kill();
    drop(stream);
    let mut gateway = gateway.restart();
    let flows = flows(&mut gateway);
    // The kill may cut the call that sent the last response, before its bytes are counted.
    let moved = |flow: &FlowRow| (flow.up + flow.uncertain_up, flow.down + flow.uncertain_down);
    let billed = flows.iter().map(moved).fold((0, 0), |sum, flow| (sum.0 + flow.0, sum.1 + flow.1));
    assert_eq!((billed, gateway.requests()), ((up, down), REQUESTS));
    assert!(flows.iter().all(|flow| flow.uncertain_up + flow.uncertain_down <= last), "{flows:#?}");
    assert!((flows.len() as u64) < REQUESTS, "{flows:#?}");
}

/// A user whose clients keep silent connections has all of its connections for the next request. With one
/// reactor thread, a permit is back before the next request is read.
#[test]
fn idle_runs_leave_the_user_its_connections() {
    let origin = Origin::responding(ok("hello"));
    let gateway = Gateway::local("[limits]\nconnections_per_user = 1\n[threads]\nreactors = 1\n");
    let mut streams: Vec<_> = (0..20).map(|_| gateway.connect()).collect();
    for _ in 0..2 {
        for stream in &mut streams {
            assert_eq!(exchange(stream, origin.get("/")).status, 200);
        }
    }
}
