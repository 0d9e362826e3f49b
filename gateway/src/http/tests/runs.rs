//! Runs of requests: which requests of a connection one flow bills, and what it has between two of them.

use std::time::Duration;

use ledger::record::CloseReason;
use ledger::simulation::BilledFlow;
use sys::socket::Socket;

use super::{GET, RESPONSE};
use crate::limits::{IDLE_RUNS_PER_THREAD_MAX, RUN_IDLE_MAX, RUN_SPAN_MAX};
use crate::simulation::Pair;

/// To a port that no rule allows.
const DENIED: &[u8] = b"GET http://93.184.216.1:80/ HTTP/1.1\r\nHost: 93.184.216.1:80\r\n\r\n";

const UPGRADE: &[u8] = b"GET http://93.184.216.1:443/ HTTP/1.1\r\nHost: 93.184.216.1:443\r\n\
    Connection: upgrade\r\nUpgrade: websocket\r\n\r\n";

const UPGRADED: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";

const SECOND: Duration = Duration::from_secs(1);

/// A client's connection, and the one that the gateway keeps for it.
struct Kept {
    client: Socket,
    upstream: Socket,
}

impl Kept {
    /// A connection after its first request.
    fn open(pair: &mut Pair) -> Kept {
        let client = pair.connect();
        pair.send(&client, GET);
        let upstream = pair.accept();
        let kept = Kept { client, upstream };
        kept.respond(pair);
        kept
    }

    /// Makes another request, over the same upstream connection if that is kept.
    fn request(&mut self, pair: &mut Pair) {
        pair.send(&self.client, GET);
        if let Some(upstream) = pair.try_accept() {
            self.upstream = upstream;
        }
        self.respond(pair);
    }

    fn respond(&self, pair: &mut Pair) {
        assert!(pair.receive(&self.upstream).starts_with(b"GET /path "));
        pair.send(&self.upstream, RESPONSE);
        assert!(pair.receive(&self.client).ends_with(b"body"));
    }
}

fn requests(bill: &[BilledFlow]) -> Vec<u64> {
    bill.iter().map(|flow| flow.requests).collect()
}

fn reasons(bill: &[BilledFlow]) -> Vec<CloseReason> {
    bill.iter().map(|flow| flow.reason).collect()
}

#[test]
fn each_request_of_a_run_has_its_line() {
    let mut pair = Pair::new("");
    let mut kept = Kept::open(&mut pair);
    kept.request(&mut pair);
    kept.request(&mut pair);
    let lines = pair.logged();
    assert_eq!(
        (pair.stats().request_counts()[0], pair.stats().response_counts()[1]),
        (("GET", 3), ("2xx", 3))
    );
    let bill = pair.stop();
    let [flow] = &bill[..] else { panic!("{bill:?}") };
    assert_eq!((flow.requests, flow.reason), (3, CloseReason::Completed));
    let numbers: Vec<_> = lines.iter().filter_map(|line| Some(line.request?.1)).collect();
    assert_eq!(numbers, [1, 2, 3]);
    assert_eq!(lines[0].request.map(|(id, _)| id), Some(flow.id), "the first request has the flow's id");
    assert!(
        lines[1].request.unwrap().0 > flow.id && lines[2].request.unwrap().0 > lines[1].request.unwrap().0
    );
    for line in &lines {
        assert_eq!((line.id, line.up * 3, line.down * 3), (flow.id, flow.up, flow.down), "its own bytes");
    }
}

#[test]
fn silent_client_has_no_flow_after_a_while() {
    let mut pair = Pair::new("[timeouts]\nkeep_alive = \"30s\"");
    let mut kept = Kept::open(&mut pair);
    assert_eq!(pair.stats().flows_active(), 0, "an idle run is not active");
    pair.pass_time(RUN_IDLE_MAX - SECOND);
    kept.request(&mut pair);
    // A head that has begun is no request.
    pair.send(&kept.client, &GET[..20]);
    pair.pass_time(RUN_IDLE_MAX + SECOND);
    pair.send(&kept.client, &GET[20..]);
    kept.respond(&mut pair);
    pair.pass_time(29 * SECOND);
    assert!(!pair.has_ended(&kept.client), "the end of a run is not that of its connection");
    pair.pass_time(2 * SECOND);
    assert!(pair.has_ended(&kept.client));
    assert_eq!(requests(&pair.stop()), [2, 1]);
}

#[test]
fn busy_run_ends_after_its_span() {
    let mut pair = Pair::new("");
    let mut kept = Kept::open(&mut pair);
    for _ in 0..RUN_SPAN_MAX.as_secs() + 10 {
        pair.pass_time(SECOND);
        kept.request(&mut pair);
    }
    let counts = requests(&pair.stop());
    assert_eq!(counts.iter().sum::<u64>(), RUN_SPAN_MAX.as_secs() + 11);
    assert!(counts.len() == 2 && counts[1] <= 11, "{counts:?}");
}

#[test]
fn denial_and_reload_end_a_run() {
    let mut pair = Pair::new("");
    let mut kept = Kept::open(&mut pair);
    kept.request(&mut pair);
    pair.send(&kept.client, DENIED);
    assert!(pair.receive(&kept.client).starts_with(b"HTTP/1.1 403 "));
    kept.request(&mut pair);
    pair.reload("");
    kept.request(&mut pair);
    kept.request(&mut pair);
    let bill = pair.stop();
    assert_eq!((requests(&bill), reasons(&bill)), (vec![2, 1, 2], vec![CloseReason::Completed; 3]));
}

/// The request is under way while the reload comes: the next one is the first that another flow has.
#[test]
fn reload_ends_the_run_of_pipelined_requests() {
    let mut pair = Pair::new("");
    let client = pair.connect();
    pair.send(&client, &GET.repeat(3));
    let upstream = pair.accept();
    pair.receive(&upstream);
    pair.reload("");
    pair.send(&upstream, RESPONSE);
    assert!(pair.receive(&client).ends_with(b"body"));
    let kept = Kept { client, upstream };
    kept.respond(&mut pair);
    kept.respond(&mut pair);
    assert_eq!(requests(&pair.stop()), [1, 2]);
}

#[test]
fn removed_user_leaves_a_completed_run() {
    let mut pair = Pair::new("");
    let kept = Kept::open(&mut pair);
    pair.remove_user();
    assert!(pair.is_closed(&kept.client) && pair.is_closed(&kept.upstream));
    let bill = pair.stop();
    assert_eq!((requests(&bill), reasons(&bill)), (vec![1], vec![CloseReason::Completed]));
}

#[test]
fn failed_request_gives_the_run_its_reason() {
    let mut pair = Pair::new("");
    let kept = Kept::open(&mut pair);
    pair.send(&kept.client, GET);
    pair.send(&kept.upstream, &RESPONSE[..RESPONSE.len() - 1]);
    assert!(pair.receive(&kept.client).ends_with(b"bod"));
    kept.upstream.reset();
    assert!(pair.is_closed(&kept.client));
    let bill = pair.stop();
    assert_eq!((requests(&bill), reasons(&bill)), (vec![2], vec![CloseReason::UpstreamReset]));
}

#[test]
fn repeated_request_counts_once() {
    let mut pair = Pair::new("");
    let Kept { client, upstream } = Kept::open(&mut pair);
    pair.send(&client, GET);
    let head = pair.receive(&upstream);
    // Its close crosses the request.
    upstream.reset();
    let kept = Kept { client, upstream: pair.accept() };
    kept.respond(&mut pair);
    let bill = pair.stop();
    assert_eq!((requests(&bill), bill[0].up), (vec![2], 3 * head.len() as u64), "its bytes count twice");
}

#[test]
fn upgraded_request_has_a_flow_of_its_own() {
    let mut pair = Pair::new("");
    let kept = Kept::open(&mut pair);
    pair.send(&kept.client, UPGRADE);
    assert!(pair.receive(&kept.upstream).starts_with(b"GET / "));
    pair.send(&kept.upstream, UPGRADED);
    assert!(pair.receive(&kept.client).starts_with(b"HTTP/1.1 101 "));
    assert_eq!(pair.stats().response_counts()[..2], [("1xx", 1), ("2xx", 1)]);
    pair.send(&kept.client, b"ping");
    assert_eq!(pair.receive(&kept.upstream), b"ping");
    let bill = pair.stop();
    let expected = (vec![1, 1], vec![CloseReason::Completed, CloseReason::Drained]);
    assert_eq!((requests(&bill), reasons(&bill)), expected);
}

/// Otherwise one client of a user, silent on a kept connection, would keep the others from being served.
#[test]
fn idle_run_has_no_permit() {
    let mut pair = Pair::new("[limits]\nconnections_per_user = 1");
    let mut first = Kept::open(&mut pair);
    let mut second = Kept::open(&mut pair);
    first.request(&mut pair);
    second.request(&mut pair);
    assert_eq!(requests(&pair.stop()), [2, 2]);
}

#[test]
fn surplus_idle_runs_end_with_their_requests() {
    let mut pair = Pair::new("");
    let mut kept: Vec<Kept> = (0..IDLE_RUNS_PER_THREAD_MAX + 2).map(|_| Kept::open(&mut pair)).collect();
    kept.iter_mut().for_each(|kept| kept.request(&mut pair));
    let mut counts = requests(&pair.stop());
    counts.sort_unstable();
    assert_eq!(counts, [vec![1; 4], vec![2; IDLE_RUNS_PER_THREAD_MAX]].concat());
}

/// The response is complete, and nothing of the run is in the journal.
#[test]
fn kill_between_two_requests_loses_none() {
    let mut pair = Pair::new("");
    let mut kept = Kept::open(&mut pair);
    kept.request(&mut pair);
    let lines = pair.logged();
    let bill = pair.kill();
    let [flow] = &bill[..] else { panic!("{bill:?}") };
    assert_eq!((flow.requests, flow.reason), (2, CloseReason::Killed));
    assert_eq!((flow.uncertain.up, flow.uncertain.down), (0, 0));
    let (up, down) = (lines.iter().map(|line| line.up).sum(), lines.iter().map(|line| line.down).sum());
    assert_eq!((flow.up, flow.down), (up, down));
}
