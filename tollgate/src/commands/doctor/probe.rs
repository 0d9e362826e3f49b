//! The throughput of two busy threads on two CPUs of one core, compared with that of one thread alone:
//! measured.
//!
//! Guarantees: some 150 ms of work on threads of its own, each pinned to its CPU and measured in its own CPU
//! time. The result holds where little else runs: another task on one of the two CPUs slows the single
//! thread, and one that takes a CPU from the pair leaves the whole core to the other thread.

use std::hint::black_box;
use std::sync::Mutex;
use std::thread::{self, Builder};
use std::time::Duration;

use sys::clock;
use sys::limits::cpus::pin_thread;

/// How long a chunk of work takes: so short that an error of one chunk does not matter.
const CHUNK_SPAN: Duration = Duration::from_micros(20);

/// How long one arrangement of threads works.
const WORK_SPAN: Duration = Duration::from_millis(50);

/// Work before the measurement, until CPUs have raised their clocks.
const WARM_UP_SPAN: Duration = Duration::from_millis(10);

/// The throughput of two threads, where that of one alone is 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SmtScaling {
    /// On two CPUs of one core: some 1.2 to 1.3 where CPUs are hyper-threads, 2 where they are not.
    pub(super) on_one_core: f64,
    /// On two cores, as a check of the measurement: 2, unless they share something else.
    pub(super) on_two_cores: Option<f64>,
}

/// Measures on the first core with two allowed CPUs; `None` without such a core, or if the measurement fails.
pub(super) fn measure_smt_scaling(cores: &[Vec<usize>]) -> Option<SmtScaling> {
    let core_index = cores.iter().position(|core| core.len() >= 2)?;
    let core = &cores[core_index];
    let other_core_cpu =
        cores.iter().enumerate().find(|(other, _)| *other != core_index).map(|(_, core)| core[0]);
    let iterations = calibrated();
    let alone = rate(&[core[0]], iterations)?;
    let compared = |cpus: &[usize]| Some(rate(cpus, iterations)? / alone);
    Some(SmtScaling {
        on_one_core: compared(&core[..2])?,
        on_two_cores: other_core_cpu.and_then(|other| compared(&[core[0], other])),
    })
}

/// Iterations that take [`CHUNK_SPAN`] on this machine.
fn calibrated() -> u64 {
    let mut iterations = 64;
    loop {
        let before = clock::thread_cpu();
        chunk(iterations);
        if clock::thread_cpu() - before >= CHUNK_SPAN {
            return iterations;
        }
        iterations *= 2;
    }
}

/// Chunks for each second of CPU time on each of `cpus`, all together; `None` if a thread cannot be started
/// or pinned.
fn rate(cpus: &[usize], iterations: u64) -> Option<f64> {
    // The lock is held until every thread was started or failed to start.
    let all_started = Mutex::new(false);
    thread::scope(|scope| {
        let mut start_guard = all_started.lock().ok()?;
        let work = |cpu: usize| {
            let is_pinned = pin_thread(cpu).is_ok();
            let may_work = all_started.lock().is_ok_and(|all_started| *all_started);
            (is_pinned && may_work).then(|| chunk_rate(iterations))?
        };
        let start = |cpu: usize| Builder::new().spawn_scoped(scope, move || work(cpu)).ok();
        let threads: Vec<_> = cpus.iter().map(|cpu| start(*cpu)).collect();
        *start_guard = threads.iter().all(Option::is_some);
        drop(start_guard);
        threads.into_iter().map(|thread| thread?.join().ok()?).sum()
    })
}

/// Chunks for each second of the calling thread's CPU time.
fn chunk_rate(iterations: u64) -> Option<f64> {
    count_chunks(WARM_UP_SPAN, iterations);
    let before = clock::thread_cpu();
    let chunks = count_chunks(WORK_SPAN, iterations);
    let span = clock::thread_cpu() - before;
    (!span.is_zero()).then(|| chunks as f64 / span.as_secs_f64())
}

/// Works until `span` of wall time has passed, which ends all threads together; returns the number of chunks.
fn count_chunks(span: Duration, iterations: u64) -> u64 {
    let end = clock::monotonic() + span;
    let mut chunks = 0;
    while clock::monotonic() < end {
        chunk(iterations);
        chunks += 1;
    }
    chunks
}

/// Work that keeps a core's units busy: eight independent chains. A single chain would leave most of a core
/// idle, which a sibling could use as it never can beside real work.
fn chunk(iterations: u64) {
    let mut chains = [1u64, 2, 3, 4, 5, 6, 7, 8];
    for _ in 0..iterations {
        for chain in &mut chains {
            *chain = chain.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23) ^ 0xb5;
        }
        black_box(&mut chains);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sys::limits::cpus::allowed_cpus;

    #[test]
    fn probe_with_two_cpus_returns_a_scaling() {
        // All CPUs are passed as one core, so the result depends on the machine.
        let cpus = allowed_cpus();
        let measured = measure_smt_scaling(std::slice::from_ref(&cpus));
        assert_eq!(measured.is_some(), cpus.len() >= 2);
        assert!(measured.is_none_or(|it| it.on_one_core > 0.0 && it.on_two_cores.is_none()));
    }

    #[test]
    fn probe_without_usable_siblings_returns_none() {
        assert_eq!(measure_smt_scaling(&[vec![0], vec![1]]), None);
        assert_eq!(measure_smt_scaling(&[]), None);
        assert_eq!(measure_smt_scaling(&[vec![allowed_cpus()[0], usize::MAX]]), None);
    }
}
