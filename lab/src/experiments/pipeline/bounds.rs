//! The bound that no scheduler can exceed.
//!
//! Guarantees: a bound follows from the work and the CPU time of the same run, so it assumes nothing about
//! the machine; a strategy that burns CPU gets an easier bound, and shows a worse cost per request. The bound
//! assumes equal requests and CPUs of equal and constant speed, so runs have been measured 2 % above it.
//!
//! With `C` the CPU time of the run divided by the CPUs, and `n` requests:
//!
//! - A strategy that admits requests in order, one when a thread is free, cannot begin request `i` before the
//!   CPUs have done the share `i / n` of the work, and it still has to wait:
//!   `max(C, max over i of (i / n * C + w_i))`. This holds for `sequential`, `batches`, `pool` and
//!   `io-aware`; request 90,000, which waits for a second, decides.
//! - A strategy that admits requests while up to `a` earlier ones are unfinished, as `event` does with a
//!   window of `a`, may begin request `i` when `i - a` are done. With everything admitted that is
//!   `max(longest wait, C)`.

use std::time::Duration;

use super::waits::Wait;

/// The bound in seconds of `requests` requests that took `cpu` on `cpus` CPUs, where `ahead` requests may be
/// begun before the first is done.
pub(super) fn seconds(requests: u32, ahead: u32, cpu: Duration, cpus: usize) -> f64 {
    let busy_s = cpu.as_secs_f64() / cpus as f64;
    let ends_s = |request: u32| {
        let done_before = f64::from(request.saturating_sub(ahead)) / f64::from(requests);
        done_before * busy_s + Wait::of_request(request).planned().as_secs_f64()
    };
    (0..requests).map(ends_s).fold(busy_s, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_is_the_last_long_wait_or_the_cpu_time() {
        let check = |requests, ahead, cpu_s, cpus, expected: f64| {
            let actual = seconds(requests, ahead, Duration::from_secs_f32(cpu_s), cpus);
            assert!(
                (actual - expected).abs() < 1e-9,
                "{requests} {ahead} {cpu_s}: {actual} is not {expected}"
            );
        };
        // In order: request 90,000 begins when nine tenths are done.
        check(100_000, 0, 4.0, 2, 0.9 * 2.0 + 1.0);
        check(100_000, 0, 4.0, 4, 0.9 * 1.0 + 1.0);
        // Where a tenth of the work takes longer than the wait, the work decides.
        check(100_000, 0, 40.0, 2, 20.0);
        // Ahead by a hundredth, and by everything.
        check(100_000, 1_000, 4.0, 2, 0.89 * 2.0 + 1.0);
        check(100_000, 100_000, 4.0, 2, 2.0);
        check(100_000, 100_000, 1.0, 2, 1.0);
        check(0, 0, 1.0, 1, 1.0);
    }
}
