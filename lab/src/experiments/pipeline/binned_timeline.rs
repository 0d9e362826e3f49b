//! A recording as rows of threads with time cut into bins, and how much of each bin a row was running, ready,
//! waiting or idle.
//!
//! Guarantees: a timeline has a bounded size, however many threads there were; its bins add up to the
//! recording.

use std::ops::AddAssign;

use super::activity::{self, Span, ThreadState, TimelineSlot};
use super::recording::Recording;

/// Rows beside that of the main thread; where there are more slots, neighbours share a row.
pub(super) const ROWS_MAX: usize = 100;

/// Bins of a row: three for each pixel of a page, for zooming.
pub(super) const BINS: usize = 3_000;

/// Time by what threads did in it, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Times {
    pub(super) running: f64,
    pub(super) ready: f64,
    /// Stopped by the request: asleep, or blocked by a lock.
    pub(super) waiting: f64,
    /// Stopped without a request.
    pub(super) idle: f64,
}

/// Some neighbouring slots.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) slots: usize,
    pub(super) bins: Vec<Times>,
    pub(super) sum: Times,
}

/// The activity of one strategy's threads.
#[derive(Clone, Debug)]
pub(super) struct BinnedTimeline {
    pub(super) name: String,
    pub(super) length_ns: u64,
    pub(super) threads: usize,
    pub(super) requests: usize,
    pub(super) events_lost: u64,
    pub(super) rows: Vec<Row>,
}

impl Times {
    /// The sum of all.
    pub(super) fn total(&self) -> f64 {
        self.running + self.ready + self.waiting + self.idle
    }
}

impl AddAssign for Times {
    fn add_assign(&mut self, other: Self) {
        self.running += other.running;
        self.ready += other.ready;
        self.waiting += other.waiting;
        self.idle += other.idle;
    }
}

impl BinnedTimeline {
    /// The timeline of a strategy's recording.
    pub(super) fn new(name: &str, recording: &Recording) -> Self {
        let length_ns = recording.ended_ns.saturating_sub(recording.begun_ns).max(1);
        let time = Scale { begun: recording.begun_ns, bin_ns: length_ns as f64 / BINS as f64 };
        let slots = activity::slots(recording);
        let mains = slots.iter().take_while(|slot| slot.name == "main").count();
        let (mains, others) = slots.split_at(mains);
        let slots_per_row = others.len().div_ceil(ROWS_MAX).max(1);
        let groups = mains.chunks(1).chain(others.chunks(slots_per_row));
        let spans = || slots.iter().flat_map(|slot| slot.threads.iter().flatten());
        let mut requests: Vec<u32> = spans().filter_map(|span| span.request).collect();
        requests.sort_unstable();
        requests.dedup();
        Self {
            name: name.to_owned(),
            length_ns,
            threads: recording.threads.len(),
            requests: requests.len(),
            events_lost: recording.events_lost,
            rows: groups.map(|slots| Row::new(slots, &time)).collect(),
        }
    }

    /// The sum over all threads.
    pub(super) fn sum(&self) -> Times {
        let mut sum = Times::default();
        self.rows.iter().for_each(|row| sum += row.sum);
        sum
    }
}

impl Row {
    fn new(slots: &[TimelineSlot], time: &Scale) -> Self {
        let name = match slots {
            [one] => one.name.clone(),
            [first, .., last] => format!("{} to {}", first.name, last.name.trim_start_matches("thread ")),
            [] => String::new(),
        };
        let mut row =
            Self { name, slots: slots.len(), bins: vec![Times::default(); BINS], sum: Times::default() };
        slots.iter().flat_map(|slot| slot.threads.iter().flatten()).for_each(|span| row.add(span, time));
        row
    }

    /// A wait comes first, then the time until there was a CPU. In other spans the order is unknown, so their
    /// parts are mixed evenly.
    fn add(&mut self, span: &Span, time: &Scale) {
        let (running, ready) = (span.running as f64, span.ready as f64);
        let stopped = (span.to - span.from) as f64 - running - ready;
        let only = |running, ready, waiting, idle| Times { running, ready, waiting, idle };
        match span.state {
            ThreadState::Idle => self.spread(span.from, span.to, only(running, ready, 0.0, stopped), time),
            ThreadState::Work => self.spread(span.from, span.to, only(running, ready, stopped, 0.0), time),
            ThreadState::Wait(_) => {
                let (woken, resumed) = (span.to - span.running - span.ready, span.to - span.running);
                self.spread(span.from, woken, only(0.0, 0.0, stopped, 0.0), time);
                self.spread(woken, resumed, only(0.0, ready, 0.0, 0.0), time);
                self.spread(resumed, span.to, only(running, 0.0, 0.0, 0.0), time);
            }
        }
    }

    /// Distributes `times` to the bins between two moments.
    fn spread(&mut self, from: u64, to: u64, times: Times, time: &Scale) {
        if from >= to {
            return;
        }
        self.sum += times;
        let (start, end) = (time.bin(from), time.bin(to));
        let per_bin = 1.0 / (end - start);
        for bin in start as usize..=(end as usize).min(BINS - 1) {
            let share = (end.min(bin as f64 + 1.0) - start.max(bin as f64)).max(0.0) * per_bin;
            let Times { running, ready, waiting, idle } = times;
            self.bins[bin] += Times {
                running: running * share,
                ready: ready * share,
                waiting: waiting * share,
                idle: idle * share,
            };
        }
    }
}

/// Converts moments to bins.
struct Scale {
    begun: u64,
    bin_ns: f64,
}

impl Scale {
    fn bin(&self, moment: u64) -> f64 {
        (moment.saturating_sub(self.begun) as f64 / self.bin_ns).min(BINS as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::super::activity::tests::{recording, waiting_thread};
    use super::super::recording::ThreadPlacement;
    use super::*;

    const MS: f64 = 1e6;

    fn close(one: f64, other: f64) -> bool {
        (one - other).abs() < 1.0
    }

    #[test]
    fn bins_hold_the_states_of_their_time() {
        // 20 ms in all: 150 bins a millisecond.
        let timeline =
            BinnedTimeline::new("pool-1", &recording(vec![waiting_thread(ThreadPlacement::Slot(0), 0)]));
        let row = &timeline.rows[0];
        assert_eq!((timeline.threads, timeline.requests, row.name.as_str()), (1, 1, "thread 1"));
        let bin_ns = 20.0 * MS / BINS as f64;
        let check = |ms: f64, running: f64, ready: f64, waiting: f64, idle: f64| {
            let bin = row.bins[(ms * 150.0) as usize];
            for (found, share) in
                [(bin.running, running), (bin.ready, ready), (bin.waiting, waiting), (bin.idle, idle)]
            {
                assert!(close(found, share * bin_ns), "{ms} ms: {bin:?}");
            }
        };
        check(0.5, 0.0, 0.0, 0.0, 1.0);
        check(2.5, 1.0, 0.0, 0.0, 0.0);
        check(12.9, 0.0, 0.0, 1.0, 0.0);
        check(13.5, 0.0, 1.0, 0.0, 0.0);
        check(16.5, 2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0);
        check(19.5, 0.0, 0.0, 0.0, 0.0);
    }

    #[test]
    fn bins_add_up_to_the_recording() {
        let threads =
            (0..7).map(|slot| waiting_thread(ThreadPlacement::Slot(slot), u64::from(slot) / 3)).collect();
        let timeline = BinnedTimeline::new("batches-7", &recording(threads));
        let mut bins = Times::default();
        timeline.rows.iter().flat_map(|row| &row.bins).for_each(|&bin| bins += bin);
        let sum = timeline.sum();
        assert!(close(bins.total(), sum.total()) && close(bins.ready, sum.ready), "{bins:?} {sum:?}");
        assert!(close(sum.total(), 7.0 * 18.0 * MS), "{sum:?}");
        assert!(close(sum.running, 7.0 * 4.0 * MS) && close(sum.waiting, 7.0 * 10.0 * MS), "{sum:?}");
    }

    #[test]
    fn many_slots_share_rows() {
        let thread = |slot| waiting_thread(ThreadPlacement::Slot(slot), 0);
        let mut threads: Vec<_> = (0..250).map(thread).collect();
        threads.push(waiting_thread(ThreadPlacement::Main, 0));
        let timeline = BinnedTimeline::new("batches-250", &recording(threads));
        assert_eq!(timeline.rows.len(), 85);
        let names: Vec<_> = timeline.rows.iter().map(|row| (row.name.as_str(), row.slots)).collect();
        assert_eq!(names[..2], [("main", 1), ("thread 1 to 3", 3)]);
        assert_eq!(names[84], ("thread 250", 1));
    }

    #[test]
    fn empty_recording_is_an_empty_timeline() {
        let mut empty = recording(Vec::new());
        empty.ended_ns = 0;
        let timeline = BinnedTimeline::new("none", &empty);
        assert_eq!((timeline.rows.len(), timeline.threads, timeline.requests), (0, 0, 0));
        assert_eq!(timeline.sum(), Times::default());
    }
}
