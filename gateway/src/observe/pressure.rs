//! Pressure: a thread that measures how long the reactors wait for a CPU, and reduces the job pool's permits
//! meanwhile.
//!
//! Guarantees: a sample a second, off the data plane. The pool keeps at least two permits, regains them one
//! by one in quiet times, and never gets more than it was started with. One password is hashed at a time in
//! any case, so the other job classes lose permits.
//!
//! Not handled here: reading the kernel (`sys::pressure`), and the names of metrics (crate `admin`).

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use sys::clock;
use sys::limits::ProcRoot;
use sys::pressure::{Pressure, Sampler};

use crate::jobs::PERMITS_MIN;
use crate::observe::stats::Stats;

/// How often a sample is taken.
const SAMPLE_SPAN: Duration = Duration::from_secs(1);

/// A reactor thread is delayed if for more than this share of the time it was ready and had no CPU. Each of
/// its responses then waits for a tenth of its work, and the worst ones for a slice of the scheduler, 3 ms.
const DELAY_SHARE_MAX: f64 = 0.10;

/// Below this share it is quiet. Between the two nothing changes, or a permit would come and go each second.
const DELAY_SHARE_QUIET: f64 = 0.02;

/// Quiet samples in a row before the pool gets a permit back. It regains permits more slowly than it loses
/// them, because the pool itself may have delayed the reactors.
const QUIET_SAMPLES: u32 = 5;

/// What the samples mean for the reactors.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PressureLevel {
    /// Of the last sample: the greatest share of the time that a reactor thread was ready and had no CPU.
    pub delay_share: f64,
    /// Of the last sample: whether the quota of a control group stopped the process.
    pub is_throttled: bool,
    /// Samples in a row, up to the last one, in which the reactors had enough CPU.
    pub quiet_samples: u32,
}

impl PressureLevel {
    fn next(self, pressure: &Pressure) -> PressureLevel {
        let delay_share = pressure.delay_share_max();
        let is_throttled = pressure.throttling.is_some_and(|delta| delta.added.throttled_periods > 0);
        let is_quiet = delay_share < DELAY_SHARE_QUIET && !is_throttled;
        let quiet_samples = if is_quiet { self.quiet_samples.saturating_add(1) } else { 0 };
        PressureLevel { delay_share, is_throttled, quiet_samples }
    }
}

/// The number of permits for a pool that has `permits` of at most `permits_max`: one less while the reactors
/// are delayed, one more after each [`QUIET_SAMPLES`] quiet samples.
pub fn permits_wanted(permits: usize, permits_max: usize, level: &PressureLevel) -> usize {
    let is_pressed = level.is_throttled || level.delay_share > DELAY_SHARE_MAX;
    let is_quiet_again = level.quiet_samples > 0 && level.quiet_samples.is_multiple_of(QUIET_SAMPLES);
    match (is_pressed, is_quiet_again) {
        (true, _) => permits.saturating_sub(1).max(PERMITS_MIN).min(permits_max),
        (false, true) => (permits + 1).min(permits_max),
        (false, false) => permits,
    }
}

/// The sampling thread. It ends when this is dropped.
pub(crate) struct PressureThread {
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl PressureThread {
    /// Samples the threads `reactors`, by their ids.
    ///
    /// # Errors
    /// No thread can be created.
    pub(crate) fn start(stats: Arc<Stats>, reactors: &[i32]) -> io::Result<PressureThread> {
        let mut sampler = Sampler::new(&ProcRoot::machine(), reactors);
        // Nothing is ever sent: the wait between two samples ends by time, or when the sender is dropped.
        let (stop, stopped) = sync_channel::<()>(0);
        let watch = move || {
            let mut level = PressureLevel::default();
            loop {
                let pressure = sampler.sample(clock::monotonic());
                level = level.next(&pressure);
                stats.pressure.set(pressure);
                let (pool, permits) = (&stats.pool, stats.pool.stats().permits);
                let wanted = permits_wanted(permits, pool.permits_max(), &level);
                if wanted != permits {
                    pool.set_permits(wanted);
                }
                if stopped.recv_timeout(SAMPLE_SPAN) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("pressure".into()).spawn(watch)?;
        Ok(PressureThread { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for PressureThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened, and the pool keeps its permits.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sys::clock::WallNanos;
    use sys::pressure::{Delta, Throttling};
    use sys::thread::{RunTime, thread_id};

    #[test]
    fn permits_follow_the_pressure_within_bounds() {
        let check = |now, full, (delay_share, is_throttled, quiet_samples), expected| {
            let level = PressureLevel { delay_share, is_throttled, quiet_samples };
            assert_eq!(permits_wanted(now, full, &level), expected, "{now} of {full}, {level:?}");
        };
        check(4, 8, (0.11, false, 0), 3);
        check(4, 8, (0.0, true, 0), 3);
        check(2, 8, (1.0, true, 0), 2);
        check(1, 1, (1.0, true, 0), 1);
        // Between delayed and quiet nothing changes.
        check(4, 8, (0.10, false, 0), 4);
        check(4, 8, (0.05, false, 0), 4);
        check(4, 8, (0.0, false, 1), 4);
        check(4, 8, (0.0, false, QUIET_SAMPLES - 1), 4);
        check(4, 8, (0.0, false, QUIET_SAMPLES), 5);
        check(4, 8, (0.0, false, QUIET_SAMPLES + 1), 4);
        check(5, 8, (0.0, false, 2 * QUIET_SAMPLES), 6);
        check(8, 8, (0.0, false, 3 * QUIET_SAMPLES), 8);
    }

    #[test]
    fn quiet_samples_add_up_until_a_loud_one() {
        let sample = |delay_ms: u64, throttled_periods| {
            let delay = Duration::from_millis(delay_ms);
            let run = |delay| RunTime { on_cpu: Duration::ZERO, delay };
            let added = Throttling { throttled_periods, ..Throttling::default() };
            Pressure {
                span: Duration::from_secs(1),
                threads: vec![None, Some(Delta { total: run(delay), added: run(delay) })],
                throttling: Some(Delta { total: added, added }),
                ..Pressure::default()
            }
        };
        let mut level = PressureLevel::default();
        let mut check = |delay_ms, throttled_periods, expected: PressureLevel| {
            level = level.next(&sample(delay_ms, throttled_periods));
            assert_eq!(level, expected);
        };
        check(0, 0, PressureLevel { delay_share: 0.0, is_throttled: false, quiet_samples: 1 });
        check(10, 0, PressureLevel { delay_share: 0.01, is_throttled: false, quiet_samples: 2 });
        check(50, 0, PressureLevel { delay_share: 0.05, is_throttled: false, quiet_samples: 0 });
        check(0, 0, PressureLevel { delay_share: 0.0, is_throttled: false, quiet_samples: 1 });
        check(0, 2, PressureLevel { delay_share: 0.0, is_throttled: true, quiet_samples: 0 });
        check(500, 0, PressureLevel { delay_share: 0.5, is_throttled: false, quiet_samples: 0 });
    }

    #[test]
    fn first_sample_is_immediate_and_drop_ends_thread() {
        let stats = Stats::new("", WallNanos(0), 1, crate::jobs::start(1).unwrap());
        let pressure_thread = PressureThread::start(Arc::clone(&stats), &[thread_id()]).unwrap();
        while stats.pressure.read().threads.is_empty() {
            thread::yield_now();
        }
        assert!(stats.pressure.read().threads[0].is_some());
        drop(pressure_thread);
        assert_eq!(Arc::strong_count(&stats), 1, "the thread dropped its reference");
    }
}
