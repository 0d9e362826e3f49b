//! Questions to a ledger: how much was used, by whom, where and when.
//!
//! Promises: reads only, also while a gateway writes, and never blocks it; all answers of one [`Usage`]
//! are of one moment, so that rows and totals agree. Leaves to others: how an answer looks, and closing
//! a [`Usage`] soon, since the write-ahead log cannot be emptied past it.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags, Row as SqlRow, params};
use sys::clock::WallNanos;
use thiserror::Error;

use crate::directory;
use crate::limits::READER_BUSY_MAX;
use crate::record::Class;
use crate::sink::schema::{self, SchemaError, integer};

/// A ledger's usage as of the moment of its opening.
#[derive(Debug)]
pub struct Usage {
    connection: Connection,
}

impl Usage {
    /// Opens the ledger in `directory` for reading, whether or not a gateway has it open.
    pub fn open(directory: &Path) -> Result<Self, QueryError> {
        let path = directory::database(directory);
        if !path.is_file() {
            return Err(QueryError::Absent { directory: directory.to_owned() });
        }
        let failed = |cause| schema::sqlite(&path, cause);
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&path, flags).map_err(failed)?;
        connection.busy_timeout(READER_BUSY_MAX).map_err(failed)?;
        // The first read in the transaction fixes what all others see.
        connection.execute_batch("BEGIN").map_err(failed)?;
        if schema::is_blank(&connection).map_err(failed)? {
            return Err(QueryError::Absent { directory: directory.to_owned() });
        }
        schema::check(&connection, &path)?;
        Ok(Self { connection })
    }

    /// The usage that `filter` admits, one row for each group: most bytes first, or days in their order.
    pub fn rows(&self, filter: &Filter, group: GroupBy) -> Result<Vec<Row>, QueryError> {
        let (key, order) = match group {
            GroupBy::User => ("user", MOST_BYTES_FIRST),
            GroupBy::Host => ("host", MOST_BYTES_FIRST),
            GroupBy::Class => ("class", MOST_BYTES_FIRST),
            GroupBy::Day => ("date(closed_ns / 1000000000, 'unixepoch')", "1"),
        };
        self.ask(key, &format!("GROUP BY 1 ORDER BY {order}"), filter)
    }

    /// The sum of all usage that `filter` admits, under the key `total`.
    pub fn total(&self, filter: &Filter) -> Result<Row, QueryError> {
        let mut rows = self.ask("'total'", "", filter)?;
        Ok(rows.pop().expect("a sum without groups has one row"))
    }

    fn ask(&self, key: &str, rest: &str, filter: &Filter) -> Result<Vec<Row>, QueryError> {
        let sql = format!(
            "SELECT {key}, count(*), ifnull(sum(up), 0), ifnull(sum(down), 0) FROM flow
             WHERE (?1 IS NULL OR closed_ns >= ?1) AND (?2 IS NULL OR closed_ns < ?2)
               AND (?3 IS NULL OR user = ?3) AND (?4 IS NULL OR host = ?4)
               AND (?5 IS NULL OR class = ?5) {rest}"
        );
        let mut statement = self.connection.prepare(&sql)?;
        let moment = |moment: Option<WallNanos>| moment.map(|moment| integer(moment.0));
        let class = filter.class.map(Class::as_str);
        let parameters = params![moment(filter.since), moment(filter.until), filter.user, filter.host, class];
        let rows = statement.query_map(parameters, row)?.collect::<Result<_, _>>()?;
        Ok(rows)
    }
}

/// Which flows count. The default admits all.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Filter {
    /// Flows closed at this moment or later.
    pub since: Option<WallNanos>,
    /// Flows closed before this moment.
    pub until: Option<WallNanos>,
    /// Flows of this user.
    pub user: Option<String>,
    /// Flows to this host, as it was requested.
    pub host: Option<String>,
    /// Flows of this class.
    pub class: Option<Class>,
}

/// What makes one row of several flows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GroupBy {
    /// The user's name.
    User,
    /// The host as requested.
    Host,
    /// `external` or `internal`.
    Class,
    /// The UTC day on which the flow closed, as `2026-01-31`.
    Day,
}

/// The usage of one group.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Row {
    /// What the flows have in common.
    pub key: String,
    /// Their number.
    pub flows: u64,
    /// Bytes toward the upstream.
    pub up: u64,
    /// Bytes toward the client.
    pub down: u64,
}

/// Why a question has no answer.
#[derive(Debug, Error)]
pub enum QueryError {
    /// No gateway has kept a ledger there.
    #[error("there is no ledger in {}: `tollgate serve` makes one", directory.display())]
    Absent {
        /// Where it was looked for.
        directory: PathBuf,
    },
    /// The database cannot be used.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// SQLite could not do it. A sum of 2^63 bytes or more is such a failure too, never a wrong number.
    #[error("the ledger could not be read: {0}")]
    Sqlite(#[from] rusqlite::Error),
}

/// Equal sums in the order of their keys, so that the answer is the same each time.
const MOST_BYTES_FIRST: &str = "sum(up) + sum(down) DESC, 1";

fn row(row: &SqlRow<'_>) -> rusqlite::Result<Row> {
    let count = |index| row.get::<_, i64>(index).map(|count| u64::try_from(count).unwrap_or(0));
    Ok(Row { key: row.get(0)?, flows: count(1)?, up: count(2)?, down: count(3)? })
}
