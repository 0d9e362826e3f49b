//! Answers questions about the usage from the databases.
//!
//! Guarantees: the contract of [`Usage`]. Reads only, also while a gateway writes, and never blocks it. All
//! answers of one [`SqliteUsage`] are of one snapshot. What a version before quarter-hours counted belongs to
//! the last one of its hour.
//! Not handled here: dropping a [`SqliteUsage`] soon; the write-ahead log cannot be emptied while it exists.
//!
//! ```text
//!   by host, port or protocol?
//!          |-- yes --> details of each month in the window, and open flows; by host: a month's own sums of
//!          |           whole days
//!          '-- no --> whole quarter-hours: rollups;  the remaining ends of the window: details
//! ```

mod details;
mod flows;
mod groups;
mod hosts;
mod parts;
mod quotas;
mod read_only;
mod rollups;
mod row_checks;
mod unapplied;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::tz::TimeZone;
use rusqlite::{Connection, OpenFlags, Row as SqlRow};
use thiserror::Error;

use crate::database::derived;
use crate::database::month::Month;
use crate::database::month_file;
use crate::database::pairing;
use crate::database::registry::Registry;
use crate::database::schema::ledger_db::LEDGER;
use crate::database::schema::month_db::MONTH;
use crate::database::schema::{self, Migration, SchemaError};
use crate::database::watermarks::Source;
use crate::directory;
use crate::journal::scan;
use crate::limits::READER_BUSY_MAX;
use crate::query::order::in_order;
use crate::query::window::Window;
use crate::query::zone::Zone;
use crate::query::{Answer, Completeness, Filter, FlowRow, GroupBy, Row, Usage};
use crate::record::Class;
use crate::storage::file::Directory;
use groups::{Groups, Item, TOTAL, Text};
use row_checks::RowChecks;
use unapplied::UnappliedEntries;

/// Attempts to read a journal that a gateway writes meanwhile.
const ATTEMPTS_MAX: u32 = 3;

/// The usage of a ledger as of one snapshot, taken when it was opened.
#[derive(Debug)]
pub struct SqliteUsage {
    pub(crate) directory: PathBuf,
    pub(crate) connection: Connection,
    /// The last applied entry of each gateway.
    pub(crate) applied: Vec<(i64, i64)>,
    /// What the journal has beyond that, if it was requested.
    unapplied: UnappliedEntries,
    /// Why a part of the journal could not be read.
    unread: Option<String>,
    /// The checksums of the rows that were read.
    row_checks: RowChecks,
    /// Months of which an answer has later sums too.
    months_ahead: RefCell<BTreeSet<Month>>,
    /// Whether `ledger.db` has the sums that are made of others.
    has_derived: bool,
    /// The numbers of accounts and sets.
    registry: Arc<Registry>,
    /// The zone of the answers.
    zone: Zone,
}

impl SqliteUsage {
    /// Opens the ledger in `directory` for reading, whether or not a gateway has it open.
    pub fn open(directory: &Path) -> Result<Self, QueryError> {
        let absent = || match Month::files(directory).is_ok_and(|months| !months.is_empty()) {
            true => QueryError::Incomplete { directory: directory.to_owned() },
            false => QueryError::Absent { directory: directory.to_owned() },
        };
        let path = directory::database(directory);
        let connection = open(&path, LEDGER)?.ok_or_else(absent)?;
        let row_checks = RowChecks::default();
        let failed = |cause| schema::sqlite(&path, cause);
        let applied = applied(&connection).map_err(failed)?;
        let has_derived = derived::exist(&connection).map_err(failed)?;
        let registry = Arc::new(Registry::read(&connection).map_err(failed)?);
        let unapplied = UnappliedEntries::new(&registry);
        let (unread, directory) = (None, directory.to_owned());
        Ok(Self {
            directory,
            connection,
            applied,
            unapplied,
            unread,
            row_checks,
            months_ahead: RefCell::default(),
            has_derived,
            registry,
            zone: Zone::utc(),
        })
    }

    /// As [`SqliteUsage::open`], including entries that the journal has and the database lacks.
    pub fn open_with_journal(directory: &Path) -> Result<Self, QueryError> {
        let mut usage = Self::open(directory)?;
        for is_last in (0..ATTEMPTS_MAX).map(|attempt| attempt + 1 == ATTEMPTS_MAX) {
            match usage.read_journal() {
                Ok(()) => break,
                Err(error) if is_last => usage.unread = Some(error.to_string()),
                // A segment was reused: the database has its entries by now.
                Err(_) => usage = Self::open(directory)?,
            }
        }
        Ok(usage)
    }

    fn read_journal(&mut self) -> Result<(), Box<dyn std::error::Error>> {
        let storage = Directory::for_reading(&directory::journal(&self.directory));
        let gateway = match directory::gateway(&self.directory)? {
            // The journal has a lost number too, unless it belongs to another ledger.
            None => scan::gateway(&storage)?.filter(|gateway| self.has_entries_of(i64::from(*gateway))),
            found => found,
        };
        let Some(number) = gateway.map(i64::from) else { return Ok(()) };
        let source = Source::read(&self.connection, number)?;
        let applied = source.map_or((0, 0), |source| {
            (u32::try_from(source.epoch).unwrap_or(u32::MAX), source.applied_lsn.cast_unsigned())
        });
        let mut unapplied = UnappliedEntries::read(&self.registry, &self.connection, number)?;
        scan::each_proved(&storage, applied, |entry| unapplied.add(entry))?;
        self.unapplied = unapplied;
        Ok(())
    }

    /// The same usage, with entries of `gateway` that are not applied.
    #[cfg(test)]
    pub(crate) fn with_unapplied<'e>(
        mut self,
        gateway: i64,
        entries: impl Iterator<Item = &'e crate::entry::Entry>,
    ) -> Result<Self, QueryError> {
        self.unapplied = UnappliedEntries::read(&self.registry, &self.connection, gateway)?;
        entries.for_each(|entry| self.unapplied.add(entry));
        Ok(self)
    }

    /// Whether the database has entries of `gateway`, or of none.
    fn has_entries_of(&self, gateway: i64) -> bool {
        self.applied.is_empty() || self.applied.iter().any(|(found, _)| *found == gateway)
    }

    /// Sums up what `filter` admits; returns the months whose details are needed and missing.
    fn collect_groups(
        &self,
        filter: &Filter,
        keys: &[GroupBy],
        groups: &mut Groups,
    ) -> Result<Vec<Month>, QueryError> {
        let window = filter.window();
        self.unapplied.add_to(filter, keys, (window, &self.zone), groups)?;
        let whole = window.whole_quarters().filter(|_| filter.host.is_none());
        let Some(whole) = whole.filter(|_| keys.iter().all(|key| key.is_rolled_up())) else {
            return self.add_details(filter, keys, window, groups);
        };
        self.add_rollups(filter, keys, whole, groups)?;
        let mut missing = Vec::new();
        for edge in window.without(whole) {
            missing.extend(self.add_details(filter, keys, edge, groups)?);
        }
        missing.dedup();
        Ok(missing)
    }

    /// The month's file in a snapshot; `None` if there is none. It may be ahead of `ledger.db`: see
    /// [`SqliteUsage::is_visible`].
    pub(crate) fn month(&self, month: Month) -> Result<Option<Connection>, QueryError> {
        let file = open_month(&self.directory, month)?;
        file.iter().try_for_each(|file| self.registry.install(file))?;
        Ok(file)
    }

    /// Whether a month's file has later entries of a gateway than `ledger.db`.
    pub(crate) fn is_ahead(&self, file: &Connection) -> rusqlite::Result<bool> {
        for (gateway, applied_lsn) in &self.applied {
            if month_file::applied(file, *gateway)? > *applied_lsn {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The condition on a month's row that `ledger.db` has its entry: a month commits first.
    pub(crate) fn is_visible(&self) -> String {
        let gateways: String =
            self.applied.iter().map(|(gateway, lsn)| format!("WHEN {gateway} THEN {lsn} ")).collect();
        // Gateway 0 stands for rows without an entry.
        format!("lsn <= CASE gateway WHEN 0 THEN lsn {gateways} ELSE -1 END")
    }

    /// The months that have had a file, and whether it was dropped.
    pub(crate) fn months(&self) -> Result<BTreeMap<Month, bool>, QueryError> {
        let mut select = self.connection.prepare("SELECT month, max(dropped) FROM month GROUP BY month")?;
        let rows = select.query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, bool>(1)?)))?;
        let rows: Vec<_> = rows.collect::<rusqlite::Result<_>>()?;
        Ok(rows
            .into_iter()
            .filter_map(|(month, is_dropped)| Some((Month::from_number(month)?, is_dropped)))
            .collect())
    }
}

impl Usage for SqliteUsage {
    type Error = QueryError;

    fn in_zone(self, zone: TimeZone) -> Self {
        Self { zone: Zone::new(zone), ..self }
    }

    fn rows(&self, filter: &Filter, keys: &[GroupBy]) -> Result<Answer, QueryError> {
        let mut groups = Groups::new(keys, &self.registry, &self.zone);
        let missing = self.collect_groups(filter, keys, &mut groups)?;
        let rows = in_order(groups.finish()?, keys, &self.zone);
        Ok(Answer { rows, missing: missing.into_iter().map(|month| month.to_string()).collect() })
    }

    fn total(&self, filter: &Filter) -> Result<Row, QueryError> {
        let mut groups = Groups::new(&[], &self.registry, &self.zone);
        self.collect_groups(filter, &[], &mut groups)?;
        let none = || Row { keys: vec![TOTAL.to_owned()], ..Row::default() };
        Ok(groups.finish()?.pop().unwrap_or_else(none))
    }

    fn flows(&self, filter: &Filter, limit: usize) -> Result<Vec<FlowRow>, QueryError> {
        self.list_flows(filter, limit)
    }

    fn users(&self) -> Result<BTreeSet<String>, QueryError> {
        let sql = "SELECT account FROM rollup_month UNION SELECT account FROM live";
        let mut select = self.connection.prepare(sql)?;
        let accounts = select.query_map([], |row| row.get(0))?;
        let mut accounts: HashSet<i64> = accounts.collect::<rusqlite::Result<_>>()?;
        let ahead = || self.unapplied.users();
        accounts.extend(ahead().filter_map(|user| self.registry.accounts.find(user)));
        let mut users = self.registry.accounts.all_names(&accounts);
        users.extend(ahead().map(str::to_owned));
        Ok(users)
    }

    fn has_user(&self, name: &str) -> Result<bool, QueryError> {
        let account = self.registry.accounts.find(name);
        let is_ahead =
            |user: &str| user == name || (account.is_some() && self.registry.accounts.find(user) == account);
        Ok(self.unapplied.users().any(is_ahead) || self.find_user(name)?)
    }

    fn teams(&self) -> BTreeSet<String> {
        self.registry.teams.names()
    }

    fn sets(&self) -> BTreeSet<String> {
        self.registry.sets.names().chain(self.unapplied.sets()).map(str::to_owned).collect()
    }

    fn consents(&self) -> Result<Vec<String>, QueryError> {
        let mut select =
            self.connection.prepare("SELECT given_ns, author, what FROM consent ORDER BY given_ns, lsn")?;
        let consents = select.query_map([], |row| {
            let given_at = jiff::Timestamp::from_nanosecond(row.get::<_, i64>(0)?.into()).unwrap_or_default();
            let (author, what): (String, String) = (row.get(1)?, row.get(2)?);
            Ok(format!("{given_at:.0} by {author}: {what}"))
        })?;
        Ok(consents.collect::<rusqlite::Result<_>>()?)
    }

    fn completeness(&self) -> Completeness {
        Completeness {
            includes_unapplied: !self.unapplied.is_empty(),
            unread: self.unread.clone(),
            has_damaged_rows: self.row_checks.is_broken(),
            months_ahead: self.months_ahead.borrow().iter().map(Month::to_string).collect(),
        }
    }
}

/// Opens the file of `month` in `directory` for reading; `None` if there is none.
pub(crate) fn open_month(directory: &Path, month: Month) -> Result<Option<Connection>, QueryError> {
    open(&month.path(directory), MONTH)
}

/// Whether the file is a database with contents: opening an empty one would make SQLite remove its log.
pub(crate) fn has_content(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() > 0)
}

/// Opens a database for reading, in a transaction, so that all reads are of one snapshot; `None` if it is
/// missing or blank.
fn open(path: &Path, migrations: &[Migration]) -> Result<Option<Connection>, QueryError> {
    if !has_content(path) {
        return Ok(None);
    }
    let failed = |cause| schema::sqlite(path, cause);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = match Connection::open_with_flags(path, flags) {
        // Removed since the check.
        Err(_) if !path.is_file() => return Ok(None),
        opened => opened.map_err(failed)?,
    };
    let mut is_blank = begin(&connection);
    if is_blank.as_ref().is_err_and(|error| !schema::is_half_made(error) && read_only::is_cause(path, error))
    {
        connection = read_only::open(path).map_err(failed)?;
        is_blank = begin(&connection);
    }
    match is_blank {
        Ok(false) => {}
        Ok(true) => return Ok(None),
        // Its first transaction, which creates its tables, was interrupted: the next writer rolls it back.
        Err(error) if schema::is_half_made(&error) => return Ok(None),
        Err(error) => return Err(failed(error).into()),
    }
    let checked = schema::check(&connection, path, migrations);
    // An earlier version is migrated: not a mixture of two moments.
    if matches!(checked, Ok(()) | Err(SchemaError::TooOld { .. })) {
        pairing::check(&connection).map_err(failed)?;
    }
    checked?;
    Ok(Some(connection))
}

/// Begins a transaction and reads whether the database is blank: the first read fixes the snapshot.
fn begin(connection: &Connection) -> rusqlite::Result<bool> {
    connection.busy_timeout(READER_BUSY_MAX)?;
    connection.execute_batch("BEGIN")?;
    schema::is_blank(connection)
}

fn applied(connection: &Connection) -> rusqlite::Result<Vec<(i64, i64)>> {
    let mut select = connection.prepare("SELECT gateway, applied_lsn FROM source ORDER BY gateway")?;
    select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
}

/// Calls `on_row` with each row that `sql` selects.
pub(crate) fn each(
    connection: &Connection,
    sql: &str,
    mut on_row: impl FnMut(&SqlRow<'_>) -> rusqlite::Result<()>,
) -> Result<(), QueryError> {
    let mut select = connection.prepare(sql)?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        on_row(row)?;
    }
    Ok(())
}

impl Filter {
    /// The account of the requested user; one that no user has, if it has none.
    fn account(&self, registry: &Registry) -> Option<i64> {
        self.user.as_ref().map(|user| registry.accounts.find(user).unwrap_or(-1))
    }

    /// The accounts of the requested team.
    fn members(&self, registry: &Registry) -> Option<HashSet<i64>> {
        self.team.as_ref().map(|team| registry.teams.accounts(team))
    }

    /// Whether only some accounts are admitted.
    fn is_of_account(&self) -> bool {
        self.user.is_some() || self.team.is_some()
    }

    /// The number of the requested set; one that no set has, if it has none.
    fn set(&self, registry: &Registry) -> Option<i64> {
        self.set.as_ref().map(|set| registry.sets.find(set).unwrap_or(-1))
    }

    /// What the filter admits in `window`.
    fn admission(&self, registry: &Registry, window: Window) -> Admission<'_> {
        Admission {
            window,
            account: self.account(registry),
            members: self.members(registry),
            host: self.host.as_deref(),
            class: self.class.map(Class::as_str),
            set: self.set(registry),
        }
    }
}

/// A filter with numbers in place of names, and a span.
struct Admission<'a> {
    window: Window,
    account: Option<i64>,
    /// The accounts of the requested team.
    members: Option<HashSet<i64>>,
    host: Option<&'a str>,
    class: Option<&'static str>,
    set: Option<i64>,
}

impl Admission<'_> {
    /// The same for rows whose host is known to be admitted.
    fn of_any_host(self) -> Self {
        Self { host: None, ..self }
    }

    fn admits(&self, item: &Item<'_>) -> bool {
        let has_host = |host| matches!(item.host, Text::Plain(text) if text == host);
        (self.window.since_ns..=self.window.last_ns).contains(&item.at_ns)
            && self.account.is_none_or(|account| account == item.account)
            && self.members.as_ref().is_none_or(|members| members.contains(&item.account))
            && self.host.is_none_or(has_host)
            && self.class.is_none_or(|class| class == item.class)
            && self.set.is_none_or(|set| set == item.set)
    }
}

/// Why a query has no result.
#[derive(Debug, Error)]
pub enum QueryError {
    /// There is no ledger.
    #[error("there is no ledger in {}: `tollgate serve` makes one", directory.display())]
    Absent {
        /// The directory.
        directory: PathBuf,
    },
    /// There are months, and no `ledger.db`.
    #[error(
        "ledger.db is missing in {}, and months (usage-*.db) are there: put it back or restore a backup; \
         `tollgate ledger repair` explains what continuing without it means",
        directory.display()
    )]
    Incomplete {
        /// The directory.
        directory: PathBuf,
    },
    /// A database cannot be used.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// SQLite's error.
    #[error("the ledger could not be read: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// A sum reached 2^63 - 1: it is refused, since the number would be wrong.
    #[error("the ledger could not be read: integer overflow")]
    Overflow,
    /// A sum is negative: the database and the entries of the journal behind it contradict each other.
    #[error(
        "the journal's last entries do not continue the database: `tollgate ledger verify` names the cause"
    )]
    Contradiction,
}
