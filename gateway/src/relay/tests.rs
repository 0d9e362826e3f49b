//! Relays on a simulated kernel: between two peers whose every step is the test's.

use std::time::Duration;

use ledger::record::CloseReason;
use ledger::simulation::BilledFlow;

use crate::simulation::Pair;

/// The bytes up and down of the only flow, and the reason of its end.
#[track_caller]
fn only(bill: &[BilledFlow]) -> (u64, u64, CloseReason) {
    assert_eq!(bill.len(), 1, "{bill:?}");
    (bill[0].up, bill[0].down, bill[0].reason)
}

/// Bytes of which no two neighbouring blocks are equal.
fn pattern(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at / 251 + at) as u8).collect()
}

#[test]
fn half_close_is_forwarded_and_the_other_direction_goes_on() {
    let mut pair = Pair::new("");
    let (client, upstream) = pair.open_tunnel();
    pair.send(&client, b"question");
    pair.end(&client);
    assert_eq!(pair.receive(&upstream), b"question");
    assert!(pair.has_ended(&upstream));
    pair.pass_time(Duration::from_secs(20));
    pair.send(&upstream, b"answer");
    assert_eq!(pair.receive(&client), b"answer");
    assert!(!pair.has_ended(&client));
    pair.end(&upstream);
    assert!(pair.has_ended(&client));
    assert_eq!(only(&pair.stop()), (8, 6, CloseReason::ClientClosed));
}

#[test]
fn reset_is_forwarded_as_a_reset() {
    for is_client in [true, false] {
        let mut pair = Pair::new("");
        let (client, upstream) = pair.open_tunnel();
        pair.send(&client, b"up");
        assert_eq!(pair.receive(&upstream), b"up");
        let (resets, other) = if is_client { (client, upstream) } else { (upstream, client) };
        resets.reset();
        assert!(pair.was_reset(&other));
        let reason = if is_client { CloseReason::ClientReset } else { CloseReason::UpstreamReset };
        assert_eq!(only(&pair.stop()), (2, 0, reason));
    }
}

#[test]
fn slow_receiver_stops_its_sender_and_loses_nothing() {
    let mut pair = Pair::new("");
    let (client, upstream) = pair.open_tunnel();
    let sent = pattern(6 << 20);
    let (mut taken, mut received) = (0, Vec::new());
    while taken < sent.len() {
        let count = pair.send_some(&client, &sent[taken..]);
        assert!(taken + count - received.len() < 4 << 20, "the gateway reads while its receiver does not");
        taken += count;
        received.extend(pair.receive(&upstream));
    }
    pair.end(&client);
    received.extend(pair.receive(&upstream));
    assert!(received == sent && pair.has_ended(&upstream));
    pair.end(&upstream);
    assert_eq!(only(&pair.stop()), (6 << 20, 0, CloseReason::ClientClosed));
}

#[test]
fn single_bytes_arrive_in_order_both_ways() {
    let mut pair = Pair::new("");
    let (client, upstream) = pair.open_tunnel();
    for byte in 0..=255 {
        pair.send(&client, &[byte]);
        pair.send(&upstream, &[255 - byte]);
        assert_eq!((pair.receive(&upstream), pair.receive(&client)), (vec![byte], vec![255 - byte]));
    }
    assert_eq!(only(&pair.stop()), (256, 256, CloseReason::Drained));
}

#[test]
fn idle_relay_ends_at_its_deadline() {
    let mut pair = Pair::new("[timeouts]\nidle = \"10s\"");
    let (client, _upstream) = pair.open_tunnel();
    pair.pass_time(Duration::from_secs(9));
    pair.send(&client, b"x");
    pair.pass_time(Duration::from_millis(9_800));
    assert!(!pair.has_ended(&client));
    pair.pass_time(Duration::from_millis(400));
    assert!(pair.was_reset(&client));
    assert_eq!(only(&pair.stop()), (1, 0, CloseReason::IdleTimeout));
}

#[test]
fn receiver_that_takes_nothing_ends_an_eighth_later_at_most() {
    let mut pair = Pair::new("[timeouts]\nidle = \"8s\"");
    let (client, _upstream) = pair.open_tunnel();
    let sent = pair.send_some(&client, &pattern(4 << 20));
    assert!(sent < 4 << 20);
    pair.pass_time(Duration::from_millis(7_900));
    assert!(!pair.has_ended(&client));
    pair.pass_time(Duration::from_millis(1_300));
    assert!(pair.was_reset(&client));
    let (up, _, reason) = only(&pair.stop());
    assert_eq!(reason, CloseReason::IdleTimeout);
    assert!(up < sent as u64);
}

#[test]
fn lifetime_ends_a_relay_that_moves_bytes() {
    let mut pair = Pair::new("[timeouts]\nlifetime = \"5s\"");
    let (client, upstream) = pair.open_tunnel();
    for _ in 0..4 {
        pair.pass_time(Duration::from_secs(1));
        pair.send(&client, b"x");
        assert_eq!(pair.receive(&upstream), b"x");
    }
    pair.pass_time(Duration::from_secs(2));
    assert!(pair.was_reset(&client) && pair.was_reset(&upstream));
    assert_eq!(only(&pair.stop()), (4, 0, CloseReason::LifetimeTimeout));
}

#[test]
fn shorter_deadline_of_a_reload_ends_open_relays() {
    let mut pair = Pair::new("[timeouts]\nidle = \"1h\"");
    let (client, _upstream) = pair.open_tunnel();
    pair.pass_time(Duration::from_secs(60));
    pair.reload("[timeouts]\nidle = \"90s\"");
    pair.pass_time(Duration::from_secs(29));
    assert!(!pair.has_ended(&client));
    pair.pass_time(Duration::from_secs(2));
    assert!(pair.was_reset(&client));
    assert_eq!(only(&pair.stop()).2, CloseReason::IdleTimeout);
}
