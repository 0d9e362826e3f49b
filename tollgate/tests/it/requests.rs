//! Plain HTTP requests: each is forwarded as it was parsed, answered in order, and billed in a flow with
//! others of its connection.

mod bad_responses;
mod bodies;
mod connections;
mod deadlines;
mod refusals;
mod runs;
mod upgrades;

use std::io::Write;

use crate::harness::Gateway;
use crate::origin::{Origin, Reply, ask_once, exchange, ok, read_response_to, request_to};
use crate::peers::read_all;

#[test]
fn request_is_rewritten_and_billed_as_sent() {
    let origin_response = "HTTP/1.1 200 Fine\r\nServer: it\r\nContent-Length: 5\r\nKeep-Alive: timeout=5\r\n\
                Connection: x-hop, keep-alive\r\nX-Hop: 1\r\nSet-Cookie: a\r\nset-cookie: b\r\n\r\nhello";
    let origin = Origin::responding(origin_response);
    let mut gateway = Gateway::local("");
    let (host, port) = ("LOCALHOST", origin.address.port());
    let request = format!(
        "GET http://{host}:{port}/a%20b?c=d&e HTTP/1.1\r\nUser-Agent: test\r\nHost: localhost:{port}\r\n\
         Proxy-Connection: keep-alive\r\nConnection: x-mine\r\nX-Mine: 1\r\nX-Yours: 2\r\nTE: trailers\r\n\
         Via: 1.0 other\r\nAccept: */*\r\nCookie: c\r\n\r\n"
    );
    let response = ask_once(&gateway, &request);
    let via = response.header("Via").unwrap().strip_prefix("1.1 ").unwrap().to_owned();
    assert!(via.starts_with("tollgate-"), "{via}");
    let date = response.header("Date").unwrap();
    assert!(date.len() == 29 && date.ends_with(" GMT"), "{date}");
    let expected = format!(
        "HTTP/1.1 200 Fine\r\nServer: it\r\nSet-Cookie: a\r\nset-cookie: b\r\nContent-Length: 5\r\n\
         Date: {date}\r\nVia: 1.1 {via}\r\n\r\n"
    );
    assert_eq!((response.head.as_str(), response.text()), (expected.as_str(), "hello"));
    let sent = format!(
        "GET /a%20b?c=d&e HTTP/1.1\r\nHost: localhost:{port}\r\nUser-Agent: test\r\nX-Yours: 2\r\n\
         Via: 1.0 other\r\nAccept: */*\r\nCookie: c\r\nTE: trailers\r\nConnection: TE\r\n\
         Via: 1.1 {via}\r\n\r\n"
    );
    assert_eq!(origin.next().head, sent);
    let counted = request.len() + sent.len() + origin_response.len() + expected.len() + 5;
    gateway.await_metric("tollgate_bytes_total", counted as f64);
    gateway.stop();
    assert_eq!(gateway.usage(), (1, sent.len() as u64, expected.len() as u64 + 5));
    let line = gateway.await_log_line("the end", |line| line["event"] == "close");
    let logged = (&line["protocol"], &line["method"], &line["status"], &line["close_reason"]);
    assert_eq!(logged, (&"http".into(), &"GET".into(), &200.into(), &"completed".into()));
    assert_eq!(line["client_rx"], request.len());
    assert!(gateway.events("decision").is_empty(), "a request has one line");
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let origin = Origin::start(|request| Reply::Respond(ok(request.head.split(' ').nth(1).unwrap())));
    let mut gateway = Gateway::local("");
    let mut stream = gateway.connect();
    let paths: Vec<String> = (0..200).map(|number| format!("/{number}")).collect();
    let bodied = |path: &String| {
        let lines = format!("Content-Length: {}\r\n", path.len());
        origin.ask("POST", path, &lines) + path
    };
    let requests: Vec<String> = paths.iter().map(bodied).collect();
    let mut sender = stream.try_clone().unwrap();
    let all = requests.concat();
    let sending = std::thread::spawn(move || sender.write_all(all.as_bytes()).unwrap());
    for path in &paths {
        assert_eq!(read_response_to("POST", &mut stream).text(), path);
        let request = origin.next();
        assert_eq!((request.body, request.connection), (path.clone().into_bytes(), 1));
    }
    sending.join().unwrap();
    drop(stream);
    gateway.stop();
    assert_eq!((gateway.requests(), gateway.events("close").len()), (200, 200));
}

#[test]
fn bodiless_responses_keep_the_connection() {
    let origin = Origin::start(|request| {
        let say = |response: &str| Reply::Respond(response.as_bytes().to_vec());
        match request.head.split(' ').nth(1).unwrap() {
            "/head" => say("HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"),
            "/204" => say("HTTP/1.1 204 No Content\r\n\r\n"),
            "/304" => say("HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\nETag: \"x\"\r\n\r\n"),
            "/103" => say(
                "HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            ),
            _ => Reply::Respond(ok("end")),
        }
    });
    let gateway = Gateway::local("");
    let mut stream = gateway.connect();
    let head = exchange(&mut stream, origin.ask("HEAD", "/head", ""));
    assert_eq!((head.status, head.header("Content-Length")), (200, Some("500")));
    assert_eq!(exchange(&mut stream, origin.get("/204")).header("Content-Length"), None);
    let not_modified = exchange(&mut stream, origin.get("/304"));
    assert_eq!(
        (not_modified.header("Content-Length"), not_modified.header("ETag")),
        (Some("7"), Some("\"x\""))
    );
    assert_eq!(exchange(&mut stream, origin.get("/103")).status, 103, "an interim response is forwarded");
    assert_eq!(read_response_to("GET", &mut stream).status, 200);
    assert_eq!(exchange(&mut stream, origin.get("/")).text(), "end");
    assert_eq!(origin.accepted(), 1);
}

#[test]
fn http_1_0_client_gets_an_unchunked_response() {
    let origin = Origin::start(|request| {
        let chunked =
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n6\r\n world\r\n0\r\n\r\n";
        let interim = "HTTP/1.1 102 Processing\r\n\r\n";
        let interim = if request.head.contains("/interim") { interim } else { "" };
        Reply::Respond(format!("{interim}{chunked}").into_bytes())
    });
    let gateway = Gateway::local("");
    for path in ["/", "/interim"] {
        let request =
            format!("GET http://{}{path} HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", origin.address);
        let mut stream = gateway.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let response = String::from_utf8(read_all(&mut stream)).unwrap();
        assert!(response.starts_with("HTTP/1.1 200 OK\r\nConnection: close\r\nDate: "), "{response}");
        assert!(response.ends_with("\r\n\r\nhello world"), "{response}");
        assert!(
            origin.next().head.contains("\r\nConnection: close\r\n"),
            "the client sends one request only"
        );
    }
}

#[test]
fn returning_request_is_refused_as_a_loop() {
    let origin = Origin::responding(ok("hello"));
    let gateway = Gateway::local("");
    let via = ask_once(&gateway, origin.get("/")).header("Via").unwrap().to_owned();
    origin.next();
    let response = ask_once(&gateway, origin.ask("GET", "/", &format!("Via: 1.1 a, {via} (x)\r\n")));
    assert_eq!(response.status, 508);
    assert_eq!(response.header("Proxy-Status"), Some("tollgate; error=proxy_loop_detected"));
    // It may not address the gateway itself either, whatever `Via` contains.
    let own = request_to(gateway.listeners[0], "GET", "/", "");
    assert_eq!(ask_once(&gateway, own).status, 403);
    assert!(origin.has_no_request());
}

#[test]
fn options_obeys_max_forwards() {
    let origin = Origin::responding(ok("served"));
    let gateway = Gateway::local("");
    let mut stream = gateway.connect();
    let mut ask = |path: &str, forwards: &str| exchange(&mut stream, origin.ask("OPTIONS", path, forwards));
    assert_eq!(ask("", "Max-Forwards: 2\r\n").text(), "served");
    let request = origin.next();
    assert!(request.head.starts_with("OPTIONS * HTTP/1.1\r\n"), "{}", request.head);
    assert!(request.head.contains("\r\nMax-Forwards: 1\r\n"), "{}", request.head);
    let own = ask("/", "Max-Forwards: 0\r\n");
    assert_eq!((own.status, own.text()), (200, ""));
    assert!(own.header("Allow").unwrap().contains("CONNECT"));
    assert!(origin.has_no_request());
    let unreachable = "OPTIONS http://127.0.0.1:1/ HTTP/1.1\r\nHost: 127.0.0.1:1\r\nMax-Forwards: 0\r\n\r\n";
    assert_eq!(ask_once(&gateway, unreachable).status, 200, "the gateway responds itself, without a dial");
    assert_eq!(ask("/", "").text(), "served", "the connection stays open");
}
