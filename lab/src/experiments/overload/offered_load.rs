//! The load: jobs arrive when they are due, whatever becomes of earlier ones.
//!
//! Guarantees: a slow server receives no fewer jobs (an open loop); a job that the lab itself offers late
//! counts from when it was due.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::DEADLINE;
use super::counters::{PendingJob, SharedCounters};
use super::target::{ANSWER_GRACE, Gate, Measured, Target};
use crate::kit::burn::Burn;

/// The interval of poisoned jobs.
const POISON_EVERY: Duration = Duration::from_millis(20);

/// The interval between two batches of due jobs: those of a batch arrive together, as requests of one wake-up
/// do.
const BATCH_INTERVAL: Duration = Duration::from_micros(500);

/// Load before the measured time: queues fill, overload is detected.
const WARM_UP: Duration = Duration::from_millis(300);

/// Jobs in flight for each CPU while the capacity is measured: enough that no permit is ever free.
const IN_FLIGHT: usize = 32;

/// A rate from fewer jobs says nothing, so the capacity takes longer where a machine gives it no CPU.
const CAPACITY_JOBS_MIN: u64 = 100;

/// Jobs of one kind at a fixed rate.
#[derive(Debug)]
pub(super) struct OfferedLoad {
    pub(super) target: Target,
    pub(super) burn: Burn,
    /// Jobs per second.
    pub(super) rate: f64,
    /// The measured time.
    pub(super) time: Duration,
}

impl OfferedLoad {
    /// Offers the jobs to a fresh server.
    ///
    /// # Errors
    /// The server does not start, or not every job ends.
    pub(super) fn run(&self) -> Result<Measured> {
        let pool = self.target.start()?;
        let (counters, gate) = (SharedCounters::new(DEADLINE), Arc::new(Gate::default()));
        let (start, end) = (Instant::now(), WARM_UP + self.time);
        let (mut sent, mut poisoned) = (0u64, 0u64);
        let mut passed = Duration::ZERO;
        while passed < end {
            // No due job is left out because this thread had no CPU at the end.
            passed = start.elapsed().min(end);
            let due = (passed.as_secs_f64() * self.rate) as u64;
            for number in sent..due {
                let after = Duration::from_nanos((number as f64 / self.rate * 1e9) as u64);
                let at = start + after;
                let counts = after >= WARM_UP;
                pool.request(self.burn, if counts { counters.offer(at) } else { PendingJob::uncounted(at) });
            }
            sent = due;
            while self.target.is_poisoned() && POISON_EVERY * (poisoned as u32) < passed {
                pool.poison(poisoned, &gate);
                poisoned += 1;
            }
            thread::sleep(BATCH_INTERVAL);
        }
        // Any later answer is late anyway.
        thread::sleep(DEADLINE + ANSWER_GRACE);
        let (threads_max, poisoned_threads_max) = (pool.threads_max(), gate.held_max());
        pool.end(&gate);
        // A server that shuts down may still finish what it has begun.
        Ok(Measured { counters: counters.read_whole()?, threads_max, poisoned_threads_max })
    }
}

/// Jobs per second that a server can do when there is always one to do and nothing disturbs it.
///
/// # Errors
/// The server does not start.
pub(super) fn capacity(target: Target, burn: Burn, time: Duration) -> Result<f64> {
    let pool = target.start()?;
    let counters = SharedCounters::new(Duration::MAX);
    let in_flight_max = IN_FLIGHT * crate::kit::machine::allowed_cpus().len();
    let start = Instant::now();
    while start.elapsed() < time || counters.read().in_time < CAPACITY_JOBS_MIN {
        for _ in pool.unanswered()..in_flight_max {
            pool.request(burn, counters.offer(Instant::now()));
        }
        thread::sleep(BATCH_INTERVAL);
    }
    let done = counters.read().in_time;
    let took = start.elapsed();
    pool.end(&Gate::default());
    Ok(done as f64 / took.as_secs_f64())
}
