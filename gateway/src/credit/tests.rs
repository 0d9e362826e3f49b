//! Quotas and rates on a simulated kernel, between a client and a destination whose every step is the test's.

use std::time::Duration;

use ledger::record::CloseReason;
use ledger::simulation::BilledFlow;
use sys::clock;
use sys::socket::Socket;

use crate::simulation::Pair;

const HOUR: Duration = Duration::from_secs(3600);

fn quota(limit: &str, rest: &str) -> String {
    format!("quota = [{{ limit = \"{limit}\", {rest} }}]")
}

/// Sends up to `bytes` from one peer, as long as they are taken, while the other reads; returns what arrived.
fn stream(pair: &mut Pair, from: &Socket, to: &Socket, bytes: usize) -> usize {
    let (mut sent, mut arrived, mut idle) = (0, 0, 0);
    while sent < bytes && idle < 3 {
        let rest = vec![7; (bytes - sent).min(64 * 1024)];
        let count = pair.try_send_some(from, &rest).unwrap_or(0);
        let received = pair.receive_rest(to).len();
        (sent, arrived) = (sent + count, arrived + received);
        idle = if count + received == 0 { idle + 1 } else { 0 };
    }
    arrived + pair.receive_rest(to).len()
}

/// The response to a CONNECT on a new connection.
fn connect_response(pair: &mut Pair) -> String {
    let client = pair.connect();
    pair.send(&client, b"CONNECT 93.184.216.1:443 HTTP/1.1\r\nHost: 93.184.216.1:443\r\n\r\n");
    String::from_utf8(pair.receive(&client)).unwrap()
}

fn total(bill: &[BilledFlow]) -> u64 {
    bill.iter().map(|flow| flow.up + flow.down).sum()
}

#[test]
fn stream_ends_at_the_byte_in_either_direction() {
    for is_up in [true, false] {
        for limit_kb in [1, 64, 301, 3_000] {
            let limit = limit_kb * 1_000;
            let mut pair = Pair::with_user("", &quota(&format!("{limit_kb}kB"), "per = \"total\""));
            let (client, upstream) = pair.open_tunnel();
            let (from, to) = if is_up { (&client, &upstream) } else { (&upstream, &client) };
            assert_eq!(stream(&mut pair, from, to, limit + 500_000), limit);
            assert!(pair.has_ended(to), "what was read is delivered, and the end follows");
            let bill = pair.stop();
            assert_eq!((total(&bill), bill[0].reason), (limit as u64, CloseReason::QuotaExhausted));
        }
    }
}

#[test]
fn flows_in_both_directions_share_a_quota() {
    let mut pair = Pair::with_user("", &quota("200kB", "per = \"day\""));
    let tunnels: Vec<(Socket, Socket)> = (0..4).map(|_| pair.open_tunnel()).collect();
    let mut arrived = 0;
    for round in 0..40 {
        let (client, upstream) = &tunnels[round % 4];
        arrived += stream(&mut pair, client, upstream, 5_000);
        arrived += stream(&mut pair, upstream, client, 2_000);
    }
    assert_eq!(arrived, 200_000);
    let bill = pair.stop();
    assert_eq!(total(&bill), 200_000);
    assert!(bill.iter().any(|flow| flow.reason == CloseReason::QuotaExhausted));
}

#[test]
fn new_flow_is_denied_until_the_next_period() {
    let mut pair = Pair::with_user("", &quota("5kB", "per = \"hour\""));
    let (client, upstream) = pair.open_tunnel();
    assert_eq!(stream(&mut pair, &client, &upstream, 9_000), 5_000);
    let denial = connect_response(&mut pair);
    assert!(denial.starts_with("HTTP/1.1 429 "), "{denial}");
    let after: u64 =
        denial.split("Retry-After: ").nth(1).unwrap().split("\r\n").next().unwrap().parse().unwrap();
    assert!(after > 0 && after <= 3600);
    assert!(denial.contains("; details=\"quota hour/all/both of user ci\""), "{denial}");
    assert!(denial.contains("Quota `hour/all/both` of user `ci` is spent: 5000 bytes."), "{denial}");
    pair.pass_time(Duration::from_secs(after - 1));
    assert!(connect_response(&mut pair).starts_with("HTTP/1.1 429 "));
    pair.pass_time(Duration::from_secs(1));
    let (client, upstream) = pair.open_tunnel();
    assert_eq!(stream(&mut pair, &client, &upstream, 9_000), 5_000);
    assert_eq!(total(&pair.stop()), 10_000);
}

#[test]
fn next_period_opens_for_flows_that_live() {
    let mut pair = Pair::with_user("[timeouts]\nidle = \"1d\"", &quota("5kB", "per = \"hour\""));
    let (client, upstream) = pair.open_tunnel();
    for _ in 0..3 {
        assert_eq!(stream(&mut pair, &client, &upstream, 4_999), 4_999);
        pair.pass_time(HOUR);
    }
    assert_eq!(stream(&mut pair, &upstream, &client, 9_999), 5_000);
    assert!(pair.has_ended(&client));
}

#[test]
fn idle_tunnel_ends_at_its_next_byte() {
    let mut pair = Pair::with_user("", &quota("5kB", "per = \"day\""));
    let (idle, idle_upstream) = pair.open_tunnel();
    let (client, upstream) = pair.open_tunnel();
    assert_eq!(stream(&mut pair, &client, &upstream, 5_000), 5_000);
    assert!(!pair.has_ended(&idle));
    assert_eq!(stream(&mut pair, &idle, &idle_upstream, 1), 0);
    assert!(pair.has_ended(&idle_upstream));
}

#[test]
fn quota_of_one_direction_leaves_the_other() {
    let rest = "per = \"day\", direction = \"up\"";
    let mut pair = Pair::with_user("", &quota("5kB", rest));
    let (client, upstream) = pair.open_tunnel();
    assert_eq!(stream(&mut pair, &upstream, &client, 50_000), 50_000);
    assert_eq!(stream(&mut pair, &client, &upstream, 6_000), 5_000);
}

#[test]
fn quota_of_another_class_leaves_the_rest() {
    let mut pair = Pair::with_user("", &quota("5kB", "per = \"day\", of = \"internal\""));
    let (client, upstream) = pair.open_tunnel();
    assert_eq!(stream(&mut pair, &client, &upstream, 50_000), 50_000);
}

#[test]
fn flow_draws_on_each_team_above_its_user() {
    let teams = |engineering: &str, build: &str| {
        format!(
            "[teams.engineering]\n{}\n[teams.build]\nparent = \"engineering\"\n{}",
            quota(engineering, "per = \"day\""),
            quota(build, "per = \"week\"")
        )
    };
    for (settings, limit) in [(teams("9kB", "8kB"), 8_000), (teams("7kB", "8kB"), 7_000)] {
        let user = format!("team = \"build\"\n{}", quota("10kB", "per = \"hour\""));
        let mut pair = Pair::with_user(&settings, &user);
        let (client, upstream) = pair.open_tunnel();
        assert_eq!(stream(&mut pair, &client, &upstream, 20_000), limit);
        let name = if limit == 7_000 {
            "`day/all/both` of team `engineering`"
        } else {
            "`week/all/both` of team `build`"
        };
        let denial = connect_response(&mut pair);
        assert!(denial.contains(name), "{denial}");
    }
}

#[test]
fn early_bytes_count() {
    let mut pair = Pair::with_user("", &quota("1kB", "per = \"day\""));
    let client = pair.connect();
    let mut request = b"CONNECT 93.184.216.1:443 HTTP/1.1\r\nHost: 93.184.216.1:443\r\n\r\n".to_vec();
    request.extend([7; 1_500]);
    pair.send(&client, &request);
    let upstream = pair.accept();
    assert_eq!(pair.receive(&upstream).len(), 1_000);
    assert!(pair.has_ended(&upstream));
    assert_eq!(total(&pair.stop()), 1_000);
}

#[test]
fn unsent_bytes_of_a_broken_flow_come_back() {
    let mut pair = Pair::with_user("", &quota("3MB", "per = \"day\""));
    let (client, upstream) = pair.open_tunnel();
    // The destination reads nothing: the gateway holds what its kernel does not take.
    let sent = pair.send_some(&client, &vec![7; 2_900_000]);
    assert!(sent < 2_900_000, "the destination reads nothing");
    upstream.reset();
    pair.settle();
    let (client, upstream) = pair.open_tunnel();
    let arrived = stream(&mut pair, &client, &upstream, 4_000_000);
    let bill = pair.stop();
    assert_eq!(total(&bill), 3_000_000);
    assert_eq!(
        bill.iter().find(|flow| flow.reason == CloseReason::QuotaExhausted).unwrap().up,
        arrived as u64
    );
}

#[test]
fn reload_adds_raises_and_removes_quotas_of_open_flows() {
    let mut pair = Pair::with_user("", "");
    let (client, upstream) = pair.open_tunnel();
    assert_eq!(stream(&mut pair, &client, &upstream, 20_000), 20_000);
    pair.reload_user("", &quota("5kB", "per = \"day\""));
    assert_eq!(stream(&mut pair, &client, &upstream, 4_000), 4_000);
    pair.reload_user("", &quota("10kB", "per = \"day\""));
    assert_eq!(stream(&mut pair, &client, &upstream, 5_000), 5_000);
    pair.reload_user("", "");
    assert_eq!(stream(&mut pair, &client, &upstream, 20_000), 20_000);
    pair.reload_user("", &quota("2kB", "per = \"day\""));
    assert_eq!(stream(&mut pair, &client, &upstream, 20_000), 2_000);
}

#[test]
fn rate_is_kept_in_each_second_behind_the_first_burst() {
    for (rate, bytes_per_second) in [("64kbit/s", 8_000), ("1Mbit/s", 125_000)] {
        for is_up in [true, false] {
            let mut pair = Pair::with_user("", &format!("rate = \"{rate}\""));
            let (client, upstream) = pair.open_tunnel();
            let (from, to) = if is_up { (client, upstream) } else { (upstream, client) };
            let begun = clock::monotonic();
            pair.send_some(&from, &vec![7; 256 * 1024]);
            let first = pair.receive(&to).len() as f64 / bytes_per_second as f64;
            let burst = first - clock::monotonic().since(begun).as_secs_f64();
            assert!(burst <= 0.1, "the first burst has {burst} s of {rate}");
            pair.pass_time(Duration::from_millis(100));
            pair.receive(&to);
            for _ in 0..5 {
                let begun = clock::monotonic();
                let mut arrived = 0;
                while clock::monotonic().since(begun) < Duration::from_secs(1) {
                    pair.send_some(&from, &vec![7; 256 * 1024]);
                    pair.pass_time(Duration::from_millis(10));
                    arrived += pair.receive(&to).len();
                }
                let expected = bytes_per_second as f64 * clock::monotonic().since(begun).as_secs_f64();
                let ratio = arrived as f64 / expected;
                assert!((0.95..1.05).contains(&ratio), "{ratio} of {rate}");
            }
        }
    }
}

#[test]
fn rate_is_shared_fairly_and_stops_no_other_direction() {
    let team = "[teams.build]\nrate_up = \"1Mbit/s\"";
    let mut pair = Pair::with_user(team, "team = \"build\"");
    let tunnels: Vec<(Socket, Socket)> = (0..16).map(|_| pair.open_tunnel()).collect();
    let (mut arrived, begun) = ([0; 16], clock::monotonic());
    for _ in 0..50 {
        for ((client, upstream), arrived) in tunnels.iter().zip(&mut arrived) {
            pair.send_some(client, &vec![7; 256 * 1024]);
            *arrived += pair.receive(upstream).len();
        }
        pair.pass_time(Duration::from_millis(50));
    }
    let sum: usize = arrived.iter().sum();
    let ratio = sum as f64 / 125e3 / clock::monotonic().since(begun).as_secs_f64();
    assert!((0.95..1.05).contains(&ratio), "{ratio} of the rate");
    let squares: f64 = arrived.iter().map(|bytes| (*bytes as f64).powi(2)).sum();
    let fairness = (sum as f64).powi(2) / (16.0 * squares);
    assert!(fairness > 0.95, "Jain's index is {fairness}: {arrived:?}");
    let (client, upstream) = &tunnels[0];
    assert_eq!(stream(&mut pair, upstream, client, 1_000_000), 1_000_000);
}

const GET: &[u8] = b"GET http://93.184.216.1:443/ HTTP/1.1\r\nHost: 93.184.216.1:443\r\n\r\n";

/// A client that has sent `request`, and the destination that has received something of it.
fn request(pair: &mut Pair, request: &[u8]) -> (Socket, Socket) {
    let client = pair.connect();
    pair.send(&client, request);
    (client, pair.accept())
}

#[test]
fn response_ends_at_the_byte_heads_included() {
    for response in [
        "HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n".to_owned() + &"x".repeat(9_000),
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2328\r\n".to_owned() + &"x".repeat(9_000),
    ] {
        let mut pair = Pair::with_user("", &quota("5kB", "per = \"day\""));
        let (client, upstream) = request(&mut pair, GET);
        let sent_up = pair.receive(&upstream).len();
        pair.send(&upstream, response.as_bytes());
        let received = pair.receive(&client);
        assert_eq!(received.len() + sent_up, 5_000);
        assert!(received.starts_with(b"HTTP/1.1 200 ") && pair.has_ended(&client));
        let bill = pair.stop();
        assert_eq!((total(&bill), bill[0].reason), (5_000, CloseReason::QuotaExhausted));
    }
}

#[test]
fn body_whose_end_is_that_of_its_connection_is_reset() {
    let mut pair = Pair::with_user("", &quota("5kB", "per = \"day\""));
    let (client, upstream) = request(&mut pair, GET);
    pair.receive(&upstream);
    pair.send(&upstream, ("HTTP/1.1 200 OK\r\n\r\n".to_owned() + &"x".repeat(9_000)).as_bytes());
    pair.receive_until_reset(&client);
    assert_eq!(total(&pair.stop()), 5_000);
}

#[test]
fn upload_ends_at_the_byte_and_is_denied() {
    let mut pair = Pair::with_user("", &quota("5kB", "per = \"day\", direction = \"up\""));
    let head =
        "POST http://93.184.216.1:443/ HTTP/1.1\r\nHost: 93.184.216.1:443\r\nContent-Length: 9000\r\n\r\n";
    let (client, upstream) = request(&mut pair, head.as_bytes());
    pair.send(&client, &[7; 9_000]);
    assert_eq!(pair.receive(&upstream).len(), 5_000);
    assert!(pair.has_ended(&upstream));
    let denial = String::from_utf8(pair.receive(&client)).unwrap();
    assert!(
        denial.starts_with("HTTP/1.1 429 ") && denial.contains("quota day/all/up of user ci"),
        "{denial}"
    );
    assert_eq!(total(&pair.stop()), 5_000);
}

#[test]
fn head_that_is_larger_than_what_is_left_is_not_sent() {
    let mut pair = Pair::with_user("", &quota("1kB", "per = \"day\""));
    let head = format!(
        "GET http://93.184.216.1:443/ HTTP/1.1\r\nHost: 93.184.216.1:443\r\nX-Long: {}\r\n\r\n",
        "y".repeat(1_000)
    );
    let (client, upstream) = request(&mut pair, head.as_bytes());
    assert_eq!(pair.receive_rest(&upstream).len(), 0);
    assert!(pair.receive(&client).starts_with(b"HTTP/1.1 429 "));
    // What is left is enough for a smaller request, and not for its response.
    let (client, upstream) = request(&mut pair, GET);
    assert!(!pair.receive(&upstream).is_empty());
    let head = format!("HTTP/1.1 204 No Content\r\nX-Long: {}\r\n\r\n", "y".repeat(1_000));
    pair.send(&upstream, head.as_bytes());
    assert!(pair.receive(&client).starts_with(b"HTTP/1.1 429 "));
    assert!(total(&pair.stop()) < 300);
}

#[test]
fn rate_of_plain_requests_is_kept() {
    let mut pair = Pair::with_user("", "rate_down = \"1Mbit/s\"");
    let (client, upstream) = request(&mut pair, GET);
    pair.receive(&upstream);
    let begun = clock::monotonic();
    pair.send(&upstream, b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n");
    let (mut sent, mut arrived) = (0, 0);
    while arrived < 250_000 {
        sent += pair.send_some(&upstream, &vec![7; (1_000_000 - sent).min(100_000)]);
        pair.pass_time(Duration::from_millis(10));
        arrived += pair.receive(&client).len();
    }
    let ratio = arrived as f64 / 125e3 / clock::monotonic().since(begun).as_secs_f64();
    assert!((0.95..1.05).contains(&ratio), "{ratio} of the rate");
}

#[test]
fn trickling_chunks_count_as_they_are_sent() {
    let mut pair = Pair::with_user("", &quota("3kB", "per = \"day\", direction = \"down\""));
    let get = b"GET http://93.184.216.1:443/ HTTP/1.0\r\n\r\n";
    let (client, upstream) = request(&mut pair, get);
    pair.receive(&upstream);
    pair.send(&upstream, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    let mut received = pair.receive(&client).len();
    // Of each chunk of six bytes one is forwarded to a client of HTTP/1.0.
    for _ in 0..300 {
        pair.send(&upstream, &b"1\r\nx\r\n".repeat(5));
        received += pair.receive(&client).len();
    }
    pair.send(&upstream, b"0\r\n\r\n");
    received += pair.receive(&client).len();
    assert!(received > 1_500 && pair.has_ended(&client));
    // All that was not sent is left.
    let (client, upstream) = request(&mut pair, get);
    pair.receive(&upstream);
    pair.send(&upstream, b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n");
    pair.send(&upstream, &[7; 9_000]);
    received += pair.receive_rest(&client).len();
    assert_eq!(received, 3_000);
    assert_eq!(pair.stop().iter().map(|flow| flow.down).sum::<u64>(), 3_000);
}
