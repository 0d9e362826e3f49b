//! The activity of each strategy's threads over time, for trace viewers: Chrome's trace event format, which
//! Perfetto, chrome://tracing and speedscope read.
//!
//! Guarantees: one process per strategy and one thread per slot; events of a slot lie within one another or
//! apart; the file is bounded. The timeline shows the remaining time and requests.
//!
//! ```text
//!   slot:  |-- thread ------------------------------------|
//!            |-- request 500 -----------------------|           args: cpu_us, ready_us, waiting_us
//!               |-- wait 10 ms --------------|
//!                                  |- ready -|
//! ```

use serde_json::{Value, json};

use super::activity::{self, Span, ThreadState, TimelineSlot};
use super::recording::Recording;

/// The file has the requests of each strategy below this number: among them one that waits a second, four
/// that wait 88 ms and five of 10 ms. That is about 2 MB.
pub(super) const REQUESTS_MAX: u32 = 5_000;

/// All strategies, by name, as one document.
pub(super) fn document(recordings: &[(String, Recording)]) -> Value {
    let mut events = Vec::new();
    for (index, (name, recording)) in recordings.iter().enumerate() {
        Process { id: index + 1, begun: recording.begun_ns, events: &mut events }.add(name, recording);
    }
    let about = json!({
        "producer": "lab pipeline",
        "requests_max": REQUESTS_MAX,
        "left_out": format!("requests from {REQUESTS_MAX} on; lost events"),
    });
    json!({ "displayTimeUnit": "ms", "otherData": about, "traceEvents": events })
}

/// One strategy while it is written.
struct Process<'a> {
    id: usize,
    begun: u64,
    events: &'a mut Vec<Value>,
}

impl Process<'_> {
    fn add(&mut self, name: &str, recording: &Recording) {
        self.name("process_name", 0, name);
        let slots = activity::slots(recording);
        let traced = |span: &&Span| span.request.is_some_and(|request| request < REQUESTS_MAX);
        let spans = || slots.iter().flat_map(|slot| slot.threads.iter().flatten());
        let until = spans().filter(traced).map(|span| span.to).max().unwrap_or(0);
        for (index, slot) in slots.iter().enumerate() {
            self.slot(index + 1, slot, until);
        }
    }

    fn slot(&mut self, thread: usize, slot: &TimelineSlot, until: u64) {
        self.name("thread_name", thread, &slot.name);
        let order = json!({ "sort_index": thread });
        self.events.push(json!({
            "ph": "M", "name": "thread_sort_index", "pid": self.id, "tid": thread, "args": order,
        }));
        let mut free = 0;
        for thread_spans in &slot.threads {
            let (Some(first), Some(last)) = (thread_spans.first(), thread_spans.last()) else { continue };
            // By rounding, a thread may seem to begin before the previous one of its slot ended.
            let (from, to) = (first.from.max(free), last.to);
            if from >= to.min(until) {
                continue;
            }
            free = to;
            self.event("thread", "thread", thread, (from, to), Value::Null);
            let inside = |span: &&Span| from <= span.from && span.to <= to;
            let spans: Vec<&Span> = thread_spans.iter().filter(inside).collect();
            for request in spans.chunk_by(|one, other| one.request == other.request) {
                self.request(thread, request);
            }
        }
    }

    /// The spans of one request, or those between two.
    fn request(&mut self, thread: usize, spans: &[&Span]) {
        let (Some(first), Some(last)) = (spans.first(), spans.last()) else { return };
        match first.request {
            Some(request) if request < REQUESTS_MAX => {
                let name = format!("request {request}");
                self.event(&name, "request", thread, (first.from, last.to), account(spans));
            }
            _ => return,
        }
        for span in spans {
            let ThreadState::Wait(planned) = span.state else { continue };
            let name = match planned.as_micros() {
                0 => "yield".to_owned(),
                us => format!("wait {} ms", us as f64 / 1e3),
            };
            self.event(&name, "wait", thread, (span.from, span.to), account(&[*span]));
            let (woken, resumed) = (span.to - span.running - span.ready, span.to - span.running);
            if woken < resumed {
                self.event("ready", "ready", thread, (woken, resumed), Value::Null);
            }
        }
    }

    fn event(&mut self, name: &str, category: &str, thread: usize, (from, to): (u64, u64), args: Value) {
        let mut event = json!({
            "ph": "X", "name": name, "cat": category, "pid": self.id, "tid": thread,
            "ts": us(from.saturating_sub(self.begun)), "dur": us(to - from),
        });
        if !args.is_null() {
            event["args"] = args;
        }
        self.events.push(event);
    }

    fn name(&mut self, metadata: &str, thread: usize, name: &str) {
        let args = json!({ "name": name });
        self.events.push(json!({ "ph": "M", "name": metadata, "pid": self.id, "tid": thread, "args": args }));
    }
}

fn account(spans: &[&Span]) -> Value {
    let sum = |part: fn(&Span) -> u64| us(spans.iter().map(|span| part(span)).sum());
    let stopped = |span: &Span| span.to - span.from - span.running - span.ready;
    let (running, ready) = (sum(|span| span.running), sum(|span| span.ready));
    json!({ "cpu_us": running, "ready_us": ready, "waiting_us": sum(stopped) })
}

/// Microseconds, the format's unit.
fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::super::activity::tests::{recording, waiting_thread};
    use super::super::recording::{EventKind, Thread, ThreadPlacement};
    use super::*;

    fn events(recordings: &[(String, Recording)]) -> Vec<Value> {
        let document = document(recordings);
        document["traceEvents"].as_array().expect("the format's object form has them").clone()
    }

    fn one(threads: Vec<Thread>) -> Vec<Value> {
        events(&[("pool-1".to_owned(), recording(threads))])
    }

    /// Checks the format's rules, on which every viewer relies.
    fn check_rules(events: &[Value]) {
        let mut open: HashMap<(u64, u64), Vec<(f64, f64)>> = HashMap::new();
        for event in events {
            assert!(event["name"].is_string(), "{event}");
            let thread = (event["pid"].as_u64().expect("a number"), event["tid"].as_u64().expect("a number"));
            match event["ph"].as_str() {
                Some("M") => assert!(event["args"].is_object(), "{event}"),
                Some("X") => {
                    let from = event["ts"].as_f64().expect("microseconds");
                    let to = from + event["dur"].as_f64().expect("microseconds");
                    assert!(from >= 0.0 && to >= from && event["cat"].is_string(), "{event}");
                    let around = open.entry(thread).or_default();
                    while around.last().is_some_and(|outer| outer.1 <= from) {
                        around.pop();
                    }
                    let is_within = around.last().is_none_or(|outer| outer.0 <= from && to <= outer.1);
                    assert!(is_within, "{event} is not within {around:?}");
                    around.push((from, to));
                }
                other => panic!("{other:?} is no phase of ours: {event}"),
            }
        }
    }

    #[test]
    fn request_wait_and_ready_events_are_nested() {
        let events = one(vec![waiting_thread(ThreadPlacement::Slot(0), 0)]);
        check_rules(&events);
        let written: Vec<_> = events
            .iter()
            .filter(|event| event["ph"] == "X")
            .map(|event| (event["name"].as_str(), event["ts"].as_f64(), event["dur"].as_f64()))
            .collect();
        let expected = [
            ("thread", 0.0, 18_000.0),
            ("request 7", 1_000.0, 16_000.0),
            ("wait 10 ms", 3_000.0, 11_000.0),
            ("ready", 13_000.0, 1_000.0),
        ];
        assert_eq!(written, expected.map(|(name, ts, dur)| (Some(name), Some(ts), Some(dur))));
        let request = events.iter().find(|event| event["name"] == "request 7").expect("request 0 is traced");
        assert_eq!(request["args"], json!({ "cpu_us": 4000.0, "ready_us": 2000.0, "waiting_us": 10000.0 }));
    }

    #[test]
    fn strategies_are_processes_and_slots_are_threads() {
        let threads =
            || vec![waiting_thread(ThreadPlacement::Main, 0), waiting_thread(ThreadPlacement::Slot(1), 0)];
        let both = ["batches-2", "pool-2"].map(|name| (name.to_owned(), recording(threads())));
        let events = events(&both);
        check_rules(&events);
        let names: Vec<_> = events
            .iter()
            .filter(|event| event["ph"] == "M" && event["args"]["name"].is_string())
            .map(|event| (event["pid"].as_u64(), event["tid"].as_u64(), event["args"]["name"].as_str()))
            .collect();
        let slots = |pid, name| {
            [(0, name), (1, "main"), (2, "thread 1"), (3, "thread 2")]
                .map(|(tid, name)| (Some(pid), Some(tid), Some(name)))
        };
        assert_eq!(names, [slots(1, "batches-2"), slots(2, "pool-2")].concat());
    }

    #[test]
    fn odd_recordings_keep_the_trace_rules() {
        let check = |threads: Vec<Thread>, expected: usize| {
            let events = one(threads);
            check_rules(&events);
            let requests = events.iter().filter(|event| event["cat"] == "request").count();
            assert_eq!(requests, expected, "{events:?}");
        };
        let whole = waiting_thread(ThreadPlacement::Slot(0), 0);
        let mut late = whole.clone();
        late.events[0].kind = EventKind::RequestBegins(REQUESTS_MAX);
        check(Vec::new(), 0);
        check(vec![late.clone()], 0);
        check(vec![late, waiting_thread(ThreadPlacement::Slot(1), 5)], 1);
        check(vec![Thread { events: Vec::new(), ..whole.clone() }], 0);
        check(vec![Thread { events: whole.events[..2].to_vec(), ..whole.clone() }], 1);
        // Two threads that overlap in one slot: what would overlap the first is left out.
        check(vec![whole, waiting_thread(ThreadPlacement::Slot(0), 3)], 1);
    }
}
