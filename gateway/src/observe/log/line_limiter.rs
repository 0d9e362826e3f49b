//! Limits the lines about denials and failures of one reactor thread, and counts the suppressed ones.
//!
//! Guarantees: A denial costs one table lookup, whatever its source, and the table is bounded. Lines about
//! unknown clients fit their share of the ring and of a disk, however many sources they come from. Each
//! suppressed line is counted, and the count is reported.
//!
//! Not handled here: lines of flows, which are never suppressed, and when the counts are reported (`meter`).
//!
//! Each source, and each known user, has a bucket for each reason: as many lines as its burst at once, then a
//! fixed rate (GCRA, ITU-T I.371). All sources together have one more. A source is an IPv4 address or an IPv6
//! /64.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use sys::clock::Nanos;

use super::RING_EVENTS;
use crate::source_network::source_network;

/// Buckets of a thread for sources; further sources share one. Users always have their own: there are as many
/// as are configured.
const BUCKETS_MAX: usize = 1024;
/// How often a full table may be searched for unneeded buckets.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Sources that are reported separately at a time; the other sources' lines are counted together.
const REPORTED_SOURCES_MAX: usize = 16;
/// Lines at once of one source for one reason.
const SOURCE_BURST: u32 = 20;
/// How long it takes until it may have another.
const SOURCE_SPAN: Duration = Duration::from_secs(1);
/// Lines at once of one user for one reason.
const USER_BURST: u32 = 200;
/// How long it takes until it may have another: 200 a second.
const USER_SPAN: Duration = Duration::from_millis(5);
/// Lines at once of all sources, over all threads. Each thread has an equal part, but no less than one source
/// may have.
const ALL_BURST: u32 = 200;
/// How long it takes until all sources may have another: 20 a second, some 0.7 GB a day.
const ALL_SPAN: Duration = Duration::from_millis(50);

const _: () = assert!(ALL_BURST as usize <= RING_EVENTS / 2, "half of the ring is reserved for users");
const _: () = assert!(USER_BURST as usize <= RING_EVENTS / 2, "one user fills at most that half");

/// The subject of a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum LineSubject<'a> {
    /// An unknown client at this address; in a report, the clients of this network.
    Source(IpAddr),
    /// A user.
    User(&'a str),
}

/// A count of suppressed lines.
#[derive(Debug, PartialEq)]
pub(crate) struct SuppressedLines<'a> {
    /// The subject of the lines; `None` if there are several sources.
    pub(crate) subject: Option<LineSubject<'a>>,
    /// Their reason; empty for several.
    pub(crate) reason: &'static str,
    /// The count.
    pub(crate) lines: u64,
}

/// The buckets of one reactor thread.
pub(crate) struct LineLimiter {
    /// By network and reason.
    sources: HashMap<(IpAddr, &'static str), Bucket>,
    /// By reason, then by name, so that a lookup of a name allocates nothing.
    users: HashMap<&'static str, HashMap<Box<str>, Bucket>>,
    next_sweep: Nanos,
    /// Of all sources without a bucket of their own.
    others: Bucket,
    /// Of all sources together; it counts no suppressed lines itself.
    all: Rate,
    all_burst: u32,
    all_span: Duration,
}

#[derive(Default)]
struct Bucket {
    rate: Rate,
    suppressed: u64,
}

/// When a bucket is full again. Until then it holds its burst, less one line for each remaining span.
#[derive(Clone, Copy, Default)]
struct Rate(Nanos);

impl Rate {
    /// Takes a line from the bucket, if it holds one.
    fn take(&mut self, now: Nanos, burst: u32, span: Duration) -> bool {
        let full_at = self.0.max(now);
        let has_one = full_at.since(now) <= span * (burst - 1);
        if has_one {
            self.0 = full_at + span;
        }
        has_one
    }
}

impl LineLimiter {
    /// The limiter of one of `threads`.
    pub(crate) fn new(threads: usize) -> LineLimiter {
        let threads = u32::try_from(threads).unwrap_or(u32::MAX).max(1);
        LineLimiter {
            sources: HashMap::new(),
            users: HashMap::new(),
            next_sweep: Nanos(0),
            others: Bucket::default(),
            all: Rate::default(),
            all_burst: (ALL_BURST / threads).max(SOURCE_BURST),
            all_span: ALL_SPAN * threads,
        }
    }

    /// Whether a line with this `reason` may be logged; if not, it is counted.
    pub(crate) fn admits(&mut self, subject: LineSubject<'_>, reason: &'static str, now: Nanos) -> bool {
        let (burst, span, mut all) = (self.all_burst, self.all_span, self.all);
        let (bucket, is_admitted) = match subject {
            LineSubject::User(name) => {
                let bucket = self.user(name, reason);
                let is_admitted = bucket.rate.take(now, USER_BURST, USER_SPAN);
                (bucket, is_admitted)
            }
            LineSubject::Source(source) => {
                let bucket = self.source(source_network(source), reason, now);
                let has_one = bucket.rate.take(now, SOURCE_BURST, SOURCE_SPAN);
                (bucket, has_one && all.take(now, burst, span))
            }
        };
        bucket.suppressed += u64::from(!is_admitted);
        self.all = all;
        is_admitted
    }

    fn user(&mut self, name: &str, reason: &'static str) -> &mut Bucket {
        let buckets = self.users.entry(reason).or_default();
        if !buckets.contains_key(name) {
            buckets.insert(name.into(), Bucket::default());
        }
        buckets.get_mut(name).expect("the entry was inserted above")
    }

    fn source(&mut self, network: IpAddr, reason: &'static str, now: Nanos) -> &mut Bucket {
        let key = (network, reason);
        if self.sources.len() >= BUCKETS_MAX && !self.sources.contains_key(&key) {
            if now >= self.next_sweep {
                self.sweep(now);
            }
            if self.sources.len() >= BUCKETS_MAX {
                return &mut self.others;
            }
        }
        self.sources.entry(key).or_default()
    }

    /// Removes the buckets that are equal to new ones.
    fn sweep(&mut self, now: Nanos) {
        self.next_sweep = now + SWEEP_INTERVAL;
        let is_needed = |bucket: &mut Bucket| bucket.suppressed > 0 || bucket.rate.0 > now;
        self.sources.retain(|_, bucket| is_needed(bucket));
        self.users.values_mut().for_each(|buckets| buckets.retain(|_, bucket| is_needed(bucket)));
    }

    /// Calls `report` with each count of suppressed lines since the last report. If it returns `false` the
    /// lines stay counted. Returns the number of lines that stay counted.
    pub(crate) fn report_suppressed(
        &mut self,
        now: Nanos,
        mut report: impl FnMut(&SuppressedLines<'_>) -> bool,
    ) -> u64 {
        let users = self.users.iter_mut().flat_map(|(reason, buckets)| {
            buckets.iter_mut().map(move |(name, bucket)| (LineSubject::User(name), *reason, bucket))
        });
        let sources = self
            .sources
            .iter_mut()
            .map(|((network, reason), bucket)| (LineSubject::Source(*network), *reason, bucket));
        let mut buckets: Vec<_> = users.collect();
        let mut source_buckets: Vec<_> = sources.filter(|(.., bucket)| bucket.suppressed > 0).collect();
        source_buckets.sort_unstable_by_key(|(.., bucket)| std::cmp::Reverse(bucket.suppressed));
        for (.., bucket) in source_buckets.iter_mut().skip(REPORTED_SOURCES_MAX) {
            self.others.suppressed += std::mem::take(&mut bucket.suppressed);
        }
        buckets.extend(source_buckets);
        let mut unreported = 0;
        for (subject, reason, bucket) in buckets.into_iter().filter(|(.., bucket)| bucket.suppressed > 0) {
            let reported = SuppressedLines { subject: Some(subject), reason, lines: bucket.suppressed };
            bucket.suppressed = if report(&reported) { 0 } else { bucket.suppressed };
            unreported += bucket.suppressed;
        }
        let others = SuppressedLines { subject: None, reason: "", lines: self.others.suppressed };
        if others.lines > 0 && report(&others) {
            self.others.suppressed = 0;
        }
        self.sweep(now);
        unreported + self.others.suppressed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Nanos = Nanos(1_000_000_000_000);
    const SECOND: Duration = Duration::from_secs(1);
    const MISSING: &str = "credentials_missing";

    /// A source of its own for each number.
    fn source(number: u32) -> LineSubject<'static> {
        LineSubject::Source(IpAddr::from((0x0a00_0000 + number).to_be_bytes()))
    }

    /// How many of `count` lines are admitted at `now`.
    fn admitted(limiter: &mut LineLimiter, subject: LineSubject<'_>, count: u32, now: Nanos) -> u32 {
        (0..count).map(|_| u32::from(limiter.admits(subject, MISSING, now))).sum()
    }

    fn reported(limiter: &mut LineLimiter, now: Nanos) -> Vec<(Option<String>, u64)> {
        let mut reported = Vec::new();
        let unreported = limiter.report_suppressed(now, |suppressed| {
            reported.push((suppressed.subject.map(|subject| format!("{subject:?}")), suppressed.lines));
            true
        });
        assert_eq!(unreported, 0);
        reported
    }

    #[test]
    fn source_has_a_burst_then_one_line_a_second() {
        let mut limiter = LineLimiter::new(1);
        assert_eq!(admitted(&mut limiter, source(1), 1000, START), SOURCE_BURST);
        assert_eq!(admitted(&mut limiter, source(2), 1, START), 1, "another source has its own bucket");
        assert_eq!(admitted(&mut limiter, source(1), 10, START + SECOND), 1);
        assert!(limiter.admits(source(1), "credentials_wrong", START), "another reason is another bucket");
        let suppressed = u64::from(1000 - SOURCE_BURST + 9);
        assert_eq!(reported(&mut limiter, START + SECOND), [(Some("Source(10.0.0.1)".into()), suppressed)]);
        assert_eq!(reported(&mut limiter, START + SECOND), []);
        assert_eq!(admitted(&mut limiter, source(1), 1000, START + 60 * SECOND), SOURCE_BURST);
    }

    #[test]
    fn addresses_of_one_64_are_one_source() {
        let mut limiter = LineLimiter::new(1);
        let sum: u32 = (0..100)
            .map(|host| {
                let address = IpAddr::from((0x2001_0db8_u128 << 96 | host).to_be_bytes());
                admitted(&mut limiter, LineSubject::Source(address), 1, START)
            })
            .sum();
        assert_eq!(sum, SOURCE_BURST);
    }

    #[test]
    fn sources_share_a_bound_that_spares_users() {
        let (mut limiter, threads) = (LineLimiter::new(4), 4);
        let sum: u32 = (0..10_000).map(|number| admitted(&mut limiter, source(number), 3, START)).sum();
        assert_eq!(sum, ALL_BURST / threads);
        assert!(limiter.sources.len() <= BUCKETS_MAX, "the table is bounded");
        assert_eq!(admitted(&mut limiter, LineSubject::User("ann"), 1, START), 1);
        // From ever new sources: as much as the whole process may write, and no more.
        let mut lines = 0;
        for second in 1..=1000 {
            let now = START + second * SECOND;
            lines += (0..50).map(|it| admitted(&mut limiter, source(second * 50 + it), 1, now)).sum::<u32>();
            if second % 10 == 0 {
                reported(&mut limiter, now);
            }
        }
        let most = 1000 * SECOND.as_millis() as u32 / ALL_SPAN.as_millis() as u32 / threads;
        assert!((most - 1..=most + 1).contains(&lines), "{lines} of {most}");
    }

    #[test]
    fn every_suppressed_line_is_counted() {
        let mut limiter = LineLimiter::new(1);
        let mut sum = 0;
        for round in 0..3 {
            let now = START + round * 10 * SECOND;
            for number in 0..5000 {
                sum += u64::from(admitted(&mut limiter, source(number), 1 + number % 40, now));
            }
            let reported = reported(&mut limiter, now);
            assert!(reported.len() <= REPORTED_SOURCES_MAX + 1);
            sum += reported.iter().map(|(_, lines)| lines).sum::<u64>();
        }
        assert_eq!(sum, 3 * (0..5000).map(|number| 1 + number % 40).sum::<u64>());
    }

    #[test]
    fn unreported_counts_are_reported_next_time() {
        let mut limiter = LineLimiter::new(1);
        admitted(&mut limiter, source(1), SOURCE_BURST + 5, START);
        admitted(&mut limiter, LineSubject::User("ann"), USER_BURST + 7, START);
        assert_eq!(limiter.report_suppressed(START, |_| false), 12);
        let expected = [(Some("User(\"ann\")".into()), 7), (Some("Source(10.0.0.1)".into()), 5)];
        assert_eq!(reported(&mut limiter, START), expected);
    }
}
