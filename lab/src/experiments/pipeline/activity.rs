//! Converts recorded events to spans: what each thread did from one event to the next, and the slots in which
//! threads are drawn.
//!
//! Guarantees: a thread's spans follow one another without gaps from its creation to its end, also where a
//! wait never ended or events were lost; the parts of a span never exceed its length.

use std::time::Duration;

use super::recording::{EventKind, Recording, Stamp, Thread, ThreadPlacement};

/// What a thread does between two events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThreadState {
    /// It has no request: it waits for one, or distributes requests.
    Idle,
    /// It does a request, or would if it had a CPU.
    Work,
    /// It waits for its request, at least as long as was planned.
    Wait(Duration),
}

/// A span of one thread, in nanoseconds of the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) state: ThreadState,
    pub(super) request: Option<u32>,
    pub(super) from: u64,
    pub(super) to: u64,
    /// How long the thread was on a CPU, and how long it was ready without one; `running + ready <= to -
    /// from`.
    pub(super) running: u64,
    pub(super) ready: u64,
}

/// One slot of the timeline, and the spans of each of its threads, in the order of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TimelineSlot {
    pub(super) name: String,
    pub(super) threads: Vec<Vec<Span>>,
}

/// The slots of a recording: the main thread first.
pub(super) fn slots(recording: &Recording) -> Vec<TimelineSlot> {
    let mut threads: Vec<(ThreadPlacement, Vec<Span>)> = recording
        .threads
        .iter()
        .map(|thread| (thread.placement, spans(thread, recording.begun_ns)))
        .collect();
    threads.sort_by_key(|(_, spans)| spans.first().map(|span| span.from));
    let (mut mains, mut slots) = (Vec::new(), Vec::<Vec<Vec<Span>>>::new());
    for (placement, spans) in threads {
        let slot = match placement {
            ThreadPlacement::Main => {
                mains.push(spans);
                continue;
            }
            ThreadPlacement::Slot(slot) => slot as usize,
            ThreadPlacement::Any => {
                slots.iter().position(|threads| is_free(threads, &spans)).unwrap_or(slots.len())
            }
        };
        if slot >= slots.len() {
            slots.resize(slot + 1, Vec::new());
        }
        slots[slot].push(spans);
    }
    let timeline_slot = |name, threads| TimelineSlot { name, threads };
    let slots = slots.into_iter().enumerate();
    let mains = (!mains.is_empty()).then(|| timeline_slot("main".to_owned(), mains));
    mains
        .into_iter()
        .chain(slots.map(|(slot, threads)| timeline_slot(format!("thread {}", slot + 1), threads)))
        .collect()
}

/// Whether all threads of the slot had ended when this one began.
fn is_free(threads: &[Vec<Span>], spans: &[Span]) -> bool {
    let last = threads.last().and_then(|thread_spans| thread_spans.last());
    match (last, spans.first()) {
        (Some(last), Some(first)) => last.to <= first.from,
        _ => true,
    }
}

/// The spans of a thread's life.
fn spans(thread: &Thread, recorder_begun: u64) -> Vec<Span> {
    let mut spans = vec![creation_span(&thread.begun, recorder_begun)];
    let (mut request, mut wait, mut last) = (None, None, &thread.begun);
    for event in &thread.events {
        spans.push(between(last, &event.stamp, request, wait));
        last = &event.stamp;
        match event.kind {
            EventKind::RequestBegins(number) => (request, wait) = (Some(number), None),
            EventKind::WaitBegins(planned) => wait = Some(planned),
            EventKind::WaitEnds => wait = None,
            EventKind::RequestEnds => (request, wait) = (None, None),
            EventKind::Checkpoint => {}
        }
    }
    spans.push(between(last, &thread.ended, request, wait));
    spans.retain(|span| span.from < span.to);
    spans
}

/// From a thread's creation to its first stamp: it ran, or was ready to. A thread older than the recorder is
/// recorded from the recorder's start.
fn creation_span(begun: &Stamp, recorder_begun: u64) -> Span {
    let age = begun.cpu + begun.ready.unwrap_or(0);
    let from = begun.at.saturating_sub(age).max(recorder_begun).min(begun.at);
    let running = begun.cpu.min(begun.at - from);
    let ready = begun.at - from - running;
    Span { state: ThreadState::Idle, request: None, from, to: begun.at, running, ready }
}

fn between(first: &Stamp, second: &Stamp, request: Option<u32>, wait: Option<Duration>) -> Span {
    let (from, to) = (first.at, second.at.max(first.at));
    let state = match (request, wait) {
        (_, Some(planned)) => ThreadState::Wait(planned),
        (Some(_), None) => ThreadState::Work,
        (None, None) => ThreadState::Idle,
    };
    let running = second.cpu.saturating_sub(first.cpu).min(to - from);
    let rest = to - from - running;
    let ready = match (first.ready, second.ready, state) {
        (Some(before), Some(after), _) => after.saturating_sub(before),
        // Without the kernel's numbers: a computing thread is ready when not running, and so is one that
        // wakes late.
        (_, _, ThreadState::Work) => rest,
        (_, _, ThreadState::Wait(planned)) => rest.saturating_sub(planned.as_nanos() as u64),
        (_, _, ThreadState::Idle) => 0,
    };
    Span { state, request, from, to, running, ready: ready.min(rest) }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::experiments::pipeline::recording::Event;

    const MS: u64 = 1_000_000;

    /// A stamp with numbers in milliseconds.
    pub(in crate::experiments::pipeline) fn stamp(at: u64, cpu: u64, ready: u64) -> Stamp {
        Stamp { at: at * MS, cpu: cpu * MS, ready: Some(ready * MS) }
    }

    /// A thread that does request 7: works 2 ms, waits 10 ms and 1 ms more for a CPU, works 3 ms of which it
    /// has a CPU for 2.
    pub(in crate::experiments::pipeline) fn waiting_thread(placement: ThreadPlacement, begun: u64) -> Thread {
        let event = |kind, at, cpu, ready| Event { kind, stamp: stamp(begun + at, cpu, ready) };
        Thread {
            placement,
            begun: stamp(begun, 0, 0),
            events: vec![
                event(EventKind::RequestBegins(7), 1, 0, 0),
                event(EventKind::WaitBegins(Duration::from_millis(10)), 3, 2, 0),
                event(EventKind::WaitEnds, 14, 2, 1),
                event(EventKind::RequestEnds, 17, 4, 2),
            ],
            ended: stamp(begun + 18, 4, 2),
        }
    }

    pub(in crate::experiments::pipeline) fn recording(threads: Vec<Thread>) -> Recording {
        Recording { begun_ns: 0, ended_ns: 20 * MS, events_lost: 0, threads }
    }

    /// What [`described`] returns for [`waiting_thread`].
    const DESCRIBED: [(&str, u64, u64, u64, u64); 5] = [
        ("idle", 0, 1, 0, 0),
        ("work", 1, 3, 2, 0),
        ("wait", 3, 14, 0, 1),
        ("work", 14, 17, 2, 1),
        ("idle", 17, 18, 0, 0),
    ];

    /// Kind, from, to, running and ready, in milliseconds.
    fn described(spans: &[Span]) -> Vec<(&'static str, u64, u64, u64, u64)> {
        let describe = |span: &Span| {
            let state = match span.state {
                ThreadState::Idle => "idle",
                ThreadState::Work => "work",
                ThreadState::Wait(_) => "wait",
            };
            (state, span.from / MS, span.to / MS, span.running / MS, span.ready / MS)
        };
        spans.iter().map(describe).collect()
    }

    #[test]
    fn events_become_spans_without_gaps() {
        let spans = spans(&waiting_thread(ThreadPlacement::Any, 0), 0);
        assert_eq!(described(&spans), DESCRIBED);
        assert_eq!(spans[2].state, ThreadState::Wait(Duration::from_millis(10)));
        assert_eq!(spans.iter().map(|span| span.request).collect::<Vec<_>>(), {
            let seven = Some(7);
            [None, seven, seven, seven, None]
        });
    }

    #[test]
    fn late_wake_without_schedstat_counts_as_ready() {
        let mut thread = waiting_thread(ThreadPlacement::Any, 0);
        thread.events.iter_mut().for_each(|event| event.stamp.ready = None);
        assert_eq!(described(&spans(&thread, 0)), DESCRIBED);
    }

    #[test]
    fn missing_or_impossible_events_are_tolerated() {
        let check = |thread: &Thread, expected: &[_]| assert_eq!(described(&spans(thread, 0)), expected);
        let whole = waiting_thread(ThreadPlacement::Any, 0);
        let with = |events: &[usize]| Thread {
            events: events.iter().map(|&index| whole.events[index]).collect(),
            ..whole.clone()
        };
        check(&with(&[]), &[("idle", 0, 18, 4, 2)]);
        // A wait that never ended, and an end without a beginning.
        check(&with(&[0, 1]), &[("idle", 0, 1, 0, 0), ("work", 1, 3, 2, 0), ("wait", 3, 18, 2, 2)]);
        check(&with(&[2, 3]), &[("idle", 0, 14, 2, 1), ("idle", 14, 17, 2, 1), ("idle", 17, 18, 0, 0)]);
        // More CPU time than time, and clocks that go back.
        let odd = Thread { ended: stamp(3, 90, 90), events: Vec::new(), ..whole.clone() };
        check(&odd, &[("idle", 0, 3, 3, 0)]);
        check(&Thread { ended: stamp(0, 0, 0), begun: stamp(5, 1, 1), ..odd }, &[("idle", 3, 5, 1, 1)]);
    }

    #[test]
    fn thread_spans_begin_at_its_creation() {
        let mut thread = waiting_thread(ThreadPlacement::Any, 10);
        (thread.begun.cpu, thread.begun.ready) = (MS, Some(3 * MS));
        let first = |recorder_begun| described(&spans(&thread, recorder_begun))[0];
        assert_eq!(first(0), ("idle", 6, 10, 1, 3));
        assert_eq!(first(8 * MS), ("idle", 8, 10, 1, 1));
        assert_eq!(first(50 * MS), ("idle", 10, 11, 0, 0));
    }

    #[test]
    fn successive_threads_share_a_slot() {
        let check = |placements: &[(ThreadPlacement, u64)], expected: &[(&str, usize)]| {
            let thread = |&(placement, begun)| waiting_thread(placement, begun);
            let slots = slots(&recording(placements.iter().map(thread).collect()));
            let found: Vec<_> = slots.iter().map(|slot| (slot.name.as_str(), slot.threads.len())).collect();
            assert_eq!(found, expected, "{placements:?}");
        };
        check(&[], &[]);
        check(&[(ThreadPlacement::Main, 0)], &[("main", 1)]);
        check(
            &[(ThreadPlacement::Slot(1), 0), (ThreadPlacement::Slot(1), 30)],
            &[("thread 1", 0), ("thread 2", 2)],
        );
        check(
            &[(ThreadPlacement::Any, 20), (ThreadPlacement::Any, 0), (ThreadPlacement::Any, 40)],
            &[("thread 1", 3)],
        );
        check(
            &[
                (ThreadPlacement::Any, 0),
                (ThreadPlacement::Any, 5),
                (ThreadPlacement::Main, 0),
                (ThreadPlacement::Any, 18),
            ],
            &[("main", 1), ("thread 1", 2), ("thread 2", 1)],
        );
    }
}
