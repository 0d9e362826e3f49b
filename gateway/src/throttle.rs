//! How many failed log-ins a source may have, and how many checks may run for it at once: a fixed table of
//! atomic words that all threads share.
//!
//! Promises: no lock, no allocation, no growth whatever the number of sources; a source that has used up its
//! failures of a minute waits and then has one try at a time; attempts that are turned away cost nothing, so
//! waiting always helps. Leaves to others: the clock, the settings, and what to tell the client.
//!
//! The word of a source is the state of a GCRA (the generic cell rate algorithm of ITU-T I.371): the moment
//! at which all failures so far are forgiven. A failure moves it one span later (a minute by the failures
//! that a minute may have); a source is turned away while one more span would put it beyond a minute.
//!
//! **Collisions.** A source is hashed to one place in each of two rows, and both count; it is turned away
//! only while *both* are over the limit (a count-min sketch). A bystander is hit only if other offenders hold
//! its places in both rows: with 100 offenders at a time about one bystander in 100,000. The hash key is
//! random per process, so nobody can aim. To keep a whole row over the limit takes one failure per place and
//! span, with 20 failures per minute 10,000 in a second, while a failure costs us a hash, and we make 20.
//!
//! **Sources.** An IPv4 address is a source, and so is an IPv6 /64: a single host owns all addresses of one.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use sys::clock::Nanos;

/// Places in each of the two rows: together 1 MiB.
const ROW_PLACES: usize = 1 << 15;
/// The time in which a source may have as many failures as the settings say.
const PERIOD_NANOS: u64 = Duration::from_secs(60).as_nanos() as u64;
/// However many failures come at the same moment, all are forgiven after this long.
const FORGIVEN_NANOS_MAX: u64 = 2 * PERIOD_NANOS;

const _: () = assert!(ROW_PLACES.is_power_of_two() && ROW_PLACES <= 1 << 32);

/// See the file's header.
pub struct Throttle {
    key: RandomState,
    rows: [Box<[Place]>; 2],
}

#[derive(Default)]
struct Place {
    /// When all failures are forgiven, in nanoseconds of the monotonic clock.
    forgiven: AtomicU64,
    /// Checks that run.
    running: AtomicU32,
}

impl Throttle {
    /// A table in which nobody has failed yet.
    pub fn new() -> Throttle {
        let row = || std::iter::repeat_with(Place::default).take(ROW_PLACES).collect();
        Throttle { key: RandomState::new(), rows: [row(), row()] }
    }

    /// Whether `source` may try now.
    ///
    /// # Errors
    /// How long it must wait before its next try.
    pub fn check(&self, source: IpAddr, failures_per_minute: u32, now: Nanos) -> Result<(), Duration> {
        // Relaxed, here and below: a word carries all of its own state, and no other memory hangs on it.
        let [first, second] = self.places(source).map(|place| place.forgiven.load(Ordering::Relaxed));
        let ahead = first.min(second).saturating_sub(now.0);
        match ahead.saturating_sub(PERIOD_NANOS - span_nanos(failures_per_minute)) {
            0 => Ok(()),
            wait => Err(Duration::from_nanos(wait)),
        }
    }

    /// Counts a failure of `source`.
    pub fn failed(&self, source: IpAddr, failures_per_minute: u32, now: Nanos) {
        let span = span_nanos(failures_per_minute);
        for place in self.places(source) {
            let later = |forgiven: u64| {
                let later = forgiven.max(now.0).saturating_add(span);
                Some(later.min(now.0.saturating_add(FORGIVEN_NANOS_MAX)))
            };
            // It always stores, and on a word that another thread changed it tries again: no failure is lost.
            let _ = place.forgiven.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
        }
    }

    /// Counts a check that runs for `source`, for as long as the result lives; `None` if `running_max` run
    /// already.
    pub fn enter(self: &Arc<Throttle>, source: IpAddr, running_max: u32) -> Option<Running> {
        let [first, second] = self.places(source).map(|place| place.running.fetch_add(1, Ordering::Relaxed));
        let running = Running { throttle: Arc::clone(self), source };
        (first.min(second) < running_max).then_some(running)
    }

    /// The places of `source`, one in each row.
    fn places(&self, source: IpAddr) -> [&Place; 2] {
        let hash = self.key.hash_one(network(source));
        [&self.rows[0][hash as usize % ROW_PLACES], &self.rows[1][(hash >> 32) as usize % ROW_PLACES]]
    }
}

impl Default for Throttle {
    fn default() -> Self {
        Self::new()
    }
}

/// A check that runs.
pub struct Running {
    throttle: Arc<Throttle>,
    source: IpAddr,
}

impl Drop for Running {
    fn drop(&mut self) {
        for place in self.throttle.places(self.source) {
            place.running.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// What counts as one source: the address of IPv4, the /64 of IPv6 (with the rest zero).
fn network(source: IpAddr) -> IpAddr {
    match source.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
    }
}

/// After how long one failure is forgiven.
fn span_nanos(failures_per_minute: u32) -> u64 {
    PERIOD_NANOS / u64::from(failures_per_minute.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Nanos = Nanos(1_000_000_000_000);
    const PER_MINUTE: u32 = 20;
    const SPAN: Duration = Duration::from_secs(3);
    const MINUTE: Duration = Duration::from_secs(60);

    fn source(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn fail(throttle: &Throttle, text: &str, times: u32, now: Nanos) {
        (0..times).for_each(|_| throttle.failed(source(text), PER_MINUTE, now));
    }

    fn check(throttle: &Throttle, text: &str, now: Nanos) -> Result<(), Duration> {
        throttle.check(source(text), PER_MINUTE, now)
    }

    #[test]
    fn a_minutes_failures_are_borne_at_once_then_one_try_per_span() {
        let throttle = Throttle::new();
        for _ in 0..PER_MINUTE {
            assert_eq!(check(&throttle, "192.0.2.1", START), Ok(()));
            fail(&throttle, "192.0.2.1", 1, START);
        }
        assert_eq!(check(&throttle, "192.0.2.1", START), Err(SPAN));
        let later = START + SPAN;
        assert_eq!(check(&throttle, "192.0.2.1", later), Ok(()));
        fail(&throttle, "192.0.2.1", 1, later);
        assert_eq!(check(&throttle, "192.0.2.1", later), Err(SPAN));
    }

    #[test]
    fn all_is_forgiven_in_the_end() {
        let throttle = Throttle::new();
        fail(&throttle, "192.0.2.1", PER_MINUTE, START);
        fail(&throttle, "192.0.2.1", PER_MINUTE - 1, START + MINUTE);
        assert_eq!(check(&throttle, "192.0.2.1", START + MINUTE), Ok(()));
    }

    #[test]
    fn the_wait_is_bounded_however_many_fail_together() {
        let throttle = Throttle::new();
        fail(&throttle, "192.0.2.1", 10_000, START);
        assert_eq!(check(&throttle, "192.0.2.1", START), Err(MINUTE + SPAN));
    }

    #[test]
    fn the_bounds_of_the_setting_work() {
        let throttle = Throttle::new();
        for per_minute in [1u32, 100_000] {
            let client = IpAddr::from(per_minute.to_be_bytes());
            for _ in 0..per_minute {
                assert_eq!(throttle.check(client, per_minute, START), Ok(()));
                throttle.failed(client, per_minute, START);
            }
            let span = MINUTE / per_minute;
            assert_eq!(throttle.check(client, per_minute, START), Err(span));
            assert_eq!(throttle.check(client, per_minute, START + span), Ok(()));
        }
    }

    /// Whether failures of one address turn away another.
    #[track_caller]
    fn check_shared(offender: &str, other: &str, shared: bool) {
        let throttle = Throttle::new();
        fail(&throttle, offender, 2 * PER_MINUTE, START);
        assert_eq!(check(&throttle, other, START).is_err(), shared, "{offender} and {other}");
    }

    #[test]
    fn a_source_is_an_ipv4_address_or_an_ipv6_64() {
        check_shared("192.0.2.1", "192.0.2.1", true);
        check_shared("192.0.2.1", "192.0.2.2", false);
        check_shared("192.0.2.1", "::ffff:192.0.2.1", true);
        check_shared("2001:db8::1", "2001:db8::ffff:ffff:ffff:ffff", true);
        check_shared("2001:db8::1", "2001:db8:0:1::1", false);
        check_shared("0.0.0.0", "::1", false);
    }

    #[test]
    fn offenders_hardly_ever_hit_bystanders() {
        let throttle = Throttle::new();
        (0..100).for_each(|n| fail(&throttle, &format!("198.51.100.{n}"), 2 * PER_MINUTE, START));
        let bystanders = (0..10_000u32).map(|n| IpAddr::from((0x0a00_0000 + n).to_be_bytes()));
        let hit = bystanders.filter(|address| throttle.check(*address, PER_MINUTE, START).is_err()).count();
        // 0.09 are expected; five or more come once in twenty million runs.
        assert!(hit < 5, "{hit} bystanders of 10,000 were turned away");
    }

    #[test]
    fn threads_lose_no_failure() {
        let throttle = Throttle::new();
        std::thread::scope(|scope| {
            for _ in 0..PER_MINUTE {
                scope.spawn(|| fail(&throttle, "192.0.2.1", 1, START));
            }
        });
        assert_eq!(check(&throttle, "192.0.2.1", START), Err(SPAN));
    }

    #[test]
    fn checks_that_run_are_bounded_by_source() {
        let throttle = Arc::new(Throttle::new());
        let enter = |text| throttle.enter(source(text), 2);
        let (first, second) = (enter("192.0.2.1"), enter("192.0.2.1"));
        assert!(first.is_some() && second.is_some());
        for _ in 0..100 {
            assert!(enter("192.0.2.1").is_none());
        }
        assert!(enter("192.0.2.2").is_some());
        drop(first);
        assert!(enter("192.0.2.1").is_some(), "a refused entry leaves nothing behind");
    }
}
