//! Listeners on a simulated kernel: what a reload and a shortage leave of pending connections.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use sys::socket::Connect;

use crate::simulation::{LISTENER, Pair};

const SECOND: &str = "[[listener]]\naddress = \"10.0.0.1:3129\"";

fn second() -> SocketAddr {
    SocketAddr::new(LISTENER.ip(), 3129)
}

const REQUEST: &[u8] = b"CONNECT 93.184.216.1:443 HTTP/1.1\r\nHost: 93.184.216.1:443\r\n\r\n";

#[test]
fn retired_listener_serves_its_clients_and_refuses_new_ones() {
    for strategy in ["reuse_port", "mutex", "handoff"] {
        let accept = format!("[accept]\nstrategy = \"{strategy}\"\n");
        let mut pair = Pair::new(&format!("{accept}{SECOND}"));
        let early = pair.connect_to(second());
        pair.reload(&accept);
        pair.send(&early, REQUEST);
        assert!(pair.receive(&early).starts_with(b"HTTP/1.1 200 "), "{strategy}");
        pair.pass_time(Duration::from_secs(1));
        let late = pair.connect_to(second());
        let error = late.continue_connect(second()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{strategy}");
    }
}

#[test]
fn added_listener_accepts_after_the_reload() {
    let mut pair = Pair::new("");
    pair.reload(SECOND);
    let client = pair.connect_to(second());
    pair.send(&client, REQUEST);
    assert!(pair.receive(&client).starts_with(b"HTTP/1.1 200 "));
}

#[test]
fn connection_without_a_free_descriptor_is_served_later() {
    let mut pair = Pair::new("");
    pair.simulation.set_fault_rate(1_000);
    let client = pair.connect();
    assert_eq!(client.continue_connect(LISTENER).unwrap(), Connect::Established);
    pair.send(&client, REQUEST);
    pair.pass_time(Duration::from_secs(2));
    assert_eq!(pair.receive(&client), b"");
    pair.simulation.set_fault_rate(0);
    pair.pass_time(Duration::from_millis(500));
    assert!(pair.receive(&client).starts_with(b"HTTP/1.1 200 "));
}
