//! Deadlines: each wait ends, and the log names its deadline.

use std::io::Write;
use std::net::{Shutdown, TcpStream};

use crate::harness::Gateway;
use crate::peers::{
    Destination, check_echo, check_ended, connect_request, pattern, read_all, read_exactly, read_reply,
    read_response, socks_request, tunnel,
};

#[test]
fn incomplete_request_gets_408() {
    let gateway = Gateway::local("[timeouts]\ngreeting = \"200ms\"\n");
    let request = connect_request("127.0.0.1:9");
    for length in [1, 7, request.len() - 1] {
        let mut stream = gateway.connect();
        stream.write_all(&request.as_bytes()[..length]).unwrap();
        assert_eq!(read_response(&mut stream).status, 408, "{length} bytes");
    }
    let sent_and_received: [(&[u8], &[u8]); 5] = [
        (b"", b""),
        (&[5], &[5, 0xff]),
        (&[5, 2, 0], &[5, 0xff]),
        (&[5, 1, 0], &[5, 0, 5, 1, 0, 1, 0, 0, 0, 0, 0, 0]),
        (&[5, 1, 2, 1, 3, b'a'], &[5, 2, 1, 1]),
    ];
    for (sent, received) in sent_and_received {
        let mut stream = gateway.connect();
        stream.write_all(sent).unwrap();
        assert_eq!(read_all(&mut stream), received, "{sent:?}");
    }
    gateway.await_metric("tollgate_handshakes_active", 0.0);
    let line = gateway.await_log_line("the decision", |line| line["reason"] == "greeting_timeout");
    assert_eq!(line["decision"], "deny");
}

#[test]
fn dripping_client_ends_at_the_same_deadline() {
    let gateway = Gateway::local("[timeouts]\ngreeting = \"300ms\"\n");
    let mut stream = gateway.connect();
    let mut dripping = stream.try_clone().unwrap();
    let dripper = std::thread::spawn(move || {
        // Never a complete head. The thread ends once the gateway has responded and closed.
        dripping.write_all(b"CONNECT 127.0.0.1:9 HTTP/1.1\r\nX: ").unwrap();
        while dripping.write_all(b"x").is_ok() {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    });
    assert_eq!(read_response(&mut stream).status, 408);
    drop(stream);
    dripper.join().unwrap();
}

/// Checks how a tunnel ends; `act` is all its traffic.
#[track_caller]
fn check_end(timeouts: &str, reason: &str, action: impl FnOnce(&mut TcpStream)) {
    let destination = Destination::start(|mut stream| {
        let received = read_exactly(&mut stream, 1);
        stream.write_all(&received).unwrap();
        if received == b"u" {
            stream.shutdown(Shutdown::Write).unwrap();
        }
        // Until the gateway closes or resets the connection.
        let _ = std::io::Read::read_to_end(&mut stream, &mut Vec::new());
        let _ = std::io::Read::read(&mut stream, &mut [0]);
        if received == b"c" {
            std::thread::park();
        }
    });
    let mut gateway = Gateway::local(&format!("[timeouts]\n{timeouts}\n"));
    let mut client = tunnel(&gateway, destination.address);
    action(&mut client);
    let line = gateway.await_close_line(client.local_addr().unwrap());
    assert_eq!((line["close_reason"].as_str(), line["upstream_tx"].as_u64()), (Some(reason), Some(1)));
    gateway.stop();
    assert_eq!(gateway.usage(), (1, 1, 1));
}

#[test]
fn silent_tunnel_ends() {
    check_end("idle = \"1s\"", "idle_timeout", |client| {
        check_echo(client, b"x");
        check_ended(client, true);
    });
}

#[test]
fn tunnel_ends_at_its_lifetime() {
    check_end("lifetime = \"1s\"", "lifetime_timeout", |client| {
        check_echo(client, b"x");
        check_ended(client, true);
    });
}

#[test]
fn half_closed_tunnel_ends_at_its_lifetime() {
    check_end("half_closed = \"10m\"\nlifetime = \"2s\"", "lifetime_timeout", |client| {
        check_echo(client, b"c");
        client.shutdown(Shutdown::Write).unwrap();
        check_ended(client, true);
    });
}

#[test]
fn tunnel_half_closed_by_client_ends() {
    check_end("half_closed = \"1s\"", "half_closed_timeout", |client| {
        check_echo(client, b"c");
        client.shutdown(Shutdown::Write).unwrap();
        check_ended(client, true);
    });
}

#[test]
fn tunnel_half_closed_by_client_under_load_ends() {
    const DOWN: usize = 30_000_000;
    let destination = Destination::start(|mut stream| {
        stream.write_all(&pattern(9, DOWN)).unwrap();
        std::thread::park();
    });
    let gateway = Gateway::local("[timeouts]\nhalf_closed = \"1s\"\n");
    let mut client = tunnel(&gateway, destination.address);
    read_exactly(&mut client, DOWN / 2);
    client.shutdown(Shutdown::Write).unwrap();
    read_exactly(&mut client, DOWN / 2);
    gateway.check_closed(client.local_addr().unwrap(), "half_closed_timeout");
}

#[test]
fn tunnel_half_closed_by_destination_ends() {
    check_end("half_closed = \"1s\"", "half_closed_timeout", |client| {
        check_echo(client, b"u");
        check_ended(client, false);
    });
}

#[test]
fn slow_handshake_does_not_delay_a_quick_one() {
    let destination = Destination::echo();
    let gateway = Gateway::local("");
    let mut slow = gateway.connect();
    slow.write_all(&[5, 1]).unwrap();
    check_echo(&mut tunnel(&gateway, destination.address), b"quick");
    slow.write_all(&[0]).unwrap();
    assert_eq!(read_exactly(&mut slow, 2), [5, 0]);
    slow.write_all(&socks_request("127.0.0.1", destination.address.port())).unwrap();
    assert_eq!(read_reply(&mut slow), 0);
    check_echo(&mut slow, b"slow");
}
