//! Recorded events of threads: when requests and their waits began and ended, and the thread's CPU time until
//! then.
//!
//! Guarantees: an event costs two system calls and no lock; memory is bounded, and lost events are counted; a
//! recording passes from one process to another by a file. A recorded run is never a measured one.
//!
//! ```text
//!   Recorder --track()--> Track, one on each thread: request_begins, wait_begins, wait_ends, request_ends
//!      |                    '--- dropped where the thread ends ---.
//!      '--finish()--> Recording <---------------------------------'     write --file--> read
//! ```

mod file;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Events of one recording, of 48 bytes each: 100,000 requests that wait, each on a thread of its own, need
/// 600,000.
const EVENTS_MAX: usize = 1 << 20;

/// What a thread's beginning and end count for among the events.
const EVENTS_PER_THREAD: usize = 2;

/// Collects the events of all threads.
#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    shared: Arc<RecorderState>,
}

#[derive(Debug)]
struct RecorderState {
    begun_ns: u64,
    events: AtomicUsize,
    events_max: usize,
    threads: Mutex<Vec<Thread>>,
}

/// One thread's events on their way to a recorder, from where the thread begins to where it ends.
#[derive(Debug)]
pub(crate) struct Track {
    shared: Arc<RecorderState>,
    clock: ThreadClock,
    /// `None` once it was given to the recorder, or where the recorder was full from the beginning.
    thread: Option<Thread>,
}

/// Everything that was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recording {
    /// When the recorder began, on the monotonic clock.
    pub(crate) begun_ns: u64,
    pub(crate) ended_ns: u64,
    /// Events beyond the bound.
    pub(crate) events_lost: u64,
    /// In the order in which they ended.
    pub(crate) threads: Vec<Thread>,
}

/// One thread's events, in the order of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Thread {
    pub(crate) placement: ThreadPlacement,
    pub(crate) begun: Stamp,
    pub(crate) events: Vec<Event>,
    pub(crate) ended: Stamp,
}

/// Where a thread is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadPlacement {
    /// The thread that distributes the requests and does none.
    Main,
    /// The slot of this number; a thread that ended may have a successor there, as batches have.
    Slot(u32),
    /// The lowest one that is free while it lives.
    Any,
}

/// Something that happened on a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) kind: EventKind,
    pub(crate) stamp: Stamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    /// By its number. An event loop records one again when it continues with it.
    RequestBegins(u32),
    /// The thread itself waits, with its planned duration; zero for a yield.
    WaitBegins(Duration),
    WaitEnds,
    /// Or is suspended by an event loop.
    RequestEnds,
    /// Only reads the clocks, where a thread without requests works for long.
    Checkpoint,
}

/// A moment, and the thread's times until then, all in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// On the monotonic clock.
    pub(crate) at: u64,
    /// Ran on a CPU.
    pub(crate) cpu: u64,
    /// Could have run and had no CPU, by the kernel's count; `None` where it keeps none.
    pub(crate) ready: Option<u64>,
}

impl Recorder {
    /// A recorder that begins now.
    pub(crate) fn start() -> Self {
        Self::with_events_max(EVENTS_MAX)
    }

    fn with_events_max(events_max: usize) -> Self {
        let shared = RecorderState {
            begun_ns: sys::clock::monotonic().0,
            events: AtomicUsize::new(0),
            events_max,
            threads: Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The calling thread's track. The thread has to drop it as its last action.
    pub(crate) fn track(&self, placement: ThreadPlacement) -> Track {
        let clock = ThreadClock::new();
        let has_capacity = self.shared.admits(EVENTS_PER_THREAD);
        let begun = clock.read();
        let thread = has_capacity.then(|| Thread { placement, begun, events: Vec::new(), ended: begun });
        Track { shared: Arc::clone(&self.shared), clock, thread }
    }

    /// The recording of all tracks that were dropped until now.
    pub(crate) fn finish(self) -> Recording {
        let events = self.shared.events.load(Ordering::Relaxed);
        let threads = &mut *self.shared.threads.lock().unwrap_or_else(PoisonError::into_inner);
        Recording {
            begun_ns: self.shared.begun_ns,
            ended_ns: sys::clock::monotonic().0,
            events_lost: events.saturating_sub(self.shared.events_max) as u64,
            threads: std::mem::take(threads),
        }
    }
}

impl RecorderState {
    /// Whether this many further events are within the bound. Relaxed: a count.
    fn admits(&self, events: usize) -> bool {
        self.events.fetch_add(events, Ordering::Relaxed) + events <= self.events_max
    }
}

impl Track {
    /// The thread begins with a request, or continues with it.
    pub(crate) fn request_begins(&mut self, request: u32) {
        self.record(EventKind::RequestBegins(request));
    }

    /// The thread stops until a wait of that length is over.
    pub(crate) fn wait_begins(&mut self, planned: Duration) {
        self.record(EventKind::WaitBegins(planned));
    }

    /// The thread runs again.
    pub(crate) fn wait_ends(&mut self) {
        self.record(EventKind::WaitEnds);
    }

    /// The request is done, or suspended.
    pub(crate) fn request_ends(&mut self) {
        self.record(EventKind::RequestEnds);
    }

    /// Reads the clocks where a thread without requests, as `main`, has done a piece of its work.
    pub(crate) fn checkpoint(&mut self) {
        self.record(EventKind::Checkpoint);
    }

    fn record(&mut self, kind: EventKind) {
        let Some(thread) = &mut self.thread else { return };
        if self.shared.admits(1) {
            thread.events.push(Event { kind, stamp: self.clock.read() });
        }
    }
}

impl Drop for Track {
    fn drop(&mut self) {
        let Some(mut thread) = self.thread.take() else { return };
        thread.ended = self.clock.read();
        let mut threads = self.shared.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.push(thread);
    }
}

/// The calling thread's clocks.
#[derive(Debug)]
struct ThreadClock {
    /// Fields: time on a CPU, time ready without one, time slices (Documentation/scheduler/sched-stats.rst).
    schedstat: Option<File>,
}

impl ThreadClock {
    fn new() -> Self {
        Self { schedstat: File::open("/proc/thread-self/schedstat").ok() }
    }

    fn read(&self) -> Stamp {
        let ready = self.schedstat.as_ref().and_then(ready_ns);
        // The kernel's own sum of CPU time in that file is as old as its last tick; this clock is not.
        let cpu = sys::clock::thread_cpu().as_nanos() as u64;
        Stamp { at: sys::clock::monotonic().0, cpu, ready }
    }
}

fn ready_ns(schedstat: &File) -> Option<u64> {
    let mut text = [0; 80];
    let length = schedstat.read_at(&mut text, 0).ok()?;
    std::str::from_utf8(&text[..length]).ok()?.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(thread: &Thread) -> Vec<EventKind> {
        thread.events.iter().map(|record| record.kind).collect()
    }

    #[test]
    fn ended_threads_keep_their_events() {
        let recorder = Recorder::start();
        for slot in [4, 5] {
            let recorder = recorder.clone();
            let thread = std::thread::spawn(move || {
                let mut track = recorder.track(ThreadPlacement::Slot(slot));
                track.request_begins(slot * 100);
                track.wait_begins(Duration::from_millis(88));
                track.wait_ends();
                track.request_ends();
            });
            thread.join().expect("the thread does not panic");
        }
        recorder.track(ThreadPlacement::Main).checkpoint();
        let recording = recorder.finish();
        assert_eq!(recording.events_lost, 0);
        let placements: Vec<ThreadPlacement> =
            recording.threads.iter().map(|thread| thread.placement).collect();
        assert_eq!(placements, [ThreadPlacement::Slot(4), ThreadPlacement::Slot(5), ThreadPlacement::Main]);
        let wait = EventKind::WaitBegins(Duration::from_millis(88));
        let expected = [EventKind::RequestBegins(500), wait, EventKind::WaitEnds, EventKind::RequestEnds];
        assert_eq!(kinds(&recording.threads[1]), expected);
        assert_eq!(kinds(&recording.threads[2]), [EventKind::Checkpoint]);
        for thread in &recording.threads {
            let stamps: Vec<Stamp> = std::iter::once(thread.begun)
                .chain(thread.events.iter().map(|record| record.stamp))
                .chain([thread.ended])
                .collect();
            assert!(stamps.is_sorted_by_key(|stamp| stamp.at), "{stamps:?}");
            assert!(stamps.is_sorted_by_key(|stamp| stamp.cpu), "{stamps:?}");
            assert!(recording.begun_ns <= thread.begun.at && thread.ended.at <= recording.ended_ns);
        }
    }

    #[test]
    fn events_beyond_the_bound_are_counted() {
        let recorder = Recorder::with_events_max(5);
        let mut first = recorder.track(ThreadPlacement::Any);
        let mut second = recorder.track(ThreadPlacement::Any);
        first.request_begins(1);
        second.request_begins(2);
        first.request_ends();
        let late = recorder.track(ThreadPlacement::Any);
        drop((first, second, late));
        let recording = recorder.finish();
        assert_eq!(
            recording.threads.iter().map(kinds).collect::<Vec<_>>(),
            [vec![EventKind::RequestBegins(1)], vec![]]
        );
        assert_eq!(recording.events_lost, 4);
    }
}
