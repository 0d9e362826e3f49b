//! Limits guesses at credentials: a fixed table of atomic words that all threads share.
//!
//! Guarantees: No lock, no allocation and no growth, whatever the number of sources and names. A used-up
//! budget allows one attempt at a time. Throttled attempts cost nothing, so waiting always helps. No budget
//! belongs to a user alone. So nothing that comes from one address locks a user out at another.
//!
//! Not handled here: the clock and the settings. A budget is exact because checks are made and
//! counted one after another (`shared.rs`).
//!
//! | budget of | failures in a minute | what it bounds |
//! |---|---|---|
//! | a user at a source | as the settings say | guesses at one user's password |
//! | a source | [`SOURCE_FACTOR`] times as many | guesses at all users, from one address |
//! | an IPv6 site, a /48 | [`SITE_FACTOR`] times as many | the same from all its /64s; trusted sources are exempt |
//!
//! **Sources.** An IPv4 address is a source, and so is an IPv6 /64: a single host owns all addresses of one.
//! A source is trusted for [`TRUST_SPAN`] after credentials from it were right. It, or its site, counts as
//! failing for [`FAILING_SPAN`] after some were wrong. That matters where more checks arrive than can be
//! made.
//!
//! **State.** A budget's word is the state of a GCRA (the generic cell rate algorithm of ITU-T I.371): the
//! time at which all failures so far are forgiven. A failure moves it one span later; a span is a minute
//! divided by the failures that a minute may have. An attempt is throttled while one more span would exceed a
//! minute.
//!
//! **Collisions.** A key is hashed to one slot in each of two rows, and both count. It is over its budget
//! only while *both* slots are (a count-min sketch). A bystander is hit only if other offenders hold its
//! slots in both rows: with 100 offenders at a time, about one bystander in 100,000. The hash key is random
//! per process, so no client can aim. To keep a whole row over the limit takes one failure per slot and span.
//! With 20 failures per minute that is 10,000 a second, while each failure costs us a hash, and we make 20.

use std::hash::{BuildHasher, Hash, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sys::clock::Nanos;

use crate::source_network::source_network;

/// Slots in each of the two rows of a table: a table of words has 512 KiB.
const ROW_SLOTS: usize = 1 << 15;
/// The period to which the failures of the settings apply.
const PERIOD_NANOS: u64 = Duration::from_secs(60).as_nanos() as u64;
/// However many failures coincide, all are forgiven after this long.
const FORGIVEN_NANOS_MAX: u64 = 2 * PERIOD_NANOS;
/// The failures of a source in multiples of those of a user there: in an office behind one address several
/// people mistype.
const SOURCE_FACTOR: u32 = 10;
/// The failures of an IPv6 site, by the same: several of its networks at their limits.
const SITE_FACTOR: u32 = 4 * SOURCE_FACTOR;
/// How long a source is trusted after a success.
const TRUST_SPAN: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a failing source is ranked below others. To keep out sources that come for the first time, an
/// attacker needs as many addresses as hashes are made in this time.
const FAILING_SPAN: Duration = Duration::from_secs(60 * 60);
/// Trust is renewed if less than this remains: one write in an hour, and not one for each request.
const TRUST_RENEWED_BELOW: Duration = Duration::from_secs(23 * 60 * 60);

const _: () = assert!(ROW_SLOTS.is_power_of_two() && ROW_SLOTS <= 1 << 32);

/// The budgets of all sources, by a count-min sketch. Every operation is lock-free.
pub struct Throttle {
    key: RandomState,
    /// When all failures are forgiven, in nanoseconds of the monotonic clock: by user and source, by source,
    /// and by site.
    pairs: Rows<AtomicU64>,
    sources: Rows<AtomicU64>,
    sites: Rows<AtomicU64>,
    /// The end of a source's trust, by the same clock.
    trusted_until: Rows<AtomicU64>,
    /// Until when a source or site counts as failing, by the same clock.
    failing_until: Rows<AtomicU64>,
}

impl Throttle {
    /// A table without failures.
    pub fn new() -> Throttle {
        Throttle {
            key: RandomState::new(),
            pairs: Rows::new(),
            sources: Rows::new(),
            sites: Rows::new(),
            trusted_until: Rows::new(),
            failing_until: Rows::new(),
        }
    }

    /// Whether credentials of `user`, a name as the client sent it, are checked now if they come from
    /// `source`.
    ///
    /// # Errors
    /// How long they must wait.
    pub fn check(
        &self,
        source: IpAddr,
        user: &str,
        failures_per_minute: u32,
        now: Nanos,
    ) -> Result<(), Duration> {
        let wait = |(slots, failures_per_minute): (Slots<'_, AtomicU64>, u32)| {
            let ahead = smaller(slots).saturating_sub(now.0);
            ahead.saturating_sub(PERIOD_NANOS - span_nanos(failures_per_minute))
        };
        let [pair_wait, source_wait, site_wait] =
            self.budgets(source, user, failures_per_minute).map(|budget| budget.map_or(0, wait));
        let site_wait = if site_wait > 0 && self.is_trusted(source, now) { 0 } else { site_wait };
        match pair_wait.max(source_wait).max(site_wait) {
            0 => Ok(()),
            wait => Err(Duration::from_nanos(wait)),
        }
    }

    /// Counts a failure.
    pub fn record_failure(&self, source: IpAddr, user: &str, failures_per_minute: u32, now: Nanos) {
        for slot in self.failing_until.slots(self.hash(site_or_address(source))) {
            slot.fetch_max((now + FAILING_SPAN).0, Ordering::Relaxed);
        }
        for (slots, failures_per_minute) in
            self.budgets(source, user, failures_per_minute).into_iter().flatten()
        {
            let span = span_nanos(failures_per_minute);
            let later = |forgiven: u64| {
                let later = forgiven.max(now.0).saturating_add(span);
                Some(later.min(now.0.saturating_add(FORGIVEN_NANOS_MAX)))
            };
            for slot in slots {
                // The closure always returns a value, and a lost race retries: no failure is lost.
                let _ = slot.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
            }
        }
    }

    /// Records that credentials from `source` were right.
    pub fn record_success(&self, source: IpAddr, now: Nanos) {
        let slots = self.trusted_until.slots(self.hash(source_network(source)));
        if smaller(slots) < (now + TRUST_RENEWED_BELOW).0 {
            for slot in slots {
                slot.fetch_max((now + TRUST_SPAN).0, Ordering::Relaxed);
            }
        }
    }

    /// Whether credentials from `source` were right in the last [`TRUST_SPAN`].
    pub fn is_trusted(&self, source: IpAddr, now: Nanos) -> bool {
        now.0 < smaller(self.trusted_until.slots(self.hash(source_network(source))))
    }

    /// Whether credentials from `source`, or from anywhere in its IPv6 site, were wrong in the last
    /// [`FAILING_SPAN`].
    pub fn has_failed(&self, source: IpAddr, now: Nanos) -> bool {
        now.0 < smaller(self.failing_until.slots(self.hash(site_or_address(source))))
    }

    /// The budgets that a failure counts against, each with its failures per minute.
    fn budgets(
        &self,
        source: IpAddr,
        user: &str,
        failures_per_minute: u32,
    ) -> [Option<(Slots<'_, AtomicU64>, u32)>; 3] {
        let network = source_network(source);
        let times = |factor| failures_per_minute.saturating_mul(factor);
        [
            Some((self.pairs.slots(self.hash((network, user))), failures_per_minute)),
            Some((self.sources.slots(self.hash(network)), times(SOURCE_FACTOR))),
            site(source).map(|site| (self.sites.slots(self.hash(site)), times(SITE_FACTOR))),
        ]
    }

    fn hash(&self, key: impl Hash) -> u64 {
        self.key.hash_one(key)
    }
}

impl Default for Throttle {
    fn default() -> Self {
        Self::new()
    }
}

/// Two rows of slots.
struct Rows<T>([Box<[T]>; 2]);

/// The slots of one key, one in each row.
type Slots<'a, T> = [&'a T; 2];

impl<T: Default> Rows<T> {
    fn new() -> Rows<T> {
        let row = || std::iter::repeat_with(T::default).take(ROW_SLOTS).collect();
        Rows([row(), row()])
    }

    fn slots(&self, hash: u64) -> Slots<'_, T> {
        let Rows([first, second]) = self;
        [&first[hash as usize % ROW_SLOTS], &second[(hash >> 32) as usize % ROW_SLOTS]]
    }
}

/// The value of a key: a colliding key can only have raised one of its slots.
fn smaller(slots: Slots<'_, AtomicU64>) -> u64 {
    // Relaxed, here and elsewhere: a word is its own whole state and orders no other memory.
    let [first, second] = slots.map(|slot| slot.load(Ordering::Relaxed));
    first.min(second)
}

/// What is assigned to a site as a whole (RFC 6177): the /48 of IPv6. IPv4 has no equivalent.
fn site(source: IpAddr) -> Option<Ipv6Addr> {
    match source.to_canonical() {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => Some((address.to_bits() >> 80 << 80).into()),
    }
}

/// What counts as one unknown client: the address of IPv4, the whole site of IPv6.
pub(crate) fn site_or_address(source: IpAddr) -> IpAddr {
    site(source).map_or_else(|| source_network(source), IpAddr::V6)
}

/// How long it takes until one failure is forgiven.
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
        (0..times).for_each(|_| throttle.record_failure(source(text), "ann", PER_MINUTE, now));
    }

    fn check(throttle: &Throttle, text: &str, now: Nanos) -> Result<(), Duration> {
        throttle.check(source(text), "ann", PER_MINUTE, now)
    }

    /// Fails this often from one address, each time for another user.
    fn fail_for_many(throttle: &Throttle, text: &str, times: u32, now: Nanos) {
        (0..times)
            .for_each(|n| throttle.record_failure(source(text), &format!("{text} {n}"), PER_MINUTE, now));
    }

    #[test]
    fn burst_of_a_minute_then_one_try_per_span() {
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
    fn failures_are_forgiven_after_a_minute() {
        let throttle = Throttle::new();
        fail(&throttle, "192.0.2.1", PER_MINUTE, START);
        fail(&throttle, "192.0.2.1", PER_MINUTE - 1, START + MINUTE);
        assert_eq!(check(&throttle, "192.0.2.1", START + MINUTE), Ok(()));
    }

    #[test]
    fn wait_is_bounded_after_many_failures() {
        let throttle = Throttle::new();
        fail(&throttle, "192.0.2.1", 10_000, START);
        assert_eq!(check(&throttle, "192.0.2.1", START), Err(MINUTE + SPAN));
    }

    #[test]
    fn smallest_and_largest_setting_work() {
        let throttle = Throttle::new();
        for per_minute in [1u32, 100_000] {
            let client = IpAddr::from(per_minute.to_be_bytes());
            for _ in 0..per_minute {
                assert_eq!(throttle.check(client, "ann", per_minute, START), Ok(()));
                throttle.record_failure(client, "ann", per_minute, START);
            }
            let span = MINUTE / per_minute;
            assert_eq!(throttle.check(client, "ann", per_minute, START), Err(span));
            assert_eq!(throttle.check(client, "ann", per_minute, START + span), Ok(()));
        }
    }

    /// Whether failures of one address throttle another.
    #[track_caller]
    fn check_shared(offender: &str, other: &str, shared: bool) {
        let throttle = Throttle::new();
        fail(&throttle, offender, 2 * PER_MINUTE, START);
        assert_eq!(check(&throttle, other, START).is_err(), shared, "{offender} and {other}");
    }

    #[test]
    fn source_is_an_ipv4_address_or_an_ipv6_64() {
        check_shared("192.0.2.1", "192.0.2.1", true);
        check_shared("192.0.2.1", "192.0.2.2", false);
        check_shared("192.0.2.1", "::ffff:192.0.2.1", true);
        check_shared("2001:db8::1", "2001:db8::ffff:ffff:ffff:ffff", true);
        check_shared("2001:db8::1", "2001:db8:0:1::1", false);
        check_shared("0.0.0.0", "::1", false);
    }

    #[test]
    fn user_budget_spares_others_at_the_source() {
        let throttle = Throttle::new();
        fail(&throttle, "192.0.2.1", PER_MINUTE, START);
        let other = |text| throttle.check(source(text), "bob", PER_MINUTE, START);
        assert_eq!((check(&throttle, "192.0.2.1", START), other("192.0.2.1")), (Err(SPAN), Ok(())));
        assert_eq!(check(&throttle, "192.0.2.2", START), Ok(()), "ann can log in from another address");
    }

    #[test]
    fn source_budget_covers_all_its_users() {
        let throttle = Throttle::new();
        let all = PER_MINUTE * SOURCE_FACTOR;
        fail_for_many(&throttle, "192.0.2.1", all - 1, START);
        assert_eq!(check(&throttle, "192.0.2.1", START), Ok(()));
        fail_for_many(&throttle, "192.0.2.1", 1, START);
        assert_eq!(check(&throttle, "192.0.2.1", START), Err(MINUTE / all));
        throttle.record_success(source("192.0.2.1"), START);
        assert_eq!(check(&throttle, "192.0.2.1", START), Err(MINUTE / all), "success adds no attempts");
        assert_eq!(check(&throttle, "192.0.2.2", START), Ok(()));
    }

    #[test]
    fn site_budget_spares_trusted_sources() {
        let throttle = Throttle::new();
        for network in 0..PER_MINUTE * SITE_FACTOR {
            fail(&throttle, &format!("2001:db8:1:{network:x}::1"), 1, START);
        }
        let (unknown, trusted) = ("2001:db8:1:f000::1", "2001:db8:1:f001::1");
        throttle.record_success(source(trusted), START);
        assert!(check(&throttle, unknown, START).is_err() && check(&throttle, trusted, START).is_ok());
        assert_eq!(check(&throttle, "2001:db8:2::1", START), Ok(()), "another site");
        assert!(check(&throttle, trusted, START + TRUST_SPAN).is_ok(), "all failures are forgiven by then");
    }

    #[test]
    fn source_is_trusted_for_a_day() {
        let throttle = Throttle::new();
        let ann = source("192.0.2.1");
        assert!(!throttle.is_trusted(ann, START));
        throttle.record_success(ann, START);
        let last = Nanos((START + TRUST_SPAN).0 - 1);
        assert!(throttle.is_trusted(ann, last) && !throttle.is_trusted(ann, START + TRUST_SPAN));
        assert!(!throttle.is_trusted(source("192.0.2.2"), START));
        throttle.record_success(ann, last);
        assert!(throttle.is_trusted(ann, START + TRUST_SPAN), "renewed");
    }

    #[test]
    fn collisions_rarely_throttle_other_sources() {
        let throttle = Throttle::new();
        (0..100).for_each(|n| fail(&throttle, &format!("198.51.100.{n}"), 2 * PER_MINUTE, START));
        let bystanders = (0..10_000u32).map(|n| IpAddr::from((0x0a00_0000 + n).to_be_bytes()));
        let hit =
            bystanders.filter(|address| throttle.check(*address, "ann", PER_MINUTE, START).is_err()).count();
        // 0.09 are expected; five or more happen once in twenty million runs.
        assert!(hit < 5, "{hit} bystanders of 10,000 were throttled");
    }

    #[test]
    fn concurrent_failures_are_all_counted() {
        let throttle = Throttle::new();
        std::thread::scope(|scope| {
            for _ in 0..PER_MINUTE {
                scope.spawn(|| fail(&throttle, "192.0.2.1", 1, START));
            }
        });
        assert_eq!(check(&throttle, "192.0.2.1", START), Err(SPAN));
    }

    #[test]
    fn failing_client_is_known_for_an_hour() {
        let throttle = Throttle::new();
        fail(&throttle, "192.0.2.1", 1, START);
        let last = Nanos((START + FAILING_SPAN).0 - 1);
        let has_failed = |text, now| throttle.has_failed(source(text), now);
        assert!(has_failed("192.0.2.1", last) && !has_failed("192.0.2.1", START + FAILING_SPAN));
        assert!(!has_failed("192.0.2.2", START));
        fail(&throttle, "2001:db8::1", 1, START);
        assert!(has_failed("2001:db8:0:1::1", START) && !has_failed("2001:db8:1::1", START));
    }
}
