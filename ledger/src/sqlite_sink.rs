//! The default sink: SQLite in WAL mode, with one file of totals and one file of details for each month.
//!
//! Guarantees: the contract of [`Sink`]; readers and the writer never block each other. A process that dies
//! loses no applied batch. A power failure may take the batches since the last checkpoint, which are sent
//! again, and damages nothing.
//!
//! ```text
//!   entries --aggregate--> rows by month --> usage-202601.db   each commits first, with its own watermark
//!                   |                    '-> usage-202602.db
//!                   '----> live, rollups, source ------------> ledger.db commits last
//! ```

mod batch;
#[cfg(test)]
mod conformance;
pub(crate) mod rebuild;
pub(crate) mod resend;
mod retention;

use std::path::{Path, PathBuf};

use rusqlite::{Connection, Transaction, TransactionBehavior};

use sys::clock::{self, WallNanos};

use crate::database::details::DetailTables;
use crate::database::live::LiveFlows;
use crate::database::month::Month;
use crate::database::month_file::{self, MonthFiles, Origin, check_linked};
use crate::database::packed_hosts::PackedHosts;
use crate::database::pairing::{self, Checkpoint};
use crate::database::registry::Registry;
use crate::database::run;
use crate::database::schema::ledger_db::LEDGER;
use crate::database::schema::{self, SchemaError, integer};
use crate::database::watermarks::{Source, put_month};
use crate::database::{derived, hourly, unless_full};
use crate::directory::{self, PathIdentity};
use crate::entry::{Entry, TableFinding};
use crate::numbering::{AccountsAhead, Names, Numbers};
use crate::sink::{Sink, SinkError, SinkSettings};
use crate::sqlite_usage::{self, QueryError, SqliteUsage};
use batch::BatchAggregator;

/// The connection to `ledger.db`, and the months that are open.
pub(crate) struct SqliteSink {
    directory: PathBuf,
    connection: Connection,
    registry: Registry,
    live: LiveFlows,
    months: MonthFiles,
    /// The last entry that an earlier version counted by hour.
    hourly_to: i64,
    gateway: i64,
    months_max: u32,
    /// The first day that may not be packed yet.
    packed_from: i64,
    /// The identity of `ledger.db` when it was opened.
    path_identity: PathIdentity,
}

impl SqliteSink {
    /// Opens the ledger in `directory` for the entries of `gateway`, and migrates it.
    pub(crate) fn open(directory: &Path, gateway: u32, settings: SinkSettings) -> Result<Self, SchemaError> {
        schema::check_sqlite()?;
        assert!(gateway != 0, "gateway 0 stands for flows without an entry");
        let path = directory::database(directory);
        month_file::make(&path)
            .map_err(|cause| SchemaError::Unmade { path: path.display().to_string(), cause })?;
        let path_identity = PathIdentity::at(&path)
            .map_err(|cause| SchemaError::Unmade { path: path.display().to_string(), cause })?;
        let connection = pairing::open(&path, LEDGER)?;
        let gateway = i64::from(gateway);
        let failed = |cause| schema::sqlite(&path, cause);
        let live = LiveFlows::read(&connection, gateway).map_err(failed)?;
        let hourly_to = hourly::read(&connection, gateway).map_err(failed)?;
        let registry = Registry::read(&connection).map_err(failed)?;
        let months = MonthFiles::new(directory, settings.rows_per_month_max);
        let (directory, months_max) = (directory.to_owned(), settings.detail_months);
        Ok(Self {
            directory,
            connection,
            registry,
            live,
            months,
            hourly_to,
            gateway,
            months_max,
            packed_from: 0,
            path_identity,
        })
    }

    /// Whether the ledger in `directory` is of an earlier version.
    pub(crate) fn needs_migration(directory: &Path) -> bool {
        matches!(SqliteUsage::open(directory), Err(QueryError::Schema(SchemaError::TooOld { .. })))
    }

    /// Migrates the ledger in `directory`.
    pub(crate) fn migrate(directory: &Path) -> Result<(), SchemaError> {
        // Any gateway will do: no entry is applied.
        Self::open(directory, u32::MAX, SinkSettings::default()).map(drop)
    }

    /// Where `ledger.db` is new, removes from months with rows by hour what the journal, which has the
    /// entries `first` to `last`, sends again. Rows of flows that went on since then depend on the last entry
    /// that was counted by hour, which `ledger.db` alone had.
    pub(crate) fn remove_resent(&mut self, (first, last): (u64, u64)) -> Result<(), SinkError> {
        let applied = Source::read(&self.connection, self.gateway)?.map_or(0, |source| source.applied_lsn);
        if applied > 0 || first != 1 {
            return Ok(());
        }
        let unread = |cause: std::io::Error| SinkError::Retryable(cause.to_string());
        for month in Month::files(&self.directory).map_err(unread)? {
            let Some(file) = sqlite_usage::open_month(&self.directory, month)? else { continue };
            let has_hourly = DetailTables::read(&file)?.all().any(|table| table.is_hourly);
            let reached = month_file::applied(&file, self.gateway)?;
            drop(file);
            if has_hourly && reached > 0 && reached <= integer(last) {
                self.months.remove_beyond(month, self.gateway, 0)?;
            }
        }
        Ok(())
    }

    /// Packs the last month before the present one: a gateway that was stopped when it ended has not. Months
    /// before that one, and a month of an earlier version, stay as they are.
    fn pack_last_month(&mut self) {
        let present = Month::containing(integer(clock::wall().0));
        let months = Month::files(&self.directory).unwrap_or_default();
        let Some(last) = months.into_iter().rfind(|month| *month < present) else { return };
        let is_due = || {
            let file = sqlite_usage::open_month(&self.directory, last).ok()??;
            let has_sums = DetailTables::read(&file).ok()?.have_sums();
            Some(has_sums && PackedHosts::Month.read(&file, last.number()).ok()?.is_none())
        };
        if is_due() == Some(true) {
            // No entry depends on it: a file that is damaged, or a full disk, must not stop the applier.
            let _ = self.months.pack(last);
        }
    }

    /// The connection to `ledger.db`, for repairs by a start.
    pub(crate) fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// Stores the gateway, whose entries begin with number 1, before its journal exists: a `ledger.db`
    /// without it is another one from then on. A backup stops being one.
    pub(crate) fn register_gateway(&mut self) -> Result<(), SinkError> {
        self.connection.pragma_update(None, "synchronous", "FULL")?;
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if Source::read(&transaction, self.gateway)?.is_none() {
            let gateway = self.gateway;
            Source { gateway, epoch: 0, applied_lsn: 0, durable_lsn: 0 }.write(&transaction)?;
        }
        transaction.execute("DELETE FROM backup", [])?;
        transaction.commit()?;
        Ok(self.connection.pragma_update(None, "synchronous", "NORMAL")?)
    }

    /// Stores the beginning of run `epoch`, which drew the number `run`, before its journal does: a journal
    /// that is missing later is detected, although the run before ended in order.
    pub(crate) fn begin_run(&mut self, epoch: u32, run: u128, at: WallNanos) -> Result<(), SinkError> {
        self.connection.pragma_update(None, "synchronous", "FULL")?;
        let (began, ended, table) = ((0, integer(at.0)), (0, 0), TableFinding::None);
        run::Run { epoch, began, ended, run, table }.write(&self.connection, self.gateway)?;
        Ok(self.connection.pragma_update(None, "synchronous", "NORMAL")?)
    }

    /// Ends the open flows of other gateways: those write to other files, if they run at all.
    pub(crate) fn end_others(directory: &Path, gateway: u32, at: WallNanos) -> Result<(), SinkError> {
        let others: Vec<(i64, i64, i64)> = {
            let mut sink = Self::open(directory, gateway, SinkSettings::default())?;
            let sql = "SELECT gateway, epoch, applied_lsn FROM source
                 WHERE gateway NOT IN (0, ?1) AND gateway IN (SELECT gateway FROM live)";
            let mut select = sink.connection().prepare(sql)?;
            let rows = select.query_map([gateway], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
            rows.collect::<rusqlite::Result<_>>()?
        };
        for (other, epoch, applied_lsn) in others {
            let (other, epoch) = (u32::try_from(other).unwrap_or(0), u32::try_from(epoch).unwrap_or(0));
            let mut sink = Self::open(directory, other, SinkSettings::default())?;
            let ended = [Entry::RunBegan { epoch, at, run: 0, table: TableFinding::None }];
            sink.apply(epoch, applied_lsn.cast_unsigned() + 1, &ended)?;
            sink.seal()?;
        }
        Ok(())
    }

    /// Does all of an `apply` except the last commit; `None` if there is nothing new. Dropping the result
    /// leaves the same state as a process that dies here.
    fn stage(
        &mut self,
        epoch: u32,
        first_lsn: u64,
        entries: &[Entry],
    ) -> Result<Option<Transaction<'_>>, SinkError> {
        let Self { connection, registry, live, months, hourly_to, gateway, .. } = self;
        // Before the months get rows with them.
        registry.ensure(connection, entries, integer(clock::wall().0))?;
        let origin = Origin { gateway: *gateway, epoch: epoch.into() };
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let source = Source::read(&transaction, *gateway)?;
        let known = already_applied(source, origin.epoch, first_lsn, entries.len())?;
        if known == entries.len() {
            return Ok(None);
        }
        let aggregator = BatchAggregator::new(&transaction, registry, live, months, origin);
        let mut aggregator = aggregator.with_hourly(*hourly_to);
        for (entry, lsn) in entries.iter().zip(integer(first_lsn)..).skip(known) {
            aggregator.add(lsn, entry)?;
        }
        let applied_lsn = integer(first_lsn) + integer(entries.len() as u64) - 1;
        for (month, lsn) in aggregator.finish(applied_lsn)? {
            put_month(&transaction, month, *gateway, lsn, false)?;
        }
        let durable_lsn = source.map_or(0, |source| source.durable_lsn);
        Source { gateway: *gateway, epoch: origin.epoch, applied_lsn, durable_lsn }.write(&transaction)?;
        Ok(Some(transaction))
    }

    /// Syncs the log of `ledger.db`; months are synced already. A checkpoint alone would sync only as far as
    /// the oldest reader permits, while a commit in this mode syncs the whole log.
    fn sync(&mut self) -> Result<u64, SinkError> {
        let Some(source) = Source::read(&self.connection, self.gateway)? else { return Ok(0) };
        if source.durable_lsn < source.applied_lsn {
            self.connection.pragma_update(None, "synchronous", "FULL")?;
            Source { durable_lsn: source.applied_lsn, ..source }.write(&self.connection)?;
            self.connection.pragma_update(None, "synchronous", "NORMAL")?;
        }
        Ok(source.applied_lsn.cast_unsigned())
    }
}

impl Sink for SqliteSink {
    fn applied_lsn(&mut self) -> Result<Option<u64>, SinkError> {
        let source = Source::read(&self.connection, self.gateway)?;
        Ok(source.map(|source| source.applied_lsn.cast_unsigned()))
    }

    fn expect_accounts(&mut self, accounts: AccountsAhead) {
        self.registry.accounts.expect(accounts);
    }

    fn apply(&mut self, epoch: u32, first_lsn: u64, entries: &[Entry]) -> Result<(), SinkError> {
        let Some(transaction) = self.stage(epoch, first_lsn, entries)? else { return Ok(()) };
        transaction.commit()?;
        self.live.committed();
        Ok(())
    }

    fn number(&mut self, names: &Names) -> Result<Numbers, SinkError> {
        Ok(self.registry.number(&mut self.connection, names, integer(clock::wall().0))?)
    }

    fn checkpoint(&mut self) -> Result<u64, SinkError> {
        // The journal must not release entries that exist only in unlinked files.
        check_linked(&self.path_identity).and_then(|()| self.months.check_linked())?;
        let durable_lsn = self.sync()?;
        self.months.checkpoint()?;
        if self.packed_from == 0 {
            self.pack_last_month();
        }
        let packed = derived::pack(&mut self.connection, integer(clock::wall().0), self.packed_from);
        self.packed_from = unless_full(packed)?.unwrap_or(self.packed_from);
        pairing::checkpoint(&self.connection, Checkpoint::Passive)?;
        if self.months.take_made() {
            let Self { directory, connection, months, months_max, .. } = self;
            let reached = (self.gateway, integer(durable_lsn));
            retention::remove_oldest(connection, months, directory, *months_max, reached)?;
        }
        Ok(durable_lsn)
    }

    fn seal(&mut self) -> Result<(), SinkError> {
        self.checkpoint()?;
        // Only for tidiness: it leaves empty logs, unless a reader blocks it.
        self.months.close()?;
        Ok(pairing::checkpoint(&self.connection, Checkpoint::Truncate)?)
    }
}

/// How many of `count` entries from `first_lsn` on the database has.
fn already_applied(
    source: Option<Source>,
    epoch: i64,
    first_lsn: u64,
    count: usize,
) -> Result<usize, SinkError> {
    let Some(source) = source else { return Ok(0) };
    let expected = source.applied_lsn.cast_unsigned() + 1;
    let Some(known) = expected.checked_sub(first_lsn) else {
        return Err(SinkError::Fatal(format!("entry {expected} is due, and {first_lsn} came")));
    };
    let known = usize::try_from(known).unwrap_or(usize::MAX).min(count);
    // Entries that are already applied may be sent again by any run.
    if known < count && epoch < source.epoch {
        let text = format!("run {} of this gateway has taken over from run {epoch}", source.epoch);
        return Err(SinkError::Fatal(text));
    }
    Ok(known)
}

impl From<QueryError> for SinkError {
    fn from(error: QueryError) -> Self {
        Self::Fatal(error.to_string())
    }
}

#[cfg(test)]
pub(crate) mod tests;
