//! The work: requests that compute, wait and answer, and the counts that prove it.
//!
//! Guarantees: a response is made letter by letter and read to its end; the counts do not depend on the order
//! in which requests end, so all strategies must agree to the last digit.
//!
//! Request `i`, as published:
//!
//! 1. `t = 13 i`, `r = sqrt(t^2 + 3.1415 sin(2 t / pi))`; the response begins with `Resp: {r}`.
//! 2. It waits: see [`Wait::of_request`].
//! 3. Up to 16,384 bytes of a text follow, each `v` as a `V`.

use std::f64::consts::PI;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::recording::{Recorder, ThreadPlacement, Track};
use super::waits::Wait;

/// The requests of the published experiment.
pub(super) const REQUESTS: u32 = 100_000;

#[expect(clippy::approx_constant, reason = "the published program has these digits and no more")]
const FACTOR: f64 = 3.1415;

/// Digits of the sum of `r` behind the point, as a factor. Integers have the same sum in every order, and
/// 100,000 of them fit.
const SUM_FACTOR: f64 = 1e6;

/// What all threads of a strategy share.
#[derive(Debug)]
pub(super) struct Work {
    requests: u32,
    text: String,
    /// By how much each sleep is shortened: 1, except in tests.
    waits_divisor: u32,
    counters: Counters,
    threads: Arc<Threads>,
    /// Where threads record their events, in a recorded trial.
    recorder: Option<Recorder>,
}

/// The counts of the done work, for comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Controls {
    pub(super) requests: u64,
    /// To six digits behind the point.
    pub(super) sum_of_r: f64,
    pub(super) waits_ms: u64,
    pub(super) yields: u64,
    /// The sum of the responses' checksums.
    pub(super) checksum: u32,
}

/// The controls while they grow. All orderings are Relaxed: they are read when the threads have ended, or
/// have sent their results through a channel.
#[derive(Debug, Default)]
struct Counters {
    requests: AtomicU64,
    sum_of_r: AtomicU64,
    waits_ms: AtomicU64,
    yields: AtomicU64,
    checksum: AtomicU32,
}

/// How many threads do requests.
#[derive(Debug, Default)]
struct Threads {
    now: AtomicUsize,
    peak: AtomicUsize,
}

/// A thread's registration in the work, for as long as it does requests.
#[derive(Debug)]
pub(super) struct ThreadGuard {
    threads: Arc<Threads>,
    track: Option<Track>,
}

impl Work {
    /// `requests` requests that quote `text`.
    pub(super) fn new(requests: u32, text: String) -> Self {
        Self {
            requests,
            text,
            waits_divisor: 1,
            counters: Counters::default(),
            threads: Arc::default(),
            recorder: None,
        }
    }

    /// The same work, recorded.
    pub(super) fn recorded(self, recorder: Recorder) -> Self {
        Self { recorder: Some(recorder), ..self }
    }

    /// The number of requests.
    pub(super) fn requests(&self) -> u32 {
        self.requests
    }

    /// Registers the calling thread, which is drawn at `placement`.
    pub(super) fn enter(&self, placement: ThreadPlacement) -> ThreadGuard {
        let now = self.threads.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.threads.peak.fetch_max(now, Ordering::Relaxed);
        ThreadGuard { threads: Arc::clone(&self.threads), track: self.track(placement) }
    }

    /// The track of the thread that does no request, but distributes them.
    pub(super) fn main_track(&self) -> Option<Track> {
        self.track(ThreadPlacement::Main)
    }

    fn track(&self, placement: ThreadPlacement) -> Option<Track> {
        self.recorder.as_ref().map(|recorder| recorder.track(placement))
    }

    /// Does one request; `hold` waits.
    pub(super) fn request(&self, request: u32, enter: &mut ThreadGuard, hold: impl FnOnce(Wait)) {
        enter.note(|track| track.request_begins(request));
        let response = self.begin(request);
        match self.wait(request) {
            Wait::Nothing => {}
            wait => {
                enter.note(|track| track.wait_begins(wait.planned()));
                hold(wait);
                enter.note(Track::wait_ends);
            }
        }
        self.finish(response);
        enter.note(Track::request_ends);
    }

    /// Step 1: the beginning of the response.
    pub(super) fn begin(&self, request: u32) -> String {
        let t = f64::from(request) * 13.0;
        let r = (t * t + FACTOR * (t * 2.0 / PI).sin()).sqrt();
        self.counters.sum_of_r.fetch_add((r * SUM_FACTOR).round() as u64, Ordering::Relaxed);
        format!("Resp: {r}")
    }

    /// Step 2: the wait that follows.
    pub(super) fn wait(&self, request: u32) -> Wait {
        let wait = Wait::of_request(request);
        match wait {
            Wait::Nothing => {}
            Wait::Yield => drop(self.counters.yields.fetch_add(1, Ordering::Relaxed)),
            Wait::Sleep(time) => {
                self.counters.waits_ms.fetch_add(time.as_millis() as u64, Ordering::Relaxed);
            }
        }
        wait.shortened(self.waits_divisor)
    }

    /// Step 3: the text, and a reader of the whole response.
    pub(super) fn finish(&self, mut response: String) {
        for letter in self.text.chars() {
            response.push(if letter == 'v' { 'V' } else { letter });
        }
        let checksum = crc32c::crc32c(black_box(response).as_bytes());
        self.counters.checksum.fetch_add(checksum, Ordering::Relaxed);
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// The counts so far.
    pub(super) fn controls(&self) -> Controls {
        Controls {
            requests: self.counters.requests.load(Ordering::Relaxed),
            sum_of_r: self.counters.sum_of_r.load(Ordering::Relaxed) as f64 / SUM_FACTOR,
            waits_ms: self.counters.waits_ms.load(Ordering::Relaxed),
            yields: self.counters.yields.load(Ordering::Relaxed),
            checksum: self.counters.checksum.load(Ordering::Relaxed),
        }
    }

    /// Whether a thread is still registered.
    pub(super) fn has_running_threads(&self) -> bool {
        self.threads.now.load(Ordering::Relaxed) > 0
    }

    /// The most threads that did requests at a time.
    pub(super) fn threads_peak(&self) -> usize {
        self.threads.peak.load(Ordering::Relaxed)
    }

    /// How long steps 1 and 3 of one request take on an idle CPU: the mean of `requests`.
    pub(super) fn time_of_one(text: String, requests: u32) -> Duration {
        let work = Self::new(requests, text);
        let begun = Instant::now();
        (0..requests).for_each(|request| work.finish(work.begin(request)));
        begun.elapsed() / requests
    }
}

#[cfg(test)]
impl Work {
    /// The work with sleeps short enough for a test.
    pub(super) fn with_short_waits(requests: u32, text: &str) -> Arc<Self> {
        Arc::new(Self { waits_divisor: 1_000, ..Self::new(requests, text.to_owned()) })
    }
}

impl ThreadGuard {
    /// Records an event of its thread, in a recorded trial.
    pub(super) fn note(&mut self, what: impl FnOnce(&mut Track)) {
        self.track.as_mut().map(what);
    }
}

impl Drop for ThreadGuard {
    fn drop(&mut self) {
        // Before the thread is counted out, after which the events are collected.
        drop(self.track.take());
        self.threads.now.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Controls {
    /// As one process sends it to another.
    pub(super) fn to_json(self) -> Value {
        json!({
            "requests": self.requests,
            "sum_of_r": self.sum_of_r,
            "waits_ms": self.waits_ms,
            "yields": self.yields,
            "checksum": self.checksum,
        })
    }

    /// Reads what `to_json` wrote.
    pub(super) fn from_json(value: &Value) -> Option<Self> {
        Some(Self {
            requests: value["requests"].as_u64()?,
            sum_of_r: value["sum_of_r"].as_f64()?,
            waits_ms: value["waits_ms"].as_u64()?,
            yields: value["yields"].as_u64()?,
            checksum: u32::try_from(value["checksum"].as_u64()?).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn controls_of(requests: u32, text: &str) -> Controls {
        let work = Work::with_short_waits(requests, text);
        let mut enter = work.enter(ThreadPlacement::Any);
        (0..requests).for_each(|request| work.request(request, &mut enter, |_| {}));
        work.controls()
    }

    #[test]
    fn controls_are_those_of_the_definition() {
        let controls = controls_of(REQUESTS, "v");
        assert_eq!(format!("{:.5e}", controls.sum_of_r), "6.49994e10");
        assert_eq!((controls.requests, controls.waits_ms, controls.yields), (100_000, 18_920, 49_800));
        assert_eq!(Controls::from_json(&controls.to_json()), Some(controls));
        assert_eq!(Controls::from_json(&json!({ "requests": 1 })), None);
    }

    #[test]
    fn response_quotes_the_text() {
        let work = Work::with_short_waits(1, "vivid");
        let begun = work.begin(0);
        assert_eq!(begun, "Resp: 0");
        work.finish(begun);
        assert_eq!(work.controls().checksum, crc32c::crc32c(b"Resp: 0ViVid"));
        assert_ne!(controls_of(3, "vivid").checksum, controls_of(3, "livid").checksum);
    }

    #[test]
    fn threads_peak_counts_registered_threads() {
        let work = Work::with_short_waits(1, "v");
        let first = work.enter(ThreadPlacement::Any);
        let second = work.enter(ThreadPlacement::Any);
        drop(first);
        let third = work.enter(ThreadPlacement::Any);
        drop((second, third));
        assert_eq!(work.threads_peak(), 2);
    }
}
