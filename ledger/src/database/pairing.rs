//! Detects a database file and a write-ahead log (`-wal`) that do not belong together. An older copy of the
//! file beside a newer log is a mixture of two snapshots, which SQLite does not notice.
//!
//! Each log has a number. It is the first thing written to the log (`log_begun`), and the last thing copied
//! from it into the file (`log_copied`). Each of the two tables has a page of its own: after a checkpoint
//! `log_copied` is read from the file, and `log_begun` from the log.
//!
//! Guarantees: a file that is older than the last complete checkpoint before its log is detected.
//! Not handled here: a truncated log, which leaves an older snapshot (`inventory`); a log older than its
//! file, copied between the last write to it and the first write of the next log; a log that continues after
//! a checkpoint which a reader blocked.

use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, ffi};

use super::checksum;
use super::schema::{self, Migration, SchemaError};

/// The kind of a checkpoint.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Checkpoint {
    /// Copies what no reader needs. If that was everything, the next write begins a new log.
    Passive,
    /// Waits for readers, and empties the log: before the connection is closed.
    Truncate,
}

/// Opens the database at `path`, which may be blank, for writing, migrates it and numbers its log.
///
/// # Errors
/// File and log do not belong together, or the schema is refused: both are as they were.
pub(crate) fn open(path: &Path, migrations: &[Migration]) -> Result<Connection, SchemaError> {
    let failed = |cause| schema::sqlite(path, cause);
    let mut connection = schema::connect(path)?;
    // Closing a refused one would copy the log into the file.
    let keep_log = |connection: &Connection, is_kept| {
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, is_kept).map_err(failed)
    };
    keep_log(&connection, true)?;
    check(&connection).map_err(failed)?;
    schema::migrate(&mut connection, path, migrations)?;
    keep_log(&connection, false)?;
    schema::configure(&connection).and_then(|()| begin(&connection, path)).map_err(failed)?;
    Ok(connection)
}

/// Numbers the log of the database at `path`, which has just been opened for writing. Continues a log that a
/// killed process left.
fn begin(connection: &Connection, path: &Path) -> rusqlite::Result<()> {
    let (begun, copied) = read(connection)?;
    if begun == copied {
        put(connection, BEGUN, begun + 1)
    } else if is_empty(path) {
        // SQLite closed the log itself: the file has all of it, but not its number.
        checkpoint(connection, Checkpoint::Passive)
    } else {
        Ok(())
    }
}

/// Copies the log into the file: SQLite's checkpoint with the numbers around it. No other checkpoint may be
/// used.
pub(crate) fn checkpoint(connection: &Connection, checkpoint: Checkpoint) -> rusqlite::Result<()> {
    let (begun, copied) = read(connection)?;
    if begun != copied {
        put(connection, COPIED, begun)?;
    }
    let pragma = match checkpoint {
        Checkpoint::Passive => "PRAGMA wal_checkpoint(PASSIVE)",
        Checkpoint::Truncate => "PRAGMA wal_checkpoint(TRUNCATE)",
    };
    let (frames, done): (i64, i64) =
        connection.query_row(pragma, [], |row| Ok((row.get(1)?, row.get(2)?)))?;
    // Otherwise the log continues, and so does its number.
    match checkpoint == Checkpoint::Passive && frames == done {
        true => put(connection, BEGUN, begun + 1),
        false => Ok(()),
    }
}

/// Refuses a file and a log that do not belong together. A database of a version without numbers is accepted.
pub(crate) fn check(connection: &Connection) -> rusqlite::Result<()> {
    let tables = "SELECT count(*) FROM sqlite_schema WHERE name IN ('log_begun', 'log_copied')";
    if connection.query_row(tables, [], |row| row.get::<_, i64>(0))? < 2 {
        return Ok(());
    }
    let (begun, copied) = read(connection)?;
    if (0..=1).contains(&(begun - copied)) {
        return Ok(());
    }
    let text = format!(
        "the file and the log beside it (`-wal`) are of different moments: the file has logs up to {copied}, \
         and the log is number {begun}; if a copy of the file was put back, remove the log"
    );
    Err(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_CORRUPT), Some(text)))
}

const BEGUN: &str = "log_begun";
const COPIED: &str = "log_copied";

/// The number of the log, and that of the last copied one.
fn read(connection: &Connection) -> rusqlite::Result<(i64, i64)> {
    let number = |table: &str| {
        let mut select = connection.prepare_cached(&format!("SELECT * FROM {table}"))?;
        let number = select.query_row([], |row| {
            checksum::check(row, table)?;
            row.get("number")
        });
        Ok::<i64, rusqlite::Error>(number.optional()?.unwrap_or(0))
    };
    Ok((number(BEGUN)?, number(COPIED)?))
}

fn put(connection: &Connection, table: &str, number: i64) -> rusqlite::Result<()> {
    let put = format!("INSERT OR REPLACE INTO {table} VALUES (?1, ?2, ?3)");
    checksum::put(connection, &put, &[ValueRef::Integer(1), ValueRef::Integer(number)])
}

/// Whether there is no log beside the file, or an empty one.
fn is_empty(path: &Path) -> bool {
    std::fs::metadata(schema::beside(path, "-wal")).map_or(true, |log| log.len() == 0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::schema::month_db::MONTH;
    use super::*;

    fn open(path: &Path) -> Connection {
        if !path.exists() {
            fs::write(path, "").unwrap();
        }
        super::open(path, MONTH).unwrap()
    }

    fn write(connection: &Connection, lsn: i64) {
        connection.execute("INSERT OR REPLACE INTO source VALUES (1, ?1, 0)", [lsn]).unwrap();
    }

    /// Copies a file and a log under another name.
    fn copy(file: &Path, log: &Path, target: &Path) {
        fs::copy(file, target).unwrap();
        fs::copy(schema::beside(log, "-wal"), schema::beside(target, "-wal")).unwrap();
        let _ = fs::remove_file(schema::beside(target, "-shm"));
    }

    fn is_detected(path: &Path) -> bool {
        let error = check(&schema::connect(path).unwrap()).err();
        error.is_some_and(|error| error.to_string().contains("of different moments"))
    }

    /// Copies of a database at each step of its life. Of any two steps, file and log belong together only if
    /// no checkpoint lies between them.
    #[test]
    fn older_file_beside_newer_log_is_detected() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: String| directory.path().join(name);
        let database = path("a.db".to_owned());
        let mut connection = open(&database);
        let kept = |moment: usize| path(format!("kept-{moment}.db"));
        let mut generations = Vec::new();
        for moment in 0..12 {
            write(&connection, moment);
            copy(&database, &database, &kept(generations.len()));
            generations.push(moment / 3);
            match moment {
                // One close in order, and one like that of a killed process.
                5 => {
                    checkpoint(&connection, Checkpoint::Truncate).unwrap();
                    drop(connection);
                    connection = open(&database);
                }
                7 => {
                    drop(open(&database));
                }
                _ if moment % 3 == 2 => checkpoint(&connection, Checkpoint::Passive).unwrap(),
                _ => {}
            }
        }
        for (file, of_file) in generations.iter().enumerate() {
            for (log, of_log) in generations.iter().enumerate().skip(file) {
                let mixed = path("mixed.db".to_owned());
                copy(&kept(file), &kept(log), &mixed);
                assert_eq!(is_detected(&mixed), of_file != of_log, "file of {file}, log of {log}");
            }
        }
    }

    /// When the last connection is closed, SQLite copies all of a log and does not number it.
    #[test]
    fn log_closed_by_sqlite_gets_its_own_number() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.db");
        let connection = open(&path);
        write(&connection, 1);
        drop(connection);
        let kept = directory.path().join("kept.db");
        fs::copy(&path, &kept).unwrap();
        let connection = open(&path);
        write(&connection, 2);
        checkpoint(&connection, Checkpoint::Passive).unwrap();
        write(&connection, 3);
        let mixed = directory.path().join("mixed.db");
        copy(&path, &path, &mixed);
        assert!(!is_detected(&mixed));
        copy(&kept, &path, &mixed);
        assert!(is_detected(&mixed));
    }
}
