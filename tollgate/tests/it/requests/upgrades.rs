//! Protocol changes: a connection becomes a tunnel where both sides agree, and not a byte earlier.

use std::io::Write;

use crate::harness::Gateway;
use crate::origin::{Origin, exchange, ok, read_head, read_response_to, request_to};
use crate::peers::{Destination, check_echo, echo, read_exactly};

const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n";

#[test]
fn agreed_upgrade_becomes_a_tunnel_of_the_same_flow() {
    let switching =
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\nConnection: upgrade\r\n\r\nearly";
    let destination = Destination::start(|mut stream| {
        let head = read_head(&mut stream).unwrap();
        assert!(head.contains("\r\nUpgrade: websocket\r\n") && head.contains("\r\nConnection: Upgrade\r\n"));
        stream.write_all(switching.as_bytes()).unwrap();
        echo(stream);
    });
    let mut gateway = Gateway::local("[timeouts]\nkeep_alive = \"1s\"\n");
    let mut stream = gateway.connect();
    let address = destination.address;
    let request = request_to(address, "GET", "/chat", UPGRADE);
    // A client that does not wait: its bytes must not reach the origin before the change, and not be lost.
    stream.write_all(format!("{request}impatient").as_bytes()).unwrap();
    let response = read_response_to("GET", &mut stream);
    assert_eq!((response.status, response.header("Upgrade")), (101, Some("WebSocket")));
    assert_eq!(read_exactly(&mut stream, 14), b"earlyimpatient");
    check_echo(&mut stream, b"GET http://elsewhere/ HTTP/1.1\r\n\r\n");
    std::thread::sleep(std::time::Duration::from_millis(1500));
    check_echo(&mut stream, b"a tunnel is never idle");
    let client = stream.local_addr().unwrap();
    drop(stream);
    gateway.stop();
    let line = gateway.await_close_line(client);
    assert_eq!((&line["method"], &line["status"]), (&"GET".into(), &101.into()));
    let up = line["upstream_tx"].as_u64().unwrap();
    let down = (response.head.len() + 5 + 9 + 34 + 22) as u64;
    assert_eq!(gateway.usage(), (1, up, down));
    let received = (request.len() + 9 + 34 + 22, switching.len() + 9 + 34 + 22);
    assert_eq!((&line["client_rx"], &line["upstream_rx"]), (&received.0.into(), &received.1.into()));
}

/// Regression: aiohttp sends a proxy request with the scheme of its own URL (`ws://`), and got a 501.
#[test]
fn websocket_url_is_requested_as_http() {
    let switching = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n";
    let destination = Destination::start(|mut stream| {
        assert!(read_head(&mut stream).unwrap().starts_with("GET /chat HTTP/1.1\r\nHost: 127.0.0.1:"));
        stream.write_all(switching.as_bytes()).unwrap();
        echo(stream);
    });
    let gateway = Gateway::local("");
    let request = |lines| request_to(destination.address, "GET", "/chat", lines).replace("http://", "ws://");
    let mut stream = gateway.connect();
    assert_eq!(exchange(&mut stream, request(UPGRADE)).status, 101);
    check_echo(&mut stream, b"a message");
    let unasked = exchange(&mut gateway.connect(), request(""));
    assert!(unasked.status == 400 && unasked.text().contains("Upgrade: websocket"), "{unasked:?}");
}

#[test]
fn declined_upgrade_stays_http() {
    let origin = Origin::responding(ok("plain"));
    let gateway = Gateway::local("");
    let mut stream = gateway.connect();
    let requests = format!("{}{}", origin.ask("GET", "/1", UPGRADE), origin.get("/2"));
    stream.write_all(requests.as_bytes()).unwrap();
    for _ in 0..2 {
        assert_eq!(read_response_to("GET", &mut stream).text(), "plain");
    }
    let offers = ["Connection: Upgrade\r\nUpgrade: h2c\r\n", "Upgrade: websocket\r\n"];
    for offer in offers {
        assert_eq!(exchange(&mut stream, origin.ask("GET", "/", offer)).text(), "plain");
    }
    let heads: Vec<String> = (0..4).map(|_| origin.next().head).collect();
    let upgraded: Vec<bool> = heads.iter().map(|head| head.contains("Upgrade: ")).collect();
    assert_eq!(upgraded, [true, false, false, false]);
}

#[test]
fn unrequested_protocol_change_is_a_502() {
    let change = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n";
    let origin = Origin::responding(change);
    let gateway = Gateway::local("");
    for lines in ["", UPGRADE] {
        let response = exchange(&mut gateway.connect(), origin.ask("GET", "/", lines));
        assert_eq!(response.status, 502);
        assert_eq!(response.header("Proxy-Status"), Some("tollgate; error=http_upgrade_failed"));
    }
}
