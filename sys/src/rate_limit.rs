//! A rate limit: the bytes of many threads, evenly over time.
//!
//! Guarantees: over any span, the bytes whose time has come are at most the rate's share of the span, one
//! acquisition of each caller and the burst; those that wait come in the order of their acquisition,
//! whichever thread acquired them. No call waits.
//!
//! It is the generic cell rate algorithm (ITU-T I.371, annex A) in its virtual-scheduling form, but bytes
//! whose time has not come are scheduled and not refused. So each caller has its own moment, and none is
//! woken to find that another was faster.

use std::time::Duration;

use crate::clock::Nanos;
use crate::sync::atomic::{AtomicU64, Ordering};

/// The unit of time: 2^-4 ns, so that a byte at 100 Gbit/s costs more than one.
const FRACTION_BITS: u32 = 4;

/// How long an unused share is kept. It makes up for wakes that come late; together with one acquisition the
/// first burst is below 100 ms of the rate.
const BURST: Duration = Duration::from_millis(40);

/// What one acquisition takes at most, as time.
const QUANTUM: Duration = Duration::from_millis(5);

/// Bounds of an acquisition in bytes: below, each packet would need a wake; above, others wait for long.
const QUANTUM_BYTES_MIN: u64 = 128;
const QUANTUM_BYTES_MAX: u64 = 1 << 20;

/// The least and the greatest rate, in bit/s.
pub const RATE_MIN: u64 = 8_000;
/// See [`RATE_MIN`].
pub const RATE_MAX: u64 = 100_000_000_000;

/// A limit of bytes over time, for many threads.
#[derive(Debug)]
#[repr(align(128))]
pub struct RateLimit {
    /// When the next byte may be sent, in units of 2^-4 ns of the monotonic clock.
    next: AtomicU64,
    /// bit/s
    rate: AtomicU64,
}

// All accesses are Relaxed: neither word guards other memory.
impl RateLimit {
    /// A limit of `rate` bit/s, between [`RATE_MIN`] and [`RATE_MAX`].
    pub fn new(rate: u64) -> RateLimit {
        RateLimit { next: AtomicU64::new(0), rate: AtomicU64::new(rate.clamp(RATE_MIN, RATE_MAX)) }
    }

    /// The rate in bit/s.
    pub fn rate(&self) -> u64 {
        self.rate.load(Ordering::Relaxed)
    }

    /// Replaces the rate. Bytes that were acquired before keep their moment.
    pub fn set_rate(&self, rate: u64) {
        self.rate.store(rate.clamp(RATE_MIN, RATE_MAX), Ordering::Relaxed);
    }

    /// Bytes that one acquisition takes at most, so that others have their turn.
    pub fn quantum(&self) -> u64 {
        let bytes = u128::from(self.rate()) * QUANTUM.as_nanos() / 8_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX).clamp(QUANTUM_BYTES_MIN, QUANTUM_BYTES_MAX)
    }

    /// Acquires `bytes`; returns when they may be sent, which may be over.
    pub fn acquire(&self, bytes: u64, now: Nanos) -> Nanos {
        let cost = self.cost(bytes);
        let earliest = now.before(BURST).0 << FRACTION_BITS;
        let advance = |next: u64| Some(next.max(earliest).saturating_add(cost));
        let before = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, advance);
        Nanos(before.unwrap_or_default().max(earliest) >> FRACTION_BITS)
    }

    /// Returns acquired bytes that were not sent.
    pub fn release(&self, bytes: u64) {
        let cost = self.cost(bytes);
        let retreat = |next: u64| Some(next.saturating_sub(cost));
        let _ = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, retreat);
    }

    /// The time of `bytes`.
    fn cost(&self, bytes: u64) -> u64 {
        let units = u128::from(bytes) * (8_000_000_000 << FRACTION_BITS) / u128::from(self.rate());
        u64::try_from(units).unwrap_or(u64::MAX)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const BEGIN: Nanos = Nanos(3_600_000_000_000);

    /// The bytes that a caller sends until `end`, if it acquires quanta and sleeps until their moments.
    fn sent_until(limit: &RateLimit, end: Nanos) -> u64 {
        let (mut now, mut sent) = (BEGIN, 0);
        loop {
            let quantum = limit.quantum();
            now = now.max(limit.acquire(quantum, now));
            if now >= end {
                return sent;
            }
            sent += quantum;
        }
    }

    #[test]
    fn rate_is_kept_from_the_least_to_the_greatest() {
        for rate in [RATE_MIN, 64_000, 1_000_000, 1_000_000_000, 10_000_000_000, RATE_MAX] {
            let limit = RateLimit::new(rate);
            let first = sent_until(&limit, BEGIN + Duration::from_millis(1));
            assert!(first * 8 <= rate / 10 + 8 * 128, "the first burst at {rate} is {first}");
            let limit = RateLimit::new(rate);
            let sent = sent_until(&limit, BEGIN + Duration::from_secs(20)) * 8;
            let expected = rate * 20;
            assert!(sent.abs_diff(expected) < expected / 40 + 2048, "{sent} bit in 20 s at {rate}");
        }
    }

    #[test]
    fn unused_time_is_kept_for_a_moment_only() {
        let limit = RateLimit::new(8_000_000);
        assert!(limit.acquire(1_000, BEGIN) <= BEGIN);
        let later = BEGIN + Duration::from_secs(60);
        // 1 MB/s: 40 ms are 40,000 bytes.
        assert!(limit.acquire(40_000, later) <= later);
        assert!(limit.acquire(1, later) <= later);
        assert!(limit.acquire(1, later) > later);
    }

    #[test]
    fn moments_follow_the_order_of_acquisition() {
        let limit = RateLimit::new(8_000_000);
        limit.acquire(40_000, BEGIN);
        let moments: Vec<u64> =
            (0..4).map(|_| limit.acquire(5_000, BEGIN).since(BEGIN).as_millis() as u64).collect();
        assert_eq!(moments, [0, 5, 10, 15]);
        limit.release(10_000);
        assert_eq!(limit.acquire(1, BEGIN), BEGIN + Duration::from_millis(10));
    }

    #[test]
    fn clock_that_begins_and_long_waits_are_in_bounds() {
        let limit = RateLimit::new(RATE_MIN);
        assert_eq!(limit.acquire(1, Nanos(0)), Nanos(0));
        for _ in 0..3 {
            limit.acquire(u64::MAX, Nanos(5));
        }
        limit.release(u64::MAX);
        limit.release(u64::MAX);
        assert_eq!(limit.acquire(1, Nanos(5)), Nanos(0));
    }
}
