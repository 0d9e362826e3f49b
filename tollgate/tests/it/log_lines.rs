//! The lines of flows: which ones the settings of `[log]` give them.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Shutdown, SocketAddr, TcpStream};

use serde_json::{Value, json};

use crate::harness::{Gateway, LOCAL_USER, LOG, eventually};
use crate::origin::{Origin, Reply, ok};
use crate::peers::{Destination, ask, check_echo, connect_request, read_all, tunnel};

/// A configuration with these settings of `[log]`.
fn with_log(settings: &str) -> String {
    format!("{LOG}{settings}{LOCAL_USER}")
}

/// The events of this client's lines, in their order.
fn events_of(gateway: &Gateway, client: SocketAddr) -> Vec<String> {
    let client = client.to_string();
    let lines = gateway.log().into_iter().filter(|line| line["client_addr"] == client.as_str());
    lines.map(|line| line["event"].as_str().unwrap().to_owned()).collect()
}

/// Opens a tunnel, uses it, and ends it; returns the client's address.
fn use_tunnel(gateway: &Gateway, to: impl ToString) -> SocketAddr {
    let mut stream = tunnel(gateway, to);
    check_echo(&mut stream, b"some bytes");
    end(stream)
}

/// Ends a tunnel in order.
fn end(mut stream: TcpStream) -> SocketAddr {
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut stream), b"");
    stream.local_addr().unwrap()
}

#[test]
fn short_tunnel_has_one_line_with_every_field() {
    let destination = Destination::echo();
    let gateway = Gateway::local("");
    let port = destination.address.port();
    let client = use_tunnel(&gateway, format!("localhost:{port}"));
    let line = gateway.await_close_line(client);
    assert_eq!(events_of(&gateway, client), ["close"]);
    let expected = json!({
        "user": "me", "listener": gateway.listeners[0].to_string(), "client_addr": client.to_string(),
        "protocol": "http_connect", "requested_host": "localhost", "requested_port": port,
        "resolved_ip": "127.0.0.1", "rule": "@here[0] localhost", "decision": "allow",
        "upstream_tx": 10, "client_tx": 10, "close_reason": "client_closed",
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&line[name], value, "{name} in {line}");
    }
    for name in ["dns_ms", "connect_ms", "duration_ms"] {
        assert!(line[name].is_number(), "{name} in {line}");
    }
}

#[test]
fn long_tunnel_has_its_decision_line_while_open() {
    let destination = Destination::echo();
    let gateway = Gateway::start(&with_log("long = \"100ms\"\n"));
    let mut stream = tunnel(&gateway, destination.address);
    let client = stream.local_addr().unwrap();
    let decision = gateway.await_log_line("the decision", |line| line["event"] == "decision");
    assert_eq!((&decision["decision"], &decision["reason"]), (&json!("allow"), &json!("allowed")));
    assert!(decision["duration_ms"].as_f64().unwrap() >= 100.0, "{decision}");
    check_echo(&mut stream, b"it goes on");
    end(stream);
    let close = gateway.await_close_line(client);
    assert_eq!(events_of(&gateway, client), ["decision", "close"]);
    for (name, value) in decision.as_object().unwrap() {
        if !["event", "ts", "reason", "duration_ms"].contains(&name.as_str()) {
            assert_eq!(&close[name], value, "{name} in {close}");
        }
    }
}

/// The one line of a plain request is that of its end, however long it takes (decision 0020).
#[test]
fn long_request_has_one_line() {
    let gateway = Gateway::start(&with_log("long = \"100ms\"\n"));
    let beside = Destination::echo();
    let held = tunnel(&gateway, beside.address);
    // The origin responds once the tunnel beside the request has proved to be a long one.
    let path = gateway.path("log.jsonl");
    let origin = Origin::start(move |_| {
        eventually("a later tunnel is a long one", || {
            fs::read_to_string(&path).unwrap().contains("\"decision\"")
        });
        Reply::Respond(ok("late"))
    });
    let request = origin.ask("GET", "/", "Connection: close\r\n");
    let (stream, response) = ask(&gateway, request);
    assert_eq!(response.status, 200);
    let client = stream.local_addr().unwrap();
    gateway.await_close_line(client);
    assert_eq!(events_of(&gateway, client), ["close"]);
    drop(held);
}

/// A kill leaves no close line. A long flow has its decision line by then, and a short one is in the ledger.
#[test]
fn killed_process_has_logged_its_long_flows() {
    let destination = Destination::echo();
    let mut gateway = Gateway::start(&with_log("long = \"2s\"\n"));
    let long = tunnel(&gateway, destination.address);
    gateway.await_log_line("the decision", |line| line["event"] == "decision");
    let mut short = tunnel(&gateway, destination.address);
    check_echo(&mut short, b"the flow is open");
    gateway.kill();
    assert_eq!(events_of(&gateway, long.local_addr().unwrap()), ["decision"]);
    assert!(gateway.events("close").is_empty());
    drop((long, short));
    let gateway = gateway.restart();
    eventually("the ledger has both", || gateway.usage().0 == 2);
}

#[test]
fn log_may_hold_denials_alone() {
    let (destination, origin) = (Destination::echo(), Origin::responding(ok("")));
    let settings = "decisions = \"denied\"\ncloses = \"none\"\nlong = \"100ms\"\n";
    let mut gateway = Gateway::start(&with_log(settings));
    use_tunnel(&gateway, destination.address);
    let request = origin.ask("GET", "/", "Connection: close\r\n");
    assert_eq!(ask(&gateway, request).1.status, 200);
    assert_eq!(ask(&gateway, connect_request("192.0.2.1:443")).1.status, 403);
    gateway.await_metric("tollgate_log_flows_left_out_total", 2.0);
    gateway.stop();
    assert_eq!(gateway.usage().0, 2);
    let log = gateway.log();
    let lines: Vec<_> = log.iter().filter(|line| line["event"] != "message").collect();
    let denials: Vec<_> = lines.iter().filter(|line| line["event"] == "decision").collect();
    assert_eq!((denials.len(), &denials[0]["reason"]), (1, &json!("no_rule")));
    let left_out = lines.iter().filter(|line| line["event"] == "left_out");
    let counts = left_out.map(|line| {
        assert_eq!(line["reason"], "closes", "{line}");
        line["count"].as_u64().unwrap()
    });
    assert_eq!(counts.sum::<u64>(), 2);
    assert!(!log.iter().any(|line| line["event"] == "close"));
}

#[test]
fn reload_takes_no_line_from_open_flows() {
    let destination = Destination::echo();
    let gateway = Gateway::start(&with_log("decisions = \"all\"\n"));
    let denials_alone = with_log("decisions = \"denied\"\ncloses = \"none\"\nsample = 1000000\n");
    let with_both = tunnel(&gateway, destination.address);
    gateway.await_log_line("the decision", |line| line["event"] == "decision");
    gateway.reload(&denials_alone);
    let with_none = use_tunnel(&gateway, destination.address);
    let with_close = tunnel(&gateway, destination.address);
    let with_both = end(with_both);
    gateway.await_close_line(with_both);
    gateway.reload(&with_log("long = \"100ms\"\n"));
    let with_close = end(with_close);
    let close = gateway.await_close_line(with_close);
    assert!(close["connect_ms"].is_number() && close["sample"].is_null(), "{close}");
    let reloaded = gateway.await_log_line("a reload", |line| line["text"] == "configuration reloaded");
    assert_eq!(reloaded["needs_restart"], "");
    let events = [with_both, with_none, with_close].map(|client| events_of(&gateway, client));
    assert_eq!(events, [vec!["decision", "close"], vec![], vec!["close"]]);
}

#[test]
fn sample_has_whole_flows_and_counts_the_others() {
    const FLOWS: u64 = 120;
    const SAMPLE: u64 = 3;
    let (destination, origin) = (Destination::echo(), Origin::responding(ok("")));
    let settings = format!("decisions = \"all\"\nsample = {SAMPLE}\n");
    let mut gateway = Gateway::start(&with_log(&settings));
    for _ in 0..FLOWS / 2 {
        use_tunnel(&gateway, destination.address);
        ask(&gateway, origin.ask("GET", "/", "Connection: close\r\n"));
        assert_eq!(ask(&gateway, connect_request("192.0.2.1:443")).1.status, 403);
    }
    gateway.stop();
    assert_eq!(gateway.usage().0, FLOWS);
    let log = gateway.log();
    let mut by_id: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for line in log.iter().filter(|line| line["decision"] == "allow") {
        assert_eq!(line["sample"], SAMPLE, "{line}");
        by_id.entry(line["id"].as_str().unwrap()).or_default().push(line);
    }
    for lines in by_id.values() {
        let events: Vec<_> = lines.iter().map(|line| line["event"].as_str().unwrap()).collect();
        match lines[0]["protocol"].as_str() {
            Some("http") => assert_eq!(events, ["close"]),
            _ => assert_eq!(events, ["decision", "close"]),
        }
    }
    let left_out: u64 = log
        .iter()
        .filter(|line| line["event"] == "left_out")
        .map(|line| {
            assert_eq!(line["reason"], "sample", "{line}");
            line["count"].as_u64().unwrap()
        })
        .sum();
    assert_eq!(by_id.len() as u64 + left_out, FLOWS);
    assert!(!by_id.is_empty() && left_out > 0, "one of 10^20 runs has none");
    let denials: Vec<_> = log.iter().filter(|line| line["decision"] == "deny").collect();
    assert_eq!(denials.len() as u64, FLOWS / 2);
    assert!(denials.iter().all(|line| line["sample"].is_null()), "denials are not sampled");
}
