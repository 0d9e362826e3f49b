//! Random histories, delivered in any way, compared with the usage in memory.

use proptest::prelude::*;
use proptest::sample::select;
use rusqlite::types::Value;

use super::*;
use crate::memory_usage::History;
use crate::query::conformance::comparison::{Detail, Question, compare, question};
use crate::query::conformance::histories::{entries, step};
use crate::verify::verify;

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

/// Whether a month exceeds its row limit, so that some flows are kept as sums only.
fn has_aggregates(directory: &Path) -> bool {
    let months = Month::files(directory).unwrap().into_iter();
    let files = months.map(|month| Connection::open(month.path(directory)).unwrap());
    let rows = |file: Connection| file.query_row("SELECT count(*) FROM aggregate", [], |row| row.get(0));
    files.map(|file| rows(file).unwrap()).any(|rows: i64| rows > 0)
}

/// Compares the answers of the databases with those of the same entries in memory.
fn check(directory: &Path, entries: &[(u32, Entry)], questions: &[Question]) {
    let mut history = History::default();
    entries.iter().for_each(|(epoch, entry)| history.apply(*epoch, entry));
    let detail = if has_aggregates(directory) { Detail::Capped } else { Detail::Full };
    compare(|| SqliteUsage::open(directory).unwrap(), (&history, &[]), questions, detail);
}

fn check_verified(directory: &Path) {
    let report = verify(directory).unwrap();
    assert!(report.is_clean(), "{:#?}", report.problems);
    let other = report.notes.iter().find(|note| !note.contains("gaps in the journal"));
    assert_eq!(other, None);
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

/// The length of the batch that begins with `entries`: it is of one run.
fn of_one_run(entries: &[(u32, Entry)]) -> usize {
    entries.iter().take_while(|entry| entry.0 == entries[0].0).count()
}

fn deliver(store: &mut Store, settings: SinkSettings, entries: &[(u32, Entry)], deliveries: &[Delivery]) {
    let only: Vec<Entry> = entries.iter().map(|(_, entry)| *entry).collect();
    let remainder = Delivery { fresh: 1_000, again: 0, crashes: 0, reopen: false, checkpoint: true };
    let mut end = 0;
    for delivery in deliveries.iter().chain([&remainder]) {
        let mut first = end - delivery.again.min(end);
        end = (end + delivery.fresh).min(entries.len());
        while first < end {
            let epoch = entries[first].0;
            let length = of_one_run(&entries[first..end]);
            // The interrupted attempt may have been cut into batches differently.
            let longer = of_one_run(&entries[first..]).min(length + usize::from(delivery.crashes) * 3);
            for _ in 0..delivery.crashes {
                drop(store.sink.stage(epoch, first as u64 + 1, &only[first..first + longer]).unwrap());
            }
            if delivery.reopen {
                store.sink = SqliteSink::open(store.directory.path(), 1, settings).unwrap();
            }
            store.sink.apply(epoch, first as u64 + 1, &only[first..first + length]).unwrap();
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
        steps in prop::collection::vec(step(false), 1..70),
        deliveries in prop::collection::vec(delivery(), 0..8),
        rows_per_month_max in select(vec![1_000_000, 6]),
        questions in prop::collection::vec(question(), 120),
    ) {
        let settings = SinkSettings { detail_months: 1_000, rows_per_month_max };
        let entries = entries(&steps);
        let (mut once, mut split) = (Store::with(settings), Store::with(settings));
        deliver(&mut once, settings, &entries, &[]);
        deliver(&mut split, settings, &entries, &deliveries);
        check(split.directory.path(), &entries, &questions);
        prop_assert_eq!(dump(split.directory.path()), dump(once.directory.path()));
        // Sums by host, and packed values.
        split.sink.seal().unwrap();
        check(split.directory.path(), &entries, &questions);
        check_verified(split.directory.path());
    }

    /// After each commit, and after each death before one, everything that a reader sees is consistent.
    #[test]
    fn every_commit_is_consistent_to_readers(
        steps in prop::collection::vec(step(false), 1..40),
        cuts in prop::collection::vec(1_usize..12, 1..6),
        questions in prop::collection::vec(question(), 45),
    ) {
        let settings = SinkSettings { detail_months: 1_000, rows_per_month_max: 1_000_000 };
        let mut store = Store::with(settings);
        let entries = entries(&steps);
        let mut first = 0;
        for cut in cuts {
            let last = (first + cut).min(entries.len());
            let mut next = first;
            while next < last {
                let (epoch, length) = (entries[next].0, of_one_run(&entries[next..last]));
                let batch = &entries[next..next + length];
                let batch: Vec<Entry> = batch.iter().map(|(_, entry)| *entry).collect();
                drop(store.sink.stage(epoch, next as u64 + 1, &batch).unwrap());
                if next == first {
                    check(store.directory.path(), &entries[..next], &questions);
                    check_verified(store.directory.path());
                }
                store.sink.apply(epoch, next as u64 + 1, &batch).unwrap();
                next += length;
            }
            // Every second time with sums by host and packed values, which later batches change.
            if cut % 2 == 0 {
                store.sink.seal().unwrap();
            }
            check(store.directory.path(), &entries[..last], &questions);
            check_verified(store.directory.path());
            first = last;
        }
    }
}
