//! The claim, the main plot and the plain words of `lab inserts`.

use super::fair_share;
use crate::kit::measurements::Row;
use crate::kit::plot::{Figure, Scale, Style};
use crate::kit::presentation::{NumberTable, PartWords, Presentation, TargetWords, family, part, target};

pub(crate) static PRESENTATION: Presentation = Presentation {
    experiment: "inserts",
    claim: "The ledger takes millions of records per second one at a time, and CPU hogs slow it no more than \
            a fair scheduler would, where a ticket lock collapses.",
    figure,
    figure_parts: &["hogs"],
    verdicts: VERDICTS,
    parts: PARTS,
    targets: TARGETS,
    numbers: NUMBERS,
    terminal_tables: TERMINAL_TABLES,
};

fn figure(rows: &[Row]) -> Option<Figure> {
    let title = "Inserts per second by 4 writers: more is better";
    let scales = [Scale::Linear, Scale::Logarithmic];
    let panel = PRESENTATION.line_panel(rows, "hogs", "inserts_per_s", title, scales)?;
    let notes = vec![
        "Each writer inserts one record at a time while other processes compute without end. ours is the \
         ledger; latch, ticket and turnstile are locks around a page in memory, which store nothing."
            .to_owned(),
    ];
    Some(Figure { title: "Inserts beside CPU hogs".to_owned(), panels: vec![panel], notes })
}

/// What the terminal shows; the rest is in JSON and on the page.
const TERMINAL_TABLES: &[NumberTable] = &[
    NumberTable { family: "hogs", number: "inserts_per_s" },
    NumberTable { family: "hogs", number: fair_share::KEPT },
    NumberTable { family: "hogs", number: fair_share::FAIR },
    NumberTable { family: "hogs", number: "visible_per_s" },
    NumberTable { family: "hogs", number: "blocked_inserts" },
    NumberTable { family: "hogs", number: "insert_p99_99_us" },
    NumberTable { family: "hogs", number: "raw_fdatasync_p50_us" },
    NumberTable { family: "pinned", number: "inserts_per_s" },
    NumberTable { family: "siblings", number: "inserts_per_s" },
    NumberTable { family: "writers", number: "inserts_per_s" },
    NumberTable { family: "one-per-cpu", number: "inserts_per_s" },
    NumberTable { family: "open-loop", number: "accepted_percent" },
    NumberTable { family: "open-loop", number: "inserts_per_s" },
    NumberTable { family: "open-loop", number: "insert_p99_9_us" },
    NumberTable { family: "open-loop", number: "lag_to_visible_p99_ms" },
    NumberTable { family: "in-flight", number: "inserts_per_s" },
];

const VERDICTS: &[(&str, &str)] = &[
    ("appended >= 5 M/s", "The ledger appends at least 5 million records per second to its journal"),
    (
        "appended >= 50 x postgres-async at every K",
        "Beside any number of hogs it appends 50 times as fast as PostgreSQL with asynchronous commit",
    ),
    ("visible >= 100 k/s", "At least 100,000 records per second become visible to queries"),
    (
        "visible >= 2 x postgres-async",
        "Records become visible at least twice as fast as with PostgreSQL and asynchronous commit",
    ),
    (
        "sync-256-in-flight >= 3 x postgres-256-in-flight",
        "With 256 records in flight, each synced, the ledger is at least 3 times as fast as PostgreSQL",
    ),
    (
        "T(K) >= 0.5 x share x T(0) at every K",
        "Beside K hogs the ledger keeps at least half of what a fair share of the CPUs would leave",
    ),
    ("blocked = 0 at every K", "No insert into the ledger blocks, beside any number of hogs"),
    ("open-loop accepted = 100 %", "Of 100,000 offered records per second the ledger accepts all"),
    ("collapse-shown", "A ticket lock keeps less than 5 % of its rate beside 16 hogs"),
];

const HOGS: &str = "CPU hogs";

const PARTS: &[PartWords] = &[
    family("hogs-{}", "4 writers beside {} hogs", HOGS),
    family("pinned-{}", "4 writers and {} hogs, pinned to the same CPUs", HOGS),
    family("siblings-{}", "4 writers, and {} hogs pinned to the siblings of their CPUs", HOGS),
    family("writers-1-hogs-{}", "1 writer beside {} hogs", HOGS),
    family("writers-2-hogs-{}", "2 writers beside {} hogs", HOGS),
    family("writers-8-hogs-{}", "8 writers beside {} hogs", HOGS),
    family("writers-{}", "{} writers without hogs", "writers"),
    family("one-per-cpu-{}", "a writer pinned to each CPU, beside {} hogs", HOGS),
    family("open-loop-{}", "100,000 records offered per second, beside {} hogs", HOGS),
    part("visible", "records until queries find them"),
    family("in-flight-{}", "{} records in flight, each synced", "records in flight"),
];

const TARGETS: &[TargetWords] = &[
    target(
        "ours",
        Style::Ours,
        "the ledger: a flow is opened and closed; a power failure may take the last moment",
    ),
    target("ours-sync", Style::Variant(1), "the ledger, each record in flight until it is durable"),
    target("latch", Style::Rival(1), "a mutex around a page in memory; stores nothing"),
    target("ticket", Style::Rival(4), "a spinning ticket lock around a page in memory; stores nothing"),
    target("turnstile", Style::Rival(5), "a latch behind an admission of one writer per CPU; stores nothing"),
    target("sqlite-normal", Style::Rival(2), "SQLite, a transaction per record, synchronous = NORMAL"),
    target("sqlite-full", Style::Rival(6), "SQLite, a transaction per record, synchronous = FULL"),
    target(
        "postgres-async",
        Style::Rival(3),
        "PostgreSQL, a transaction per record, synchronous_commit = off",
    ),
    target("postgres-sync", Style::Rival(7), "PostgreSQL, a transaction per record, synchronous_commit = on"),
    target("postgres-copy", Style::Rival(8), "PostgreSQL, batches of 10,000 records by COPY"),
];

const NUMBERS: &[(&str, &str)] = &[
    ("inserts_per_s", "accepted inserts per second"),
    ("appended_per_s", "records appended to the journal per second"),
    ("visible_per_s", "records that become visible to queries per second"),
    ("accepted_percent", "accepted records, percent of the offered ones"),
    ("refusals", "refused inserts"),
    ("blocked_inserts", "voluntary context switches inside inserts"),
    ("insert_p50_us", "median time of an insert, µs"),
    ("insert_p99_us", "99th percentile of an insert, µs"),
    ("insert_p99_9_us", "99.9th percentile of an insert, µs"),
    ("insert_p99_99_us", "99.99th percentile of an insert, µs"),
    ("insert_max_us", "longest insert, µs"),
    ("lag_to_durable_p50_ms", "median time until durable, ms"),
    ("lag_to_durable_p99_ms", "99th percentile until durable, ms"),
    ("lag_to_visible_p50_ms", "median time until visible, ms"),
    ("lag_to_visible_p99_ms", "99th percentile until visible, ms"),
    ("raw_fdatasync_p50_us", "median time of an fdatasync of one page beside, µs"),
    ("raw_fdatasync_max_us", "longest fdatasync of one page beside, µs"),
    ("kept_percent", "rate, percent of that without hogs"),
    ("fair_share_percent", "CPU time that a fair scheduler leaves, percent of that without hogs"),
];

#[cfg(test)]
mod tests {
    use super::super::target::Target;
    use super::*;

    #[test]
    fn every_target_has_a_label() {
        for target in Target::ALL {
            let name = target.name();
            assert!(PRESENTATION.target_label(name).is_some(), "{name}");
        }
    }
}
