//! Denials: the refusals of each protocol, with the rule that decided; and the requests that are admitted.

use std::io::Write;
use std::net::{Ipv4Addr, Shutdown};

use crate::harness::{Gateway, TestDir, eventually};
use crate::peers::{
    Destination, Response, ask, ask_socks, basic, check_echo, connect_from, connect_request, pattern,
    read_all, read_exactly, read_reply, read_response, silent_destination, socks_request, tunnel,
};

/// A denial by policy: the user, the destination, the error in `Proxy-Status`, and the rule if one decided.
type DenialKind<'a> = (Ipv4Addr, String, &'a str, Option<&'a str>);

const FIRST: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
const SECOND: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const THIRD: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

/// Sends a CONNECT request from `source`.
fn ask_from(gateway: &Gateway, source: Ipv4Addr, target: &str) -> Response {
    let mut stream = connect_from(source, gateway.listeners[0]);
    stream.write_all(connect_request(target).as_bytes()).unwrap();
    read_response(&mut stream)
}

/// Sends a SOCKS5 request without authentication from `source`.
fn ask_socks_from(gateway: &Gateway, source: Ipv4Addr, target: &str) -> u8 {
    let (host, port) = target.rsplit_once(':').unwrap();
    let mut stream = connect_from(source, gateway.listeners[0]);
    let request = socks_request(host.trim_matches(['[', ']']), port.parse().unwrap());
    stream.write_all(&[&[5, 1, 0][..], &request].concat()).unwrap();
    assert_eq!(read_exactly(&mut stream, 2), [5, 0]);
    read_reply(&mut stream)
}

#[track_caller]
fn check_denied(gateway: &Gateway, (source, target, error, rule): &DenialKind<'_>) {
    let response = ask_from(gateway, *source, target);
    assert_eq!(response.status, 403, "{target}: {response:?}");
    let proxy_status = match rule {
        Some(rule) => format!("\r\nProxy-Status: tollgate; error={error}; details=\"{rule}\"\r\n"),
        None => format!("\r\nProxy-Status: tollgate; error={error}\r\n"),
    };
    assert!(response.head.contains(&proxy_status), "{target}: expected{proxy_status}{response:?}");
    assert!(response.head.contains("\r\nX-Request-Id: "), "{response:?}");
    assert!(!response.head.contains("Proxy-Authenticate"), "no password helps: {response:?}");
    assert_eq!(ask_socks_from(gateway, *source, target), 2, "{target}");
}

#[test]
fn denial_has_its_reason_and_its_rule() {
    let canary = Destination::echo();
    let port = canary.address.port();
    let gateway = Gateway::start(&format!(
        r#"
[[user]]
name = "wide"
from = ["127.0.0.1/32"]
allow = ["0.0.0.0/0", "[::1]:1", "localhost"]
[[user]]
name = "narrow"
from = ["127.0.0.2/32"]
allow = ["127.0.0.0/8", "@internal"]
deny = ["127.0.0.1:{port}", "127.9.0.0/16", "[::1]"]
[[user]]
name = "named"
from = ["127.0.0.3/32"]
allow = ["*.example:443", "example.com:443"]
deny = ["no.example"]
[destinations.internal]
to = ["localhost"]
class = "internal"
"#
    ));
    let (denied, prohibited, looped) =
        ("http_request_denied", "destination_ip_prohibited", "proxy_loop_detected");
    let first_deny = format!("user:narrow/deny[0] 127.0.0.1:{port}");
    let everything = Some("user:wide/allow[0] 0.0.0.0/0");
    let cases: Vec<DenialKind<'_>> = vec![
        (FIRST, canary.address.to_string(), prohibited, everything),
        (FIRST, "10.0.0.1:443".into(), prohibited, everything),
        (FIRST, "169.254.169.254:80".into(), prohibited, everything),
        (FIRST, "0.0.0.0:443".into(), prohibited, None),
        (FIRST, "224.0.0.1:443".into(), prohibited, None),
        (FIRST, format!("[::ffff:127.0.0.1]:{port}"), prohibited, everything),
        (FIRST, format!("localhost:{port}"), prohibited, Some("user:wide/allow[2] localhost")),
        (THIRD, "nowhere.test:443".into(), denied, None),
        (THIRD, "example:443".into(), denied, None),
        (THIRD, "a.example:80".into(), denied, Some("user:named/allow[0] *.example:443")),
        (THIRD, "no.example:443".into(), denied, Some("user:named/deny[0] no.example")),
        (THIRD, canary.address.to_string(), denied, None),
        (FIRST, "[2001:db8::1]:443".into(), denied, None),
        (SECOND, canary.address.to_string(), denied, Some(&first_deny)),
        (SECOND, format!("localhost:{port}"), denied, Some("user:narrow/deny[2] [::1]")),
        (SECOND, "127.9.1.2:80".into(), denied, Some("user:narrow/deny[1] 127.9.0.0/16")),
        (THIRD, "example.com:80".into(), denied, Some("user:named/allow[1] example.com:443")),
        (THIRD, "notexample.com:443".into(), denied, None),
        (SECOND, gateway.listeners[0].to_string(), looped, None),
        (SECOND, gateway.admin.to_string(), looped, None),
    ];
    for case in &cases {
        check_denied(&gateway, case);
    }
    assert_eq!(canary.accepted(), 0, "no denied request reached it");
}

#[test]
fn internal_set_admits_its_names() {
    let destination = Destination::echo();
    let mut gateway = Gateway::local("");
    check_echo(&mut tunnel(&gateway, format!("localhost:{}", destination.address.port())), b"inside");
    gateway.stop();
    assert!(gateway.run("usage --by class --json", b"").contains("\"internal\""));
}

#[test]
fn denial_is_json_if_accepted() {
    let gateway = Gateway::local("");
    let request = "CONNECT 192.0.2.1:443 HTTP/1.1\r\nAccept: application/json\r\n\r\n";
    let (_, response) = ask(&gateway, request);
    let body: serde_json::Value = serde_json::from_str(&response.body).unwrap();
    assert_eq!((response.status, body["error"].as_str()), (403, Some("http_request_denied")));
    let id = body["request_id"].as_str().unwrap();
    let line = gateway.await_log_line("the decision", |line| line["id"] == id);
    assert_eq!((line["decision"].as_str(), line["reason"].as_str()), (Some("deny"), Some("no_rule")));
    assert_eq!(line["user"], "me");
}

#[test]
fn user_cap_is_429_and_permits_return_on_close() {
    let destination = Destination::echo();
    let gateway = Gateway::local("[limits]\nconnections_per_user = 2\n");
    let request = connect_request(&destination.address.to_string());
    for _ in 0..3 {
        let first = tunnel(&gateway, destination.address);
        let second = tunnel(&gateway, destination.address);
        let (_, response) = ask(&gateway, &request);
        assert_eq!(response.status, 429, "{response:?}");
        assert!(response.head.contains("\r\nRetry-After: 1\r\n"), "{response:?}");
        assert!(response.head.contains("error=connection_limit_reached"), "{response:?}");
        let (_, reply) = ask_socks(&gateway, &socks_request("127.0.0.1", destination.address.port()));
        assert_eq!(reply, 2);
        drop(first);
        eventually("a permit is free", || ask(&gateway, &request).1.status == 200);
        drop(second);
        gateway.await_metric("tollgate_connections_active", 0.0);
    }
}

#[test]
fn global_cap_is_503() {
    let destination = Destination::echo();
    let gateway = Gateway::local("[limits]\nconnections = 1\nhandshakes = 1\n");
    let held = tunnel(&gateway, destination.address);
    let request = connect_request(&destination.address.to_string());
    assert_eq!(ask(&gateway, &request).1.status, 503);
    assert_eq!(ask_socks(&gateway, &socks_request("127.0.0.1", destination.address.port())).1, 1);
    drop(held);
    eventually("the permit is free", || ask(&gateway, &request).1.status == 200);
}

#[test]
fn unreachable_destination_has_a_specific_error() {
    let gateway = Gateway::local("[timeouts]\nconnect = \"300ms\"\n");
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (silent, _held) = silent_destination();
    let silent = silent.local_addr().unwrap();
    let cases = [(closed, 502, "connection_refused", 5), (silent, 504, "connection_timeout", 6)];
    for (target, status, error, reply) in cases {
        let (_, response) = ask(&gateway, connect_request(&target.to_string()));
        assert_eq!(response.status, status, "{response:?}");
        assert!(response.head.contains(&format!("error={error}")), "{response:?}");
        assert_eq!(ask_socks(&gateway, &socks_request("127.0.0.1", target.port())).1, reply, "{error}");
    }
}

/// A request with credentials in `Proxy-Authorization`.
fn with_credentials(target: &str, encoded: &str) -> String {
    format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: {encoded}\r\n\r\n")
}

/// The replies to a SOCKS5 login: to the method, and to user and password.
fn socks_login(gateway: &Gateway, user: &str, secret: &str) -> (Vec<u8>, Vec<u8>) {
    let mut stream = gateway.connect();
    stream.write_all(&[5, 1, 2]).unwrap();
    let method = read_exactly(&mut stream, 2);
    let length = |text: &str| u8::try_from(text.len()).unwrap();
    let mut login = vec![1, length(user)];
    login.extend(user.as_bytes());
    login.push(length(secret));
    login.extend(secret.as_bytes());
    stream.write_all(&login).unwrap();
    (method, read_exactly(&mut stream, 2))
}

#[test]
fn passwords_and_tokens_are_accepted_others_get_407() {
    let dir = TestDir::new("[destinations.here]\nto = [\"127.0.0.0/8\"]\n");
    dir.add_user("ann", "correct horse", "--allow @here");
    dir.add_user("gone", "correct horse", "--allow @here");
    dir.run("user disable gone", b"");
    let made = dir.run("user add bot --allow @here --token --json", b"");
    let token =
        serde_json::from_str::<serde_json::Value>(&made).unwrap()["token"].as_str().unwrap().to_owned();
    let gateway = Gateway::start_in(dir);
    let destination = Destination::echo();
    let target = destination.address.to_string();

    for (user, secret) in [("ann", "correct horse"), ("bot", token.as_str()), ("ann", "correct horse")] {
        let (mut stream, response) = ask(&gateway, with_credentials(&target, &basic(user, secret)));
        assert_eq!(response.status, 200, "{user}: {response:?}");
        check_echo(&mut stream, b"authenticated");
        assert_eq!(socks_login(&gateway, user, secret), (vec![5, 2], vec![1, 0]), "{user}");
    }
    let wrong = [
        basic("ann", "wrong"),
        basic("gone", "correct horse"),
        basic("ghost", "correct horse"),
        basic("ann", &token),
        basic("bot", "correct horse"),
        basic("ann", ""),
        "Basic %%%".into(),
        "Basic YW5u".into(),
        "Bearer abc".into(),
        "Basic".into(),
    ];
    let requests = wrong.iter().map(|encoded| with_credentials(&target, encoded));
    for request in requests.chain([connect_request(&target)]) {
        let (_, response) = ask(&gateway, &request);
        assert_eq!(response.status, 407, "{request}{response:?}");
        assert!(
            response.head.contains("\r\nProxy-Authenticate: Basic realm=\"tollgate\", charset=\"UTF-8\"\r\n"),
            "{response:?}"
        );
    }
    for (user, secret) in [("ann", "wrong"), ("gone", "correct horse"), ("ghost", "correct horse")] {
        assert_eq!(socks_login(&gateway, user, secret), (vec![5, 2], vec![1, 1]), "{user}");
    }
    let mut stream = gateway.connect();
    stream.write_all(&[5, 1, 0]).unwrap();
    assert_eq!(read_all(&mut stream), [5, 0xff], "no client is admitted without authentication");
    assert_eq!(destination.accepted(), 3, "only authenticated HTTP requests reached it");
    let log_text = std::fs::read_to_string(gateway.path("log.jsonl")).unwrap() + &gateway.errors();
    assert!(!log_text.contains("correct horse") && !log_text.contains(&token), "no secret is in the log");
}

#[test]
fn wrong_passwords_from_one_source_are_throttled() {
    let dir = TestDir::new("[auth]\nfailures_per_minute = 3\n");
    dir.add_user("ann", "correct horse", "--allow 127.0.0.0/8");
    let gateway = Gateway::start_in(dir);
    let request = with_credentials("127.0.0.1:9", &basic("ann", "wrong"));
    let mut statuses: Vec<u16> = (0..6).map(|_| ask(&gateway, &request).1.status).collect();
    statuses.dedup();
    assert_eq!(statuses, [407, 429], "checked at first, then refused");
    let response = ask(&gateway, with_credentials("127.0.0.1:9", &basic("ann", "correct horse"))).1;
    assert!(response.status == 429 && response.head.contains("Retry-After: "), "{response:?}");
}

#[test]
fn unsupported_request_gets_a_helpful_text() {
    let gateway = Gateway::local("");
    let cases: &[(&str, u16, &str)] = &[
        ("GET https://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n", 501, "asked for by CONNECT"),
        ("GET ftp://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n", 501, "only http://"),
        ("GET / HTTP/1.1\r\nHost: gateway\r\n\r\n", 400, "this is a proxy, not a web server"),
        ("OPTIONS * HTTP/1.1\r\n\r\n", 405, "not allowed"),
        ("TRACE http://example.com/ HTTP/1.1\r\n\r\n", 405, "not allowed"),
        ("BREW /pot HTTP/1.1\r\n\r\n", 400, "this is a proxy"),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "HTTP/1.1"),
    ];
    for (request, status, part) in cases {
        let (_, response) = ask(&gateway, request);
        assert_eq!(response.status, *status, "{request}{response:?}");
        assert!(response.body.contains(part), "{request}{response:?}");
    }
    assert_eq!(ask_socks(&gateway, &[5, 2, 0, 1, 127, 0, 0, 1, 0, 9]).1, 7, "BIND");
    assert_eq!(ask_socks(&gateway, &[5, 3, 0, 1, 127, 0, 0, 1, 0, 9]).1, 7, "UDP ASSOCIATE");
    assert_eq!(ask_socks(&gateway, &[5, 1, 0, 2, 127, 0, 0, 1, 0, 9]).1, 8, "an unknown address type");
}

const LISTENERS: &str = r#"
[[listener]]
address = "127.0.0.2:0"
kind = "http"
[[listener]]
address = "127.0.0.3:0"
kind = "socks5"
"#;

/// Sends `bytes` to a listener, half-closes, and returns everything that it sends back.
fn send_and_read(gateway: &Gateway, listener: usize, bytes: &[u8]) -> Vec<u8> {
    let mut stream = connect_from(FIRST, gateway.listeners[listener]);
    stream.write_all(bytes).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    read_all(&mut stream)
}

#[test]
fn other_protocols_are_refused() {
    let gateway = Gateway::local(LISTENERS);
    let client_hello = [&[0x16, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3][..], &pattern(5, 190)].concat();
    let socks4 = [4, 1, 0, 80, 127, 0, 0, 1, 0];
    for listener in 0..3 {
        assert_eq!(send_and_read(&gateway, listener, &client_hello), b"", "TLS at {listener}");
        assert_eq!(
            send_and_read(&gateway, listener, &socks4),
            [0, 91, 0, 0, 0, 0, 0, 0],
            "SOCKS4 at {listener}"
        );
        assert_eq!(
            send_and_read(&gateway, listener, b"\0\xff\xfe garbage \r\n\r\n"),
            b"",
            "garbage at {listener}"
        );
    }
    assert_eq!(send_and_read(&gateway, 1, &[5, 1, 0]), b"", "SOCKS5 at an HTTP listener");
    for listener in 0..2 {
        let response = send_and_read(&gateway, listener, b"\r\nGET http://127.0.0.1:9/ HTTP/1.1\r\n\r\n");
        assert!(response.starts_with(b"HTTP/1.1 400 "), "an empty line at {listener}");
        let response = send_and_read(&gateway, listener, b"get http://127.0.0.1:9/ HTTP/1.0\r\n\r\n");
        assert!(response.starts_with(b"HTTP/1.1 502 "), "a method in small letters at {listener}");
    }
    let response =
        String::from_utf8(send_and_read(&gateway, 2, connect_request("127.0.0.1:9").as_bytes())).unwrap();
    assert!(response.starts_with("HTTP/1.1 400 "), "HTTP at a SOCKS5 listener: {response}");
    assert!(response.contains("This listener speaks SOCKS5"), "{response}");
    gateway.await_metric("tollgate_handshakes_active", 0.0);
}
