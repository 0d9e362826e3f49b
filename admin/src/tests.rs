//! Tests of the admin server over real sockets: raw requests in, raw responses out.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::time::Duration;

use gateway::observe::stats::{CLOSE_REASONS, DenialKind, PROTOCOLS};
use rustix::net::{AddressFamily, SocketType};
use sys::clock::WallNanos;
use sys::pressure::{CpuTicks, Delta, ListenDrops, Pressure, Stall, StallLine, Throttling};
use sys::socket::ResourceExhausted;
use sys::thread::RunTime;

use super::*;
use crate::http::{HEAD_BYTES_MAX, HEADERS_MAX};

/// Only a failing test waits this long.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Two connections, and a short time for heads.
const SHORT_HEAD_LIMITS: HttpLimits = HttpLimits {
    connections_max: 2,
    head_span_max: Duration::from_millis(100),
    lifetime_max: TEST_TIMEOUT,
    ..DEFAULT_LIMITS
};
/// A short lifetime of connections.
const SHORT_LIFETIME_LIMITS: HttpLimits = HttpLimits {
    head_span_max: TEST_TIMEOUT,
    lifetime_max: Duration::from_millis(200),
    shutdown_grace_max: Duration::from_millis(50),
    ..DEFAULT_LIMITS
};

/// A running admin server and the sources of its responses.
struct Fixture {
    admin: Admin,
    stats: Arc<Stats>,
    ledger: Arc<Mutex<Status>>,
}

fn fixture(limits: HttpLimits) -> Fixture {
    let pool = gateway::jobs::start(1).unwrap();
    let stats = Stats::new("1.2.3", WallNanos(1_700_000_000_500_000_000), 2, pool);
    let ledger = Arc::new(Mutex::new(Status::default()));
    let status = Arc::clone(&ledger);
    let routes = api::routes(Arc::clone(&stats), Box::new(move || status.lock().unwrap().clone()));
    let admin = bind("127.0.0.1:0".parse().unwrap()).unwrap().start_with_limits(limits, routes).unwrap();
    Fixture { admin, stats, ledger }
}

impl Fixture {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.admin.address()).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TEST_TIMEOUT)).unwrap();
        stream
    }

    /// Sends `request` and returns all that arrives before the connection ends.
    fn send(&self, request: &[u8]) -> String {
        let mut stream = self.connect();
        // The server may refuse and close before the whole request is sent.
        let _ = stream.write_all(request);
        read_until_closed(&mut stream)
    }

    fn get(&self, path: &str) -> (u16, String) {
        let response = self
            .send(format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n").as_bytes());
        let (head, body) = response.split_once("\r\n\r\n").expect("a response has a head");
        (status(head), body.to_owned())
    }
}

/// All that arrives before the connection ends; a reset is an end too.
fn read_until_closed(stream: &mut TcpStream) -> String {
    let (mut text, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => text.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break,
            Err(error) => panic!("still open: {error}"),
        }
    }
    String::from_utf8(text).unwrap()
}

fn status(response: &str) -> u16 {
    response.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)?.parse().ok()).unwrap_or(0)
}

#[test]
fn host_method_and_path_decide_the_status() {
    let fixture = fixture(DEFAULT_LIMITS);
    let check = |request: &str, expected: u16| {
        let response = fixture.send(request.replace('\n', "\r\n").as_bytes());
        assert_eq!(status(&response), expected, "{request:?} got {response:?}");
    };
    let with_host = |host: &str| format!("GET /healthz HTTP/1.1\nHost: {host}\nConnection: close\n\n");
    for host in
        ["127.0.0.1", "127.0.0.1:9128", "10.0.0.7:1", "[::1]", "[fe80::1]:9128", "localhost", "LocalHost:80"]
    {
        check(&with_host(host), 200);
    }
    for host in [
        "evil.example",
        "evil.example:9128",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "127.1",
        "2130706433",
        "localhost.",
        "metrics",
    ] {
        check(&with_host(host), 421);
    }
    for host in [
        "",
        "a b",
        "a@127.0.0.1",
        "127.0.0.1/x",
        "127.0.0.1\nHost: 127.0.0.1",
        "127.0.0.1\nHost: evil.example",
    ] {
        check(&with_host(host), 400);
    }
    check("GET /healthz HTTP/1.1\nConnection: close\n\n", 400);
    check("GET /healthz HTTP/1.0\n\n", 200);
    check("GET /healthz HTTP/1.0\nHost: evil.example\n\n", 421);
    check("GET http://127.0.0.1/healthz HTTP/1.1\nHost: 127.0.0.1\nConnection: close\n\n", 200);
    check("GET http://evil.example/healthz HTTP/1.1\nHost: 127.0.0.1\nConnection: close\n\n", 421);
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"] {
        check(
            &format!("{method} /healthz HTTP/1.1\nHost: 127.0.0.1\nConnection: close\nContent-Length: 0\n\n"),
            405,
        );
    }
    check("CONNECT 127.0.0.1:22 HTTP/1.1\nHost: 127.0.0.1:22\nConnection: close\n\n", 405);
    for path in ["/", "/metric", "/metrics/", "/../etc/passwd", "/%2e%2e/"] {
        check(&format!("GET {path} HTTP/1.1\nHost: 127.0.0.1\nConnection: close\n\n"), 404);
    }
}

#[test]
fn invalid_or_oversized_head_is_refused_and_closed() {
    let fixture = fixture(DEFAULT_LIMITS);
    let check = |request: &[u8], expected: &[u16]| {
        let response = fixture.send(request);
        assert!(expected.contains(&status(&response)), "{response:?}");
    };
    let long = "x".repeat(2 * HEAD_BYTES_MAX);
    check(format!("GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: {long}\r\n\r\n").as_bytes(), &[431]);
    check(format!("GET /{long} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").as_bytes(), &[414, 431]);
    let fields = "X: y\r\n".repeat(HEADERS_MAX + 1);
    check(format!("GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n{fields}\r\n").as_bytes(), &[431]);
    check(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &[0, 400, 505]);
    check(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", &[0, 400]);
    check(b"\x05\x01\x00\r\n\r\n", &[0, 400]);
    assert_eq!(fixture.get("/healthz").0, 200);
}

#[test]
fn responses_forbid_caching_and_type_sniffing() {
    let fixture = fixture(DEFAULT_LIMITS);
    let request = "HEAD /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
    let response = fixture.send(request.as_bytes()).to_ascii_lowercase();
    assert!(response.ends_with("\r\n\r\n"), "a response to HEAD has no body: {response}");
    let expected = [
        "http/1.1 200 ok",
        "content-length: 3",
        "cache-control: no-store",
        "x-content-type-options: nosniff",
        "content-type: text/plain; charset=utf-8",
    ];
    for field in expected {
        assert!(response.lines().any(|line| line == field), "{field} in {response}");
    }
    let response = fixture.send(b"POST / HTTP/1.0\r\n\r\n").to_ascii_lowercase();
    assert!(response.contains("\r\nallow: get, head\r\n"), "{response}");
}

#[test]
fn connection_serves_requests_in_sequence() {
    let fixture = fixture(DEFAULT_LIMITS);
    let mut stream = fixture.connect();
    let request = "GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for _ in 0..3 {
        stream.write_all(request.as_bytes()).unwrap();
        let (mut response, mut byte) = (String::new(), [0]);
        while !response.ends_with("tollgate 1.2.3\n") {
            stream.read_exact(&mut byte).unwrap();
            response.push(byte[0].into());
        }
        assert_eq!(status(&response), 200);
    }
}

#[test]
fn readiness_follows_state_and_health_does_not() {
    let fixture = fixture(DEFAULT_LIMITS);
    assert_eq!(fixture.get("/readyz"), (503, "the listeners are not bound yet\n".into()));
    fixture.stats.mark_ready();
    assert_eq!(fixture.get("/readyz"), (200, "ready\n".into()));
    fixture.ledger.lock().unwrap().failing = Some("disk I/O error".into());
    assert_eq!(fixture.get("/readyz"), (503, "the ledger cannot be written: disk I/O error\n".into()));
    fixture.stats.mark_draining();
    let both_reasons = "draining\nthe ledger cannot be written: disk I/O error\n";
    assert_eq!(fixture.get("/readyz"), (503, both_reasons.into()));
    assert_eq!(fixture.get("/healthz"), (200, "ok\n".into()));
}

#[test]
fn new_connection_replaces_silent_and_slow_ones() {
    let fixture = fixture(SHORT_HEAD_LIMITS);
    let mut silent = fixture.connect();
    let mut slow = fixture.connect();
    slow.write_all(b"GET /healthz HTTP/1.1\r\nHo").unwrap();
    // Both connections are in use: this one evicts the oldest.
    assert_eq!(fixture.get("/healthz"), (200, "ok\n".into()));
    assert_eq!((status(&read_until_closed(&mut silent)), status(&read_until_closed(&mut slow))), (0, 0));
}

/// Connections may stay open for longer than a test runs.
const LONG_LIMITS: HttpLimits =
    HttpLimits { connections_max: 4, head_span_max: HOUR, lifetime_max: HOUR, ..DEFAULT_LIMITS };
const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn busiest_source_loses_its_oldest_connection() {
    let fixture = fixture(LONG_LIMITS);
    let connect_from = |source: &str| {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&socket, &format!("{source}:0").parse::<SocketAddr>().unwrap()).unwrap();
        rustix::net::connect(&socket, &fixture.admin.address()).unwrap();
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        stream
    };
    // The response shows that the server holds the connection.
    let exchange = |stream: &mut TcpStream| {
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut response = Vec::new();
        while !response.ends_with(b"ok\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            response.push(byte[0]);
        }
    };
    let mut other = connect_from("127.0.0.2");
    exchange(&mut other);
    let mut crowd: Vec<TcpStream> = (0..3).map(|_| connect_from("127.0.0.3")).collect();
    crowd.iter_mut().for_each(exchange);
    // Each new connection evicts the oldest of the crowd, until no source has more than another.
    let mut third = connect_from("127.0.0.4");
    exchange(&mut third);
    assert_eq!(read_until_closed(&mut crowd[0]), "");
    let mut fourth = connect_from("127.0.0.5");
    exchange(&mut fourth);
    assert_eq!(read_until_closed(&mut crowd[1]), "");
    [&mut other, &mut crowd[2], &mut third, &mut fourth].into_iter().for_each(exchange);
    // Then it evicts the oldest of all.
    exchange(&mut connect_from("127.0.0.6"));
    assert_eq!(read_until_closed(&mut other), "");
}

#[test]
fn dripped_head_is_cut_off() {
    let fixture = fixture(SHORT_HEAD_LIMITS);
    let mut stream = fixture.connect();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nX: ").unwrap();
    let is_closed = (0..HEAD_BYTES_MAX / 2).any(|_| {
        thread::sleep(Duration::from_millis(1));
        stream.write_all(b"x").is_err()
    });
    assert!(is_closed);
}

#[test]
fn connection_ends_at_its_lifetime() {
    let fixture = fixture(SHORT_LIFETIME_LIMITS);
    assert_eq!(read_until_closed(&mut fixture.connect()), "");
}

#[test]
fn client_that_never_reads_is_cut_off() {
    let fixture = fixture(SHORT_LIFETIME_LIMITS);
    let mut stream = fixture.connect();
    let request = "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".repeat(100);
    // The loop ends only when the server closes: a stalled write would end in a timeout.
    let error = loop {
        if let Err(error) = stream.write_all(request.as_bytes()) {
            break error;
        }
    };
    assert!(!matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut), "{error}");
}

#[test]
fn stop_closes_connections_and_frees_the_address() {
    let fixture = fixture(DEFAULT_LIMITS);
    let mut idle = fixture.connect();
    assert_eq!(fixture.get("/healthz").0, 200);
    let address = fixture.admin.address();
    fixture.admin.stop();
    assert_eq!(read_until_closed(&mut idle), "");
    assert_eq!(TcpStream::connect(address).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
fn address_in_use_error_names_the_address() {
    let fixture = fixture(DEFAULT_LIMITS);
    let address = fixture.admin.address();
    let error = bind(address).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    assert!(error.to_string().starts_with(&format!("the admin address {address}: ")), "{error}");
}

/// The page's samples by name, with labels as written.
fn samples(page: &str) -> BTreeMap<&str, f64> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    let parsed = lines.map(|line| {
        let (name, value) = line.rsplit_once(' ').expect("a sample has a value");
        (name, value.parse().expect("the value is a number"))
    });
    let samples: Vec<_> = parsed.collect();
    let count = samples.len();
    let samples: BTreeMap<_, _> = samples.into_iter().collect();
    assert_eq!(samples.len(), count, "each sample appears once");
    samples
}

#[test]
fn counters_appear_with_their_values() {
    let fixture = fixture(DEFAULT_LIMITS);
    let mut expected = BTreeMap::new();
    // Each counter gets a unique value, so that a swap of two is found.
    let mut next = 1;
    let mut next_value_for = |name: String| {
        next += 1;
        assert_eq!(expected.insert(name, next), None);
        next
    };
    let worker = &fixture.stats.workers[1];
    for protocol in PROTOCOLS {
        let count =
            next_value_for(format!("tollgate_connections_total{{protocol=\"{}\"}}", protocol.as_str()));
        (0..count).for_each(|_| worker.opened(*protocol));
    }
    for kind in DenialKind::ALL {
        let count = next_value_for(format!("tollgate_denied_total{{reason=\"{}\"}}", kind.as_str()));
        (0..count).for_each(|_| worker.denied(*kind));
    }
    let methods = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "other"];
    for (index, method) in methods.into_iter().enumerate() {
        let count = next_value_for(format!("tollgate_requests_total{{method=\"{method}\"}}"));
        // Both threads count.
        (0..count).for_each(|turn| fixture.stats.workers[turn as usize % 2].requested(methods[index]));
    }
    for class in 1..=5_u16 {
        let count = next_value_for(format!("tollgate_responses_total{{status=\"{class}xx\"}}"));
        (0..count).for_each(|turn| fixture.stats.workers[turn as usize % 2].responded(class * 100));
    }
    worker
        .bytes
        .client_rx
        .add(next_value_for("tollgate_bytes_total{leg=\"client\",direction=\"rx\"}".into()));
    worker
        .bytes
        .upstream_tx
        .add(next_value_for("tollgate_bytes_total{leg=\"upstream\",direction=\"tx\"}".into()));
    worker
        .bytes
        .upstream_rx
        .add(next_value_for("tollgate_bytes_total{leg=\"upstream\",direction=\"rx\"}".into()));
    worker
        .bytes
        .client_tx
        .add(next_value_for("tollgate_bytes_total{leg=\"client\",direction=\"tx\"}".into()));
    worker.handshakes_active.set(next_value_for("tollgate_handshakes_active".into()));
    worker.splice_promotions.add(next_value_for("tollgate_splice_promotions_total".into()));
    worker.pipes_created.add(next_value_for("tollgate_pipes_created_total".into()));
    worker.pipes_held.set(next_value_for("tollgate_pipes_held".into()));
    worker.pipes_lent.add(next_value_for("tollgate_pipes_lent_total".into()));
    worker.pipes_emptied.add(next_value_for("tollgate_pipes_emptied_total".into()));
    worker.pending_bytes.set(next_value_for("tollgate_pending_bytes".into()));
    worker.log_dropped.add(next_value_for("tollgate_log_dropped_total".into()));
    worker.log_suppressed.add(next_value_for("tollgate_log_left_out_total".into()));
    worker.log_flows_left_out.add(next_value_for("tollgate_log_flows_left_out_total".into()));
    worker.ledger_full.add(next_value_for("tollgate_ledger_full_total".into()));
    worker.reactor.accepts.add(next_value_for("tollgate_accepted_total{worker=\"1\"}".into()));
    worker.reactor.accept_wakes.add(next_value_for("tollgate_accept_wakes_total{worker=\"1\"}".into()));
    worker.reactor.accepts_empty.add(next_value_for("tollgate_accept_empty_total{worker=\"1\"}".into()));
    worker.reactor.handed_off.add(next_value_for("tollgate_handed_over_total{worker=\"1\"}".into()));
    worker.reactor.connections.set(next_value_for("tollgate_worker_clients{worker=\"1\"}".into()));
    for shortage in ResourceExhausted::ALL {
        let name = format!("tollgate_accept_errors_total{{worker=\"1\",reason=\"{}\"}}", shortage.as_str());
        worker.reactor.exhausted[shortage as usize].add(next_value_for(name));
    }
    worker.reactor.passes.add(next_value_for("tollgate_reactor_turns_total{worker=\"1\"}".into()));
    worker.reactor.events.add(next_value_for("tollgate_reactor_events_total{worker=\"1\"}".into()));
    worker.reactor.panics.add(next_value_for("tollgate_task_panics_total{worker=\"1\"}".into()));
    let errors = next_value_for("tollgate_log_write_errors_total".into());
    fixture.stats.log_write_errors.store(errors, std::sync::atomic::Ordering::Relaxed);
    let mut ledger = fixture.ledger.lock().unwrap();
    ledger.records = next_value_for("tollgate_ledger_records_total".into());
    ledger.batches = next_value_for("tollgate_ledger_batches_total".into());
    ledger.waiting = next_value_for("tollgate_ledger_unflushed_records".into());
    ledger.appended = next_value_for("tollgate_ledger_appended_lsn".into());
    ledger.durable = next_value_for("tollgate_ledger_durable_lsn".into());
    ledger.applied = next_value_for("tollgate_ledger_applied_lsn".into());
    ledger.damaged = next_value_for("tollgate_ledger_damaged_slots_total".into());
    ledger.lag = Duration::from_secs(next_value_for("tollgate_ledger_lag_seconds".into()));
    let mut of_reader = |name| next_value_for(format!("tollgate_ledger_reader_{name}{{reader=\"archive\"}}"));
    ledger.readers = vec![ledger::ReaderStatus {
        name: "archive".to_owned(),
        released: of_reader("released_lsn"),
        lapses: of_reader("lapses_total"),
        missed_from: of_reader("missed_lsn"),
        is_lapsed: true,
    }];
    drop(ledger);

    let (_, page) = fixture.get("/metrics");
    let samples = samples(&page);
    for (name, value) in &expected {
        assert_eq!(samples.get(name.as_str()), Some(&(*value as f64)), "{name} in\n{page}");
    }
}

#[test]
fn gauges_flags_and_durations_appear() {
    let fixture = fixture(DEFAULT_LIMITS);
    let [first, second] = &fixture.stats.workers[..] else { panic!("there are two workers") };
    (0..5).for_each(|_| first.opened(PROTOCOLS[0]));
    (0..7).for_each(|_| second.opened(PROTOCOLS[0]));
    CLOSE_REASONS.iter().take(3).for_each(|reason| second.closed(*reason));
    first.dns.add(Duration::from_micros(900));
    second.dns.add(Duration::from_millis(30));
    second.dns.add(Duration::from_secs(11));
    fixture.stats.mark_ready();
    fixture.stats.reloads.succeeded(WallNanos(1_700_000_001_000_000_000));
    fixture.stats.reloads.failed();
    fixture.ledger.lock().unwrap().failing = Some("full".into());
    fixture.ledger.lock().unwrap().waiting = 2;

    let (_, page) = fixture.get("/metrics");
    let samples = samples(&page);
    let cases = [
        ("tollgate_connections_active", 9.0),
        ("tollgate_worker_connections{worker=\"0\"}", 5.0),
        ("tollgate_worker_connections{worker=\"1\"}", 4.0),
        ("tollgate_closed_total{reason=\"client_closed\"}", 1.0),
        ("tollgate_closed_total{reason=\"fault\"}", 0.0),
        ("tollgate_dns_duration_seconds_bucket{le=\"0.001\"}", 1.0),
        ("tollgate_dns_duration_seconds_bucket{le=\"0.025\"}", 1.0),
        ("tollgate_dns_duration_seconds_bucket{le=\"0.05\"}", 2.0),
        ("tollgate_dns_duration_seconds_bucket{le=\"10.0\"}", 2.0),
        ("tollgate_dns_duration_seconds_bucket{le=\"+Inf\"}", 3.0),
        ("tollgate_dns_duration_seconds_count", 3.0),
        ("tollgate_dns_duration_seconds_sum", 11.0309),
        ("tollgate_connect_duration_seconds_count", 0.0),
        ("tollgate_ready", 1.0),
        ("tollgate_draining", 0.0),
        ("tollgate_config_reloads_total{outcome=\"success\"}", 1.0),
        ("tollgate_config_reloads_total{outcome=\"failure\"}", 1.0),
        ("tollgate_config_reload_success", 0.0),
        ("tollgate_config_reload_success_timestamp_seconds", 1_700_000_001.0),
        ("tollgate_ledger_failing", 1.0),
        ("tollgate_ledger_unflushed_records", 2.0),
        ("tollgate_pool_permits", gateway::jobs::permits() as f64),
        ("tollgate_pool_queued{class=\"hashing\"}", 0.0),
        ("tollgate_pool_finished_total{class=\"names\"}", 0.0),
        ("tollgate_build_info{version=\"1.2.3\"}", 1.0),
        ("process_start_time_seconds", 1_700_000_000.5),
    ];
    for (name, value) in cases {
        assert_eq!(samples.get(name), Some(&value), "{name} in\n{page}");
    }
    assert!(samples["process_open_fds"] >= 1.0 && samples["process_open_fds"] <= samples["process_max_fds"]);
}

#[test]
fn balance_ratio_is_the_maximum_over_the_mean() {
    let fixture = fixture(DEFAULT_LIMITS);
    let balance = || samples(&fixture.get("/metrics").1)["tollgate_worker_balance_ratio"];
    assert_eq!(balance(), 1.0, "without connections");
    let workers = &fixture.stats.workers;
    workers.iter().for_each(|worker| worker.reactor.connections.set(10));
    assert_eq!(balance(), 1.0);
    workers.iter().skip(1).for_each(|worker| worker.reactor.connections.set(0));
    assert_eq!(balance(), workers.len() as f64, "one thread has them all");
}

#[test]
fn pressure_shows_only_what_the_machine_reports() {
    let fixture = fixture(DEFAULT_LIMITS);
    let has_metric = |page: &str, name: &str| samples(page).keys().any(|it| it.starts_with(name));
    let (_, page) = fixture.get("/metrics");
    for name in [
        "tollgate_worker_run_delay",
        "tollgate_pressure",
        "tollgate_steal",
        "tollgate_cgroup",
        "tollgate_listen",
    ] {
        assert!(!has_metric(&page, name), "{name} before the first sample in\n{page}");
    }
    let ms = Duration::from_millis;
    let run = |on_cpu, delay| {
        let total = RunTime { on_cpu: ms(on_cpu), delay: ms(delay) };
        Some(Delta { total, added: RunTime::default() })
    };
    let line = |total| StallLine { last_10_s_percent: 0.0, total: ms(total) };
    let throttling = Throttling { periods: 40, throttled_periods: 30, throttled: ms(2_500) };
    fixture.stats.pressure.set(Pressure {
        threads: vec![None, run(1_500, 250)],
        stalls: [
            Some(Stall { some: line(500), full: None }),
            None,
            Some(Stall { some: line(7), full: Some(line(5)) }),
        ],
        ticks: Some(Delta { total: CpuTicks { busy: 1, idle: 2, steal: 350 }, added: CpuTicks::default() }),
        drops: Some(Delta { total: ListenDrops { overflows: 8, drops: 9 }, added: ListenDrops::default() }),
        throttling: Some(Delta { total: throttling, added: Throttling::default() }),
        ..Pressure::default()
    });
    let (_, page) = fixture.get("/metrics");
    let samples = samples(&page);
    let cases = [
        ("tollgate_worker_cpu_seconds_total{worker=\"1\"}", 1.5),
        ("tollgate_worker_run_delay_seconds_total{worker=\"1\"}", 0.25),
        ("tollgate_pressure_some_seconds_total{resource=\"cpu\"}", 0.5),
        ("tollgate_pressure_some_seconds_total{resource=\"memory\"}", 0.007),
        ("tollgate_pressure_full_seconds_total{resource=\"memory\"}", 0.005),
        ("tollgate_steal_seconds_total", 3.5),
        ("tollgate_listen_overflows_total", 8.0),
        ("tollgate_listen_drops_total", 9.0),
        ("tollgate_cgroup_periods_total", 40.0),
        ("tollgate_cgroup_throttled_periods_total", 30.0),
        ("tollgate_cgroup_throttled_seconds_total", 2.5),
    ];
    for (name, value) in cases {
        assert_eq!(samples.get(name), Some(&value), "{name} in\n{page}");
    }
    for name in [
        "tollgate_worker_run_delay_seconds_total{worker=\"0\"}",
        "tollgate_pressure_some_seconds_total{resource=\"io\"}",
        "tollgate_pressure_full_seconds_total{resource=\"cpu\"}",
    ] {
        assert!(!samples.contains_key(name), "{name} in\n{page}");
    }
}

#[test]
fn page_is_openmetrics_with_known_names_and_labels() {
    let fixture = fixture(DEFAULT_LIMITS);
    let request = "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
    let response = fixture.send(request.as_bytes());
    let (head, page) = response.split_once("\r\n\r\n").unwrap();
    assert!(
        head.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"),
        "{head}"
    );
    assert!(page.ends_with("# EOF\n"));
    for name in samples(page).keys() {
        assert!(name.starts_with("tollgate_") || name.starts_with("process_"), "{name}");
        let labels = name.split_once('{').map_or("", |(_, labels)| labels);
        for label in labels.trim_end_matches('}').split(',').filter(|label| !label.is_empty()) {
            let label = label.split_once('=').unwrap().0;
            let allowed = [
                "protocol",
                "reason",
                "leg",
                "direction",
                "worker",
                "resource",
                "outcome",
                "class",
                "version",
                "method",
                "status",
                "state",
                "le",
            ];
            assert!(allowed.contains(&label), "{name}");
        }
    }
}
