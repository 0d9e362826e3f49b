//! SQLite in WAL mode with one row in each transaction, through one connection that the writers share behind
//! a mutex. One connection each is slower, since writers would then poll for the lock. `NORMAL` survives the
//! process, `FULL` syncs at each commit.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, ensure};
use rusqlite::{Connection, params};

use super::row::{Row, TEXT};
use super::store::{InsertResult, SharedStore};

pub(super) struct Sqlite {
    connection: Mutex<Connection>,
}

impl Sqlite {
    /// A fresh database in `directory`; `synchronous` is the pragma's value.
    ///
    /// # Errors
    /// SQLite failed, or the file system does not permit WAL mode.
    pub(super) fn open(directory: &Path, synchronous: &str) -> Result<Self> {
        let connection = Connection::open(directory.join("rows.db"))?;
        let mode: String =
            connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
        ensure!(mode == "wal", "the file system does not permit WAL mode, only {mode}");
        connection.pragma_update(None, "synchronous", synchronous)?;
        connection.execute_batch(
            "CREATE TABLE line
                 (id INTEGER PRIMARY KEY, at INTEGER, writer INTEGER, guid BLOB, text TEXT) STRICT",
        )?;
        Ok(Self { connection: Mutex::new(connection) })
    }
}

impl SharedStore for Sqlite {
    fn insert(&self, row: &Row) -> Result<InsertResult> {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let mut insert =
            connection.prepare_cached("INSERT INTO line (at, writer, guid, text) VALUES (?1, ?2, ?3, ?4)")?;
        insert.execute(params![row.at_ns.cast_signed(), row.writer, row.guid.to_be_bytes(), TEXT])?;
        Ok(InsertResult::Accepted(1))
    }
}
