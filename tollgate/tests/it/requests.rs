//! Plain HTTP requests: each is forwarded as it was understood, answered in its order, and a flow of its own.

mod bad_answers;
mod bodies;
mod connections;
mod deadlines;
mod refusals;
mod upgrades;

use std::io::Write;

use crate::harness::Gateway;
use crate::origin::{Origin, Reply, ask_once, exchange, ok, read_answer_to, request_to};
use crate::peers::read_all;

#[test]
fn a_request_goes_on_as_it_was_understood_and_is_billed_as_it_was_sent() {
    let said = "HTTP/1.1 200 Fine\r\nServer: it\r\nContent-Length: 5\r\nKeep-Alive: timeout=5\r\n\
                Connection: x-hop, keep-alive\r\nX-Hop: 1\r\nSet-Cookie: a\r\nset-cookie: b\r\n\r\nhello";
    let origin = Origin::saying(said);
    let mut gateway = Gateway::local("");
    let (host, port) = ("LOCALHOST", origin.address.port());
    let request = format!(
        "GET http://{host}:{port}/a%20b?c=d&e HTTP/1.1\r\nUser-Agent: test\r\nHost: localhost:{port}\r\n\
         Proxy-Connection: keep-alive\r\nConnection: x-mine\r\nX-Mine: 1\r\nX-Yours: 2\r\nTE: trailers\r\n\
         Via: 1.0 other\r\nAccept: */*\r\nCookie: c\r\n\r\n"
    );
    let answer = ask_once(&gateway, &request);
    let via = answer.header("Via").unwrap().strip_prefix("1.1 ").unwrap().to_owned();
    assert!(via.starts_with("tollgate-"), "{via}");
    let date = answer.header("Date").unwrap();
    assert!(date.len() == 29 && date.ends_with(" GMT"), "{date}");
    let expected = format!(
        "HTTP/1.1 200 Fine\r\nServer: it\r\nSet-Cookie: a\r\nset-cookie: b\r\nContent-Length: 5\r\n\
         Date: {date}\r\nVia: 1.1 {via}\r\n\r\n"
    );
    assert_eq!((answer.head.as_str(), answer.text()), (expected.as_str(), "hello"));
    let sent = format!(
        "GET /a%20b?c=d&e HTTP/1.1\r\nHost: localhost:{port}\r\nUser-Agent: test\r\nX-Yours: 2\r\n\
         Via: 1.0 other\r\nAccept: */*\r\nCookie: c\r\nTE: trailers\r\nConnection: TE\r\n\
         Via: 1.1 {via}\r\n\r\n"
    );
    assert_eq!(origin.next().head, sent);
    let counted = request.len() + sent.len() + said.len() + expected.len() + 5;
    gateway.await_metric("tollgate_bytes_total", counted as f64);
    gateway.stop();
    assert_eq!(gateway.usage(), (1, sent.len() as u64, expected.len() as u64 + 5));
    let line = gateway.logged("the end", |line| line["event"] == "close");
    let told = (&line["protocol"], &line["method"], &line["status"], &line["close_reason"]);
    assert_eq!(told, (&"http".into(), &"GET".into(), &200.into(), &"completed".into()));
    assert_eq!(line["client_rx"], request.len());
    assert!(gateway.events("decision").is_empty(), "a request has one line");
}

#[test]
fn requests_that_were_sent_at_once_are_answered_in_their_order() {
    let origin = Origin::start(|request| Reply::Say(ok(request.head.split(' ').nth(1).unwrap())));
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
        assert_eq!(read_answer_to("POST", &mut stream).text(), path);
        let request = origin.next();
        assert_eq!((request.body, request.connection), (path.clone().into_bytes(), 1));
    }
    sending.join().unwrap();
    drop(stream);
    gateway.stop();
    assert_eq!(gateway.usage().0, 200);
}

#[test]
fn answers_without_a_body_leave_the_connection_where_it_is() {
    let origin = Origin::start(|request| {
        let say = |answer: &str| Reply::Say(answer.as_bytes().to_vec());
        match request.head.split(' ').nth(1).unwrap() {
            "/head" => say("HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"),
            "/204" => say("HTTP/1.1 204 No Content\r\n\r\n"),
            "/304" => say("HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\nETag: \"x\"\r\n\r\n"),
            "/103" => say(
                "HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            ),
            _ => Reply::Say(ok("end")),
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
    assert_eq!(exchange(&mut stream, origin.get("/103")).status, 103, "an interim answer is passed on");
    assert_eq!(read_answer_to("GET", &mut stream).status, 200);
    assert_eq!(exchange(&mut stream, origin.get("/")).text(), "end");
    assert_eq!(origin.accepted(), 1);
}

#[test]
fn a_client_of_http_1_0_gets_an_answer_that_it_understands() {
    let origin = Origin::start(|request| {
        let chunked =
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n6\r\n world\r\n0\r\n\r\n";
        let interim = "HTTP/1.1 102 Processing\r\n\r\n";
        let interim = if request.head.contains("/interim") { interim } else { "" };
        Reply::Say(format!("{interim}{chunked}").into_bytes())
    });
    let gateway = Gateway::local("");
    for path in ["/", "/interim"] {
        let request =
            format!("GET http://{}{path} HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", origin.address);
        let mut stream = gateway.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let answer = String::from_utf8(read_all(&mut stream)).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\nConnection: close\r\nDate: "), "{answer}");
        assert!(answer.ends_with("\r\n\r\nhello world"), "{answer}");
        assert!(origin.next().head.contains("\r\nConnection: close\r\n"), "one request is all that comes");
    }
}

#[test]
fn a_gateway_that_forwarded_a_request_refuses_it_when_it_comes_back() {
    let origin = Origin::saying(ok("hello"));
    let gateway = Gateway::local("");
    let via = ask_once(&gateway, origin.get("/")).header("Via").unwrap().to_owned();
    origin.next();
    let answer = ask_once(&gateway, origin.ask("GET", "/", &format!("Via: 1.1 a, {via} (x)\r\n")));
    assert_eq!(answer.status, 508);
    assert_eq!(answer.header("Proxy-Status"), Some("tollgate; error=proxy_loop_detected"));
    // It may not lead to the gateway itself either, whatever stands in Via.
    let own = request_to(gateway.listeners[0], "GET", "/", "");
    assert_eq!(ask_once(&gateway, own).status, 403);
    assert!(origin.is_quiet());
}

#[test]
fn options_is_forwarded_as_far_as_the_client_wants() {
    let origin = Origin::saying(ok("served"));
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
    assert!(origin.is_quiet());
    let nobody = "OPTIONS http://127.0.0.1:1/ HTTP/1.1\r\nHost: 127.0.0.1:1\r\nMax-Forwards: 0\r\n\r\n";
    assert_eq!(ask_once(&gateway, nobody).status, 200, "the answer is ours, and nobody is asked");
    assert_eq!(ask("/", "").text(), "served", "the connection goes on");
}
