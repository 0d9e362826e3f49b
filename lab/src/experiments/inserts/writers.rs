//! The writers' threads: each inserts its rows at a pace and counts the results.
//!
//! Guarantees: while it counts, a writer sleeps nowhere outside of inserts, so every voluntary context switch
//! was made inside an insert.
//!
//! Where a writer has to wait by itself, for a free slot or for the moment a row is due, it yields. A
//! yielding thread stays runnable, and the kernel counts its switch among the involuntary ones: nothing has
//! to be subtracted. The count is `ru_nvcsw` of `RUSAGE_THREAD`, which `/proc` has as well.
//!
//! Reading the clock costs as much as an insert of the fast stores. So there only one insert in 64 is timed,
//! and stands for 64 in the distribution; after one that took 10 us or more the next is timed as well, and
//! stands for itself, so that the samples do not miss a stall. The maximum is that of the timed ones.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use sys::limits::cpus::pin_thread;

use super::row::Rows;
use super::store::{InsertResult, Store, Writer};

/// Inserts for each timed one, where not all are.
const TIMED_EACH: u64 = 64;

/// After an insert that took this long the next is timed as well.
const SLOW: Duration = Duration::from_micros(10);

/// Longer inserts count as this one: an hour.
const INSERT_NS_MAX: u64 = 3_600_000_000_000;

/// The speed of one writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// One row after the other until the end. With a bound, at most that many rows of all writers are
    /// accepted and not durable yet.
    Closed { in_flight_max: Option<u64> },
    /// `rows` rows, one every `each_ns` whatever the store does; a refused row is lost.
    Open { rows: u64, each_ns: u64 },
    /// `rows` rows, one after the other.
    Count { rows: u64 },
}

/// Shared by the writers and the thread that samples the watermarks.
pub(super) struct RunControl {
    /// Opens when all writers have arrived, and the sampling thread.
    start: Barrier,
    is_over: AtomicBool,
    working: AtomicUsize,
    accepted: Vec<AcceptedCounter>,
}

/// Rows that one writer's store has accepted.
#[derive(Default)]
#[repr(align(128))]
struct AcceptedCounter(AtomicU64);

impl RunControl {
    pub(super) fn new(writers: usize) -> Self {
        Self {
            start: Barrier::new(writers + 1),
            is_over: AtomicBool::new(false),
            working: AtomicUsize::new(writers),
            accepted: (0..writers).map(|_| AcceptedCounter::default()).collect(),
        }
    }

    /// Waits for all threads.
    pub(super) fn wait_for_start(&self) {
        self.start.wait();
    }

    /// Stops the writers. All orderings here are Relaxed: each value stands alone.
    pub(super) fn stop(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_finished(&self) -> bool {
        self.working.load(Ordering::Relaxed) == 0
    }

    /// Rows accepted so far.
    pub(super) fn accepted(&self) -> u64 {
        self.accepted.iter().map(|counter| counter.0.load(Ordering::Relaxed)).sum()
    }
}

/// One writer's work.
pub(super) struct WriterTask<'a> {
    pub(super) writer: Box<dyn Writer>,
    pub(super) store: &'a dyn Store,
    pub(super) control: &'a RunControl,
    /// The writer's index.
    pub(super) number: usize,
    pub(super) rows: Rows,
    pub(super) pace: Pace,
    pub(super) cpu: Option<usize>,
    pub(super) is_timed_throughout: bool,
}

/// The result of one writer.
pub(super) struct WriterResult {
    /// Returned, since it may hold a connection that must not end before the watch does.
    pub(super) _writer: Box<dyn Writer>,
    pub(super) count: WriterCounts,
}

/// A writer's counts.
#[derive(Clone, Debug)]
pub(super) struct WriterCounts {
    pub(super) offered: u64,
    pub(super) accepted: u64,
    /// Refusals; one row may be refused many times.
    pub(super) refused: u64,
    /// Voluntary context switches.
    pub(super) blocked: u64,
    /// From the first insert to after the last.
    pub(super) begun: Instant,
    pub(super) ended: Instant,
    /// Nanoseconds of one insert.
    pub(super) inserts_ns: Histogram<u64>,
}

impl WriterCounts {
    pub(super) fn new() -> Result<Self> {
        let inserts_ns =
            Histogram::new_with_bounds(1, INSERT_NS_MAX, 2).context("the histogram's bounds are valid")?;
        let begun = Instant::now();
        Ok(Self { offered: 0, accepted: 0, refused: 0, blocked: 0, begun, ended: begun, inserts_ns })
    }
}

impl<'a> WriterTask<'a> {
    /// Does the work on the calling thread.
    ///
    /// # Errors
    /// The store failed, or the thread could not be pinned.
    pub(super) fn run(self) -> Result<WriterResult> {
        let control = self.control;
        let prepared = self.prepare();
        control.wait_for_start();
        let results = prepared.and_then(|(writer_loop, switches)| writer_loop.run(&switches));
        control.working.fetch_sub(1, Ordering::Relaxed);
        results
    }

    fn prepare(self) -> Result<(WriterLoop<'a>, ContextSwitches)> {
        if let Some(cpu) = self.cpu {
            pin_thread(cpu).with_context(|| format!("choosing CPU {cpu}"))?;
        }
        let every = if self.is_timed_throughout { 1 } else { TIMED_EACH };
        let writer_loop =
            WriterLoop { count: WriterCounts::new()?, sampler: InsertSampler::new(every), task: self };
        Ok((writer_loop, ContextSwitches::of_this_thread()?))
    }
}

/// A running writer.
struct WriterLoop<'a> {
    task: WriterTask<'a>,
    count: WriterCounts,
    sampler: InsertSampler,
}

impl WriterLoop<'_> {
    fn run(mut self, switches: &ContextSwitches) -> Result<WriterResult> {
        let before = switches.voluntary()?;
        self.count.begun = Instant::now();
        match self.task.pace {
            Pace::Closed { in_flight_max } => self.closed(in_flight_max)?,
            Pace::Open { rows, each_ns } => self.open(rows, each_ns)?,
            Pace::Count { rows } => self.count(rows)?,
        }
        self.count.ended = Instant::now();
        self.count.blocked = switches.voluntary()?.saturating_sub(before);
        Ok(WriterResult { _writer: self.task.writer, count: self.count })
    }

    fn closed(&mut self, in_flight_max: Option<u64>) -> Result<()> {
        while !self.is_over() {
            let has_capacity = in_flight_max.is_none_or(|most| self.in_flight() < most);
            if !has_capacity || self.insert()? == InsertResult::Refused {
                thread::yield_now();
            }
        }
        self.count.accepted += self.task.writer.finish()?;
        self.count.offered = self.count.accepted;
        Ok(())
    }

    fn count(&mut self, rows: u64) -> Result<()> {
        self.count.offered = rows;
        while self.count.accepted < rows && !self.is_over() {
            if self.insert()? == InsertResult::Refused {
                thread::yield_now();
            }
        }
        Ok(())
    }

    fn open(&mut self, rows: u64, each_ns: u64) -> Result<()> {
        self.count.offered = rows;
        for row in 0..rows {
            let due = self.count.begun + Duration::from_nanos(row * each_ns);
            while Instant::now() < due {
                thread::yield_now();
            }
            if self.is_over() {
                return Ok(());
            }
            if self.insert()? == InsertResult::Refused {
                self.task.rows.advance();
            }
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.task.control.is_over.load(Ordering::Relaxed)
    }

    /// Rows of all writers that are not durable yet. Two writers may see the last free slot at once: the
    /// bound is exact to the number of writers.
    fn in_flight(&self) -> u64 {
        let durable = self.task.store.watermarks().durable.unwrap_or(0);
        self.task.control.accepted().saturating_sub(durable)
    }

    fn insert(&mut self) -> Result<InsertResult> {
        let result = if self.sampler.is_due() { self.timed_insert()? } else { self.bare_insert()? };
        match result {
            InsertResult::Accepted(rows) => {
                self.count.accepted += rows;
                let counter = &self.task.control.accepted[self.task.number];
                counter.0.store(self.count.accepted, Ordering::Relaxed);
                self.task.rows.advance();
            }
            InsertResult::Gathered => self.task.rows.advance(),
            InsertResult::Refused => self.count.refused += 1,
        }
        Ok(result)
    }

    fn bare_insert(&mut self) -> Result<InsertResult> {
        self.task.writer.insert(self.task.rows.current())
    }

    fn timed_insert(&mut self) -> Result<InsertResult> {
        let begun = Instant::now();
        let result = self.bare_insert()?;
        let elapsed = begun.elapsed();
        if result != InsertResult::Refused {
            let weight = self.sampler.note(elapsed);
            let took_ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
            self.count.inserts_ns.saturating_record_n(took_ns, weight);
        }
        self.task.rows.set_elapsed(begun - self.count.begun);
        Ok(result)
    }
}

/// Selects the inserts that are timed.
#[derive(Debug)]
struct InsertSampler {
    every: u64,
    /// Inserts until the next timed one.
    remaining: u64,
    was_slow: bool,
}

impl InsertSampler {
    fn new(every: u64) -> Self {
        Self { every, remaining: 1, was_slow: false }
    }

    fn is_due(&mut self) -> bool {
        self.remaining = self.remaining.saturating_sub(1);
        self.remaining == 0
    }

    /// Records a timed insert; returns how many it stands for.
    fn note(&mut self, elapsed: Duration) -> u64 {
        let weight = if self.was_slow { 1 } else { self.every };
        self.was_slow = elapsed >= SLOW;
        self.remaining = if self.was_slow { 1 } else { self.every };
        weight
    }
}

/// The context switches of one thread.
#[derive(Debug)]
struct ContextSwitches(File);

impl ContextSwitches {
    /// The file is opened once: a reading is one call, which does not sleep.
    fn of_this_thread() -> Result<Self> {
        Ok(Self(File::open("/proc/thread-self/status").context("opening this thread's status")?))
    }

    fn voluntary(&self) -> Result<u64> {
        let mut bytes = [0; 4_096];
        let length = self.0.read_at(&mut bytes, 0)?;
        let text = String::from_utf8_lossy(&bytes[..length]);
        parse_voluntary(&text).context("a thread's status has its voluntary switches")
    }
}

fn parse_voluntary(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::inserts::row::Row;

    /// Refuses every other row, and gathers what it accepts in pairs.
    #[derive(Default)]
    struct AlternatingWriter {
        calls: u64,
        gathered: u64,
    }

    impl Writer for AlternatingWriter {
        fn insert(&mut self, _row: &Row) -> Result<InsertResult> {
            self.calls += 1;
            if self.calls.is_multiple_of(2) {
                return Ok(InsertResult::Refused);
            }
            self.gathered += 1;
            Ok(if self.gathered.is_multiple_of(2) {
                InsertResult::Accepted(2)
            } else {
                InsertResult::Gathered
            })
        }

        fn finish(&mut self) -> Result<u64> {
            Ok(self.gathered % 2)
        }
    }

    struct NoStages;

    impl Store for NoStages {}

    fn task(pace: Pace, control: &RunControl) -> WriterCounts {
        let (writer, rows) = (Box::new(AlternatingWriter::default()), Rows::of(0, 0));
        let (store, is_timed_throughout) = (&NoStages, true);
        let task =
            WriterTask { writer, store, control, number: 0, rows, pace, cpu: None, is_timed_throughout };
        thread::scope(|scope| {
            let thread = scope.spawn(|| task.run());
            control.wait_for_start();
            thread
                .join()
                .expect("the thread does not panic")
                .expect("the writer inserts without an error")
                .count
        })
    }

    #[test]
    fn refused_row_is_retried_and_not_counted() {
        let control = RunControl::new(1);
        let count = task(Pace::Count { rows: 100 }, &control);
        assert_eq!((count.offered, count.accepted, count.refused), (100, 100, 99));
        assert_eq!((control.accepted(), control.is_finished()), (100, true));
        assert_eq!(count.inserts_ns.len(), 100, "refusals are not timed");
    }

    #[test]
    fn open_loop_drops_a_refused_row() {
        let count = task(Pace::Open { rows: 100, each_ns: 1 }, &RunControl::new(1));
        assert_eq!((count.offered, count.accepted, count.refused), (100, 50, 50));
    }

    #[test]
    fn stopped_run_ends_all_writers() {
        let control = RunControl::new(1);
        control.stop();
        let count = task(Pace::Closed { in_flight_max: None }, &control);
        assert_eq!((count.offered, count.accepted), (0, 0));
    }

    #[test]
    fn sleeps_count_as_switches_and_yields_do_not() {
        let switches = ContextSwitches::of_this_thread().expect("a thread may read its own status");
        let before = switches.voluntary().expect("the status has the line");
        (0..100).for_each(|_| thread::yield_now());
        let yielded = switches.voluntary().expect("the status has the line");
        thread::sleep(Duration::from_millis(1));
        let slept = switches.voluntary().expect("the status has the line");
        assert_eq!(yielded, before);
        assert!(slept > yielded, "{slept} after {yielded}");
    }

    #[test]
    fn voluntary_switches_are_parsed() {
        let status = "Name:\tx\nnonvoluntary_ctxt_switches:\t7\nvoluntary_ctxt_switches:\t5\n";
        assert_eq!(parse_voluntary(status), Some(5));
        assert_eq!(parse_voluntary("nonvoluntary_ctxt_switches:\t7\n"), None);
    }

    #[test]
    fn sampler_times_one_in_64_and_all_while_slow() {
        let mut sampler = InsertSampler::new(4);
        let mut weights = Vec::new();
        for insert in 0..12 {
            if sampler.is_due() {
                let elapsed = if (4..=6).contains(&insert) { SLOW } else { Duration::ZERO };
                weights.push((insert, sampler.note(elapsed)));
            }
        }
        assert_eq!(weights, [(0, 4), (4, 4), (5, 1), (6, 1), (7, 1), (11, 4)]);
    }
}
