//! The log from push to file: the form of lines, and what happens when the destination fails.

use std::fs;
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Instant;

use ledger::limits::RULE_BYTES_MAX;
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use sys::clock::Nanos;

use super::writer::FlushOutcome;
use super::*;
use crate::config::settings::LogTarget;
use crate::config::{Config, LoadOptions};

/// 2026-11-21T13:40:00.123Z
const AT: WallNanos = WallNanos(1_795_268_400_123_456_789);
/// Far beyond any pause of a loaded machine: only a failing test waits this long.
const WAIT_MAX: Duration = Duration::from_secs(60);

fn event(kind: EventKind) -> Event {
    Event {
        kind,
        at: AT,
        record: Record::new(&FLOW),
        is_claimed: false,
        protocol: Some(Protocol::HttpConnect),
        listener: "127.0.0.1:3128".parse().unwrap(),
        decision: Decision::Allow,
        reason: "allowed",
        dns_us: Some(1_234),
        connect_us: Some(20_005),
        request: None,
        sample: NO_SAMPLING,
    }
}

const NO_DETAILS: Details<'static> = Details { tried: &[], text: "", path: "" };

const FLOW: Flow<'_> = Flow {
    id: 0x1f,
    opened: WallNanos(AT.0 - 1_500_042_000),
    closed: AT,
    account: 0,
    policy: 0,
    set: 0,
    user: "ci",
    host: "github.com",
    port: 443,
    address: Some(IpAddr::V4(Ipv4Addr::new(140, 82, 121, 3))),
    client: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 40_312),
    class: Class::External,
    protocol: Protocol::HttpConnect,
    rule: "user:ci/allow[0] github.com:443",
    reason: CloseReason::UpstreamClosed,
    requests: 0,
    legs: Legs { client_rx: 1, upstream_tx: 2, upstream_rx: 3, client_tx: 4 },
    uncertain: Uncertain { up: 0, down: 0 },
};

/// The decision line's event of a flow with these texts.
fn event_with_texts(user: &str, host: &str, rule: &str) -> Event {
    Event { record: Record::new(&Flow { user, host, rule, ..FLOW }), ..event(EventKind::Decision) }
}

fn line_of(event: &Event) -> String {
    line_with(event, &Details::default())
}

fn line_with(event: &Event, details: &Details<'_>) -> String {
    let (mut out, mut packed) = (Vec::new(), PackedDetails::blank());
    packed.pack(details);
    LineWriter::default().event(&mut out, &Slot { event: *event, details: packed });
    String::from_utf8(out).expect("lines are ASCII")
}

#[track_caller]
fn check(event: &Event, expected: &str) {
    let expected: String = expected.lines().map(str::trim_start).collect();
    assert_eq!(line_of(event), expected + "\n");
}

#[test]
fn decision_line_has_user_target_and_reason() {
    check(
        &event(EventKind::Decision),
        r#"{"id":"0000000000000000000000000000001f","ts":"2026-11-21T13:40:00.123Z","event":"decision",
        "user":"ci","listener":"127.0.0.1:3128","protocol":"http_connect","client_addr":"127.0.0.1:40312",
        "requested_host":"github.com","requested_port":443,"resolved_ip":"140.82.121.3",
        "rule":"user:ci/allow[0] github.com:443","decision":"allow","reason":"allowed",
        "dns_ms":1.234,"connect_ms":20.005}"#,
    );
}

#[test]
fn close_line_adds_duration_bytes_and_reason() {
    check(
        &event(EventKind::Close),
        r#"{"id":"0000000000000000000000000000001f","ts":"2026-11-21T13:40:00.123Z","event":"close",
        "user":"ci","listener":"127.0.0.1:3128","protocol":"http_connect","client_addr":"127.0.0.1:40312",
        "requested_host":"github.com","requested_port":443,"resolved_ip":"140.82.121.3",
        "rule":"user:ci/allow[0] github.com:443","decision":"allow","reason":"allowed",
        "dns_ms":1.234,"connect_ms":20.005,"duration_ms":1500.042,"close_reason":"upstream_closed",
        "client_rx":1,"upstream_tx":2,"upstream_rx":3,"client_tx":4}"#,
    );
}

/// The record is that of the flow, which other requests have too.
#[test]
fn line_of_a_request_has_its_own_id_and_time() {
    let begun = WallNanos(AT.0 - 250_000_000);
    let request = RequestOutcome { id: 0x2a, begun, number: 7, method: "GET", status: Some(304) };
    let event = Event { request: Some(request), ..event(EventKind::Close) };
    let line: Json = serde_json::from_str(&line_of(&event)).unwrap();
    let ids = [&line["id"], &line["flow_id"]].map(|id| id.as_str().unwrap().trim_start_matches('0'));
    assert_eq!((ids, &line["duration_ms"]), (["2a", "1f"], &json!(250.0)));
    let of_request = [&line["request_number"], &line["method"], &line["status"]];
    assert_eq!(of_request, [&json!(7), &json!("GET"), &json!(304)]);
}

/// A line that stands alone for its flow must have all that is known of its decision.
#[test]
fn close_line_has_every_field_of_its_decision_line() {
    let fields = |kind| -> Json { serde_json::from_str(&line_of(&event(kind))).unwrap() };
    let (decision, close) = (fields(EventKind::Decision), fields(EventKind::Close));
    for (name, value) in decision.as_object().unwrap().iter().filter(|(name, _)| *name != "event") {
        assert_eq!(&close[name], value, "{name}");
    }
}

#[test]
fn late_decision_line_has_the_time_since_the_beginning() {
    let late = line_of(&event(EventKind::LateDecision));
    let decision = line_of(&event(EventKind::Decision));
    assert_eq!(late, decision.replace("}\n", ",\"duration_ms\":1500.042}\n"));
}

#[test]
fn sampled_line_has_its_factor() {
    let sampled = line_of(&Event { sample: 100, ..event(EventKind::Close) });
    let close = line_of(&event(EventKind::Close));
    assert_eq!(sampled, close.replace(",\"duration_ms\"", ",\"sample\":100,\"duration_ms\""));
}

#[test]
fn flows_without_a_line_are_reported_by_setting() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let mut log = manual_log(Output::open(&LogTarget::File(path.clone())).unwrap());
    // These are no lines about unknown clients.
    log.thread.reserve.check(&log.thread.output.file, Nanos(u64::MAX / 2));
    log.thread.reserve.is_reached = true;
    assert!(log.senders[0].try_push_flows_left_out(LeftOutBy::Sample, 7));
    log.drain();
    let text = fs::read_to_string(&path).unwrap();
    let (_, fields) = text.split_once(",\"event\"").unwrap();
    assert_eq!(fields, ":\"left_out\",\"reason\":\"sample\",\"count\":7}\n");
}

#[test]
fn unknown_fields_are_omitted() {
    let early = Event {
        record: Record::new(&Flow { user: "", host: "", rule: "", port: 0, address: None, ..FLOW }),
        protocol: None,
        listener: "[::1]:3128".parse().unwrap(),
        decision: Decision::Deny,
        reason: "greeting_timeout",
        dns_us: None,
        connect_us: None,
        ..event(EventKind::Decision)
    };
    check(
        &early,
        r#"{"id":"0000000000000000000000000000001f","ts":"2026-11-21T13:40:00.123Z","event":"decision",
        "listener":"[::1]:3128","client_addr":"127.0.0.1:40312",
        "decision":"deny","reason":"greeting_timeout"}"#,
    );
}

#[test]
fn claimed_user_and_failure_have_own_words() {
    let claim = Event {
        is_claimed: true,
        decision: Decision::Deny,
        reason: "credentials_wrong",
        dns_us: None,
        connect_us: None,
        record: Record::new(&Flow { user: "an\"n", rule: "", address: None, ..FLOW }),
        ..event(EventKind::Decision)
    };
    check(
        &claim,
        r#"{"id":"0000000000000000000000000000001f","ts":"2026-11-21T13:40:00.123Z","event":"decision",
        "attempted_user":"an\"n","listener":"127.0.0.1:3128","protocol":"http_connect",
        "client_addr":"127.0.0.1:40312","requested_host":"github.com","requested_port":443,
        "decision":"deny","reason":"credentials_wrong"}"#,
    );
    let failure = Event { decision: Decision::Failed, reason: "unreachable", ..event(EventKind::Decision) };
    let tried = ["192.0.2.1", "2001:db8::1", "192.0.2.2"].map(|address| address.parse().unwrap());
    let line = line_with(&failure, &Details { tried: &tried, text: "no \u{1b}way", path: "/a b" });
    let parsed: Json = serde_json::from_str(&line).unwrap();
    assert_eq!(parsed["tried"], json!(["192.0.2.1", "2001:db8::1", "192.0.2.2"]));
    assert_eq!((&parsed["decision"], &parsed["reason"]), (&json!("failed"), &json!("unreachable")));
    assert_eq!((&parsed["text"], &parsed["path"]), (&json!("no \u{1b}way"), &json!("/a b")));
    assert!(line.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\n')), "{line}");
    let line = line_with(&failure, &Details { tried: &tried[..1], ..NO_DETAILS });
    assert!(line.contains(r#""tried":["192.0.2.1"],"#), "{line}");
}

#[test]
fn clock_set_back_gives_zero_duration() {
    let record = Record::new(&Flow { opened: WallNanos(AT.0 + 1), ..FLOW });
    assert!(line_of(&Event { record, ..event(EventKind::Close) }).contains(r#""duration_ms":0.000,"#));
}

#[test]
fn times_are_right_across_days_and_leap_years() {
    let mut lines = LineWriter::default();
    // From `date -u -d @SECONDS`.
    let cases = [
        (0, "1970-01-01T00:00:00.000Z"),
        (999_999, "1970-01-01T00:00:00.000Z"),
        (1_000_000, "1970-01-01T00:00:00.001Z"),
        (951_782_399_999_999_999, "2000-02-28T23:59:59.999Z"),
        (951_782_400_000_000_000, "2000-02-29T00:00:00.000Z"),
        (1_709_251_199_050_000_000, "2024-02-29T23:59:59.050Z"),
        (4_107_542_400_000_000_000, "2100-03-01T00:00:00.000Z"),
        (u64::MAX, "2554-07-21T23:34:33.709Z"),
    ];
    for (nanos, expected) in cases {
        let mut out = Vec::new();
        lines.dropped(&mut out, WallNanos(nanos), 7);
        let expected = format!("{{\"ts\":\"{expected}\",\"event\":\"log_dropped\",\"count\":7}}\n");
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}

#[test]
fn hostile_names_stay_inside_their_string() {
    let cases = [
        (r#"a","user":"root"#, r#"a\",\"user\":\"root"#),
        ("back\\slash\\", r"back\\slash\\"),
        ("two\nlines\r\n", r"two\u000alines\u000d\u000a"),
        ("\0\u{1b}[2J\u{7f}", r"\u0000\u001b[2J\u007f"),
        ("\u{9b}31m", r"\u009b31m"),
        ("evil\u{202e}moc.elgoog", r"evil\u202emoc.elgoog"),
        ("\u{2028}\u{feff}é", r"\u2028\ufeff\u00e9"),
        ("\u{1f980}", r"\ud83e\udd80"),
        ("</script><!--", "</script><!--"),
    ];
    for (text, escaped) in cases {
        let line = line_of(&event_with_texts(text, text, text));
        for name in ["user", "requested_host", "rule"] {
            assert!(line.contains(&format!("\"{name}\":\"{escaped}\",")), "{name} in {line}");
        }
    }
}

proptest! {
    #[test]
    fn every_text_round_trips_through_its_line(
        user in text(64),
        host in text(253),
        rule in text(RULE_BYTES_MAX),
    ) {
        let line = line_of(&event_with_texts(&user, &host, &rule));
        let body = line.strip_suffix('\n').expect("a line ends");
        prop_assert!(body.bytes().all(|byte| matches!(byte, b' '..=b'~')), "{body:?}");
        let parsed: Json = serde_json::from_str(body).expect("a line is JSON");
        let field = |name: &str| parsed.get(name).and_then(Json::as_str).unwrap_or_default().to_owned();
        prop_assert_eq!(field("user"), user);
        prop_assert_eq!(field("requested_host"), host);
        prop_assert_eq!(field("rule"), rule);
    }
}

/// Any text that fits a record whole.
fn text(bytes_max: usize) -> impl Strategy<Value = String> {
    any::<String>().prop_map(move |mut text| {
        text.truncate((0..=bytes_max).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0));
        text
    })
}

fn to_file(path: PathBuf) -> settings::Log {
    settings::Log { to: LogTarget::File(path), ..settings::Log::default() }
}

/// A log into `directory/log`, its senders and its counters.
fn start(directory: &Path, workers: usize) -> (Log, Vec<LogSender>, Arc<Stats>) {
    let stats = Stats::new("0.0.0", AT, workers, crate::jobs::start(1).unwrap());
    let (log, senders) = Log::start(&to_file(directory.join("log")), &stats).unwrap();
    (log, senders, stats)
}

fn numbered(flow: usize) -> Event {
    Event { record: Record::new(&Flow { id: flow as u128, ..FLOW }), ..event(EventKind::Decision) }
}

/// The flow numbers in the file, in order, and its other lines.
fn read(path: &Path) -> (Vec<usize>, Vec<Json>) {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'), "the last line is whole");
    let (mut flows, mut others) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let line: Json = serde_json::from_str(line).expect("each line is an object");
        match line.get("id").and_then(Json::as_str) {
            Some(id) => flows.push(usize::from_str_radix(id, 16).unwrap()),
            None => others.push(line),
        }
    }
    (flows, others)
}

#[track_caller]
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < WAIT_MAX, "{what} never happened");
        thread::yield_now();
    }
}

#[test]
fn close_writes_all_events_in_thread_order() {
    let directory = tempfile::tempdir().unwrap();
    let (log, mut senders, stats) = start(directory.path(), 2);
    for flow in 0..RING_EVENTS {
        senders[flow % 2].push(&numbered(flow), &NO_DETAILS);
    }
    log.close();
    let (flows, others) = read(&directory.path().join("log"));
    let with_parity = |parity| flows.iter().copied().filter(|flow| flow % 2 == parity).collect::<Vec<_>>();
    assert_eq!(with_parity(0), (0..RING_EVENTS).step_by(2).collect::<Vec<_>>());
    assert_eq!(with_parity(1), (1..RING_EVENTS).step_by(2).collect::<Vec<_>>());
    assert_eq!((others, stats.log_dropped()), (Vec::new(), 0));
}

#[test]
fn sleeping_log_thread_is_woken() {
    let directory = tempfile::tempdir().unwrap();
    let (_log, mut senders, _) = start(directory.path(), 1);
    let path = directory.path().join("log");
    for flow in 0..3 {
        // Long enough for a delay to bring nothing; if it were too short, the test would only prove less.
        thread::sleep(5 * writer::BATCH_DELAY);
        senders[0].push(&numbered(flow), &NO_DETAILS);
        wait_until("a line", || read_lines(&path) == flow + 1);
    }
}

fn read_lines(path: &Path) -> usize {
    fs::read(path).unwrap_or_default().iter().filter(|byte| **byte == b'\n').count()
}

#[test]
fn messages_become_lines() {
    let directory = tempfile::tempdir().unwrap();
    let (log, _, _) = start(directory.path(), 1);
    let fields = [("users", 3.into()), ("file", "a\nb".into()), ("kept", true.into())];
    log.write_message(Level::Warning, "reload refused", &fields);
    log.close();
    let (_, mut others) = read(&directory.path().join("log"));
    let mut message = others.remove(0);
    let ts = message.as_object_mut().unwrap().remove("ts").unwrap();
    assert_eq!(ts.as_str().unwrap().len(), AT_TEXT.len());
    let expected = json!({
        "event": "message", "level": "warning", "text": "reload refused",
        "users": 3, "file": "a\nb", "kept": true,
    });
    assert_eq!(message, expected);
}

const AT_TEXT: &str = "2026-11-21T13:40:00.123Z";

/// A log thread that runs only when the test calls it.
struct ManualLog {
    thread: LogThread,
    senders: Vec<LogSender>,
    messages: Sender<Box<[u8]>>,
    stats: Arc<Stats>,
}

impl ManualLog {
    /// Writes everything that is queued.
    fn drain(&mut self) {
        loop {
            self.thread.collect();
            let is_last = self.thread.pending.is_empty();
            assert_eq!(self.thread.flush(), FlushOutcome::All);
            if is_last {
                break;
            }
        }
    }
}

fn manual_log(output: Output) -> ManualLog {
    let stats = Stats::new("0.0.0", AT, 1, crate::jobs::start(1).unwrap());
    let signals = Arc::new(LogThreadSignals::default());
    let (senders, rings) = stats.workers.iter().map(|worker| log_sender(&signals, worker)).unzip();
    let (messages, lines) = bounded(MESSAGES_MAX);
    let thread = LogThread::new(signals, rings, lines, output, Arc::clone(&stats));
    ManualLog { thread, senders, messages, stats }
}

#[test]
fn events_beyond_the_ring_are_counted_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let mut log = manual_log(Output::open(&LogTarget::File(path.clone())).unwrap());
    for flow in 0..RING_EVENTS + 3 {
        log.senders[0].push(&numbered(flow), &NO_DETAILS);
    }
    assert_eq!(log.stats.workers[0].log_dropped.value(), 3);
    log.drain();
    let (flows, others) = read(&path);
    assert_eq!(flows, (0..RING_EVENTS).collect::<Vec<_>>());
    assert_eq!(
        (others.len(), &others[0]["event"], &others[0]["count"]),
        (1, &json!("log_dropped"), &json!(3))
    );
    // The second line of this kind counts from the first one on, whichever queue lost the lines.
    log.stats.workers[0].log_dropped.add(2);
    log.stats.log_messages_dropped.fetch_add(1, Ordering::Relaxed);
    log.drain();
    let (_, others) = read(&path);
    assert_eq!((others.len(), &others[1]["count"]), (2, &json!(3)));
}

#[test]
fn nearly_full_disk_withholds_unknown_client_lines() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let mut log = manual_log(Output::open(&LogTarget::File(path.clone())).unwrap());
    // The state of a disk that had reached the reserve at the last check, which was just now.
    log.thread.reserve.check(&log.thread.output.file, Nanos(u64::MAX / 2));
    log.thread.reserve.is_reached = true;
    let unknown = Event { decision: Decision::Deny, ..event_with_texts("", "a", "") };
    let claimed = Event { is_claimed: true, ..event_with_texts("root", "a", "") };
    let suppressed = Event { kind: EventKind::Suppressed(5), ..unknown };
    for event in [unknown, claimed, suppressed, numbered(7)] {
        log.senders[0].push(&event, &NO_DETAILS);
    }
    log.drain();
    assert_eq!(read(&path), (vec![7], vec![]), "only lines of known users");
    log.thread.reserve.is_reached = false;
    log.drain();
    let (flows, others) = read(&path);
    assert_eq!((flows, others.len(), &others[0]["count"]), (vec![7], 1, &json!(7)));
    assert_eq!(others[0]["reason"], "disk_nearly_full");
}

#[test]
fn messages_beyond_their_queue_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let log = manual_log(Output::open(&LogTarget::File(directory.path().join("log"))).unwrap());
    let ManualLog { thread, messages, stats, .. } = log;
    let (to, signals, ended) = (LogTarget::Stderr, Arc::default(), Mutex::new(None));
    let log = Log { to, signals, messages, stats: Arc::clone(&stats), ended };
    (0..MESSAGES_MAX + 2).for_each(|_| log.write_message(Level::Info, "again", &[]));
    assert_eq!((stats.log_dropped(), thread.messages.len()), (2, MESSAGES_MAX));
}

#[test]
fn partial_write_is_continued_later() {
    let (mut reader, pipe) = io::pipe().unwrap();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&pipe));
    // Reopened, so that only this end is nonblocking.
    const O_NONBLOCK: i32 = 0o4000;
    let file = fs::OpenOptions::new().write(true).custom_flags(O_NONBLOCK).open(path).unwrap();
    let mut log = manual_log(Output::new(file, None).unwrap());
    drop(pipe);
    for flow in 0..RING_EVENTS {
        log.senders[0].push(&numbered(flow), &NO_DETAILS);
    }
    log.thread.collect();
    assert_eq!(log.thread.flush(), FlushOutcome::Blocked, "a pipe holds less than a batch");
    let copy = thread::spawn(move || {
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        text
    });
    // The end of the log waits for the reader, and closes the pipe after the last line.
    log.thread.finish();
    drop(log);
    let text = copy.join().unwrap();
    let ids = text.lines().map(|line| serde_json::from_str::<Json>(line).unwrap()["id"].take());
    let expected = (0..RING_EVENTS).map(|flow| Json::from(format!("{flow:032x}")));
    assert!(ids.eq(expected), "each line once, whole, in order");
}

#[test]
fn full_disk_loses_nothing_while_buffers_hold() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    symlink("/dev/full", &path).unwrap();
    let (log, mut senders, stats) = start(directory.path(), 1);
    senders[0].push(&numbered(0), &NO_DETAILS);
    wait_until("a failed write", || stats.log_write_errors.load(Ordering::Relaxed) > 0);
    senders[0].push(&numbered(1), &NO_DETAILS);
    fs::remove_file(&path).unwrap();
    log.reopen();
    wait_until("the line that waited", || read_lines(&path) > 0);
    senders[0].push(&numbered(2), &NO_DETAILS);
    log.close();
    assert_eq!(read(&path), (vec![0, 1, 2], Vec::new()));
}

#[test]
fn disk_that_stays_full_lets_the_log_close() {
    let directory = tempfile::tempdir().unwrap();
    symlink("/dev/full", directory.path().join("log")).unwrap();
    let (log, mut senders, stats) = start(directory.path(), 1);
    // More than batch and ring hold: the producer never waits, so some events must be dropped.
    (0..4 * RING_EVENTS).for_each(|flow| senders[0].push(&numbered(flow), &NO_DETAILS));
    assert!(stats.log_dropped() > 0);
    log.close();
}

#[test]
fn rotation_continues_in_a_new_file() {
    let directory = tempfile::tempdir().unwrap();
    let (log, mut senders, _) = start(directory.path(), 1);
    let (path, rotated) = (directory.path().join("log"), directory.path().join("log.1"));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o137, 0, "no more than 0640");
    senders[0].push(&numbered(1), &NO_DETAILS);
    wait_until("the first line", || read_lines(&path) == 1);
    fs::rename(&path, &rotated).unwrap();
    senders[0].push(&numbered(2), &NO_DETAILS);
    wait_until("a line in the renamed file", || read_lines(&rotated) == 2);
    log.reopen();
    wait_until("a new file", || path.exists());
    senders[0].push(&numbered(3), &NO_DETAILS);
    log.close();
    assert_eq!((read(&rotated), read(&path)), ((vec![1, 2], vec![]), (vec![3], vec![])));
}

#[test]
fn failed_reopen_keeps_the_old_file() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("folder");
    fs::create_dir(&folder).unwrap();
    let (log, mut senders, stats) = start(&folder, 1);
    let moved = directory.path().join("moved");
    fs::rename(&folder, &moved).unwrap();
    log.reopen();
    wait_until("a warning", || read_lines(&moved.join("log")) == 1);
    assert_eq!(stats.log_write_errors.load(Ordering::Relaxed), 1);
    senders[0].push(&numbered(1), &NO_DETAILS);
    log.close();
    let (flows, others) = read(&moved.join("log"));
    assert_eq!((flows, &others[0]["level"]), (vec![1], &json!("warning")));
}

#[test]
fn cut_line_goes_whole_into_the_next_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let mut log = manual_log(Output::open(&LogTarget::File(path.clone())).unwrap());
    (0..3).for_each(|flow| log.senders[0].push(&numbered(flow), &NO_DETAILS));
    log.thread.collect();
    // The state after a disk filled up in the middle of the second line.
    log.thread.written = line_of(&numbered(0)).len() + 40;
    fs::rename(&path, directory.path().join("log.1")).unwrap();
    log.thread.reopen_file().unwrap();
    assert_eq!(log.thread.flush(), FlushOutcome::All);
    assert_eq!(read(&path).0, [1, 2]);
}

#[test]
fn unchanged_file_is_continued_at_the_cut() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let mut log = manual_log(Output::open(&LogTarget::File(path.clone())).unwrap());
    (0..3).for_each(|flow| log.senders[0].push(&numbered(flow), &NO_DETAILS));
    log.thread.collect();
    let cut = line_of(&numbered(0)).len() + 40;
    fs::write(&path, &log.thread.pending[..cut]).unwrap();
    log.thread.written = cut;
    log.thread.reopen_file().unwrap();
    assert_eq!(log.thread.flush(), FlushOutcome::All);
    assert_eq!(read(&path).0, [0, 1, 2]);
}

/// A log thread with a file of at most `size_max` bytes, and `keep` renamed ones.
fn rotating_log(directory: &Path, size_max: &str, keep: u32) -> ManualLog {
    let log = manual_log(Output::open(&LogTarget::File(directory.join("log"))).unwrap());
    rotate_by(&log, size_max, keep);
    log
}

fn rotate_by(log: &ManualLog, size_max: &str, keep: u32) {
    let text = format!("[log]\nto = \"log\"\nsize_max = \"{size_max}\"\nkeep = {keep}\n");
    log.thread.signals.rotation.set(&loaded(&text));
}

/// The log's settings in a configuration file with this text.
fn loaded(text: &str) -> settings::Log {
    let config = tempfile::tempdir().unwrap();
    let path = config.path().join("tollgate.toml");
    fs::write(&path, text).unwrap();
    let options = LoadOptions { path: Some(path), ..LoadOptions::default() };
    Config::load(&options).unwrap().log
}

#[test]
fn settings_of_another_destination_leave_the_bound_of_the_file_in_use() {
    let directory = tempfile::tempdir().unwrap();
    let to = LogTarget::File(directory.path().join("log"));
    let bounded = settings::Log { to, ..loaded("[log]\nto = \"log\"\nsize_max = \"64KiB\"\n") };
    let stats = Stats::new("0.0.0", AT, 1, crate::jobs::start(1).unwrap());
    let (log, _senders) = Log::start(&bounded, &stats).unwrap();
    log.configure(&settings::Log::default());
    assert_eq!(log.signals.rotation.size_max(), Some(64 << 10));
    log.configure(&settings::Log { to: bounded.to, ..settings::Log::default() });
    assert_eq!(log.signals.rotation.size_max(), None);
}

/// The flows of the renamed files and the current one, oldest first, and the sizes of these files.
fn read_rotated(directory: &Path) -> (Vec<usize>, Vec<u64>) {
    let (mut flows, mut sizes) = (Vec::new(), Vec::new());
    for number in (0..20).rev() {
        let name = if number == 0 { "log".into() } else { format!("log.{number}") };
        let path = directory.join(name);
        if let Ok(metadata) = fs::metadata(&path) {
            flows.extend(read(&path).0);
            sizes.push(metadata.len());
        }
    }
    (flows, sizes)
}

const SIZE_MAX: u64 = 64 * 1024;

#[test]
fn full_file_is_rotated_between_lines() {
    const FLOWS: usize = 4 * RING_EVENTS;
    let directory = tempfile::tempdir().unwrap();
    let mut log = rotating_log(directory.path(), "64KiB", 19);
    for flow in 0..FLOWS {
        log.senders[0].push(&numbered(flow), &NO_DETAILS);
        if flow % 100 == 99 || flow == FLOWS - 1 {
            log.drain();
        }
    }
    let (flows, sizes) = read_rotated(directory.path());
    assert_eq!(flows, (0..FLOWS).collect::<Vec<_>>(), "each line once, whole, in order");
    let line = line_of(&numbered(0)).len() as u64;
    let (_, full) = sizes.split_last().unwrap();
    assert!(full.len() > 5, "{sizes:?}");
    assert!(sizes.iter().all(|size| *size <= SIZE_MAX), "{sizes:?}");
    assert!(full.iter().all(|size| *size > SIZE_MAX - line), "{sizes:?}");
}

#[test]
fn batch_beyond_the_bound_fills_several_files() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = rotating_log(directory.path(), "64KiB", 2);
    (0..RING_EVENTS).for_each(|flow| log.senders[0].push(&numbered(flow), &NO_DETAILS));
    log.drain();
    let (flows, sizes) = read_rotated(directory.path());
    assert_eq!(sizes.len(), 3, "{sizes:?}");
    let first = RING_EVENTS - flows.len();
    assert_eq!(flows, (first..RING_EVENTS).collect::<Vec<_>>());
    // Neither line is larger than a file; a line that is has a file for itself.
    let text = "x".repeat(SIZE_MAX as usize);
    let mut lines = LineWriter::default();
    lines.message(&mut log.thread.pending, AT, Level::Info, &text, &[]);
    log.drain();
    assert!(fs::metadata(directory.path().join("log")).unwrap().len() > SIZE_MAX);
    log.senders[0].push(&numbered(7), &NO_DETAILS);
    log.drain();
    assert_eq!(read(&directory.path().join("log")), (vec![7], vec![]));
}

#[test]
fn reload_changes_the_bound() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = rotating_log(directory.path(), "1GiB", 5);
    let write = |log: &mut ManualLog| {
        (0..RING_EVENTS).for_each(|flow| log.senders[0].push(&numbered(flow), &NO_DETAILS));
        log.drain();
        read_rotated(directory.path()).1
    };
    assert_eq!(write(&mut log).len(), 1);
    rotate_by(&log, "64KiB", 5);
    assert!(write(&mut log).len() > 3, "the file that is above the bound is renamed first");
    log.thread.signals.rotation.set(&settings::Log::default());
    let before = read_rotated(directory.path()).1.len();
    assert_eq!(write(&mut log).len(), before);
}

#[test]
fn failed_rotation_loses_no_line() {
    let directory = tempfile::tempdir().unwrap();
    let obstacle = directory.path().join("log.1");
    fs::create_dir_all(obstacle.join("in_use")).unwrap();
    let mut log = rotating_log(directory.path(), "64KiB", 1);
    (0..RING_EVENTS).for_each(|flow| log.senders[0].push(&numbered(flow), &NO_DETAILS));
    log.drain();
    let (flows, others) = read(&directory.path().join("log"));
    assert_eq!(flows, (0..RING_EVENTS).collect::<Vec<_>>());
    assert_eq!((others.len(), &others[0]["text"]), (1, &json!("the log file cannot be rotated")));
    assert_eq!(log.stats.log_write_errors.load(Ordering::Relaxed), 1, "it is not tried with each line");
    fs::remove_dir_all(&obstacle).unwrap();
    log.thread.next_rotation = Nanos(0);
    log.senders[0].push(&numbered(7), &NO_DETAILS);
    log.drain();
    assert_eq!((read(&directory.path().join("log")).0, obstacle.is_file()), (vec![7], true));
}

#[test]
fn rotation_by_another_program_is_no_obstacle() {
    let directory = tempfile::tempdir().unwrap();
    let (path, renamed) = (directory.path().join("log"), directory.path().join("renamed"));
    let mut log = rotating_log(directory.path(), "64KiB", 5);
    let write = |log: &mut ManualLog, flows: std::ops::Range<usize>| {
        flows.for_each(|flow| log.senders[0].push(&numbered(flow), &NO_DETAILS));
        log.drain();
    };
    // Renamed, and the signal comes late: the full file is left, and the next one gets the name.
    write(&mut log, 0..100);
    fs::rename(&path, &renamed).unwrap();
    write(&mut log, 100..200);
    assert_eq!(
        (read(&renamed).0.len() + read(&path).0.len(), directory.path().join("log.1").exists()),
        (200, false)
    );
    log.thread.reopen_file().unwrap();
    // Truncated: there is space again.
    write(&mut log, 200..230);
    fs::write(&path, "").unwrap();
    write(&mut log, 230..330);
    assert_eq!((read(&path).0, directory.path().join("log.1").exists()), ((230..330).collect(), false));
}

/// What is no regular file has no size.
#[test]
fn device_is_not_rotated() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    symlink("/dev/null", &path).unwrap();
    let mut log = rotating_log(directory.path(), "64KiB", 5);
    for _ in 0..3 {
        (0..RING_EVENTS).for_each(|flow| log.senders[0].push(&numbered(flow), &NO_DETAILS));
        log.drain();
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    assert!(path.is_symlink());
}

/// A disk that is full in the middle of a line: the line's end goes to the same file, and the next line to
/// the next file.
#[test]
fn cut_line_is_ended_before_a_rotation() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    fs::write(&path, vec![b'\n'; SIZE_MAX as usize - 100]).unwrap();
    let mut log = rotating_log(directory.path(), "64KiB", 5);
    (0..3).for_each(|flow| log.senders[0].push(&numbered(flow), &NO_DETAILS));
    log.thread.collect();
    let cut = log.thread.pending[..40].to_vec();
    assert_eq!(log.thread.output.write(&cut).unwrap(), 40);
    log.thread.written = 40;
    assert_eq!(log.thread.flush(), FlushOutcome::All);
    let first = fs::read_to_string(directory.path().join("log.1")).unwrap();
    assert_eq!(first.trim_start().lines().count(), 1, "{}", first.trim_start());
    assert_eq!(read(&path).0, [1, 2]);
}

#[test]
fn unopenable_log_is_an_error_with_its_path() {
    let stats = Stats::new("0.0.0", AT, 1, crate::jobs::start(1).unwrap());
    let error = Log::start(&to_file("/nowhere/log".into()), &stats).err().unwrap();
    assert!(error.to_string().starts_with("/nowhere/log: "), "{error}");
}
