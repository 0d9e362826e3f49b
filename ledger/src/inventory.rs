//! What each database of a ledger says about itself and the others; read without changing any.
//!
//! Guarantees: a database is reported if it is missing, damaged, another ledger's, or older than the others
//! require. One that is behind because of a crash is not reported.
//!
//! ```text
//!   ledger.db  --month rows-->  the least that each month must have
//!   a month    --its source-->  how far it has come; ledger.db may be behind only by what the journal has
//! ```

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use rusqlite::Connection;

use crate::database::checksum;
use crate::database::month::Month;
use crate::database::run::Run;
use crate::database::schema::{self, SchemaError};
use crate::database::version_4::damage;
use crate::database::watermarks::Source;
use crate::directory;
use crate::loss::Loss;
use crate::recover::Applied;
use crate::sqlite_usage::{self, QueryError, SqliteUsage, each};

/// The state of all databases in a ledger's directory.
#[derive(Debug, Default)]
pub(crate) struct Inventory {
    /// The contents of `ledger.db`; `None` if it is missing, blank or damaged.
    ledger: Option<LedgerFile>,
    months: BTreeMap<Month, MonthFile>,
    damaged: Vec<Loss>,
    /// Why months that are behind cannot be completed from the journal.
    unrepairable: BTreeMap<Month, String>,
}

#[derive(Debug, Default)]
struct LedgerFile {
    sources: Vec<Source>,
    /// Gateways whose last entry is the end of a run.
    ended: HashSet<i64>,
    /// Gateways with a run that has begun since.
    begun: HashSet<i64>,
    /// Open flows, by gateway.
    open: BTreeMap<i64, HashSet<u128>>,
    /// Month, gateway, the last entry that the month has, and whether it was dropped.
    months: Vec<(Month, i64, i64, bool)>,
    /// Losses that were accepted.
    accepted: u64,
    /// If it is an unused backup: each gateway, when the backup was made, and the last entry of that gateway
    /// in it.
    backups: Vec<(i64, i64, i64)>,
}

/// The last entry in a month, by gateway; `None` if the month is blank.
type MonthFile = Option<BTreeMap<i64, i64>>;

impl Inventory {
    /// Reads the databases in `directory`.
    ///
    /// # Errors
    /// A database belongs to another program or another version.
    pub(crate) fn read(directory: &Path) -> Result<Inventory, SchemaError> {
        let mut inventory = Inventory { damaged: non_files(directory), ..Inventory::default() };
        if directory.join(directory::PARTIAL).exists() {
            let text = "the backup was not finished: make another one".to_owned();
            inventory.damaged.push(Loss::Damaged { file: directory::PARTIAL.to_owned(), text });
        }
        match SqliteUsage::open(directory).and_then(|usage| LedgerFile::read(&usage.connection)) {
            Ok(ledger) => inventory.ledger = Some(ledger),
            Err(QueryError::Absent { .. } | QueryError::Incomplete { .. }) => {}
            Err(QueryError::Schema(error @ SchemaError::TooOld { .. })) => {
                inventory.note_unmigrated(directory, error)?;
            }
            Err(error) => inventory.note("ledger.db", error)?,
        }
        for month in Month::files(directory).unwrap_or_default() {
            let file = sqlite_usage::open_month(directory, month);
            match file.and_then(|file| file.as_ref().map(month_sources).transpose()) {
                Ok(sources) => _ = inventory.months.insert(month, sources),
                Err(error) => inventory.note(&month.file_name(), error)?,
            }
        }
        Ok(inventory)
    }

    /// Notes the damage of a `ledger.db` that is of an earlier version.
    ///
    /// # Errors
    /// There is none: `error`, that it is of an earlier version.
    fn note_unmigrated(&mut self, directory: &Path, error: SchemaError) -> Result<(), SchemaError> {
        let texts = match damage::inspect(&directory::database(directory)) {
            Ok(damage) => damage.losses(),
            Err(cause) if damage::is_damage(&cause) => vec![cause.to_string()],
            Err(_) => Vec::new(),
        };
        if texts.is_empty() {
            return Err(error);
        }
        let file = || "ledger.db".to_owned();
        self.damaged.extend(texts.into_iter().map(|text| Loss::Damaged { file: file(), text }));
        Ok(())
    }

    /// Notes an error of SQLite or of a checksum as damage of a file.
    fn note(&mut self, file: &str, error: QueryError) -> Result<(), SchemaError> {
        let text = match error {
            QueryError::Schema(SchemaError::Sqlite { cause, .. }) | QueryError::Sqlite(cause) => {
                cause.to_string()
            }
            QueryError::Schema(error) => return Err(error),
            error => error.to_string(),
        };
        self.damaged.push(Loss::Damaged { file: file.to_owned(), text });
        Ok(())
    }

    /// The gateways with entries in `ledger.db`.
    pub(crate) fn gateways(&self) -> Vec<u32> {
        let sources = self.ledger.iter().flat_map(|ledger| &ledger.sources);
        sources
            .filter_map(|source| u32::try_from(source.gateway).ok())
            .filter(|gateway| *gateway > 0)
            .collect()
    }

    /// If `ledger.db` is a backup that no gateway has written to yet: when it was made, and the highest last
    /// entry of a gateway in it.
    pub(crate) fn backup_made(&self) -> Option<(i64, u64)> {
        let backups = self.ledger.iter().flat_map(|ledger| &ledger.backups);
        backups.map(|(_, made_ns, lsn)| (*made_ns, lsn.cast_unsigned())).max()
    }

    /// How far `ledger.db` has come with the entries of `gateway`.
    pub(crate) fn applied(&self, gateway: u32) -> Applied {
        let Some(ledger) = &self.ledger else { return Applied::default() };
        let source = ledger.sources.iter().find(|source| source.gateway == i64::from(gateway));
        source.map_or_else(Applied::default, |source| Applied {
            epoch: u32::try_from(source.epoch).unwrap_or(u32::MAX),
            lsn: source.applied_lsn.cast_unsigned(),
            // A backup expects no journal behind it.
            is_ended: ledger.ended.contains(&source.gateway) || !ledger.backups.is_empty(),
            has_begun: ledger.begun.contains(&source.gateway) && ledger.backups.is_empty(),
        })
    }

    /// Accepted losses, as far as `ledger.db` has them.
    pub(crate) fn accepted(&self) -> u64 {
        self.ledger.as_ref().map_or(0, |ledger| ledger.accepted)
    }

    /// Whether `ledger.db` has entries of `gateway`.
    pub(crate) fn knows(&self, gateway: u32) -> bool {
        self.gateways().contains(&gateway)
    }

    /// The last entry of `gateway` that any database has.
    pub(crate) fn reached(&self, gateway: u32) -> u64 {
        let months = self.months.values().flatten();
        let months = months.filter_map(|sources| sources.get(&i64::from(gateway)));
        months.map(|lsn| lsn.cast_unsigned()).max().unwrap_or(0).max(self.applied(gateway).lsn)
    }

    /// The last entry of each gateway in the months. Months that `losses` name as another ledger's are left
    /// out.
    pub(crate) fn months_reached(&self, losses: &[Loss]) -> BTreeMap<u32, u64> {
        let mut reached = BTreeMap::new();
        let is_ours = |month: &Month| {
            let name = month.file_name();
            !losses.iter().any(|loss| matches!(loss, Loss::Foreign { file, .. } if *file == name))
        };
        let months = self.months.iter().filter(|(month, _)| is_ours(month));
        for (gateway, lsn) in months.filter_map(|(_, sources)| sources.as_ref()).flatten() {
            if let Some(gateway) = u32::try_from(*gateway).ok().filter(|gateway| *gateway > 0) {
                let last: &mut u64 = reached.entry(gateway).or_default();
                *last = (*last).max(lsn.cast_unsigned());
            }
        }
        reached
    }

    /// Entries that months have and `ledger.db` lacks, and that the journal, which is `gateway`'s and intact
    /// up to entry `journaled`, does not supply.
    pub(crate) fn behind_months(&self, gateway: u32, journaled: u64, losses: &[Loss]) -> Option<Loss> {
        let lacks = |(owner, last): (u32, u64)| {
            let found = self.applied(owner).lsn;
            // The entry that ends another gateway's flows reaches its months first.
            let is_ending =
                self.ledger.as_ref().is_some_and(|ledger| ledger.open.contains_key(&owner.into()));
            let reaches = if owner == gateway { found.max(journaled) } else { found + u64::from(is_ending) };
            (last > reaches).then_some((owner, found, last))
        };
        let (owner, found, expected) = self.months_reached(losses).into_iter().find_map(lacks)?;
        let file = "ledger.db".to_owned();
        if self.ledger.is_none() {
            return Some(Loss::Missing { file, lsn: expected });
        }
        let cause = match owner == gateway {
            true => format!("the months have entries up to that, and the journal up to {journaled}"),
            false => format!("the months have gateway {owner:08x}'s up to that, and its journal is not here"),
        };
        Some(Loss::Older { file, found, expected, cause })
    }

    /// The open flows of `gateway`.
    pub(crate) fn open_flows(&self, gateway: u32) -> HashSet<u128> {
        let open = self.ledger.as_ref().and_then(|ledger| ledger.open.get(&gateway.into()));
        open.cloned().unwrap_or_default()
    }

    /// The months that are missing, or behind `ledger.db` with the entries of `gateway`.
    pub(crate) fn months_behind(&self, gateway: u32) -> Vec<Month> {
        let months = self.ledger.iter().flat_map(|ledger| &ledger.months);
        let is_behind = |(month, owner, expected, is_dropped): &&(Month, i64, i64, bool)| {
            let is_damaged =
                |loss: &Loss| matches!(loss, Loss::Damaged { file, .. } if *file == month.file_name());
            !is_dropped
                && !self.damaged.iter().any(is_damaged)
                && *owner == i64::from(gateway)
                && matches!(
                    self.month_loss(gateway, *month, *owner, *expected),
                    Some(Loss::Older { .. } | Loss::Missing { .. })
                )
        };
        months.filter(is_behind).map(|(month, ..)| *month).collect()
    }

    /// Notes why a month cannot be completed from the journal.
    pub(crate) fn note_unrepairable(&mut self, month: Month, cause: String) {
        self.unrepairable.insert(month, cause);
    }

    /// Reads the months again.
    pub(crate) fn refresh_months(&mut self, directory: &Path) -> Result<(), SchemaError> {
        self.months = Inventory::read(directory)?.months;
        Ok(())
    }

    /// What is missing. `has_journal`: whether `gateway` has a journal.
    pub(crate) fn losses(&self, gateway: u32, has_journal: bool) -> Vec<Loss> {
        let mut losses = self.damaged.clone();
        let Some(ledger) = &self.ledger else { return losses };
        if let Some(found) = self.gateways().first().filter(|_| has_journal && !self.knows(gateway)) {
            let file = "ledger.db".to_owned();
            return vec![Loss::Foreign { file, found: *found, expected: gateway }];
        }
        let is_reported = |losses: &[Loss], file: &str| {
            losses.iter().any(|loss| matches!(loss, Loss::Damaged { file: reported, .. } if reported == file))
        };
        for (month, owner, expected, is_dropped) in &ledger.months {
            if !is_dropped && !is_reported(&losses, &month.file_name()) {
                losses.extend(self.month_loss(gateway, *month, *owner, *expected));
            }
        }
        losses
    }

    /// What `month` lacks of `owner`'s entries up to `expected`, where the journal is `gateway`'s.
    fn month_loss(&self, gateway: u32, month: Month, owner: i64, expected: i64) -> Option<Loss> {
        let (file, lsn) = (month.file_name(), expected.cast_unsigned());
        let Some(Some(sources)) = self.months.get(&month) else {
            return Some(Loss::Missing { file, lsn });
        };
        let found = sources.get(&owner).copied().unwrap_or(0);
        if found >= expected {
            return None;
        }
        let other = sources.keys().find(|other| **other > 0).filter(|_| !sources.contains_key(&owner));
        let number = |gateway: i64| u32::try_from(gateway).unwrap_or(0);
        Some(match other {
            Some(other) => Loss::Foreign { file, found: number(*other), expected: number(owner) },
            None => {
                let default_cause = match owner == i64::from(gateway) {
                    true => "the next start completes it if the journal has what it lacks",
                    false => "the journal is another gateway's",
                };
                let cause =
                    self.unrepairable.get(&month).cloned().unwrap_or_else(|| default_cause.to_owned());
                Loss::Older { file, found: found.cast_unsigned(), expected: lsn, cause }
            }
        })
    }
}

/// Directories, pipes and links with the name of a database or of a file that SQLite keeps beside one.
fn non_files(directory: &Path) -> Vec<Loss> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let others = entries.filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_file()));
    let names = others.filter_map(|entry| entry.file_name().into_string().ok());
    let is_ours = |name: &String| {
        let name = schema::BESIDE.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
        name == "ledger.db" || Month::from_file_name(name).is_some()
    };
    let damaged = |file| Loss::Damaged { file, text: "it is not a file".to_owned() };
    names.filter(is_ours).map(damaged).collect()
}

impl LedgerFile {
    fn read(connection: &Connection) -> Result<LedgerFile, QueryError> {
        let mut ledger = LedgerFile::default();
        let gateways: Vec<i64> = connection
            .prepare("SELECT gateway FROM source ORDER BY gateway")?
            .query_map([], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        for gateway in gateways {
            let Some(source) = Source::read(connection, gateway)? else { continue };
            if Run::ended_at(connection, gateway, source.applied_lsn)? {
                ledger.ended.insert(gateway);
            }
            if Run::last(connection, gateway)?.is_some_and(|run| run.ended == (0, 0)) {
                ledger.begun.insert(gateway);
            }
            ledger.sources.push(source);
        }
        each(connection, "SELECT * FROM live", |row| {
            // A row with a changed id would end as lost, beside the flow that it was.
            checksum::check(row, "live")?;
            let id: [u8; 16] = row.get("id")?;
            ledger.open.entry(row.get("gateway")?).or_default().insert(u128::from_be_bytes(id));
            Ok(())
        })?;
        each(connection, "SELECT * FROM consent", |row| {
            checksum::check(row, "consent")?;
            ledger.accepted += 1;
            Ok(())
        })?;
        each(connection, "SELECT * FROM month ORDER BY month, gateway", |row| {
            checksum::check(row, "month")?;
            if let Some(month) = Month::from_number(row.get("month")?) {
                ledger.months.push((
                    month,
                    row.get("gateway")?,
                    row.get("applied_lsn")?,
                    row.get("dropped")?,
                ));
            }
            Ok(())
        })?;
        each(connection, "SELECT * FROM backup", |row| {
            checksum::check(row, "backup")?;
            ledger.backups.push((row.get("gateway")?, row.get("made_ns")?, row.get("applied_lsn")?));
            Ok(())
        })?;
        each(connection, "SELECT * FROM hourly", |row| checksum::check(row, "hourly"))?;
        check_pages(connection)?;
        Ok(ledger)
    }
}

/// Reads all pages of the tables that a start or the applier needs, and that nothing above has read. Those of
/// a later migration may be missing. A damaged row is found where it is used.
fn check_pages(connection: &Connection) -> Result<(), QueryError> {
    for table in ["edge", "quota_grant", "quota_notice"] {
        let find = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ?1";
        if connection.query_row(find, [table], |row| row.get::<_, i64>(0))? > 0 {
            each(connection, &format!("SELECT * FROM {table}"), |_| Ok(()))?;
        }
    }
    Ok(())
}

fn month_sources(file: &Connection) -> Result<BTreeMap<i64, i64>, QueryError> {
    let mut sources = BTreeMap::new();
    each(file, "SELECT * FROM source", |row| {
        checksum::check(row, "source")?;
        sources.insert(row.get("gateway")?, row.get("applied_lsn")?);
        Ok(())
    })?;
    Ok(sources)
}
