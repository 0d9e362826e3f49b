//! Barriers: after `Ledger::journal_counts` a question has all that was counted before.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use ledger::query::{Filter, Row, Usage};
use ledger::{Durability, FlowWriter, Ledger, OpenSettings, SqliteUsage};

use crate::fixture::{Fixture, close, close_ledger, count, open, run_flow};

/// Longer than any disk of a test takes.
const LONG: Duration = Duration::from_secs(60);

fn total(fixture: &Fixture) -> Row {
    let usage = SqliteUsage::open_with_journal(&fixture.directory()).unwrap();
    assert_eq!(usage.completeness().unread, None);
    usage.total(&Filter::default()).unwrap()
}

/// Without the barrier a question lacks what the flow moved since its last interim.
#[test]
fn barrier_has_what_an_open_flow_moved() {
    let fixture = Fixture::new();
    let (ledger, mut writer) = fixture.open();
    let mut flow = open(&mut writer, 1);
    let (mut moved, mut was_less) = (0, false);
    for _ in 0..20 {
        count(&mut writer, &mut flow, 1_000, 0);
        moved += 1_000;
        // The interim of every 5 s may come between.
        was_less |= total(&fixture).up < moved;
        assert!(ledger.journal_counts(LONG));
        let found = total(&fixture);
        assert_eq!((found.up, found.live, found.flows), (moved, 1, 0));
    }
    assert!(was_less, "each question had all without the barrier");
    assert!(ledger.journal_counts(LONG), "nothing moved since");
    close(&mut writer, flow);
    close_ledger(ledger, writer);
}

fn barrier_has_ended_flows(durability: Durability) {
    const FLOWS: u64 = 500;
    let fixture = Fixture::new();
    let settings = OpenSettings { durability, ..fixture.settings(2, 1024) };
    let (ledger, mut writers) = Ledger::open(&settings).unwrap();
    for (writer, index) in writers.iter_mut().zip(0_u128..) {
        (0..u128::from(FLOWS)).for_each(|id| run_flow(writer, index << 64 | id, 3, 5));
    }
    assert!(ledger.journal_counts(LONG));
    let found = total(&fixture);
    assert_eq!((found.flows, found.up, found.down), (2 * FLOWS, 6 * FLOWS, 10 * FLOWS));
    close_ledger(ledger, writers);
}

#[test]
fn barrier_has_the_finals_of_ended_flows() {
    barrier_has_ended_flows(Durability::Delayed);
}

#[test]
fn barrier_has_the_finals_of_ended_flows_synced() {
    barrier_has_ended_flows(Durability::Sync);
}

/// Opens flows, counts and closes some of them until `is_over`; `counted` has what was counted, or less.
fn relay(writer: &mut FlowWriter, thread: u128, counted: &AtomicU64, is_over: &AtomicBool) {
    let mut flows = Vec::new();
    for number in 0.. {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        if flows.len() < 16 && writer.has_capacity_for(1) {
            flows.push(open(writer, thread << 64 | number));
        }
        for flow in &mut flows {
            count(writer, flow, 7, 0);
            counted.fetch_add(7, Ordering::Release);
        }
        if number % 5 == 0 && !flows.is_empty() {
            close(writer, flows.remove(0));
        }
        thread::yield_now();
    }
    flows.into_iter().for_each(|flow| close(writer, flow));
}

#[test]
fn barriers_beside_writing_threads_have_all_that_was_counted_before() {
    const THREADS: usize = 3;
    let fixture = Fixture::new();
    let (ledger, mut writers) = Ledger::open(&fixture.settings(THREADS, 64)).unwrap();
    let (counted, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    // Checked once the threads have ended: they go on until they are told.
    let mut answers = Vec::new();
    thread::scope(|scope| {
        for (writer, thread) in writers.iter_mut().zip(0_u128..) {
            let (counted, is_over) = (&counted, &is_over);
            scope.spawn(move || relay(writer, thread, counted, is_over));
        }
        for _ in 0..25 {
            let before = counted.load(Ordering::Acquire);
            let is_journaled = ledger.journal_counts(LONG);
            let usage = SqliteUsage::open_with_journal(&fixture.directory());
            answers.push((before, is_journaled, usage.and_then(|usage| usage.total(&Filter::default()))));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    for (before, is_journaled, total) in answers {
        let found = total.unwrap().up;
        assert!(is_journaled && found >= before, "{found} of {before} bytes");
    }
    assert!(ledger.journal_counts(LONG));
    assert_eq!(total(&fixture).up, counted.load(Ordering::Acquire));
    close_ledger(ledger, writers);
}

/// A journal that was moved away cannot be synced; in its place again, it is rewritten.
#[test]
fn barrier_fails_while_the_disk_fails() {
    let fixture = Fixture::new();
    let (ledger, mut writer) = fixture.open();
    let mut flow = open(&mut writer, 1);
    count(&mut writer, &mut flow, 1_000, 0);
    let aside = fixture.directory().join("aside");
    fs::rename(fixture.journal(), &aside).unwrap();
    assert!(!ledger.journal_counts(Duration::from_millis(300)));
    fs::rename(&aside, fixture.journal()).unwrap();
    assert!(ledger.journal_counts(LONG));
    assert_eq!(total(&fixture).up, 1_000);
    close(&mut writer, flow);
    close_ledger(ledger, writer);
}
