//! A worker on a simulated kernel: handshakes, drains and reloads, as clients see them.

use std::time::Duration;

use ledger::record::CloseReason;

use crate::simulation::Pair;

#[test]
fn silent_handshake_ends_at_its_deadline() {
    let mut pair = Pair::new("[timeouts]\ngreeting = \"5s\"");
    let client = pair.connect();
    pair.send(&client, b"CONNECT 93.184.216.1:443 HT");
    pair.pass_time(Duration::from_millis(4_800));
    assert_eq!(pair.receive(&client), b"");
    pair.pass_time(Duration::from_millis(400));
    let reply = pair.receive(&client);
    assert!(reply.starts_with(b"HTTP/1.1 408 "), "{}", String::from_utf8_lossy(&reply));
    assert!(pair.stop().is_empty());
}

#[test]
fn handshake_beyond_the_bound_evicts_the_oldest() {
    let mut pair = Pair::new("[limits]\nhandshakes = 2");
    let first = pair.connect();
    let second = pair.connect();
    let (tunnel, _upstream) = pair.open_tunnel();
    assert!(pair.is_closed(&first));
    assert!(!pair.is_closed(&second) && !pair.is_closed(&tunnel));
}

#[test]
fn drain_waits_for_tunnels_and_closes_idle_clients() {
    let mut pair = Pair::new("");
    let (client, upstream) = pair.open_tunnel();
    let idle = pair.connect();
    pair.send(&idle, b"GET http://93.184.216.1:443/ HTTP/1.1\r\nHost: 93.184.216.1:443\r\n\r\n");
    let origin = pair.accept();
    pair.send(&origin, b"HTTP/1.1 204 No Content\r\n\r\n");
    assert!(pair.receive(&idle).starts_with(b"HTTP/1.1 204 "));
    pair.drain();
    assert!(pair.is_closed(&idle));
    assert!(!pair.is_over());
    pair.send(&client, b"late");
    assert_eq!(pair.receive(&upstream), b"late");
    pair.end(&client);
    pair.end(&upstream);
    pair.pass_time(Duration::from_secs(1));
    assert!(pair.is_over());
}

#[test]
fn removed_user_loses_its_tunnels_at_once() {
    let mut pair = Pair::new("");
    let (client, upstream) = pair.open_tunnel();
    pair.send(&client, b"12345");
    pair.remove_user();
    assert!(pair.was_reset(&client));
    assert_eq!(pair.receive_until_reset(&upstream), b"12345");
    let bill = pair.stop();
    assert_eq!((bill[0].up, bill[0].reason), (5, CloseReason::PolicyChanged));
}

#[test]
fn tunnel_beyond_the_users_bound_is_refused_until_one_ends() {
    let mut pair = Pair::new("[limits]\nconnections_per_user = 1");
    let (first, upstream) = pair.open_tunnel();
    let second = pair.connect();
    pair.send(&second, b"CONNECT 93.184.216.1:443 HTTP/1.1\r\nHost: 93.184.216.1:443\r\n\r\n");
    let reply = pair.receive(&second);
    assert!(reply.starts_with(b"HTTP/1.1 429 "), "{reply:?}");
    pair.end(&first);
    pair.end(&upstream);
    let _third = pair.open_tunnel();
    assert_eq!(pair.stop().len(), 2);
}
