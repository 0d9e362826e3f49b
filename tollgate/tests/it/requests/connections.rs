//! Connections: which ones are reused after a request, for which client, and how they end at a bad time.

use std::io::Write;
use std::net::{Shutdown, TcpListener};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;

use rustix::process::Signal;

use crate::harness::{Gateway, TestDir, eventually, with_timeouts};
use crate::origin::{Origin, Reply, ask_once, exchange, ok, read_head, read_response_to, request_to};
use crate::peers::{Destination, basic, check_ended, connect_request, read_all, read_until_reset};

#[test]
fn upstream_is_reused_for_one_client_target_and_user() {
    let (first, second) = (Origin::responding(ok("first")), Origin::responding(ok("second")));
    let dir = TestDir::new("");
    dir.add_user("ann", "correct horse", "--allow 127.0.0.0/8");
    dir.add_user("ben", "battery staple", "--allow 127.0.0.0/8");
    let gateway = Gateway::start_in(dir);
    let as_ann = &format!("Proxy-Authorization: {}\r\n", basic("ann", "correct horse"));
    let as_ben = &format!("Proxy-Authorization: {}\r\n", basic("ben", "battery staple"));
    let (mut one, mut other) = (gateway.connect(), gateway.connect());
    for _ in 0..3 {
        assert_eq!(exchange(&mut one, first.ask("GET", "/", as_ann)).text(), "first");
    }
    assert_eq!(first.accepted(), 1, "the same client, destination and user");
    assert_eq!(exchange(&mut other, first.ask("GET", "/", as_ann)).text(), "first");
    assert_eq!(first.accepted(), 2, "another client");
    assert_eq!(exchange(&mut one, first.ask("GET", "/", as_ben)).text(), "first");
    assert_eq!(first.accepted(), 3, "another user");
    assert_eq!(exchange(&mut one, second.ask("GET", "/", as_ben)).text(), "second");
    assert_eq!(exchange(&mut one, first.ask("GET", "/", as_ben)).text(), "first");
    assert_eq!((first.accepted(), second.accepted()), (4, 1), "there and back again");
    gateway.await_metric("tollgate_sessions_resting", 2.0);
    let seen = first.next();
    assert!(!seen.head.to_ascii_lowercase().contains("proxy-"), "{}", seen.head);
}

#[test]
fn every_request_needs_its_own_credentials() {
    let origin = Origin::responding(ok("hello"));
    let dir = TestDir::new("");
    dir.add_user("ann", "correct horse", "--allow 127.0.0.0/8");
    let gateway = Gateway::start_in(dir);
    let credentials = format!("Proxy-Authorization: {}\r\n", basic("ann", "correct horse"));
    let known = origin.ask("GET", "/1", &credentials);
    let unknown = origin.ask("GET", "/2", "");
    let mut stream = gateway.connect();
    assert_eq!(exchange(&mut stream, &unknown).status, 407);
    assert_eq!(exchange(&mut stream, &known).text(), "hello", "the same connection, now with credentials");
    stream.write_all(format!("{known}{unknown}{known}").as_bytes()).unwrap();
    let mut next = || read_response_to("GET", &mut stream).status;
    assert_eq!((next(), next(), next()), (200, 407, 200));
    let paths = (0..3).map(|_| origin.next().head.split(' ').nth(1).unwrap().to_owned());
    assert!(paths.eq(["/1"; 3]) && origin.has_no_request());
}

#[test]
fn ended_upstream_is_not_reused() {
    let (ended, has_ended) = channel();
    let destination = Destination::start(move |mut stream| {
        read_head(&mut stream).unwrap();
        stream.write_all(&ok("hello")).unwrap();
        drop(stream);
        ended.send(()).unwrap();
    });
    let mut gateway = Gateway::local("");
    let mut stream = gateway.connect();
    let request = request_to(destination.address, "POST", "/", "Content-Length: 0\r\n");
    for _ in 0..5 {
        // A POST is not repeated: sent to an ended connection, it would fail.
        assert_eq!(exchange(&mut stream, &request).text(), "hello");
        has_ended.recv().unwrap();
    }
    drop(stream);
    gateway.stop();
    assert_eq!(gateway.requests(), 5);
}

/// Regression: a body's last read requested exactly the rest and got it, and the gateway did not check for
/// further bytes: every response above 16 KiB cost its origin a connection. Now it queries the socket.
#[test]
fn upstream_is_kept_after_a_response_of_any_length() {
    for length in [0, 5, 16 * 1024, 64 * 1024, 100_000] {
        for cut in [0, 1, length / 2, length] {
            let body = "x".repeat(length);
            let destination = Destination::start(move |mut stream| {
                while read_head(&mut stream).is_some() {
                    let response = ok(&body);
                    let (first, second) = response.split_at(response.len() - cut);
                    stream.write_all(first).unwrap();
                    std::thread::yield_now();
                    stream.write_all(second).unwrap();
                }
            });
            let gateway = Gateway::local("");
            let mut stream = gateway.connect();
            let address = destination.address;
            let request = request_to(address, "GET", "/", "");
            for _ in 0..4 {
                assert_eq!(exchange(&mut stream, &request).body.len(), length);
            }
            assert_eq!(destination.accepted(), 1, "{length} bytes, the last {cut} of them delayed");
        }
    }
}

/// Regression on the client's side: behind a body in its own segment, or a head that filled its buffer to the
/// last byte, a connection waited for a request instead of becoming idle, and got a 408 for not sending one.
#[test]
fn connection_is_idle_after_a_request_of_any_length() {
    let origin = Origin::responding(ok("hello"));
    let gateway = Gateway::local("");
    let mut streams = Vec::new();
    for length in [1024, 2048, 4096] {
        let without = origin.ask("GET", "/", "X: \r\n").len();
        let mut stream = gateway.connect();
        let request = origin.ask("GET", "/", &format!("X: {}\r\n", "x".repeat(length - without)));
        assert_eq!(request.len(), length);
        assert_eq!(exchange(&mut stream, request).text(), "hello");
        streams.push(stream);
    }
    for length in [1, 5, 70_000] {
        let mut stream = gateway.connect();
        stream
            .write_all(origin.ask("PUT", "/", &format!("Content-Length: {length}\r\n")).as_bytes())
            .unwrap();
        // The head was forwarded, so the body arrives separately.
        eventually("the head arrives", || origin.accepted() == streams.len() as u64 + 1);
        assert_eq!(exchange(&mut stream, vec![b'x'; length]).text(), "hello");
        streams.push(stream);
    }
    gateway.await_metric("tollgate_sessions_resting", 6.0);
    assert_eq!(gateway.metric("tollgate_handshakes_active"), Some(0.0));
}

/// Regression: pipelined requests that are refused at once were served in one task poll: a client that kept
/// the buffers full occupied the thread. Now the task yields after each.
#[test]
fn pipelined_refusals_yield_to_other_tasks() {
    const REQUESTS: usize = 2000;
    let gateway = Gateway::local("[threads]\nreactors = 1\n");
    let passes = || gateway.metric("tollgate_reactor_turns_total").unwrap();
    let before = passes();
    let refused = request_to("192.0.2.1", "GET", "/", "");
    let mut stream = gateway.connect();
    let mut sender = stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || sender.write_all(refused.repeat(REQUESTS).as_bytes()).unwrap());
    for _ in 0..REQUESTS {
        assert_eq!(read_response_to("GET", &mut stream).status, 403);
    }
    sending.join().unwrap();
    assert!(passes() - before >= REQUESTS as f64 - 1.0, "{} turns", passes() - before);
}

/// An origin that reads a second request on a connection and closes it without a response.
fn closing_origin() -> (Destination, &'static AtomicU64) {
    let requests: &AtomicU64 = Box::leak(Box::default());
    let destination = Destination::start(|mut stream| {
        read_head(&mut stream).unwrap();
        requests.fetch_add(1, Ordering::SeqCst);
        stream.write_all(&ok("hello")).unwrap();
        if read_head(&mut stream).is_some() {
            requests.fetch_add(1, Ordering::SeqCst);
        }
    });
    (destination, requests)
}

#[test]
fn only_idempotent_requests_are_retried() {
    for (method, status, arrived) in [("GET", 200, 3), ("POST", 502, 2)] {
        let (destination, requests) = closing_origin();
        let mut gateway = Gateway::local("");
        let mut stream = gateway.connect();
        let address = destination.address;
        let ask = |method: &str| request_to(address, method, "/", "");
        assert_eq!(exchange(&mut stream, ask("GET")).text(), "hello");
        let response = exchange(&mut stream, ask(method));
        assert_eq!(response.status, status, "{method}: {response:?}");
        assert_eq!(requests.load(Ordering::SeqCst), arrived, "{method}");
        drop(stream);
        gateway.stop();
        assert_eq!(gateway.requests(), 2, "a request counts once, repeated or not");
    }
}

#[test]
fn post_does_not_reuse_a_long_idle_upstream() {
    let (destination, requests) = closing_origin();
    let gateway = Gateway::local("");
    let mut stream = gateway.connect();
    let ask = |method| request_to(destination.address, method, "/", "");
    assert_eq!(exchange(&mut stream, ask("GET")).text(), "hello");
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert_eq!(exchange(&mut stream, ask("POST")).text(), "hello");
    assert_eq!((requests.load(Ordering::SeqCst), destination.accepted()), (2, 2));
}

#[test]
fn origin_close_without_a_response_is_a_502() {
    let destination = Destination::start(|mut stream| {
        read_head(&mut stream).unwrap();
    });
    let gateway = Gateway::local("");
    let address = destination.address;
    let response = ask_once(&gateway, request_to(address, "GET", "/", ""));
    assert_eq!(response.status, 502);
    assert_eq!(response.header("Proxy-Status"), Some("tollgate; error=connection_terminated"));
    assert_eq!(destination.accepted(), 1, "a new connection is not retried");
    let line = gateway.await_log_line("the end", |line| line["event"] == "close");
    assert_eq!((&line["close_reason"], &line["status"]), (&"upstream_reset".into(), &502.into()));
}

#[test]
fn half_closed_client_still_gets_its_response() {
    let origin = Origin::start(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        Reply::Respond(ok("late"))
    });
    let gateway = Gateway::local("");
    let mut stream = gateway.connect();
    stream.write_all(origin.get("/").as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert!(read_all(&mut stream).ends_with(b"\r\n\r\nlate"));
}

#[test]
fn client_reset_resets_the_origin() {
    let (requested, was_requested) = channel();
    let (ended, has_ended) = channel();
    let destination = Destination::start(move |mut stream| {
        read_head(&mut stream).unwrap();
        requested.send(()).unwrap();
        check_ended(&mut stream, true);
        ended.send(()).unwrap();
    });
    let gateway = Gateway::local("");
    let address = destination.address;
    let mut stream = gateway.connect();
    stream.write_all(request_to(address, "GET", "/", "").as_bytes()).unwrap();
    was_requested.recv().unwrap();
    let client = stream.local_addr().unwrap();
    crate::peers::reset(stream);
    has_ended.recv().expect("the origin's connection was reset");
    gateway.check_closed(client, "client_reset");
}

#[test]
fn truncated_request_body_resets_the_origin() {
    for (lines, part) in
        [("Content-Length: 9\r\n", "part"), ("Transfer-Encoding: chunked\r\n", "4\r\npart\r\n")]
    {
        let (ended, has_ended) = channel();
        let destination = Destination::start(move |mut stream| {
            read_head(&mut stream).unwrap();
            read_until_reset(&mut stream);
            ended.send(()).unwrap();
        });
        let gateway = Gateway::local("");
        let mut stream = gateway.connect();
        let address = destination.address;
        let request = request_to(address, "POST", "/", lines) + part;
        stream.write_all(request.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        has_ended.recv().expect("the origin's connection was reset");
        gateway.check_closed(stream.local_addr().unwrap(), "client_reset");
    }
}

#[test]
fn bytes_after_the_last_request_reach_no_origin() {
    let origin = Origin::responding(ok("hello"));
    let gateway = Gateway::local("");
    let last =
        [origin.ask("GET", "/last", "Connection: close\r\n"), origin.get("/last").replace("/1.1", "/1.0")];
    for last in last {
        let mut stream = gateway.connect();
        stream.write_all(format!("{last}{}", origin.get("/behind")).as_bytes()).unwrap();
        let response = read_response_to("GET", &mut stream);
        assert_eq!((response.text(), response.header("Connection")), ("hello", Some("close")));
        assert_eq!(read_all(&mut stream), b"");
        assert!(origin.next().head.starts_with("GET /last "));
    }
    assert!(origin.has_no_request());
}

#[test]
fn connect_after_a_request_opens_a_tunnel() {
    let (origin, echo) = (Origin::responding(ok("hello")), Destination::echo());
    let mut gateway = Gateway::local("");
    let mut stream = gateway.connect();
    assert_eq!(exchange(&mut stream, origin.get("/")).text(), "hello");
    stream.write_all(connect_request(&echo.address.to_string()).as_bytes()).unwrap();
    assert_eq!(read_response_to("HEAD", &mut stream).status, 200);
    crate::peers::check_echo(&mut stream, b"in a tunnel now");
    drop(stream);
    gateway.stop();
    assert_eq!(gateway.usage().0, 2);
}

#[test]
fn drain_answers_pending_requests_then_closes() {
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    let origin = Origin::start(move |request| {
        if request.head.contains("/slow") {
            held.lock().unwrap().recv().unwrap();
        }
        Reply::Respond(ok("hello"))
    });
    let mut gateway = Gateway::local("");
    let (mut idle, mut busy) = (gateway.connect(), gateway.connect());
    assert_eq!(exchange(&mut idle, origin.get("/")).text(), "hello");
    origin.next();
    busy.write_all(origin.get("/slow").as_bytes()).unwrap();
    eventually("the request is under way", || gateway.metric("tollgate_connections_active") == Some(1.0));
    gateway.signal(Signal::TERM);
    check_ended(&mut idle, false);
    release.send(()).unwrap();
    let response = read_response_to("GET", &mut busy);
    assert_eq!((response.text(), response.header("Connection")), ("hello", Some("close")));
    check_ended(&mut busy, false);
    assert_eq!(gateway.wait(), 0);
    assert_eq!(gateway.usage().0, 2);
}

#[test]
fn removed_user_loses_the_pending_request() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let gateway = Gateway::local("");
    let mut stream = gateway.connect();
    stream.write_all(request_to(address, "GET", "/", "").as_bytes()).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    let mut accepted = with_timeouts(accepted);
    read_head(&mut accepted).unwrap();
    let client = stream.local_addr().unwrap();
    gateway.reload("");
    check_ended(&mut stream, true);
    check_ended(&mut accepted, true);
    gateway.check_closed(client, "policy_changed");
}

#[test]
fn new_configuration_applies_to_the_next_request() {
    let origin = Origin::responding(ok("hello"));
    let gateway = Gateway::local("");
    let mut stream = gateway.connect();
    assert_eq!(exchange(&mut stream, origin.get("/")).status, 200);
    gateway.reload("[[user]]\nname = \"me\"\nfrom = [\"127.0.0.1/32\"]\nallow = [\"192.0.2.0/24\"]\n");
    let response = exchange(&mut stream, origin.get("/"));
    assert_eq!(response.status, 403, "{response:?}");
}

/// A client that always sends its next request before the response has no idle connection.
#[test]
fn new_configuration_applies_to_pipelined_requests() {
    let (requested, was_requested) = channel();
    let (go, may_go) = channel();
    let may_go = Mutex::new(may_go);
    let destination = Destination::start(move |mut stream| {
        read_head(&mut stream).unwrap();
        requested.send(()).unwrap();
        may_go.lock().unwrap().recv().unwrap();
        stream.write_all(&ok("hello")).unwrap();
        read_head(&mut stream);
    });
    let gateway = Gateway::local("");
    let mut stream = gateway.connect();
    let request = request_to(destination.address, "GET", "/", "");
    stream.write_all(request.repeat(2).as_bytes()).unwrap();
    was_requested.recv().unwrap();
    gateway.reload("[[user]]\nname = \"me\"\nfrom = [\"127.0.0.1/32\"]\nallow = [\"192.0.2.0/24\"]\n");
    go.send(()).unwrap();
    assert_eq!(read_response_to("GET", &mut stream).text(), "hello");
    assert_eq!(read_response_to("GET", &mut stream).status, 403);
}

/// A client without a user stays a handshake, and evicts no user's connection.
#[test]
fn unknown_client_evicts_no_user() {
    let origin = Origin::responding(ok("hello"));
    let dir = TestDir::new("[limits]\nconnections = 2\n[threads]\nreactors = 1\n");
    dir.add_user("ann", "correct horse", "--allow 127.0.0.0/8");
    let gateway = Gateway::start_in(dir);
    let credentials = format!("Proxy-Authorization: {}\r\n", basic("ann", "correct horse"));
    let mut known: Vec<_> = (0..2).map(|_| gateway.connect()).collect();
    for stream in &mut known {
        assert_eq!(exchange(stream, origin.ask("GET", "/", &credentials)).text(), "hello");
    }
    gateway.await_metric("tollgate_sessions_resting", 2.0);
    let mut unknown = gateway.connect();
    assert_eq!(exchange(&mut unknown, origin.get("/")).status, 407);
    // The response arrives before its task has finished and updated the metrics.
    gateway.await_metric("tollgate_handshakes_active", 1.0);
    for stream in &mut known {
        assert_eq!(exchange(stream, origin.ask("GET", "/", &credentials)).text(), "hello");
    }
}

#[test]
fn idle_connections_are_evicted_for_new_requests() {
    let (origin, echo) = (Origin::responding(ok("hello")), Destination::echo());
    let gateway = Gateway::local("[limits]\nconnections = 3\n[threads]\nreactors = 1\n");
    let mut idle: Vec<_> = (0..3).map(|_| gateway.connect()).collect();
    for stream in &mut idle {
        assert_eq!(exchange(stream, origin.get("/")).text(), "hello");
    }
    gateway.await_metric("tollgate_sessions_resting", 3.0);
    let mut tunnel = crate::peers::tunnel(&gateway, echo.address);
    crate::peers::check_echo(&mut tunnel, b"there is a permit");
    check_ended(&mut idle[0], false);
    assert_eq!(exchange(&mut idle[2], origin.get("/")).text(), "hello");
}
