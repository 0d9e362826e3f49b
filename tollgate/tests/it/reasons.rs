//! Reasons: the log has the reason of a refusal, in more detail than the client gets.
//!
//! Before, `unauthenticated` stood for no credentials, wrong ones and a disabled user alike, without a name
//! or a destination; a malformed request had no text, `overload` did not name the resource, and a failed dial
//! was counted as a denial.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Gateway, LOCAL_USER, TestDir};
use crate::origin::Origin;
use crate::peers::{
    Destination, Response, ask, ask_socks, basic, connect_from, connect_request, read_all, read_exactly,
    read_reply, socks_request, tunnel,
};

/// A port of this machine without a listener.
fn closed_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn plain_request(to: SocketAddr) -> String {
    format!("GET http://{to}/ HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n\r\n")
}

/// The log line of the request with this response.
fn decision_line(gateway: &Gateway, response: &Response) -> Value {
    let id =
        response.head.lines().find_map(|line| line.strip_prefix("X-Request-Id: ")).expect("it has an id");
    gateway.await_log_line("the decision", |line| line["id"] == id)
}

#[track_caller]
fn check(line: &Value, expected: &Value) {
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&line[name], value, "{name} in {line}");
    }
}

fn two_users() -> Gateway {
    let dir = TestDir::new("");
    dir.add_user("ann", "correct horse", "--allow 127.0.0.0/8");
    dir.add_user("gone", "correct horse", "--allow 127.0.0.0/8");
    dir.run("user disable gone", b"");
    Gateway::start_in(dir)
}

#[test]
fn credential_failures_differ_only_in_the_log() {
    let gateway = two_users();
    let long = "x".repeat(200);
    let cases = [
        (None, "credentials_missing", Value::Null),
        (Some(basic("ann", "wrong")), "credentials_wrong", json!("ann")),
        (Some(basic("ghost\"\u{202e}", "wrong")), "credentials_wrong", json!("ghost\"\u{202e}")),
        (Some(basic(&long, "wrong")), "credentials_wrong", json!(long[..64])),
        (Some(basic("gone", "correct horse")), "user_disabled", json!("gone")),
        (Some("Basic %%%".to_owned()), "credentials_malformed", Value::Null),
    ];
    let mut responses = Vec::new();
    for (credentials, reason, name) in &cases {
        let field = credentials.as_ref().map_or(String::new(), |it| format!("Proxy-Authorization: {it}\r\n"));
        for head in ["CONNECT dest.example:7 HTTP/1.1", "GET http://dest.example:7/a?b HTTP/1.1"] {
            let fields = format!("Host: dest.example:7\r\nConnection: close\r\n{field}");
            let (_, response) = ask(&gateway, format!("{head}\r\n{fields}\r\n"));
            assert_eq!(response.status, 407, "{head}: {response:?}");
            let line = decision_line(&gateway, &response);
            let expected = json!({
                "decision": "deny", "reason": reason, "attempted_user": name, "user": Value::Null,
                "requested_host": "dest.example", "requested_port": 7,
            });
            check(&line, &expected);
            responses.push((*reason, response.body.replace(line["id"].as_str().unwrap(), "ID")));
        }
    }
    let body = |wanted: &str| responses.iter().find(|(reason, _)| *reason == wanted).unwrap().1.as_str();
    assert_eq!(body("credentials_wrong"), body("user_disabled"), "the client cannot distinguish the two");
    let malformed = gateway.await_log_line("why", |line| line["reason"] == "credentials_malformed");
    assert_eq!(malformed["text"], "the proxy credentials are not valid base64.");
}

#[test]
fn socks5_user_name_is_logged() {
    let gateway = two_users();
    for (user, secret, reason) in
        [("ann", "wrong", "credentials_wrong"), ("gone", "correct horse", "user_disabled")]
    {
        let mut stream = gateway.connect();
        stream.write_all(&[5, 1, 2]).unwrap();
        assert_eq!(read_exactly(&mut stream, 2), [5, 2]);
        let text = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
        stream.write_all(&[&[1], &text(user)[..], &text(secret)[..]].concat()).unwrap();
        assert_eq!(read_exactly(&mut stream, 2), [1, 1]);
        let client = stream.local_addr().unwrap().to_string();
        let line = gateway.await_log_line("the decision", |line| line["client_addr"] == client.as_str());
        // The target would follow the password, which was never right.
        let expected = json!({
            "decision": "deny", "reason": reason, "attempted_user": user, "protocol": "socks5",
            "requested_host": Value::Null,
        });
        check(&line, &expected);
    }
}

#[test]
fn malformed_request_is_logged_with_its_text() {
    let gateway = Gateway::local("");
    for (request, reason) in [
        ("GET / HTTP/1.1\r\nConnection: close\r\n\r\n", "malformed"),
        ("CONNECT 127.1:9 HTTP/1.1\r\n\r\n", "malformed"),
        ("CONNECT a:1 HTTP/1.1\r\nX: a\0b\r\n\r\n", "malformed"),
        ("GET ftp://a.example/ HTTP/1.1\r\nConnection: close\r\n\r\n", "unsupported"),
    ] {
        let (_, response) = ask(&gateway, request);
        let line = decision_line(&gateway, &response);
        check(&line, &json!({ "decision": "deny", "reason": reason }));
        let text = line["text"].as_str().unwrap_or_default();
        assert!(text.len() > 20 && response.body.contains(text), "{line}\n{response:?}");
    }
    let mut stream = gateway.connect();
    stream.write_all(&[0x16, 3, 1, 0, 200]).unwrap();
    assert_eq!(read_all(&mut stream), b"");
    let client = stream.local_addr().unwrap().to_string();
    let line = gateway.await_log_line("the decision", |line| line["client_addr"] == client.as_str());
    assert!(line["text"].as_str().unwrap_or_default().contains("TLS"), "{line}");
}

#[test]
fn overload_names_the_exhausted_limit() {
    let destination = Destination::echo();
    let gateway = Gateway::local("[limits]\nconnections = 1\n");
    let _held = tunnel(&gateway, destination.address);
    let (_, response) = ask(&gateway, connect_request(&destination.address.to_string()));
    assert_eq!(response.status, 503);
    let expected = json!({ "decision": "deny", "reason": "overload_connections", "user": "me" });
    check(&decision_line(&gateway, &response), &expected);
}

#[test]
fn failed_dial_is_no_denial_and_logs_addresses() {
    let gateway = Gateway::start(&format!("{LOCAL_USER}[timeouts]\nconnect = \"5s\"\n"));
    let closed = closed_port();
    let expected = json!({
        "decision": "failed", "reason": "connect_refused", "user": "me", "tried": ["127.0.0.1"],
        "requested_host": "127.0.0.1", "requested_port": closed.port(),
        "rule": "user:me/allow[0] 127.0.0.0/8",
    });
    let (_, response) = ask(&gateway, connect_request(&closed.to_string()));
    assert_eq!(response.status, 502);
    assert!(!response.head.contains("details="), "the client gets no details: {response:?}");
    let line = decision_line(&gateway, &response);
    check(&line, &expected);
    assert!(line["connect_ms"].is_number(), "{line}");
    let (_, response) = ask(&gateway, plain_request(closed));
    check(&decision_line(&gateway, &response), &expected);

    // A name with an address in each family, where the machine has both.
    let (stream, _) = ask_socks(&gateway, &socks_request("localhost", closed.port()));
    let client = stream.local_addr().unwrap().to_string();
    let line = gateway.await_log_line("the decision", |line| line["client_addr"] == client.as_str());
    assert_eq!(line["decision"], "failed", "{line}");
    assert!(line["tried"].as_array().unwrap().contains(&json!("127.0.0.1")), "{line}");

    // A denial by policy stays a denial.
    let (_, response) = ask(&gateway, connect_request("192.0.2.1:443"));
    let line = decision_line(&gateway, &response);
    check(&line, &json!({ "decision": "deny", "reason": "no_rule", "tried": Value::Null }));
}

/// Regression: a client with `socks5://` resolves names itself and requests addresses, to which rules by name
/// do not apply. It was refused, without a hint that one letter was missing.
#[test]
fn address_in_place_of_a_name_logs_a_hint() {
    let gateway = Gateway::start(
        "[[user]]\nname = \"named\"\nfrom = [\"127.0.0.1/32\"]\nallow = [\"example.com:443\"]\n\
         [[user]]\nname = \"net\"\nfrom = [\"127.0.0.2/32\"]\nallow = [\"198.51.100.0/24:443\"]\n",
    );
    let text_of = |client: SocketAddr| {
        let client = client.to_string();
        let line = gateway.await_log_line("the decision", |line| line["client_addr"] == client.as_str());
        assert_eq!(line["decision"], "deny", "{line}");
        line["text"].as_str().unwrap_or_default().to_owned()
    };
    let ask_from = |source: [u8; 4], host: &str| {
        let mut stream = connect_from(source.into(), gateway.listeners[0]);
        stream.write_all(&[&[5, 1, 0][..], &socks_request(host, 443)].concat()).unwrap();
        assert_eq!((read_exactly(&mut stream, 2), read_reply(&mut stream)), (vec![5, 0], 2), "{host}");
        text_of(stream.local_addr().unwrap())
    };
    for host in ["192.0.2.1", "2001:db8::1"] {
        let text = ask_from([127, 0, 0, 1], host);
        assert!(text.contains("`socks5h://` in place of `socks5://`"), "{host}: {text}");
    }
    assert_eq!(ask_from([127, 0, 0, 1], "example.net"), "", "the client sent the name");
    assert_eq!(ask_from([127, 0, 0, 2], "192.0.2.1"), "", "no rule by name would help");
    let (stream, response) = ask(&gateway, connect_request("192.0.2.1:443"));
    assert_eq!(response.status, 403);
    assert_eq!(text_of(stream.local_addr().unwrap()), "", "HTTP clients do not resolve, and get the text");
}

#[test]
fn paths_are_logged_on_demand_and_without_their_query() {
    let origin = Origin::responding("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    let to = origin.address;
    let gateway = Gateway::local("");
    let get = |path: &str| {
        let request = format!("GET http://{to}{path} HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n\r\n");
        let (stream, response) = ask(&gateway, request);
        let client = stream.local_addr().unwrap().to_string();
        let line = gateway.await_log_line("the request", |line| line["client_addr"] == client.as_str());
        (response.status, line["path"].clone())
    };
    assert_eq!(get("/a?b"), (200, Value::Null), "only with `request_path`");
    let file = gateway.path("tollgate.toml");
    let configuration = fs::read_to_string(&file).unwrap();
    fs::write(&file, configuration.replace("[log]\n", "[log]\nrequest_path = true\n")).unwrap();
    gateway.signal(Signal::HUP);
    let reloaded = gateway.await_log_line("the reload", |line| line["text"] == "configuration reloaded");
    assert_eq!(reloaded["needs_restart"], "");
    let long = format!("/{}", "x".repeat(300));
    let cases =
        [("/a/b?secret=1", "/a/b"), ("", "/"), ("?secret=1", "/"), ("/%0a", "/%0a"), (&long, &long[..256])];
    for (requested, logged) in cases {
        assert_eq!(get(requested), (200, json!(logged)), "{requested}");
    }
    let denied =
        "GET http://192.0.2.1/denied?secret=1 HTTP/1.1\r\nHost: 192.0.2.1\r\nConnection: close\r\n\r\n";
    let (_, response) = ask(&gateway, denied);
    assert_eq!(decision_line(&gateway, &response)["path"], "/denied");
    let log = fs::read_to_string(gateway.path("log.jsonl")).unwrap();
    assert!(!log.contains("secret"), "no query is in the log");
}
