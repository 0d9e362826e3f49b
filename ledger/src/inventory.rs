//! What the databases of a ledger say of themselves and of one another, read without changing any.
//!
//! Guarantees: a database that is missing, older than the others go with, damaged, or another ledger's is
//! told; one that is merely behind a crash is not. Leaves out: what the journal has (`recover`), and what
//! becomes of what is told (`settle`).
//!
//! ```text
//!   ledger.db  --month rows-->  how far each month has come, at least
//!   a month    --its source-->  how far it has come; ledger.db is behind it only as far as the journal has
//! ```

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use rusqlite::Connection;

use crate::directory;
use crate::loss::Loss;
use crate::query::{self, QueryError, Usage, each};
use crate::recover::Applied;
use crate::sink::checksum;
use crate::sink::month::Month;
use crate::sink::run::Run;
use crate::sink::schema::{self, SchemaError};
use crate::sink::watermarks::Source;

/// See the file's header.
#[derive(Debug, Default)]
pub(crate) struct Inventory {
    /// What `ledger.db` says; `None` if it is missing, blank or damaged.
    ledger: Option<LedgerFile>,
    months: BTreeMap<Month, MonthFile>,
    damaged: Vec<Loss>,
    /// Why months that are behind cannot be made whole from the journal.
    unrepairable: BTreeMap<Month, String>,
}

#[derive(Debug, Default)]
struct LedgerFile {
    sources: Vec<Source>,
    /// Gateways whose last entry is the end of a run.
    ended: HashSet<i64>,
    /// Gateways of which a run began to write since.
    begun: HashSet<i64>,
    /// Flows that go on, by gateway.
    open: BTreeMap<i64, HashSet<u128>>,
    /// Month, gateway, how far the month has come, and whether it was dropped.
    months: Vec<(Month, i64, i64, bool)>,
    /// Losses that were accepted.
    accepted: u64,
    /// The gateways of which it is a backup that none has written to yet, when it was made, and the last
    /// entry of each in it.
    backups: Vec<(i64, i64, i64)>,
}

/// How far a month has come, by gateway; `None` if it is blank.
type MonthFile = Option<BTreeMap<i64, i64>>;

impl Inventory {
    /// Looks at the databases in `directory`.
    ///
    /// # Errors
    /// A database is another program's or another version's.
    pub(crate) fn read(directory: &Path) -> Result<Inventory, SchemaError> {
        let mut inventory = Inventory { damaged: non_files(directory), ..Inventory::default() };
        if directory.join(directory::PARTIAL).exists() {
            let text = "this is a backup that was not finished: make another one".to_owned();
            inventory.damaged.push(Loss::Damaged { file: directory::PARTIAL.to_owned(), text });
        }
        match Usage::open(directory).and_then(|usage| LedgerFile::read(&usage.connection)) {
            Ok(ledger) => inventory.ledger = Some(ledger),
            Err(QueryError::Absent { .. } | QueryError::Incomplete { .. }) => {}
            Err(error) => inventory.note("ledger.db", error)?,
        }
        for month in Month::files(directory).unwrap_or_default() {
            let file = query::open_month(directory, month);
            match file.and_then(|file| file.as_ref().map(month_sources).transpose()) {
                Ok(sources) => _ = inventory.months.insert(month, sources),
                Err(error) => inventory.note(&month.file_name(), error)?,
            }
        }
        Ok(inventory)
    }

    /// Notes what SQLite or a checksum says against a file.
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

    /// The gateways of which `ledger.db` has entries.
    pub(crate) fn gateways(&self) -> Vec<u32> {
        let sources = self.ledger.iter().flat_map(|ledger| &ledger.sources);
        sources
            .filter_map(|source| u32::try_from(source.gateway).ok())
            .filter(|gateway| *gateway > 0)
            .collect()
    }

    /// Whether `ledger.db` is a backup that no gateway has written to yet: when it was made, and the last
    /// entry in it, of the gateway that had most.
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
            // A backup has nothing behind it.
            is_ended: ledger.ended.contains(&source.gateway) || !ledger.backups.is_empty(),
            has_begun: ledger.begun.contains(&source.gateway) && ledger.backups.is_empty(),
        })
    }

    /// Losses that were accepted, as far as `ledger.db` has been told.
    pub(crate) fn accepted(&self) -> u64 {
        self.ledger.as_ref().map_or(0, |ledger| ledger.accepted)
    }

    /// Whether `ledger.db` knows `gateway`.
    pub(crate) fn knows(&self, gateway: u32) -> bool {
        self.gateways().contains(&gateway)
    }

    /// The last entry of `gateway` that any database has.
    pub(crate) fn reached(&self, gateway: u32) -> u64 {
        let months = self.months.values().flatten();
        let months = months.filter_map(|sources| sources.get(&i64::from(gateway)));
        months.map(|lsn| lsn.cast_unsigned()).max().unwrap_or(0).max(self.applied(gateway).lsn)
    }

    /// The gateways of which months have entries, and the last one of each; without those months of which
    /// `losses` say that they are another ledger's.
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

    /// What `ledger.db` lacks of entries that months have, where the journal is that of `gateway` and is
    /// whole up to entry `journaled`: those that the journal does not bring.
    pub(crate) fn behind_months(&self, gateway: u32, journaled: u64, losses: &[Loss]) -> Option<Loss> {
        let lacks = |(owner, last): (u32, u64)| {
            let found = self.applied(owner).lsn;
            // The end of another gateway's flows is an entry that its months have first.
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
            true => format!("months have that, and the journal is whole up to entry {journaled}"),
            false => format!("months have that of gateway {owner:08x}, whose journal is not here"),
        };
        Some(Loss::Older { file, found, expected, cause })
    }

    /// The flows of `gateway` that go on.
    pub(crate) fn open_flows(&self, gateway: u32) -> HashSet<u128> {
        let open = self.ledger.as_ref().and_then(|ledger| ledger.open.get(&gateway.into()));
        open.cloned().unwrap_or_default()
    }

    /// The months that are behind `ledger.db` with the entries of `gateway`, or missing.
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

    /// Notes why a month cannot be made whole from the journal.
    pub(crate) fn note_unrepairable(&mut self, month: Month, cause: String) {
        self.unrepairable.insert(month, cause);
    }

    /// Looks at the months again.
    pub(crate) fn refresh_months(&mut self, directory: &Path) -> Result<(), SchemaError> {
        self.months = Inventory::read(directory)?.months;
        Ok(())
    }

    /// What is missing, where `has_journal` says whether `gateway` has one.
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

    /// What `month` lacks of the entries of `of` up to `expected`, where the journal is that of `gateway`.
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
                    true => "the next start brings it there if the journal has what it lacks",
                    false => "the journal is another gateway's",
                };
                let cause =
                    self.unrepairable.get(&month).cloned().unwrap_or_else(|| default_cause.to_owned());
                Loss::Older { file, found: found.cast_unsigned(), expected: lsn, cause }
            }
        })
    }
}

/// What has the name of a database, or of what SQLite keeps beside one, and is no file.
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
            // One with another id would end as lost, beside the flow that it was.
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
        Ok(ledger)
    }
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
