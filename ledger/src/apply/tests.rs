//! The ledger thread over a sink that is slow, fails or panics on command.

use std::collections::VecDeque;
use std::iter;
use std::net::SocketAddr;
use std::sync::{Condvar, Mutex};

use sys::clock::WallNanos;

use super::*;
use crate::record::{Class, CloseReason, Flow, Legs, Protocol};
use crate::{Full, Inlet, Ledger};

/// What the sink does at one call of `apply`. Without a step it succeeds.
#[derive(Clone, Copy, Debug)]
enum Step {
    Fail,
    /// Takes effect, and claims that it failed.
    FailAfterEffect,
    FailForGood,
    Panic,
}

#[derive(Default)]
struct State {
    /// The next calls' steps; the last one is for ever.
    steps: VecDeque<Step>,
    held: bool,
    waiting: bool,
    dead: bool,
    sealed: bool,
    flows: Vec<u128>,
}

/// A handle to the sink; its clones share one state.
#[derive(Clone, Default)]
struct FakeSink(Arc<(Mutex<State>, Condvar)>);

impl FakeSink {
    fn failing(steps: impl IntoIterator<Item = Step>) -> Self {
        let sink = Self::default();
        sink.state().steps.extend(steps);
        sink
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.0.1.notify_all();
    }

    fn wait_until(&self, condition: impl Fn(&State) -> bool) {
        drop(self.0.1.wait_while(self.state(), |state| !condition(state)).unwrap());
    }
}

impl Sink for FakeSink {
    fn apply(&mut self, first_lsn: u64, records: &[Record]) -> Result<(), SinkError> {
        assert!(!records.is_empty() && records.len() <= BATCH_RECORDS_MAX);
        self.change(|state| state.waiting = true);
        self.wait_until(|state| !state.held);
        let mut state = self.state();
        state.waiting = false;
        assert!(!state.dead, "a sink that failed for good is not called again");
        let step = if state.steps.len() > 1 { state.steps.pop_front() } else { state.steps.front().copied() };
        match step {
            Some(Step::Fail) => return Err(SinkError::Passing("no space".to_owned())),
            Some(Step::FailForGood) => {
                state.dead = true;
                return Err(SinkError::Final("sync failed".to_owned()));
            }
            Some(Step::Panic) => panic!("the sink panics on command"),
            Some(Step::FailAfterEffect) | None => {}
        }
        let first = usize::try_from(first_lsn).unwrap() - 1;
        let ids: Vec<u128> = records.iter().map(|record| record.flow().id).collect();
        assert!(first <= state.flows.len(), "no gap");
        let known = state.flows.len() - first;
        assert_eq!(ids[..known.min(ids.len())], state.flows[first..], "a number keeps its record");
        state.flows.extend(ids.iter().skip(known));
        self.0.1.notify_all();
        match step {
            Some(Step::FailAfterEffect) => Err(SinkError::Passing("who knows".to_owned())),
            _ => Ok(()),
        }
    }

    fn checkpoint(&mut self) -> Result<bool, SinkError> {
        assert!(!self.state().dead);
        Ok(true)
    }

    fn seal(&mut self) -> Result<(), SinkError> {
        let mut state = self.state();
        assert!(!state.dead);
        state.sealed = true;
        Ok(())
    }
}

fn record(id: u128) -> Record {
    Record::new(&Flow {
        id,
        opened: WallNanos(0),
        closed: WallNanos(0),
        user: "ci",
        host: "example.com",
        port: 443,
        address: None,
        client: SocketAddr::from(([127, 0, 0, 1], 1)),
        class: Class::External,
        protocol: Protocol::Forward,
        rule: "",
        reason: CloseReason::ClientClosed,
        legs: Legs::default(),
    })
}

fn start(sink: &FakeSink, inlets: usize, ring_records: usize) -> (Ledger, Vec<Inlet>) {
    Ledger::start(sink.clone(), (), inlets, ring_records).unwrap()
}

/// Pushes as a data-plane thread does: a refused record is kept and tried again. Returns the refusals.
fn push(inlet: &mut Inlet, id: u128) -> u64 {
    let record = record(id);
    iter::from_fn(|| inlet.push(&record).err().map(|Full| thread::yield_now())).count() as u64
}

/// The ids of producer `index`, which pushes `count` records.
fn ids(index: usize, count: usize) -> impl Iterator<Item = u128> {
    (0..count).map(move |n| ((index as u128) << 64) | n as u128)
}

/// Checks that the sink has exactly the records of producers that pushed `counts`, each producer's in its
/// order.
fn check_flows(sink: &FakeSink, counts: &[usize]) {
    let state = sink.state();
    for (index, count) in counts.iter().enumerate() {
        let of_one = state.flows.iter().copied().filter(|id| id >> 64 == index as u128);
        assert!(of_one.eq(ids(index, *count)), "producer {index}: each record once and in order");
    }
    assert_eq!(state.flows.len(), counts.iter().sum::<usize>());
    assert!(state.sealed);
}

#[test]
fn a_slow_sink_delays_and_loses_nothing() {
    const COUNT: usize = 1_000;
    let sink = FakeSink::default();
    let (ledger, inlets) = start(&sink, 4, 8);
    let refusals: u64 = thread::scope(|scope| {
        let pushers: Vec<_> = inlets
            .into_iter()
            .enumerate()
            .map(|(index, mut inlet)| {
                scope.spawn(move || ids(index, COUNT).map(|id| push(&mut inlet, id)).sum::<u64>())
            })
            .collect();
        pushers.into_iter().map(|pusher| pusher.join().unwrap()).sum()
    });
    assert!(refusals > 0, "1,000 records do not fit into a ring of 8");
    let summary = ledger.close().unwrap();
    assert_eq!(summary.records, 4 * COUNT as u64);
    assert!(summary.batches >= COUNT as u64 / 8);
    check_flows(&sink, &[COUNT; 4]);
}

#[test]
fn a_full_ring_refuses_until_there_is_room() {
    let sink = FakeSink::default();
    sink.change(|state| state.held = true);
    let (ledger, mut inlets) = start(&sink, 1, 8);
    let mut ids = ids(0, 100);
    inlets[0].push(&record(ids.next().unwrap())).unwrap();
    sink.wait_until(|state| state.waiting);
    for id in ids.by_ref().take(8) {
        assert_eq!(inlets[0].push(&record(id)), Ok(()), "the ring holds eight");
    }
    let refused = ids.next().unwrap();
    assert_eq!(inlets[0].push(&record(refused)), Err(Full));
    assert_eq!(inlets[0].push(&record(refused)), Err(Full));
    sink.change(|state| state.held = false);
    push(&mut inlets[0], refused);
    ledger.close().unwrap();
    check_flows(&sink, &[10]);
}

#[test]
fn failures_neither_lose_nor_double() {
    use Step::{Fail, FailAfterEffect};
    let sink = FakeSink::failing([Fail, FailAfterEffect, FailAfterEffect, Fail, FailAfterEffect, Fail]);
    let (ledger, mut inlets) = start(&sink, 2, 64);
    for (index, inlet) in inlets.iter_mut().enumerate() {
        ids(index, 500).for_each(|id| _ = push(inlet, id));
        // The last step is for ever: nothing goes in until it is taken away.
        sink.change(|state| state.steps.clear());
    }
    assert_eq!(ledger.close().unwrap().records, 1_000);
    check_flows(&sink, &[500, 500]);
}

#[test]
fn while_the_sink_fails_one_batch_and_the_rings_are_kept() {
    const KEPT: usize = BATCH_RECORDS_MAX + 4096;
    let sink = FakeSink::failing([Step::Fail]);
    let (ledger, mut inlets) = start(&sink, 1, 4096);
    let watch = ledger.watch();
    ids(0, KEPT).for_each(|id| _ = push(&mut inlets[0], id));
    assert_eq!(inlets[0].push(&record(0)), Err(Full));
    assert!(watch.is_failing());
    let status = watch.status();
    assert_eq!(status.failing.as_deref(), Some("no space"));
    assert_eq!(status.records, 0);
    assert!(status.waiting > 0 && status.lag > Duration::ZERO);

    sink.change(|state| state.steps.clear());
    sink.wait_until(|state| state.flows.len() == KEPT);
    while watch.is_failing() {
        thread::yield_now();
    }
    assert_eq!(watch.status().failing, None);
    ledger.close().unwrap();
    assert_eq!(watch.status().records, KEPT as u64);
    assert_eq!(watch.status().lag, Duration::ZERO);
    check_flows(&sink, &[KEPT]);
}

#[test]
fn closing_over_a_failing_sink_tells_how_many_are_not_written() {
    let sink = FakeSink::failing([Step::Fail]);
    let (ledger, mut inlets) = start(&sink, 2, 8);
    ids(0, 5).for_each(|id| _ = push(&mut inlets[0], id));
    ids(1, 3).for_each(|id| _ = push(&mut inlets[1], id));
    let expected = LedgerError::Unwritten { records: 8, cause: "no space".to_owned() };
    assert_eq!(ledger.close(), Err(expected));
    assert_eq!(inlets[0].push(&record(0)), Err(Full), "a closed ledger takes nothing");
}

#[test]
fn a_sink_that_failed_for_good_is_left_alone() {
    let sink = FakeSink::failing([Step::FailForGood]);
    let (ledger, mut inlets) = start(&sink, 1, 8);
    push(&mut inlets[0], 0);
    let watch = ledger.watch();
    while !watch.is_failing() {
        thread::yield_now();
    }
    let accepted = (1..100).filter(|id| inlets[0].push(&record(*id)).is_ok()).count() as u64;
    assert_eq!(accepted, 8, "the ring still holds what fits");
    let cause = "sync failed; nothing more is written until a restart".to_owned();
    assert_eq!(ledger.close(), Err(LedgerError::Unwritten { records: 9, cause }));
}

#[test]
fn a_panic_is_told() {
    let sink = FakeSink::failing([Step::Panic]);
    let (ledger, mut inlets) = start(&sink, 1, 8);
    push(&mut inlets[0], 0);
    let watch = ledger.watch();
    while !watch.is_failing() {
        thread::yield_now();
    }
    assert!(watch.status().failing.unwrap().contains("panicked"));
    assert_eq!(ledger.close(), Err(LedgerError::Panicked));
}

#[test]
fn closing_under_load_keeps_each_accepted_record_and_refuses_the_rest() {
    for round in 0..40 {
        let sink = FakeSink::default();
        let (ledger, inlets) = start(&sink, 3, 16);
        let accepted: Vec<usize> = thread::scope(|scope| {
            let pushers: Vec<_> = inlets
                .into_iter()
                .enumerate()
                .map(|(index, mut inlet)| {
                    let watch = ledger.watch();
                    scope.spawn(move || {
                        // Refused after the close: it was not taken, hence it is not counted.
                        let pushed = |id| loop {
                            match inlet.push(&record(id)) {
                                Ok(()) => return true,
                                Err(Full) if watch.0.is_closing() => return false,
                                Err(Full) => thread::yield_now(),
                            }
                        };
                        ids(index, usize::MAX).map(pushed).take_while(|taken| *taken).count()
                    })
                })
                .collect();
            sink.wait_until(|state| state.flows.len() > round * 10);
            ledger.close().unwrap();
            pushers.into_iter().map(|pusher| pusher.join().unwrap()).collect()
        });
        check_flows(&sink, &accepted);
    }
}

#[test]
fn a_sleeping_thread_is_woken_by_each_inlet() {
    let sink = FakeSink::default();
    let (ledger, mut inlets) = start(&sink, 2, 8);
    for (index, inlet) in inlets.iter_mut().enumerate() {
        push(inlet, (index as u128) << 64);
        sink.wait_until(|state| state.flows.len() == index + 1);
        // The checkpoint comes a second after the traffic; then the thread sleeps without a timeout.
        while ledger.status().lag > Duration::ZERO {
            thread::yield_now();
        }
    }
    drop(ledger);
    check_flows(&sink, &[1; 2]);
}

#[test]
fn a_ledger_without_inlets_opens_and_closes() {
    let sink = FakeSink::default();
    let (ledger, inlets) = start(&sink, 0, 8);
    assert!(inlets.is_empty());
    assert_eq!(ledger.close(), Ok(Summary { records: 0, batches: 0 }));
}
