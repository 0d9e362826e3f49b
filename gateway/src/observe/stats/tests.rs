//! Tests of the counters.

use super::*;

#[test]
fn flow_is_active_between_opened_and_closed() {
    let stats = WorkerStats::default();
    let (protocol, reason) = (Protocol::Forward, CloseReason::Fault);
    stats.opened(protocol);
    stats.opened(protocol);
    stats.closed(reason);
    assert_eq!((stats.flows_active(), stats.opened_count(protocol), stats.closed_count(reason)), (1, 2, 1));
    assert_eq!(stats.opened_count(Protocol::Socks5), 0);
    assert_eq!(stats.closed_count(CloseReason::Overload), 0);
}

#[test]
fn flow_is_not_active_between_two_requests() {
    let stats = WorkerStats::default();
    stats.opened(Protocol::Http);
    stats.paused();
    assert_eq!(stats.flows_active(), 0);
    stats.resumed();
    stats.closed(CloseReason::Completed);
    assert_eq!((stats.flows_active(), stats.closed_count(CloseReason::Completed)), (0, 1));
}

#[test]
fn requests_count_by_method_and_responses_by_class() {
    let stats = WorkerStats::default();
    ["GET", "GET", "PATCH", "OTHER", "PROPFIND"].iter().for_each(|method| stats.requested(method));
    [101, 204, 200, 599, 0, 99, 600, 999].iter().for_each(|status| stats.responded(*status));
    let counted = |counts: &[(&'static str, u64)]| -> Vec<_> {
        counts.iter().copied().filter(|(_, count)| *count > 0).collect()
    };
    assert_eq!(counted(&stats.request_counts()), [("GET", 2), ("PATCH", 1), ("other", 2)]);
    assert_eq!(counted(&stats.response_counts()), [("1xx", 1), ("2xx", 2), ("5xx", 1)]);
}

#[test]
fn reads_shrink_while_pending_buffers_are_many() {
    let stats = WorkerStats::default();
    assert_eq!(stats.read_bytes_max(), SCRATCH_BYTES);
    stats.pending_bytes.set(PENDING_BYTES_MAX);
    assert_eq!(stats.read_bytes_max(), READ_BYTES_UNDER_PRESSURE);
}

#[test]
fn each_denial_kind_has_its_own_counter_and_name() {
    let stats = WorkerStats::default();
    for (index, kind) in DenialKind::ALL.iter().enumerate() {
        (0..=index).for_each(|_| stats.denied(*kind));
    }
    for (index, kind) in DenialKind::ALL.iter().enumerate() {
        assert_eq!(stats.denied_count(*kind), index as u64 + 1, "{kind:?}");
    }
    let mut names: Vec<_> = DenialKind::ALL.iter().map(|kind| kind.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), DenialKind::ALL.len());
}

#[test]
fn duration_falls_into_the_first_fitting_bucket() {
    let cases = [
        (Duration::ZERO, 0),
        (Duration::from_micros(1_000), 0),
        (Duration::from_micros(1_001), 1),
        (Duration::from_secs(10), 12),
        (Duration::from_micros(10_000_001), 13),
        (Duration::MAX, 13),
    ];
    for (span, expected) in cases {
        let durations = Durations::default();
        durations.add(span);
        let buckets = durations.buckets();
        assert_eq!(buckets.iter().position(|count| *count == 1), Some(expected), "{span:?}");
        assert_eq!(buckets.iter().sum::<u64>(), 1, "{span:?}");
    }
    let durations = Durations::default();
    durations.add(Duration::from_millis(3));
    durations.add(Duration::from_micros(7));
    assert_eq!(durations.sum_us(), 3_007);
}

#[test]
fn failed_reload_is_reported_until_success() {
    let reloads = Reloads::default();
    assert!(reloads.last_succeeded());
    reloads.succeeded(WallNanos(5));
    reloads.failed();
    assert_eq!(
        (reloads.counts(), reloads.last_succeeded(), reloads.last_success()),
        ((1, 1), false, WallNanos(5))
    );
    reloads.succeeded(WallNanos(9));
    assert_eq!(
        (reloads.counts(), reloads.last_succeeded(), reloads.last_success()),
        ((2, 1), true, WallNanos(9))
    );
}

#[test]
fn sums_run_over_all_workers() {
    let stats = Stats::new("0.0.0", WallNanos(0), 3, crate::jobs::start(1).unwrap());
    for (index, worker) in stats.workers.iter().enumerate() {
        worker.bytes.client_rx.add(10u64.pow(index as u32));
    }
    assert_eq!(stats.sum(|worker| worker.bytes.client_rx.value()), 111);
}
