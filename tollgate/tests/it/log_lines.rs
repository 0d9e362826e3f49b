//! The lines of flows: which ones the settings of `[log]` give them, and in which files they are.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Gateway, LOCAL_USER, LOG, eventually};
use crate::origin::{Origin, Reply, ok, request_to};
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

/// The text of all files of the log, oldest first, and their greatest size.
fn rotated_log(gateway: &Gateway) -> (String, u64) {
    let path = |number: u32| match number {
        0 => gateway.path("log.jsonl"),
        _ => gateway.path(&format!("log.jsonl.{number}")),
    };
    let count = (1..).find(|number| !path(*number).exists()).unwrap();
    assert!(count > 3, "{count} files");
    let sizes = (0..count).map(|number| fs::metadata(path(number)).unwrap().len());
    let texts = (0..count).rev().map(|number| fs::read_to_string(path(number)).unwrap());
    (texts.collect(), sizes.max().unwrap())
}

/// Signals that reopen the log and reloads that change the bound come while the files are rotated. No line is
/// lost or torn; what found a full ring is counted.
#[test]
fn rotation_under_load_loses_no_line() {
    const CLIENTS: u8 = 4;
    const REQUESTS: usize = 400;
    const BOUNDS: [&str; 2] = ["64KiB", "80KiB"];
    const BOUND: u64 = 80 * 1024;
    let origin = Origin::responding(ok(""));
    let settings =
        |bound: &str| with_log(&format!("request_path = true\nsize_max = \"{bound}\"\nkeep = 1000\n"));
    let mut gateway = Gateway::start(&settings(BOUNDS[0]));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (gateway, to) = (&gateway, origin.address);
                scope.spawn(move || request_all(gateway, to, client, REQUESTS))
            })
            .collect();
        scope.spawn(|| {
            let mut round = 0;
            while !is_over.load(Ordering::SeqCst) {
                round += 1;
                gateway.signal(Signal::USR1);
                gateway.request_reload(&settings(BOUNDS[round % 2]));
                thread::yield_now();
            }
        });
        let ends: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        is_over.store(true, Ordering::SeqCst);
        ends.into_iter().for_each(|end| end.unwrap());
    });
    gateway.stop();
    let (text, size) = rotated_log(&gateway);
    assert!(size <= BOUND, "{size}");
    let (mut paths, mut dropped) = (BTreeSet::new(), 0);
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).expect("a log line is a JSON object");
        match line["event"].as_str().unwrap() {
            "close" => assert!(paths.insert(line["path"].as_str().unwrap().to_owned()), "twice: {line}"),
            "log_dropped" => dropped += line["count"].as_u64().unwrap() as usize,
            _ => {
                assert_eq!(line["event"], "message", "{line}");
                assert!(!line["text"].as_str().unwrap().starts_with("reload refused"), "{line}");
            }
        }
    }
    // A dropped line may be a message.
    let requests = usize::from(CLIENTS) * REQUESTS;
    assert!(paths.len() <= requests && paths.len() + dropped >= requests, "{} and {dropped}", paths.len());
}

/// Sends requests, each for a path of its own, on one connection.
fn request_all(gateway: &Gateway, to: SocketAddr, client: u8, requests: usize) {
    let mut stream = gateway.connect();
    let padding = "x".repeat(100);
    let path = |number: usize| format!("/{client}/{number}/{padding}");
    let sent: String = (0..requests).map(|number| request_to(to, "GET", &path(number), "")).collect();
    let mut sending = stream.try_clone().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || sending.write_all(sent.as_bytes()).unwrap());
        let (mut text, mut buffer) = (String::new(), vec![0; 1 << 16]);
        while text.matches("HTTP/1.1 ").count() < requests {
            let count = stream.read(&mut buffer).unwrap();
            assert_ne!(count, 0, "the connection stays; it responded {text}");
            text.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
        }
        assert_eq!(text.matches("HTTP/1.1 200").count(), requests, "{text}");
    });
}
