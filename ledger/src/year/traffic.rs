//! The flows of a synthetic year, quarter-hour by quarter-hour: most are short, some go on for hours.
//!
//! Guarantees: the same entries for a seed, on every machine. The counts of a flow never decrease, and each
//! flow has one final by the end of the year.
//!
//! The gateway journals an interim each five seconds. All but the last one of a quarter-hour leave no row, so
//! one for each quarter-hour stands for them here. Denied requests are no flows and have no entry.

use sys::clock::WallNanos;

use super::YearSettings;
use super::population::Population;
use crate::database::month::QUARTER_NS;
use crate::entry::Entry;
use crate::random::Random;
use crate::record::{CloseReason, Flow, Legs, Protocol, Record, Uncertain};

/// 2025-01-01, a Wednesday, in quarter-hours since 1970.
const FIRST_QUARTER: u64 = 1_735_689_600 / 900;
const FIRST_WEEKDAY: u64 = 3;

const DAY_QUARTERS: u64 = 96;

/// The weight of each hour of a working day; on others a sixth of it.
const HOUR_WEIGHTS: [u64; 24] =
    [2, 1, 1, 1, 1, 2, 5, 14, 34, 48, 52, 48, 36, 44, 50, 48, 42, 30, 18, 12, 9, 7, 5, 3];
const WEEKEND_DIVISOR: u64 = 6;

/// Flows in a thousand that last over the end of a quarter-hour.
const LONG_PERMILLE: u64 = 10;

/// The square root of the quarter-hours of the longest flow.
const LONG_QUARTERS_ROOT: u64 = 6;

/// The entries of a year, in the order of their moments.
pub(super) struct Traffic {
    random: Random,
    population: Population,
    flows: u64,
    days: u64,
    /// The weights of all quarter-hours, and of those before the next one.
    weight: u64,
    weight_before: u64,
    /// The next quarter-hour, counted from the first one.
    next: u64,
    opened: u64,
    long: Vec<LongFlow>,
}

/// A flow that goes on beyond its first quarter-hour.
struct LongFlow {
    draft: Draft,
    remaining: u64,
}

/// The values of a flow.
#[derive(Clone, Copy)]
struct Draft {
    id: u128,
    user: usize,
    host: usize,
    opened_ns: u64,
    client_port_seed: u64,
    protocol: Protocol,
    reason: CloseReason,
    requests: u64,
    up: u64,
    down: u64,
}

impl Traffic {
    pub(super) fn new(settings: &YearSettings) -> Traffic {
        let mut random = Random::from_seed(settings.seed);
        let population = Population::new(settings.users, &mut random);
        let days = settings.days;
        let weight = (0..days * DAY_QUARTERS).map(quarter_weight).sum();
        let (flows, long) = (settings.flows, Vec::new());
        Traffic { random, population, flows, days, weight, weight_before: 0, next: 0, opened: 0, long }
    }

    /// The moment at which the year begins.
    pub(super) fn beginning() -> WallNanos {
        WallNanos(FIRST_QUARTER * QUARTER_NS.cast_unsigned())
    }

    /// The moment at which it ends.
    pub(super) fn end(&self) -> WallNanos {
        WallNanos((FIRST_QUARTER + self.days * DAY_QUARTERS) * QUARTER_NS.cast_unsigned())
    }

    /// Calls `each` with the entries of the next quarter-hour; `false` behind the last one.
    pub(super) fn quarter(&mut self, mut each: impl FnMut(Entry)) -> bool {
        if self.next == self.days * DAY_QUARTERS {
            return false;
        }
        let start_ns = (FIRST_QUARTER + self.next) * QUARTER_NS.cast_unsigned();
        self.weight_before += quarter_weight(self.next);
        self.next += 1;
        let is_last = self.next == self.days * DAY_QUARTERS;
        let until = u128::from(self.flows) * u128::from(self.weight_before) / u128::from(self.weight);
        let count = until as u64 - self.opened;
        self.opened += count;
        for index in 0..count {
            let span_ns = QUARTER_NS.cast_unsigned() / count;
            let at_ns = start_ns + index * span_ns + self.random.below(span_ns.max(1));
            let draft = self.draft(at_ns);
            if self.random.below(1000) < LONG_PERMILLE && !is_last {
                // Squared, so that most go on for an hour and few for a day's work.
                let root = self.random.below(LONG_QUARTERS_ROOT) + 1;
                let remaining = root * root;
                self.long.push(LongFlow { draft, remaining });
            } else {
                each(Entry::Final(self.record(&draft, at_ns)));
            }
        }
        self.go_on(start_ns + QUARTER_NS.cast_unsigned() - 1, is_last, each);
        true
    }

    /// Counts the flows that go on, or ends them, at the end of a quarter-hour.
    fn go_on(&mut self, at_ns: u64, is_last: bool, mut each: impl FnMut(Entry)) {
        let mut long = std::mem::take(&mut self.long);
        for flow in &mut long {
            flow.remaining -= 1;
            let record = self.record(&flow.draft, at_ns);
            if flow.remaining == 0 || is_last {
                each(Entry::Final(record));
                flow.remaining = 0;
            } else {
                each(Entry::Interim(record));
                flow.draft.up += magnitude(&mut self.random, 8, 18);
                flow.draft.down += magnitude(&mut self.random, 10, 24);
            }
        }
        long.retain(|flow| flow.remaining > 0);
        self.long = long;
    }

    /// A flow that closes at `at_ns`, or goes on.
    fn draft(&mut self, at_ns: u64) -> Draft {
        let random = &mut self.random;
        let (user, host) = self.population.draw(random);
        let opened_ns = at_ns - magnitude(random, 20, 36);
        let (protocol, reason, requests) = match random.below(100) {
            0..10 => (Protocol::Http, CloseReason::Completed, 1 + random.below(4)),
            10..16 => (Protocol::Socks5, CloseReason::UpstreamClosed, 0),
            16..20 => (Protocol::HttpConnect, CloseReason::ClientReset, 0),
            20..25 => (Protocol::HttpConnect, CloseReason::IdleTimeout, 0),
            _ => (Protocol::HttpConnect, CloseReason::ClientClosed, 0),
        };
        let (up, down) = (magnitude(random, 8, 16), magnitude(random, 10, 22));
        let id = u128::from(opened_ns) << 64 | u128::from(random.next());
        let client_port_seed = random.next();
        Draft { id, user, host, opened_ns, client_port_seed, protocol, reason, requests, up, down }
    }

    fn record(&self, draft: &Draft, at_ns: u64) -> Record {
        let (user, host) = (self.population.user(draft.user), self.population.host(draft.host));
        let legs = Legs {
            client_rx: draft.up,
            upstream_tx: draft.up,
            upstream_rx: draft.down,
            client_tx: draft.down,
        };
        Record::new(&Flow {
            id: draft.id,
            opened: WallNanos(draft.opened_ns),
            closed: WallNanos(at_ns),
            account: user.account,
            // A new version each week.
            policy: 1 + (self.next / (7 * DAY_QUARTERS)) as u32,
            set: host.set,
            user: &user.name,
            host: &host.name,
            port: if draft.protocol == Protocol::Http { 80 } else { 443 },
            address: Some(host.address),
            client: user.client(&mut Random::from_seed(draft.client_port_seed)),
            class: host.class,
            protocol: draft.protocol,
            rule: host.rule,
            reason: draft.reason,
            requests: draft.requests,
            legs,
            uncertain: Uncertain::default(),
        })
    }
}

/// How many flows begin in a quarter-hour, in proportion to others.
fn quarter_weight(quarter: u64) -> u64 {
    let (day, hour) = (quarter / DAY_QUARTERS, quarter % DAY_QUARTERS / 4);
    let weight = HOUR_WEIGHTS[hour as usize] * WEEKEND_DIVISOR;
    let is_weekend = (FIRST_WEEKDAY + day - 1) % 7 >= 5;
    if is_weekend { weight / WEEKEND_DIVISOR } else { weight }
}

/// A number with `bits_min` to `bits_max` bits, all lengths equally often.
fn magnitude(random: &mut Random, bits_min: u64, bits_max: u64) -> u64 {
    let bits = bits_min + random.below(bits_max - bits_min);
    (1 << bits) + random.below(1 << bits)
}
