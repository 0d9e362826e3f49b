//! Random flows over quarter-hours and months, delivered in any way, compared with a model that is a list of
//! items.

use std::collections::BTreeMap;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use proptest::prelude::*;
use proptest::sample::select;
use rusqlite::types::Value;

use super::*;
use crate::database::month::QUARTER_NS;
use crate::query::Row as UsageRow;
use crate::verify::verify;

/// 2026-01-31T20:00:00Z, close to the end of a month.
const BEGINNING_NS: u64 = 1_769_889_600_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;
const SLOTS: u8 = 5;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Interim,
    /// An interim with lower counts than an earlier one.
    Stale,
    Final,
    RunBegan,
    Gap,
}

#[derive(Clone, Debug)]
struct Step {
    kind: Kind,
    slot: u8,
    advance_s: u64,
    /// How far the wall clock is behind at this step.
    behind_s: u64,
    up: u32,
    down: u32,
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        8 => Just(Kind::Interim),
        1 => Just(Kind::Stale),
        4 => Just(Kind::Final),
        1 => Just(Kind::RunBegan),
        1 => Just(Kind::Gap),
    ];
    let advance = select(vec![0, 1, 1_200, 1_200, 18_000, 777_600]);
    let behind = select(vec![0, 0, 0, 0, 3_700, 90_000, 3_000_000]);
    (kind, 0..SLOTS, advance, behind, select(vec![0, 0, 1, 7, u32::MAX]), 0..3_u32).prop_map(
        |(kind, slot, advance_s, behind_s, up, down)| Step { kind, slot, advance_s, behind_s, up, down },
    )
}

/// How one portion of the entries is delivered.
#[derive(Clone, Debug)]
struct Delivery {
    fresh: usize,
    again: usize,
    /// How often the process dies between the commits of the months and that of `ledger.db`.
    crashes: u8,
    reopen: bool,
    checkpoint: bool,
}

fn delivery() -> impl Strategy<Value = Delivery> {
    (1_usize..25, 0_usize..30, select(vec![0, 0, 1, 2]), any::<bool>(), any::<bool>()).prop_map(
        |(fresh, again, crashes, reopen, checkpoint)| Delivery { fresh, again, crashes, reopen, checkpoint },
    )
}

/// The last counts of a flow of the model.
#[derive(Clone, Copy, Default)]
struct Known {
    at_ns: u64,
    up: u64,
    down: u64,
}

/// The expected contents of a ledger: items that are summed up, and open flows.
#[derive(Default)]
struct Model {
    entries: Vec<(u32, Entry)>,
    /// Quarter-hour, slot, flows, up, down.
    items: Vec<(u64, u8, u64, u64, u64)>,
    live: BTreeMap<u8, Known>,
}

fn user(slot: u8) -> &'static str {
    ["ann", "ci", "ann", "bob", "ci"][usize::from(slot)]
}

fn host(slot: u8) -> &'static str {
    ["a.example", "a.example", "b.example", "db.corp", "b.example"][usize::from(slot)]
}

fn port(slot: u8) -> u16 {
    [443, 443, 22, 5432, 80][usize::from(slot)]
}

fn protocol(slot: u8) -> Protocol {
    if slot.is_multiple_of(2) { Protocol::HttpConnect } else { Protocol::Socks5 }
}

fn class(slot: u8) -> Class {
    if slot == 3 { Class::Internal } else { Class::External }
}

/// The text of a key for a slot.
type TextOf = fn(u8) -> String;

/// Whether a month exceeds its row limit, so that ports and protocols of some flows are not known.
fn has_aggregates(usage: &SqliteUsage) -> bool {
    let files = usage.months().unwrap().into_keys().filter_map(|month| usage.month(month).unwrap());
    let rows = |file: Connection| file.query_row("SELECT count(*) FROM aggregate", [], |row| row.get(0));
    files.map(|file| rows(file).unwrap()).any(|rows: i64| rows > 0)
}

/// Checks that no row exceeds the expected one, and that unknown keys have the difference.
fn check_as_far_as_known(found: &BTreeMap<String, [u64; 4]>, expected: &BTreeMap<String, [u64; 4]>) {
    for (key, sums) in found.iter().filter(|(key, _)| !format!("|{key}|").contains("||")) {
        let most = expected.get(key).unwrap_or_else(|| panic!("{key} in {expected:?}"));
        assert!(sums.iter().zip(most).all(|(sum, most)| sum <= most), "{key}: {sums:?} of {most:?}");
    }
    let sum = |rows: &BTreeMap<String, [u64; 4]>| {
        [0, 1, 2, 3].map(|index| rows.values().map(|row| row[index]).sum::<u64>())
    };
    assert_eq!(sum(found), sum(expected));
}

impl Model {
    fn new(steps: &[Step]) -> Model {
        let mut model = Model::default();
        let (mut clock_ns, mut epoch) = (BEGINNING_NS, 1);
        let mut generations = [0_u128; SLOTS as usize];
        let mut sent: BTreeMap<u8, (u64, u64)> = BTreeMap::new();
        for step in steps {
            clock_ns += step.advance_s * SECOND_NS;
            let at = WallNanos(clock_ns - step.behind_s * SECOND_NS);
            let generation = &mut generations[usize::from(step.slot)];
            let total = sent.entry(step.slot).or_default();
            let id = (*generation << 64) | u128::from(step.slot);
            let record = |up: u64, down: u64| {
                Record::new(&Flow {
                    id,
                    opened: WallNanos(BEGINNING_NS),
                    closed: at,
                    user: user(step.slot),
                    host: host(step.slot),
                    port: port(step.slot),
                    protocol: protocol(step.slot),
                    class: class(step.slot),
                    legs: Legs { client_rx: up, upstream_tx: up, upstream_rx: down, client_tx: down },
                    ..FLOW
                })
                .with_uncertain(Uncertain { up: 0, down: 0 })
            };
            match step.kind {
                Kind::Stale => {
                    let entry = Entry::Interim(record(total.0 / 2, total.1));
                    model.count(step.slot, at.0, total.0 / 2, total.1);
                    model.entries.push((epoch, entry));
                }
                Kind::Interim => {
                    *total = (total.0 + u64::from(step.up), total.1 + u64::from(step.down));
                    model.count(step.slot, at.0, total.0, total.1);
                    model.entries.push((epoch, Entry::Interim(record(total.0, total.1))));
                }
                Kind::Final => {
                    *total = (total.0 + u64::from(step.up), total.1 + u64::from(step.down));
                    model.close(step.slot, at.0, total.0, total.1);
                    model.entries.push((epoch, Entry::Final(record(total.0, total.1))));
                    sent.remove(&step.slot);
                    *generation += 1;
                }
                Kind::RunBegan => {
                    // As after a kill: the next run first closes the flows in the live table.
                    if model.live.contains_key(&step.slot) {
                        model.close(step.slot, at.0, total.0, total.1);
                        model.entries.push((epoch + 1, Entry::Final(record(total.0, total.1))));
                    }
                    model.entries.push((epoch + 1, began(epoch, at)));
                    epoch += 1;
                    for (slot, known) in std::mem::take(&mut model.live) {
                        model.items.push((known.at_ns / QUARTER_NS as u64, slot, 1, 0, 0));
                    }
                    sent.clear();
                    generations.iter_mut().for_each(|generation| *generation += 1);
                }
                Kind::Gap => {
                    let first_lsn = model.entries.len() as u64;
                    model.entries.push((epoch, Entry::Gap { epoch, at, first_lsn }));
                }
            }
        }
        model
    }

    fn count(&mut self, slot: u8, at_ns: u64, up: u64, down: u64) {
        let is_new = self.live.get(&slot).is_none_or(|known| up > known.up || down > known.down);
        if is_new {
            let known = self.advance(slot, 0, at_ns, up, down);
            self.live.insert(slot, known);
        }
    }

    fn close(&mut self, slot: u8, at_ns: u64, up: u64, down: u64) {
        self.advance(slot, 1, at_ns, up, down);
        self.live.remove(&slot);
    }

    fn advance(&mut self, slot: u8, flows: u64, at_ns: u64, up: u64, down: u64) -> Known {
        let known = self.live.get(&slot).copied().unwrap_or_default();
        let next = Known { at_ns: at_ns.max(known.at_ns), up: up.max(known.up), down: down.max(known.down) };
        let (up, down) = (next.up - known.up, next.down - known.down);
        self.items.push((next.at_ns / QUARTER_NS as u64, slot, flows, up, down));
        next
    }

    /// Flows, live, up and down for each `key` of quarter-hour and slot.
    fn rows(&self, key: impl Fn(u64, u8) -> String) -> BTreeMap<String, [u64; 4]> {
        let mut rows: BTreeMap<String, [u64; 4]> = BTreeMap::new();
        for (quarter, slot, flows, up, down) in &self.items {
            let row = rows.entry(key(*quarter, *slot)).or_default();
            *row = [row[0] + flows, row[1], row[2] + up, row[3] + down];
        }
        for (slot, known) in &self.live {
            rows.entry(key(known.at_ns / QUARTER_NS as u64, *slot)).or_default()[1] += 1;
        }
        rows
    }

    /// Checks every pair of keys, and the sums of every pair with a time, against the model and the total.
    fn check_several(&self, usage: &SqliteUsage, all: &Filter) {
        let texts: [(GroupBy, TextOf); 5] = [
            (GroupBy::User, |slot| user(slot).to_owned()),
            (GroupBy::Host, |slot| host(slot).to_owned()),
            (GroupBy::Port, |slot| port(slot).to_string()),
            (GroupBy::Protocol, |slot| protocol(slot).as_str().to_owned()),
            (GroupBy::Class, |slot| class(slot).as_str().to_owned()),
        ];
        let total = usage.total(all).unwrap();
        let is_capped = has_aggregates(usage);
        for (first, first_text) in texts {
            for (second, second_text) in texts {
                let rows = usage.rows(all, &[first, second]).unwrap().rows;
                let sums = |row: &UsageRow| (row.keys.join("|"), [row.flows, row.live, row.up, row.down]);
                let found: BTreeMap<_, _> = rows.iter().map(sums).collect();
                let key = |_, slot| format!("{}|{}", first_text(slot), second_text(slot));
                let expected = self.rows(key);
                let needs_ports =
                    [first, second].iter().any(|key| matches!(key, GroupBy::Port | GroupBy::Protocol));
                if is_capped && needs_ports {
                    check_as_far_as_known(&found, &expected);
                } else {
                    assert_eq!(found, expected, "{first:?}, {second:?}");
                }
                for time in [GroupBy::Quarter, GroupBy::Hour, GroupBy::Day, GroupBy::Month] {
                    let rows = usage.rows(all, &[first, time, second]).unwrap().rows;
                    let sum = |of: fn(&UsageRow) -> u64| rows.iter().map(of).sum::<u64>();
                    let sums = [sum(|row| row.flows), sum(|row| row.live), sum(|row| row.up)];
                    assert_eq!(sums, [total.flows, total.live, total.up], "{first:?}, {time:?}, {second:?}");
                    assert_eq!(sum(|row| row.down), total.down, "{first:?}, {time:?}, {second:?}");
                }
            }
        }
    }

    /// Days and months of a zone, alone and by user, are the sums of the model's quarter-hours.
    fn check_zone(&self, directory: &Path, all: &Filter, zone: &str) {
        let zone = TimeZone::get(zone).unwrap();
        let usage = SqliteUsage::open(directory).unwrap().in_zone(zone.clone());
        for (key, format) in [(GroupBy::Day, "%Y-%m-%d"), (GroupBy::Month, "%Y-%m")] {
            let period = |quarter: u64| {
                let beginning = Timestamp::from_nanosecond(i128::from(quarter) * i128::from(QUARTER_NS));
                beginning.unwrap().to_zoned(zone.clone()).strftime(format).to_string()
            };
            let rows = |keys: &[GroupBy]| {
                let rows = usage.rows(all, keys).unwrap().rows;
                let sums = |row: &UsageRow| (row.keys.join("|"), [row.flows, row.live, row.up, row.down]);
                rows.iter().map(sums).collect::<BTreeMap<_, _>>()
            };
            assert_eq!(rows(&[key]), self.rows(|quarter, _| period(quarter)), "{zone:?}");
            let by_user = self.rows(|quarter, slot| format!("{}|{}", period(quarter), user(slot)));
            assert_eq!(rows(&[key, GroupBy::User]), by_user, "{zone:?}");
        }
    }

    fn check(&self, directory: &Path) {
        let usage = SqliteUsage::open(directory).unwrap();
        let window = |quarters: Option<(u64, u64)>| Filter {
            since: quarters.map(|(first, _)| WallNanos(first * QUARTER_NS as u64)),
            until: quarters.map(|(_, end)| WallNanos(end * QUARTER_NS as u64)),
            ..Filter::default()
        };
        let found = |group, filter: &Filter| {
            let answer = usage.rows(filter, &[group]).unwrap();
            assert_eq!(answer.missing, [""; 0]);
            let sums = |row: UsageRow| (row.keys[0].clone(), [row.flows, row.live, row.up, row.down]);
            answer.rows.into_iter().map(sums).collect::<BTreeMap<_, _>>()
        };
        let all = window(None);
        assert_eq!(found(GroupBy::User, &all), self.rows(|_, slot| user(slot).to_owned()));
        assert_eq!(found(GroupBy::Host, &all), self.rows(|_, slot| host(slot).to_owned()));
        assert_eq!(found(GroupBy::Class, &all), self.rows(|_, slot| class(slot).as_str().to_owned()));
        self.check_several(&usage, &all);
        for zone in ["Asia/Kathmandu", "America/St_Johns"] {
            self.check_zone(directory, &all, zone);
        }
        let quarters: std::collections::BTreeSet<u64> = self.items.iter().map(|item| item.0).collect();
        let sums = |unit: u64| {
            let rows = self.rows(|quarter, _| format!("{:08}", quarter / unit));
            rows.into_values().collect::<Vec<[u64; 4]>>()
        };
        for (key, unit) in [(GroupBy::Quarter, 1), (GroupBy::Hour, 4), (GroupBy::Day, 96)] {
            assert_eq!(found(key, &all).into_values().collect::<Vec<_>>(), sums(unit), "{key:?}");
        }
        // Over single quarter-hours, details, rollups and the model agree.
        let mut checked = std::collections::BTreeSet::new();
        for (quarter, expected) in quarters.iter().zip(&sums(1)) {
            let one = window(Some((*quarter, quarter + 1)));
            let by_host = found(GroupBy::Host, &one);
            let sum = |rows: &BTreeMap<String, [u64; 4]>| {
                (0..4).map(|index| rows.values().map(|row| row[index]).sum()).collect::<Vec<u64>>()
            };
            assert_eq!(sum(&by_host), expected, "quarter-hour {quarter}");
            let total = usage.total(&one).unwrap();
            assert_eq!([total.flows, total.live, total.up, total.down], *expected);
            // A window that is not of whole quarter-hours: those inside from rollups, its ends from details.
            // One for each day.
            if !checked.insert(quarter / 96) {
                continue;
            }
            let beginning = quarter * QUARTER_NS as u64;
            for length in [30, 96 * 70] {
                let ragged = Filter {
                    since: Some(WallNanos(beginning - 1_000 * SECOND_NS)),
                    until: Some(WallNanos(beginning + length * QUARTER_NS as u64 + 1_250 * SECOND_NS)),
                    ..Filter::default()
                };
                let by_host = found(GroupBy::Host, &ragged);
                let total = usage.total(&ragged).unwrap();
                let total = [total.flows, total.live, total.up, total.down];
                assert_eq!(sum(&by_host), total, "ragged around quarter-hour {quarter}");
                assert_eq!(sum(&found(GroupBy::User, &ragged)), total, "ragged around {quarter}");
            }
        }
    }
}

/// Every row of every table, sorted, without columns that depend on the delivery.
fn dump(directory: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let months = Month::files(directory).unwrap();
    let files = months.iter().map(|month| month.path(directory)).chain([directory.join("ledger.db")]);
    for path in files {
        let connection = Connection::open(&path).unwrap();
        let name = path.file_name().unwrap().display().to_string();
        for table in TABLES {
            let Ok(mut select) = connection.prepare(&format!("SELECT * FROM {table}")) else { continue };
            let columns = select.column_count();
            let rows = select.query_map([], |row| {
                (0..columns).map(|index| row.get(index)).collect::<rusqlite::Result<Vec<Value>>>()
            });
            lines.extend(rows.unwrap().map(|row| format!("{name} {table} {:?}", row.unwrap())));
        }
    }
    lines.sort_unstable();
    lines
}

const TABLES: [&str; 12] = [
    "flow",
    "part",
    "aggregate",
    "live",
    "rollup_quarter",
    "rollup_day",
    "rollup_month",
    "total_quarter",
    "total_day",
    "total_month",
    "row_range",
    "gap",
];

fn deliver(store: &mut Store, settings: SinkSettings, model: &Model, deliveries: &[Delivery]) {
    let entries: Vec<Entry> = model.entries.iter().map(|(_, entry)| *entry).collect();
    let remainder = Delivery { fresh: 1_000, again: 0, crashes: 0, reopen: false, checkpoint: true };
    let mut end = 0;
    for delivery in deliveries.iter().chain([&remainder]) {
        let mut first = end - delivery.again.min(end);
        end = (end + delivery.fresh).min(entries.len());
        // A batch is of one run.
        while first < end {
            let epoch = model.entries[first].0;
            let length = model.entries[first..end].iter().take_while(|entry| entry.0 == epoch).count();
            let batch = &entries[first..first + length];
            // The interrupted attempt may have been cut into batches differently.
            let same_run = model.entries[first..].iter().take_while(|entry| entry.0 == epoch).count();
            let longer = &entries[first..first + same_run.min(length + usize::from(delivery.crashes) * 3)];
            for _ in 0..delivery.crashes {
                drop(store.sink.stage(epoch, first as u64 + 1, longer).unwrap());
            }
            if delivery.reopen {
                store.sink = SqliteSink::open(store.directory.path(), 1, settings).unwrap();
            }
            store.sink.apply(epoch, first as u64 + 1, batch).unwrap();
            first += length;
        }
        if delivery.checkpoint {
            assert_eq!(store.sink.checkpoint(), Ok(end as u64));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_delivery_gives_the_same_bills_and_rows(
        steps in prop::collection::vec(step(), 1..70),
        deliveries in prop::collection::vec(delivery(), 0..8),
        rows_per_month_max in select(vec![1_000_000, 6]),
    ) {
        let settings = SinkSettings { detail_months: 1_000, rows_per_month_max };
        let model = Model::new(&steps);
        let (mut once, mut split) = (Store::with(settings), Store::with(settings));
        deliver(&mut once, settings, &model, &[]);
        deliver(&mut split, settings, &model, &deliveries);
        model.check(split.directory.path());
        prop_assert_eq!(dump(split.directory.path()), dump(once.directory.path()));
        // Sums by host, and packed values.
        split.sink.seal().unwrap();
        model.check(split.directory.path());
        let report = verify(split.directory.path()).unwrap();
        prop_assert!(report.is_clean(), "{:#?}", report.problems);
        let other = report.notes.iter().find(|note| !note.contains("gaps in the journal"));
        prop_assert_eq!(other, None);
    }

    /// After each commit, and after each death before one, everything that a reader sees is consistent.
    #[test]
    fn every_commit_is_consistent_to_readers(
        steps in prop::collection::vec(step(), 1..40),
        cuts in prop::collection::vec(1_usize..12, 1..6),
    ) {
        let settings = SinkSettings { detail_months: 1_000, rows_per_month_max: 1_000_000 };
        let mut store = Store::with(settings);
        let mut first = 0;
        for cut in cuts {
            let last = (first + cut).min(steps.len());
            let (before, after) = (Model::new(&steps[..first]), Model::new(&steps[..last]));
            let (known, mut next) = (before.entries.len(), before.entries.len());
            while next < after.entries.len() {
                let epoch = after.entries[next].0;
                let length = after.entries[next..].iter().take_while(|entry| entry.0 == epoch).count();
                let batch: Vec<Entry> =
                    after.entries[next..next + length].iter().map(|(_, entry)| *entry).collect();
                drop(store.sink.stage(epoch, next as u64 + 1, &batch).unwrap());
                if next == known {
                    before.check(store.directory.path());
                    let report = verify(store.directory.path()).unwrap();
                    prop_assert!(report.is_clean(), "{:#?}", report.problems);
                }
                store.sink.apply(epoch, next as u64 + 1, &batch).unwrap();
                next += length;
            }
            // Every second time with sums by host and packed values, which later batches change.
            if cut % 2 == 0 {
                store.sink.seal().unwrap();
            }
            after.check(store.directory.path());
            let report = verify(store.directory.path()).unwrap();
            prop_assert!(report.is_clean(), "{:#?}", report.problems);
            first = last;
        }
    }
}
