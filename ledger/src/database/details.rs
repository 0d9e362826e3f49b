//! The tables of details in a month's file: those of this version, and those of a version without accounts
//! and quarter-hours, which an earlier program filled.
//!
//! Guarantees: the same columns from both. What the earlier version counted belongs to the last quarter-hour
//! of its hour, as in the sums that were migrated.

use rusqlite::Connection;

use super::month::{HOUR_NS, QUARTER_NS};

/// The first version of a month's file with quarter-hours.
const VERSION: i64 = 3;

/// The first version with ranges of rows and sums by host.
const VERSION_WITH_SUMS: i64 = 4;

/// The tables of one file.
#[derive(Clone, Debug, Default)]
pub(crate) struct DetailTables {
    tables: Vec<DetailTable>,
    has_sums: bool,
}

/// A table of details.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct DetailTable {
    pub(crate) name: &'static str,
    pub(crate) kind: DetailKind,
    /// Whether its rows have users and hours in place of accounts and quarter-hours.
    pub(crate) is_hourly: bool,
}

/// The kind of a table's rows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum DetailKind {
    /// Closed flows.
    Flow,
    /// What a flow moved before its last span.
    Part,
    /// Sums of flows and parts beyond the row limit.
    Aggregate,
}

impl DetailTables {
    /// The tables of a month's file.
    pub(crate) fn read(file: &Connection) -> rusqlite::Result<DetailTables> {
        use DetailKind::{Aggregate, Flow, Part};
        let kinds =
            [(Flow, "flow", "flow_2"), (Part, "part", "part_2"), (Aggregate, "aggregate", "aggregate_2")];
        let version: i64 = file.pragma_query_value(None, "user_version", |row| row.get(0))?;
        let table = |name, kind, is_hourly| DetailTable { name, kind, is_hourly };
        if version < VERSION {
            let tables = kinds.map(|(kind, name, _)| table(name, kind, true)).to_vec();
            return Ok(Self { tables, has_sums: false });
        }
        let mut tables = kinds.map(|(kind, name, _)| table(name, kind, false)).to_vec();
        let exists = "SELECT count(*) FROM sqlite_schema WHERE name = ?1";
        for (kind, _, name) in kinds {
            if file.query_row(exists, [name], |row| row.get::<_, i64>(0))? > 0 {
                tables.push(table(name, kind, true));
            }
        }
        Ok(Self { tables, has_sums: version >= VERSION_WITH_SUMS })
    }

    /// Whether the file has tables for ranges of rows (`row_ranges`) and for sums by host (`host_sums`).
    pub(crate) fn have_sums(&self) -> bool {
        self.has_sums
    }

    /// All tables.
    pub(crate) fn all(&self) -> impl Iterator<Item = DetailTable> {
        self.tables.iter().copied()
    }

    /// The tables of a kind.
    pub(crate) fn of(&self, kind: DetailKind) -> impl Iterator<Item = DetailTable> {
        self.all().filter(move |table| table.kind == kind)
    }

    /// The names of tables with a row for each flow or part, which have the number of an entry.
    pub(crate) fn single_rows(&self) -> impl Iterator<Item = &'static str> {
        self.all().filter(|table| table.kind != DetailKind::Aggregate).map(|table| table.name)
    }
}

impl DetailTable {
    /// The rows that `condition` admits, with the columns `id` (not of aggregates), `at_ns`, `quarter`,
    /// `account`, `user`, `host`, `port`, `protocol`, `class`, `set_number`, `live` (1 for an
    /// open flow), and those of [`super::sums::Sums`].
    ///
    /// Hourly rows need the SQL function `account_of`, from a user's name.
    pub(crate) fn select(&self, condition: &str) -> String {
        format!("SELECT {} FROM {} WHERE {condition}", self.columns(), self.name)
    }

    /// The same, with the row's own columns from [`COLUMNS`] on.
    pub(crate) fn select_with_row(&self, condition: &str) -> String {
        format!("SELECT {}, {name}.* FROM {name} WHERE {condition}", self.columns(), name = self.name)
    }

    /// Whether it has no row.
    pub(crate) fn is_empty(&self, file: &Connection) -> rusqlite::Result<bool> {
        file.query_row(&format!("SELECT NOT EXISTS (SELECT 1 FROM {})", self.name), [], |row| row.get(0))
    }

    /// Whether it has a row with a higher number than `number`.
    pub(crate) fn has_rows_behind(&self, file: &Connection, number: i64) -> rusqlite::Result<bool> {
        let last = format!("SELECT ifnull(max(rowid), 0) > ?1 FROM {}", self.name);
        file.query_row(&last, [number], |row| row.get(0))
    }

    fn columns(&self) -> String {
        let Self { kind, is_hourly, .. } = *self;
        let (account, set, requests) = match is_hourly {
            true => ("account_of(user) AS account", "0 AS set_number", "0"),
            false => ("account", "set_number", "requests"),
        };
        let last_quarter = |hour: &str| format!("{hour} * 4 + 3");
        let quarter = match (kind, is_hourly) {
            (_, false) => "quarter".to_owned(),
            (DetailKind::Flow, true) => last_quarter(&format!("(closed_ns / {HOUR_NS})")),
            (_, true) => last_quarter("hour"),
        };
        // The last quarter-hour that the database can hold is cut.
        let last = i64::MAX / QUARTER_NS;
        let end_ns = format!(
            "CASE WHEN ({quarter}) < {last} THEN ({quarter}) * {QUARTER_NS} + {} ELSE {} END",
            QUARTER_NS - 1,
            i64::MAX
        );
        let at_ns = match (kind, is_hourly) {
            (DetailKind::Flow, false) => format!("max(closed_ns, quarter * {QUARTER_NS})"),
            _ => end_ns,
        };
        let (fields, sums) = match kind {
            DetailKind::Flow => (
                "id, port, protocol",
                format!(
                    "1 AS flows, 0 AS live, {requests} AS requests, upstream_tx - up_before AS up,
                     client_tx - down_before AS down, uncertain_up, uncertain_down"
                ),
            ),
            DetailKind::Part => (
                "id, '' AS port, '' AS protocol",
                "0 AS flows, 0 AS live, 0 AS requests, up, down, 0 AS uncertain_up, 0 AS uncertain_down"
                    .to_owned(),
            ),
            DetailKind::Aggregate => (
                "NULL AS id, '' AS port, '' AS protocol",
                format!("flows, 0 AS live, {requests} AS requests, up, down, uncertain_up, uncertain_down"),
            ),
        };
        format!(
            "{fields}, {at_ns} AS at_ns, {quarter} AS quarter, {account}, user, host, class, {set}, {sums}"
        )
    }
}

/// The number of columns that [`DetailTable::select`] documents, and the numbers of some.
pub(crate) const COLUMNS: usize = 17;
pub(crate) const ID: usize = 0;
pub(crate) const PORT: usize = 1;
pub(crate) const PROTOCOL: usize = 2;
pub(crate) const AT_NS: usize = 3;
pub(crate) const ACCOUNT: usize = 5;
pub(crate) const HOST: usize = 7;
pub(crate) const CLASS: usize = 8;
pub(crate) const SET: usize = 9;
/// The first of the sums.
pub(crate) const SUMS: usize = 10;

/// The same columns of the open flows, from `ledger.db`.
pub(crate) fn select_live(condition: &str) -> String {
    format!("SELECT {} FROM live WHERE {condition}", live_columns())
}

/// The same, with the row's own columns from [`COLUMNS`] on.
pub(crate) fn select_live_with_row() -> String {
    format!("SELECT {}, live.* FROM live", live_columns())
}

fn live_columns() -> String {
    format!(
        "id, port, protocol, max(counted_ns, quarter * {QUARTER_NS}) AS at_ns, quarter, account, user,
                host, class, set_number, 0 AS flows, 1 AS live, 0 AS requests, upstream_tx - up_before AS up,
                client_tx - down_before AS down, 0 AS uncertain_up, 0 AS uncertain_down"
    )
}
