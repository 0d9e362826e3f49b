//! The stop: open connections may finish, no new ones are accepted, and every flow is in the ledger.

use std::io::Write;
use std::net::TcpStream;
use std::process::Command;

use rustix::process::Signal;

use crate::harness::{Gateway, LOCAL_USER, TestDir, eventually, with_timeouts};
use crate::peers::{Destination, check_echo, check_ended, read_response, tunnel};

#[test]
fn drain_finishes_tunnels_and_accepts_none() {
    for signal in [Signal::TERM, Signal::INT] {
        let destination = Destination::echo();
        let mut gateway = Gateway::local("");
        for _ in 0..5 {
            check_echo(&mut tunnel(&gateway, destination.address), b"over before");
        }
        let mut live = tunnel(&gateway, destination.address);
        let mut pending = gateway.connect();
        gateway.signal(signal);
        eventually("no connection is accepted", || TcpStream::connect(gateway.listeners[0]).is_err());
        for _ in 0..3 {
            check_echo(&mut live, b"goes on");
        }
        // A connection that was accepted before may still send its request.
        let request = crate::peers::connect_request(&destination.address.to_string());
        std::io::Write::write_all(&mut pending, request.as_bytes()).unwrap();
        assert_eq!(crate::peers::read_response(&mut pending).status, 200);
        drop((live, pending));
        assert_eq!(gateway.wait(), 0, "{}", gateway.errors());
        assert!(
            gateway.errors().contains("stopped; the ledger recorded 7 flows in this run"),
            "{}",
            gateway.errors()
        );
        assert_eq!(gateway.usage(), (7, 5 * 11 + 3 * 7, 5 * 11 + 3 * 7));
    }
}

#[test]
fn second_signal_cuts_open_tunnels() {
    let destination = Destination::echo();
    let mut gateway = Gateway::local("");
    let mut live = tunnel(&gateway, destination.address);
    check_echo(&mut live, b"counted");
    gateway.signal(Signal::TERM);
    eventually("the listeners close", || TcpStream::connect(gateway.listeners[0]).is_err());
    check_echo(&mut live, b"counted");
    gateway.signal(Signal::TERM);
    check_ended(&mut live, true);
    assert_eq!(gateway.wait(), 0, "{}", gateway.errors());
    gateway.check_closed(live.local_addr().unwrap(), "drained");
    assert_eq!(gateway.usage(), (1, 14, 14));
}

/// Regression: a load balancer with a probe every few seconds sent clients to listeners that were already
/// closed.
#[test]
fn readiness_ends_before_the_listeners_close() {
    let destination = Destination::echo();
    for (unready, signals) in [("1s", 1), ("1h", 2)] {
        let mut gateway = Gateway::local(&format!("[timeouts]\nunready = \"{unready}\"\n"));
        assert_eq!(readiness(&gateway), 200);
        let mut live = tunnel(&gateway, destination.address);
        gateway.signal(Signal::TERM);
        eventually("/readyz returns 503", || readiness(&gateway) == 503);
        if signals == 2 {
            // Only here is the span certainly long enough.
            check_echo(&mut tunnel(&gateway, destination.address), b"new clients are served");
            check_echo(&mut live, b"so are open tunnels");
            gateway.signal(Signal::TERM);
            check_ended(&mut live, true);
        }
        drop(live);
        assert_eq!(gateway.wait(), 0, "{}", gateway.errors());
    }
}

fn readiness(gateway: &Gateway) -> u16 {
    let mut stream = with_timeouts(TcpStream::connect(gateway.admin).unwrap());
    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    read_response(&mut stream).status
}

#[test]
fn drain_ends_at_its_timeout() {
    let destination = Destination::echo();
    let mut gateway = Gateway::local("[timeouts]\ndrain = \"200ms\"\n");
    let mut live = tunnel(&gateway, destination.address);
    check_echo(&mut live, b"counted");
    let _handshake = gateway.connect();
    gateway.stop();
    check_ended(&mut live, true);
    gateway.check_closed(live.local_addr().unwrap(), "drained");
    assert_eq!(gateway.usage(), (1, 7, 7));
}

#[test]
fn broken_standard_error_pipe_is_harmless() {
    // As with `serve 2>&1 | tee` after tee has died: writes fail with EPIPE.
    let mut command = Command::new("sh");
    command.args(["-c", "mkfifo gone && { : <gone & } && exec \"$0\" \"$@\" 2>gone"]);
    command.arg(env!("CARGO_BIN_EXE_tollgate"));
    let mut gateway = Gateway::start_by(command, TestDir::new(LOCAL_USER));
    let destination = Destination::echo();
    let mut live = tunnel(&gateway, destination.address);
    check_echo(&mut live, b"counted");
    gateway.request_reload("[nonsense]\n");
    gateway.await_log_line("the reload is refused", |line| line["level"] == "error");
    check_echo(&mut live, b"counted");
    gateway.reload(LOCAL_USER);
    for _ in 0..2 {
        gateway.signal(Signal::TERM);
        eventually("the listeners close", || TcpStream::connect(gateway.listeners[0]).is_err());
    }
    assert_eq!(gateway.wait(), 0);
    assert_eq!(gateway.usage(), (1, 14, 14));
}

#[test]
fn second_start_continues_the_ledger() {
    let destination = Destination::echo();
    let mut gateway = Gateway::local("");
    check_echo(&mut tunnel(&gateway, destination.address), b"first");
    gateway.stop();
    let mut gateway = gateway.restart();
    check_echo(&mut tunnel(&gateway, destination.address), b"second");
    gateway.stop();
    assert_eq!(gateway.usage(), (2, 11, 11));
}
