//! Bodies: complete, in both directions, with any framing and segmentation.

use std::io::{Read, Write};
use std::thread;

use crate::harness::{Gateway, eventually};
use crate::origin::{Origin, Reply, exchange, ok, read_head, read_response_to, request_to};
use crate::peers::{Destination, check_echo, check_ended, pattern, read_exactly};

const LARGE: usize = 12_345_678;

/// The bytes in chunks of odd sizes.
fn chunked(bytes: &[u8]) -> Vec<u8> {
    let mut framed = Vec::new();
    for (number, piece) in bytes.chunks(70_001).enumerate() {
        let size =
            if number % 2 == 0 { format!("{:x}", piece.len()) } else { format!("{:05X}", piece.len()) };
        framed.extend(size.as_bytes());
        framed.extend(b"\r\n");
        framed.extend(piece);
        framed.extend(b"\r\n");
    }
    framed.extend(b"0\r\n\r\n");
    framed
}

#[test]
fn large_bodies_are_billed_exactly_in_both_framings() {
    let bytes = pattern(7, LARGE);
    let framed = chunked(&bytes);
    let responses = [
        [format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n").as_bytes(), &bytes].concat(),
        [&b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"[..], &framed].concat(),
    ];
    let origin = Origin::start(move |request| {
        Reply::Respond(responses[usize::from(request.head.contains("chunked"))].clone())
    });
    let mut gateway = Gateway::local("");
    let mut stream = gateway.connect();
    let (mut up, mut down) = (0, 0);
    for (lines, sent) in [
        (format!("Content-Length: {LARGE}\r\n"), &bytes),
        ("Transfer-Encoding: chunked\r\n".to_owned(), &framed),
    ] {
        let request = [origin.ask("POST", "/", &lines).as_bytes(), sent].concat();
        let response = exchange(&mut stream, request);
        let arrived = origin.next();
        assert!(arrived.body == *sent && response.body == *sent, "both bodies arrive unchanged");
        up += arrived.head.len() + arrived.body.len();
        down += response.head.len() + response.body.len();
    }
    drop(stream);
    gateway.stop();
    let (_, billed_up, billed_down) = gateway.usage();
    assert_eq!((gateway.requests(), billed_up, billed_down), (2, up as u64, down as u64));
}

#[test]
fn request_is_unchanged_by_segmentation() {
    let origin = Origin::responding(ok("hello"));
    let gateway = Gateway::local("");
    let lines = "Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n";
    let body = "4;name=\"value\"\r\nwiki\r\n00A\r\npedia in c\r\n0\r\nX-Sum:  42 \r\n\r\n";
    let request = origin.ask("PUT", "/", lines) + body;
    // Trailers are forwarded as they are; a chunk extension is removed.
    let expected = b"4\r\nwiki\r\n00A\r\npedia in c\r\n0\r\nX-Sum:  42 \r\n\r\n";
    let mut stream = gateway.connect();
    for cut in (1..request.len()).step_by(3) {
        let (first, second) = request.as_bytes().split_at(cut);
        stream.write_all(first).unwrap();
        thread::yield_now();
        assert_eq!(exchange(&mut stream, second).text(), "hello");
        assert_eq!(origin.next().body, expected, "cut at {cut}");
    }
    for byte in request.as_bytes() {
        stream.write_all(&[*byte]).unwrap();
    }
    assert_eq!(read_response_to("PUT", &mut stream).text(), "hello");
    assert_eq!(origin.next().body, expected);
}

#[test]
fn expect_100_continue_is_forwarded() {
    let destination = Destination::start(|mut stream| {
        let head = read_head(&mut stream).unwrap();
        assert!(head.contains("\r\nExpect: 100-continue\r\n"));
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap();
        assert_eq!(read_exactly(&mut stream, 5), b"hello");
        stream.write_all(&ok("thanks")).unwrap();
    });
    let gateway = Gateway::local("");
    let mut stream = gateway.connect();
    let address = destination.address;
    let head = request_to(address, "POST", "/", "Content-Length: 5\r\nExpect: 100-continue\r\n");
    assert_eq!(exchange(&mut stream, head).status, 100);
    assert_eq!(exchange(&mut stream, "hello").text(), "thanks");
}

/// The client may send the body all the same, so the gateway can read no request behind it. Regression: the
/// response did not have `Connection: close`, and a client lost its next request.
#[test]
fn final_response_without_100_closes_the_connection() {
    let destination = Destination::start(|mut stream| {
        read_head(&mut stream).unwrap();
        stream.write_all(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 3\r\n\r\nno\n").unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let gateway = Gateway::local("");
    let mut stream = gateway.connect();
    let address = destination.address;
    let request = format!(
        "PUT http://{address}/ HTTP/1.1\r\nHost: {address}\r\nContent-Length: 5\r\n\
         Expect: 100-continue\r\n\r\n"
    );
    let response = exchange(&mut stream, request);
    assert_eq!((response.status, response.header("Connection")), (401, Some("close")));
    check_ended(&mut stream, false);
}

#[test]
fn trailers_are_forwarded_unless_connection_names_any() {
    let body = "5\r\nhello\r\n0\r\nX-Sum: 42\r\n\r\n";
    let without = "5\r\nhello\r\n0\r\n\r\n";
    let response =
        |lines: &str| format!("HTTP/1.1 200 OK\r\n{lines}Transfer-Encoding: chunked\r\n\r\n{body}");
    let gateway = Gateway::local("");
    for (lines, expected) in [("", body), ("Connection: close\r\n", body), ("Connection: x-sum\r\n", without)]
    {
        let origin = Origin::responding(response(lines));
        let request = origin.ask("PUT", "/", &format!("{lines}Transfer-Encoding: chunked\r\n"));
        let response = exchange(&mut gateway.connect(), request + body);
        assert_eq!(str::from_utf8(&origin.next().body), Ok(expected), "{lines}");
        assert_eq!(response.text(), expected, "{lines}");
    }
}

#[test]
fn close_delimited_response_is_forwarded_whole() {
    let origin = Origin::start(|request| {
        let version = if request.head.contains("/old") { "1.0" } else { "1.1" };
        let head = format!("HTTP/{version} 200 OK\r\n\r\n");
        Reply::RespondAndClose([head.as_bytes(), &pattern(3, 1_000_000)].concat())
    });
    let gateway = Gateway::local("");
    for path in ["/old", "/new"] {
        let mut stream = gateway.connect();
        let response = exchange(&mut stream, origin.get(path));
        assert_eq!(response.header("Connection"), Some("close"));
        assert!(response.body == pattern(3, 1_000_000));
    }
}

#[test]
fn response_may_precede_the_end_of_the_request() {
    let destination = Destination::start(|mut stream| {
        read_head(&mut stream).unwrap();
        let mut echoed = stream.try_clone().unwrap();
        echoed.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
        // Each chunk is echoed, which shows that it has arrived.
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            if echoed.write_all(&buffer[..count]).is_err() {
                return;
            }
        }
    });
    let mut gateway = Gateway::local("");
    let mut stream = gateway.connect();
    let address = destination.address;
    let head = request_to(address, "POST", "/", "Transfer-Encoding: chunked\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    assert!(read_head(&mut stream).unwrap().starts_with("HTTP/1.1 200 OK\r\n"));
    for round in 0..20 {
        check_echo(&mut stream, format!("5\r\nno {round:02}\r\n").as_bytes());
    }
    check_echo(&mut stream, b"0\r\n\r\n");
    drop(stream);
    gateway.stop();
    assert_eq!(gateway.usage().0, 1);
}

#[test]
fn early_response_to_an_unread_upload_is_delivered() {
    let destination = Destination::start(|mut stream| {
        read_head(&mut stream).unwrap();
        // Closed with most of the request unread: a reset follows.
        stream.write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nno\n").unwrap();
    });
    let gateway = Gateway::local("");
    let mut stream = gateway.connect();
    let address = destination.address;
    let head = request_to(address, "POST", "/", "Content-Length: 50000000\r\n");
    let mut sender = stream.try_clone().unwrap();
    let sending = thread::spawn(move || {
        // The gateway's end of the connection ends it.
        let _ = sender.write_all(head.as_bytes()).and_then(|()| sender.write_all(&vec![0; 50_000_000]));
    });
    let response = read_response_to("POST", &mut stream);
    assert_eq!((response.status, response.text()), (413, "no\n"));
    drop(stream);
    sending.join().unwrap();
    gateway.await_metric("tollgate_connections_active", 0.0);
}

/// Regression: bytes behind a chunked body were read together with it, up to 64 KiB, and held until the
/// origin responded. Now the gateway reads at most the next request's head.
#[test]
fn bytes_behind_a_body_are_read_within_a_bound() {
    const CLIENTS: usize = 200;
    let (sender, ended) = std::sync::mpsc::channel();
    let destination = Destination::start(move |mut stream| {
        read_head(&mut stream).unwrap();
        sender.send(()).unwrap();
        read_exactly(&mut stream, b"0\r\n\r\n".len());
        sender.send(()).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let gateway = Gateway::local("");
    let address = destination.address;
    let head = request_to(address, "POST", "/", "Transfer-Encoding: chunked\r\n");
    let mut streams: Vec<_> = (0..CLIENTS).map(|_| gateway.connect()).collect();
    for stream in &mut streams {
        stream.write_all(head.as_bytes()).unwrap();
        ended.recv().unwrap();
    }
    let before = gateway.memory_bytes();
    for stream in &mut streams {
        stream.write_all(&[b"0\r\n\r\n", &vec![b'x'; 100_000][..]].concat()).unwrap();
        ended.recv().unwrap();
    }
    let held = gateway.memory_bytes().saturating_sub(before) / CLIENTS as u64;
    assert!(held < 32 * 1024, "each connection holds {held} bytes more");
}

#[test]
fn slow_client_throttles_its_origin() {
    let origin = Origin::start(|_| {
        let bytes = vec![b'x'; 60_000_000];
        Reply::Respond([b"HTTP/1.1 200 OK\r\nContent-Length: 60000000\r\n\r\n", &bytes[..]].concat())
    });
    let gateway = Gateway::local("");
    let before = gateway.memory_bytes();
    let mut stream = gateway.connect();
    stream.write_all(origin.get("/").as_bytes()).unwrap();
    let sent = || gateway.metric("tollgate_bytes_total").unwrap_or(0.0);
    // It comes to a stop: neither the gateway nor the two kernels read more.
    let mut last = -1.0;
    eventually("nothing moves any more", || {
        let now = sent();
        let is_still = now == last && now > 0.0;
        last = now;
        thread::sleep(std::time::Duration::from_millis(200));
        is_still
    });
    assert!(last < 60_000_000.0, "{last}");
    let held = gateway.memory_bytes().saturating_sub(before);
    assert!(held < 4_000_000, "the gateway holds {held} bytes more");
    assert_eq!(read_response_to("GET", &mut stream).body.len(), 60_000_000);
}
