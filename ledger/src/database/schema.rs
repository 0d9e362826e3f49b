//! The schema of a database: how migrations are applied, and how a foreign file is recognized.
//!
//! Guarantees: a migration is applied once, in one transaction, in the order of the list. A file that is
//! foreign, of a newer version, or made by other migrations is refused unchanged.
//!
//! A released migration is never edited: its checksum is in the databases that it made. Append a new one
//! instead.

pub(crate) mod ledger_db;
pub(crate) mod month_db;

use std::io;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags, TransactionBehavior, ffi, params};
use sys::clock;
use thiserror::Error;

use crate::limits::WRITER_BUSY_MAX;

/// "Toll": the `PRAGMA application_id` of the ledger's databases.
const APPLICATION_ID: i32 = 0x546f_6c6c;

/// The oldest SQLite that may open a ledger. In WAL mode, 3.7.0 to 3.51.2 may corrupt the file when a log is
/// reset while another connection checkpoints.
const SQLITE_VERSION_MIN: i32 = 3_051_003;

/// A step to the next `user_version`.
pub(crate) struct Migration {
    sql: &'static str,
    /// The part that SQL cannot do, after it and in the same transaction; its argument is the path of the
    /// database.
    then: Option<Then>,
    /// Whether readers need the result.
    is_read: bool,
}

type Then = fn(&Connection, &Path) -> Result<(), SchemaError>;

/// The tables that number a write-ahead log (`pairing`), in both kinds of files.
const LOG_NUMBERS: &str =
    "-- The number of the write-ahead log, first in it, and of the last one that was copied into this file.
     CREATE TABLE log_begun (
         id     INTEGER PRIMARY KEY,
         number INTEGER NOT NULL,
         crc    INTEGER NOT NULL
     ) STRICT;
     CREATE TABLE log_copied (
         id     INTEGER PRIMARY KEY,
         number INTEGER NOT NULL,
         crc    INTEGER NOT NULL
     ) STRICT;";

/// Why a database cannot be used.
#[derive(Debug, Error)]
pub enum SchemaError {
    /// The linked SQLite is too old.
    #[error("SQLite {found} may corrupt a database in WAL mode; 3.51.3 is the oldest that may be used")]
    SqliteTooOld {
        /// The version of the linked SQLite.
        found: &'static str,
    },
    /// The database belongs to another program.
    #[error("{path} is a database, and not one of Tollgate's: move it away, or restore a backup")]
    Foreign {
        /// The file.
        path: String,
    },
    /// Written by a later version of the program.
    #[error("{path} has schema version {found}, and this program knows {known}: use a newer program")]
    TooNew {
        /// The file.
        path: String,
        /// Its schema version.
        found: usize,
        /// The last version that this program knows.
        known: usize,
    },
    /// Written by an earlier version of the program; a reader must not migrate it.
    #[error("{path} has schema version {found} of {known}: start `tollgate serve` once to migrate it")]
    TooOld {
        /// The file.
        path: String,
        /// Its schema version.
        found: usize,
        /// The last version that this program knows.
        known: usize,
    },
    /// The file was made by a different migration with the same number.
    #[error(
        "{path} was made by another migration {version} than this program has: use the program that made it, \
         or restore a backup"
    )]
    Changed {
        /// The file.
        path: String,
        /// The migration.
        version: i64,
    },
    /// The flows of an earlier version could not be moved to files by month.
    #[error("the flows of schema version 1 could not be moved to files by month: {0}")]
    Move(String),
    /// The file could not be created.
    #[error("{path}: {cause}")]
    Unmade {
        /// The file.
        path: String,
        /// The system's error.
        cause: io::Error,
    },
    /// SQLite failed.
    #[error(
        "{path}: {cause}. Check that this account may use it and the files beside it, or restore a backup"
    )]
    Sqlite {
        /// The file.
        path: String,
        /// SQLite's error.
        cause: rusqlite::Error,
    },
}

/// Brings the database at `path`, which may be blank, to the last of `migrations`.
pub(crate) fn migrate(
    connection: &mut Connection,
    path: &Path,
    migrations: &[Migration],
) -> Result<(), SchemaError> {
    let failed = |cause| sqlite(path, cause);
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    if is_blank(&transaction).map_err(failed)? {
        let make = "CREATE TABLE migration (
                        version    INTEGER PRIMARY KEY,
                        checksum   INTEGER NOT NULL,
                        applied_ns INTEGER NOT NULL
                    ) STRICT;";
        transaction.execute_batch(make).map_err(failed)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID).map_err(failed)?;
    }
    let found = version(&transaction, path, migrations)?;
    for (migration, version) in migrations.iter().zip(1_i64..).skip(found) {
        apply(&transaction, migration.sql, version).map_err(failed)?;
        if let Some(then) = migration.then {
            then(&transaction, path)?;
        }
    }
    transaction.commit().map_err(failed)
}

/// Checks that a reader can read the version of the database at `path`.
pub(crate) fn check(
    connection: &Connection,
    path: &Path,
    migrations: &[Migration],
) -> Result<(), SchemaError> {
    let found = version(connection, path, migrations)?;
    let needed = migrations.iter().rposition(|migration| migration.is_read).map_or(0, |last| last + 1);
    match migrations.len() {
        known if found < needed => Err(SchemaError::TooOld { path: displayed(path), found, known }),
        _ => Ok(()),
    }
}

/// Opens a connection for the file's only writer.
pub(crate) fn connect(path: &Path) -> Result<Connection, SchemaError> {
    let failed = |cause| sqlite(path, cause);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    connection.busy_timeout(WRITER_BUSY_MAX).map_err(failed)?;
    Ok(connection)
}

/// The suffixes of the files that SQLite keeps beside a database: the log, the log's index, and the journal
/// by which it rolls back an interrupted transaction from before there was a log.
pub(crate) const BESIDE: [&str; 3] = ["-wal", "-shm", "-journal"];

/// The path of the file that SQLite keeps beside the database at `path` with `suffix`.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// More than a writer's statements: none is prepared twice.
const STATEMENTS_MAX: usize = 32;

/// Sets the options of a writer's connection that the file does not store. One of them writes to the file, so
/// [`migrate`] comes first, which refuses a foreign file.
pub(crate) fn configure(connection: &Connection) -> rusqlite::Result<()> {
    let mode: String = connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode != "wal" {
        let text = format!("the file system does not permit WAL mode, only {mode}");
        let code = ffi::Error::new(ffi::SQLITE_CANTOPEN);
        return Err(rusqlite::Error::SqliteFailure(code, Some(text)));
    }
    // In WAL mode, NORMAL syncs at checkpoints only. `pairing` makes all checkpoints, for the one inside a
    // commit would hide a failed sync.
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    connection.pragma_update(None, "journal_size_limit", 64 << 20)?;
    connection.pragma_update(None, "mmap_size", 0)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    connection.pragma_update(None, "trusted_schema", false)
}

/// A new database in memory.
pub(crate) fn new_in_memory(migrations: &[Migration]) -> Result<Connection, SchemaError> {
    let path = Path::new("in memory");
    let mut connection = Connection::open_in_memory().map_err(|cause| sqlite(path, cause))?;
    migrate(&mut connection, path, migrations)?;
    Ok(connection)
}

/// Refuses a SQLite that may corrupt the file.
pub(crate) fn check_sqlite() -> Result<(), SchemaError> {
    if rusqlite::version_number() < SQLITE_VERSION_MIN {
        return Err(SchemaError::SqliteTooOld { found: rusqlite::version() });
    }
    Ok(())
}

pub(crate) fn sqlite(path: &Path, cause: rusqlite::Error) -> SchemaError {
    SchemaError::Sqlite { path: displayed(path), cause }
}

/// The number of applied migrations, which are the first ones of `migrations`.
fn version(connection: &Connection, path: &Path, migrations: &[Migration]) -> Result<usize, SchemaError> {
    let failed = |cause| sqlite(path, cause);
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).map_err(failed);
    if pragma("application_id")? != i64::from(APPLICATION_ID) {
        return Err(SchemaError::Foreign { path: displayed(path) });
    }
    let found = usize::try_from(pragma("user_version")?).unwrap_or(usize::MAX);
    let known = migrations.len();
    if found > known {
        return Err(SchemaError::TooNew { path: displayed(path), found, known });
    }
    for (migration, version) in migrations.iter().zip(1_i64..).take(found) {
        let query = "SELECT checksum FROM migration WHERE version = ?1";
        let seen: i64 = connection.query_row(query, [version], |row| row.get(0)).map_err(failed)?;
        if seen != checksum(migration.sql) {
            return Err(SchemaError::Changed { path: displayed(path), version });
        }
    }
    Ok(found)
}

/// A count as SQLite stores it. More than 2^63 - 1 can only come from a fault; it is stored as that number,
/// so that such a record does not block all later ones.
pub(crate) fn integer(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn apply(connection: &Connection, sql: &str, version: i64) -> rusqlite::Result<()> {
    connection.execute_batch(sql)?;
    connection.execute(
        "INSERT INTO migration VALUES (?1, ?2, ?3)",
        params![version, checksum(sql), integer(clock::wall().0)],
    )?;
    connection.pragma_update(None, "user_version", version)
}

/// Whether a reader failed because of an interrupted transaction that only a writer can roll back.
pub(crate) fn is_half_made(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|error| error.extended_code == ffi::SQLITE_READONLY_ROLLBACK)
}

/// Whether the file has no contents yet.
pub(crate) fn is_blank(connection: &Connection) -> rusqlite::Result<bool> {
    let query = "SELECT count(*) FROM sqlite_schema";
    let objects: i64 = connection.query_row(query, [], |row| row.get(0))?;
    let application: i64 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    Ok(objects == 0 && application == 0)
}

/// FNV-1a, 64 bits: enough to detect an edit, and fixed forever.
fn checksum(sql: &str) -> i64 {
    let start = 0xcbf2_9ce4_8422_2325_u64;
    let hash = sql.bytes().fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    hash.cast_signed()
}

fn displayed(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "CREATE TABLE a (x INTEGER) STRICT;";
    const SECOND: &str = "ALTER TABLE a ADD COLUMN y TEXT; INSERT INTO a VALUES (1, 'two');";

    fn run(connection: &mut Connection, sqls: &[&'static str]) -> Result<usize, String> {
        let path = Path::new("test.db");
        let migrations: Vec<_> =
            sqls.iter().map(|sql| Migration { sql, then: None, is_read: true }).collect();
        migrate(connection, path, &migrations)
            .and_then(|()| version(connection, path, &migrations))
            .map_err(|error| error.to_string())
    }

    fn check_refused(connection: &mut Connection, migrations: &[&'static str], expected: &str) {
        let before: i64 = connection.pragma_query_value(None, "schema_version", |row| row.get(0)).unwrap();
        let error = run(connection, migrations).unwrap_err();
        assert!(error.contains(expected), "{error}");
        let after: i64 = connection.pragma_query_value(None, "schema_version", |row| row.get(0)).unwrap();
        assert_eq!(before, after, "a refused file is unchanged");
    }

    #[test]
    fn each_migration_runs_once() {
        let mut connection = Connection::open_in_memory().unwrap();
        assert_eq!(run(&mut connection, &[FIRST]), Ok(1));
        assert_eq!(run(&mut connection, &[FIRST]), Ok(1));
        assert_eq!(run(&mut connection, &[FIRST, SECOND]), Ok(2));
        assert_eq!(run(&mut connection, &[FIRST, SECOND]), Ok(2));
        let rows: i64 = connection.query_row("SELECT count(*) FROM a", [], |row| row.get(0)).unwrap();
        assert_eq!(rows, 1);
    }

    #[test]
    fn failing_migration_is_rolled_back() {
        let mut connection = Connection::open_in_memory().unwrap();
        run(&mut connection, &[FIRST]).unwrap();
        check_refused(&mut connection, &[FIRST, "CREATE TABLE b (x INTEGER); nonsense"], "nonsense");
        assert_eq!(run(&mut connection, &[FIRST, SECOND]), Ok(2));
    }

    #[test]
    fn foreign_databases_are_refused() {
        let mut connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("CREATE TABLE theirs (x)").unwrap();
        check_refused(&mut connection, &[FIRST], "not one of Tollgate's");
        let mut connection = Connection::open_in_memory().unwrap();
        connection.pragma_update(None, "application_id", 7).unwrap();
        check_refused(&mut connection, &[FIRST], "not one of Tollgate's");
    }

    #[test]
    fn other_migration_histories_are_refused() {
        let mut connection = Connection::open_in_memory().unwrap();
        run(&mut connection, &[FIRST, SECOND]).unwrap();
        check_refused(&mut connection, &[FIRST], "version 2, and this program knows 1");
        check_refused(&mut connection, &[SECOND, FIRST], "another migration 1");
    }

    #[test]
    fn linked_sqlite_is_new_enough() {
        check_sqlite().unwrap();
    }
}
