//! Opens a database on a read-only file system, such as a mounted snapshot or a copy on a medium.
//!
//! Guarantees: nothing there is changed; the contents of SQLite's log are read too.
//!
//! SQLite keeps an index of its log beside a database, and creates it where it is missing. Without a log
//! there is nothing to index. With one the files are copied to a directory where the index can be created.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rusqlite::{Connection, OpenFlags, ffi};

use crate::database::schema::beside;

/// Whether a reader of `path` failed because SQLite could not create a file on a read-only file system.
pub(super) fn is_cause(path: &Path, error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map(|error| error.extended_code & 0xff);
    let is_unmade = matches!(code, Some(ffi::SQLITE_CANTOPEN | ffi::SQLITE_READONLY));
    is_unmade && File::open(path).and_then(|file| sys::disk::is_read_only(&file)).unwrap_or(false)
}

/// Opens the database at `path`, which has no writer meanwhile.
pub(super) fn open(path: &Path) -> Result<Connection, rusqlite::Error> {
    let log = beside(path, "-wal");
    if fs::metadata(&log).is_ok_and(|found| found.len() > 0) {
        return open_copy(path, &log);
    }
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    Connection::open_with_flags(uri(path), flags)
}

/// The URI by which SQLite opens a file as immutable.
fn uri(path: &Path) -> String {
    let plain = path.display().to_string();
    let escaped = plain.replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    format!("file:{escaped}?immutable=1")
}

/// Opens a copy whose files are removed at once.
fn open_copy(path: &Path, log: &Path) -> Result<Connection, rusqlite::Error> {
    let failed = |cause: io::Error| {
        let text = format!("it is on a read-only file system, and cannot be copied to read its log: {cause}");
        rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_CANTOPEN), Some(text))
    };
    let random = getrandom::u64().map_err(|error| failed(io::Error::other(error)))?;
    let directory = std::env::temp_dir().join(format!("tollgate-{random:016x}"));
    DirBuilder::new().mode(0o700).create(&directory).map_err(failed)?;
    let copy = directory.join("copy.db");
    let opened = fs::copy(path, &copy)
        .and_then(|_| fs::copy(log, beside(&copy, "-wal")))
        .map_err(failed)
        .and_then(|_| {
            let connection = Connection::open(&copy)?;
            connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
            Ok(connection)
        });
    // The open files stay readable.
    let _ = fs::remove_dir_all(&directory);
    opened
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn immutable_database_is_read_with_and_without_log() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a ?#%.db");
        let writer = Connection::open(&path).unwrap();
        writer.pragma_update(None, "journal_mode", "WAL").unwrap();
        writer.execute_batch("CREATE TABLE t (x); INSERT INTO t VALUES (1)").unwrap();
        let count = |connection: &Connection| -> i64 {
            connection.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap()
        };
        let names = || fs::read_dir(directory.path()).unwrap().count();
        let before = names();
        assert_eq!(count(&open(&path).unwrap()), 1, "the log has it");
        assert_eq!(names(), before);
        drop(writer);
        assert_eq!(names(), 1, "no log is left");
        assert_eq!(count(&open(&path).unwrap()), 1);
        assert_eq!(names(), 1, "no file was created");
    }
}
