//! The load: jobs that come when they are due, whatever becomes of those before them. Promises: a server that
//! is slow is not spared (an open loop); a job that comes late for the lab's own reasons counts from when it
//! was due. Leaves to others: what the server does.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::DEADLINE;
use super::counters::{PendingJob, SharedCounters};
use super::target::{ANSWER_GRACE, Gate, Measured, Target};
use crate::kit::burn::Burn;

/// Poisoned jobs come so often.
const POISON_EVERY: Duration = Duration::from_millis(20);

/// Between two looks at what is due: the jobs of a turn come together, as requests of one wake-up do.
const TURN: Duration = Duration::from_micros(500);

/// Load before the time that counts: queues fill, overload is noticed.
const WARM_UP: Duration = Duration::from_millis(300);

/// Jobs in flight while the capacity is measured, for each CPU: enough that no permit is ever free.
const IN_FLIGHT: usize = 32;

/// A rate says nothing if fewer jobs were done, so the capacity takes longer where a machine gives it no CPU.
const CAPACITY_JOBS_MIN: u64 = 100;

/// Jobs of one kind at a fixed rate.
#[derive(Debug)]
pub(super) struct OfferedLoad {
    pub(super) target: Target,
    pub(super) burn: Burn,
    /// Jobs a second.
    pub(super) rate: f64,
    /// The time that counts.
    pub(super) time: Duration,
}

impl OfferedLoad {
    /// Offers them to a fresh server.
    ///
    /// # Errors
    /// It does not start, or not every job ends.
    pub(super) fn run(&self) -> Result<Measured> {
        let pool = self.target.start()?;
        let (counters, gate) = (SharedCounters::new(DEADLINE), Arc::new(Gate::default()));
        let (start, end) = (Instant::now(), WARM_UP + self.time);
        let (mut sent, mut poisoned) = (0u64, 0u64);
        let mut passed = Duration::ZERO;
        while passed < end {
            // Nothing is left out because this thread was kept from a CPU at the end.
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
            thread::sleep(TURN);
        }
        // Whatever is answered after that is late anyway.
        thread::sleep(DEADLINE + ANSWER_GRACE);
        let (threads_max, poisoned_threads_max) = (pool.threads_max(), gate.held_max());
        pool.end(&gate);
        // A server that goes down may still do what it has begun.
        Ok(Measured { counters: counters.read_whole()?, threads_max, poisoned_threads_max })
    }
}

/// Jobs a second that a server can do when there is always one to do and nobody disturbs it.
///
/// # Errors
/// It does not start.
pub(super) fn capacity(target: Target, burn: Burn, time: Duration) -> Result<f64> {
    let pool = target.start()?;
    let counters = SharedCounters::new(Duration::MAX);
    let in_flight_max = IN_FLIGHT * crate::kit::machine::allowed_cpus().len();
    let start = Instant::now();
    while start.elapsed() < time || counters.read().in_time < CAPACITY_JOBS_MIN {
        for _ in pool.unanswered()..in_flight_max {
            pool.request(burn, counters.offer(Instant::now()));
        }
        thread::sleep(TURN);
    }
    let done = counters.read().in_time;
    let took = start.elapsed();
    pool.end(&Gate::default());
    Ok(done as f64 / took.as_secs_f64())
}
