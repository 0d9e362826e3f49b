//! What a start finds before it changes anything: databases, journal and live tables, compared with each
//! other.
//!
//! Guarantees: collecting changes nothing. A loss names its file, and what the journal can restore is not a
//! loss.

use std::path::Path;

use sys::clock;

use crate::acceptance::{Extent, accept};
use crate::consent::{Consent, Pending};
use crate::database::month::Month;
use crate::database::schema::{self, SchemaError};
use crate::database::version_4::damage;
use crate::directory;
use crate::inventory::Inventory;
use crate::journal::scan;
use crate::live_table::image::TableImage;
use crate::live_table::locations::{FoundTables, OldTable, TableLocations};
use crate::loss::{Loss, Losses};
use crate::recover::{Applied, RecoverError, RecoveryScan, scan};
use crate::sink::SinkError;
use crate::sqlite_sink::SqliteSink;
use crate::sqlite_sink::resend::Resend;
use crate::sqlite_usage::{self, QueryError};
use crate::storage::file::Directory;
use crate::{OpenError, OpenSettings, verify};

/// The contents of a ledger's files, before anything is changed.
pub(crate) struct Findings {
    pub(crate) gateway: u32,
    pub(crate) inventory: Inventory,
    pub(crate) applied: Applied,
    pub(crate) scan: RecoveryScan,
    pub(crate) boot: u128,
    /// The loss of the gateway's number, if it should be there.
    identity_loss: Option<Loss>,
    /// What the migration of `ledger.db` restored.
    pub(crate) note: Option<String>,
}

/// The result of [`crate::repair::inspect`].
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Inspection {
    /// Readable entries of the journal that the database lacks.
    pub entries: u64,
    /// Segments that do not continue the one before them.
    pub breaks: u64,
    /// What is missing.
    pub losses: Losses,
    /// Findings that are no loss, each in a sentence.
    pub notes: Vec<String>,
}

/// The live tables of earlier runs, and where such tables may lie.
pub(crate) struct OldTables {
    pub(crate) locations: TableLocations,
    pub(crate) found: FoundTables,
}

impl Findings {
    /// Collects the findings, and locks the live tables.
    pub(crate) fn collect(settings: &OpenSettings) -> Result<(Findings, OldTables), OpenError> {
        schema::check_sqlite()?;
        let note = migrate(settings)?;
        let (findings, old) = Findings::collect_with(settings, TableLocations::lock_all)?;
        Ok((Findings { note, ..findings }, old))
    }

    /// Collects the findings without any lock: a gateway may have the ledger open.
    pub(crate) fn collect_unlocked(settings: &OpenSettings) -> Result<(Findings, OldTables), OpenError> {
        Findings::collect_with(settings, TableLocations::read_unlocked)
    }

    /// Reads the databases first: the journal had their entries before they did.
    fn collect_with(
        settings: &OpenSettings,
        tables: impl FnOnce(&TableLocations) -> Result<FoundTables, OpenError>,
    ) -> Result<(Findings, OldTables), OpenError> {
        let directory = &settings.directory;
        let inventory = Inventory::read(directory)?;
        let (gateway, identity_loss) = identity(directory, &inventory)?;
        let locations = TableLocations::for_ledger(gateway, settings).map_err(RecoverError::from)?;
        let found = tables(&locations)?;
        let old = OldTables { locations, found };
        let findings = Findings::from_inventory(settings, gateway, inventory, &old)?;
        Ok((Findings { identity_loss, ..findings }, old))
    }

    /// The findings after a repair, with the same tables.
    pub(crate) fn refreshed(&self, settings: &OpenSettings, old: &OldTables) -> Result<Findings, OpenError> {
        Findings::from_inventory(settings, self.gateway, Inventory::read(&settings.directory)?, old)
    }

    fn from_inventory(
        settings: &OpenSettings,
        gateway: u32,
        inventory: Inventory,
        old: &OldTables,
    ) -> Result<Findings, OpenError> {
        let boot = sys::limits::boot_id().map_err(OpenError::Boot)?;
        let applied = inventory.applied(gateway);
        let storage = Directory::for_reading(&directory::journal(&settings.directory));
        let open = inventory.open_flows(gateway);
        let scan = scan(&storage, gateway, applied, open, &images(&old.found.tables))?;
        Ok(Findings { gateway, inventory, applied, scan, boot, identity_loss: None, note: None })
    }

    /// Everything that is missing.
    pub(crate) fn losses(&self, settings: &OpenSettings, old: &OldTables) -> Losses {
        let has_journal = self.scan.extent() != (0, 0);
        let mut losses: Vec<Loss> = self.identity_loss.iter().cloned().collect();
        losses.extend(self.inventory.losses(self.gateway, has_journal));
        let reached = self.inventory.reached(self.gateway);
        let is_ledger_reported = losses.iter().any(Loss::makes_ledger_unusable);
        let images = images(&old.found.tables);
        if let Some(from) = self.scan.applied_before(self.boot, &images).filter(|_| losses.is_empty()) {
            losses.extend(self.incoherence(settings, from));
        }
        let journal = self.scan.losses(reached, self.boot, &images);
        // How far it had come is unknown in that case.
        losses.extend(
            journal.into_iter().filter(|loss| !(is_ledger_reported && matches!(loss, Loss::Between { .. }))),
        );
        if !losses.iter().any(Loss::explains_missing_sums) {
            let behind = self.inventory.behind_months(self.gateway, self.scan.whole_to(), &losses);
            losses.extend(behind);
        }
        Losses(losses)
    }

    /// The damage of a `ledger.db` that had come to entry `from` and has less now. A cut log of SQLite leaves
    /// an older snapshot, which the journal completes. If pages beyond the cut had been copied into the file,
    /// it leaves a mixture of two snapshots, which shows in the sums.
    fn incoherence(&self, settings: &OpenSettings, from: u64) -> Option<Loss> {
        let problem = match verify::verify(&settings.directory) {
            Ok(report) => report.problems.first()?.to_string(),
            // A new database is one snapshot.
            Err(QueryError::Absent { .. } | QueryError::Incomplete { .. }) => return None,
            Err(error) => error.to_string(),
        };
        let applied = self.applied.lsn;
        let text = format!("it went back from entry {from} to {applied}, and is inconsistent: {problem}");
        Some(Loss::Damaged { file: "ledger.db".to_owned(), text })
    }

    /// Completes months that are missing or behind `ledger.db` from the journal, if no other loss exists.
    /// Returns what was done.
    pub(crate) fn resend_months(
        &mut self,
        settings: &OpenSettings,
        old: &OldTables,
    ) -> Result<Vec<String>, OpenError> {
        let is_month = |loss: &Loss| matches!(loss, Loss::Missing { .. } | Loss::Older { .. });
        let mut notes = Vec::new();
        let months = self.inventory.months_behind(self.gateway);
        if !self.losses(settings, old).0.iter().all(is_month) {
            let cause = "it is not completed from the journal while other files are missing or damaged";
            months.into_iter().for_each(|month| self.inventory.note_unrepairable(month, cause.to_owned()));
            return Ok(notes);
        }
        for month in months {
            match self.resend(&settings.directory, month) {
                Ok(()) => notes
                    .push(format!("{} was behind, and was completed from the journal", month.file_name())),
                Err(error) => self.inventory.note_unrepairable(month, error.to_string()),
            }
        }
        if !notes.is_empty() {
            self.inventory.refresh_months(&settings.directory)?;
        }
        Ok(notes)
    }

    /// Sends the entries of the journal to a month that is behind.
    fn resend(&self, directory: &Path, month: Month) -> Result<(), SinkError> {
        let storage = Directory::for_reading(&directory::journal(directory));
        let first_lsn = self.scan.extent().0.max(1);
        let mut resend = Resend::begin(directory, self.gateway, month, first_lsn)?;
        let mut outcome = Ok(());
        let read = scan::each_frame(&storage, first_lsn, self.applied.lsn, |epoch, first_lsn, entries| {
            if outcome.is_ok() {
                outcome = resend.add(epoch, first_lsn, entries);
            }
        });
        outcome?;
        read.map_err(|error| SinkError::Fatal(error.to_string()))?;
        resend.finish()
    }

    /// The report of an inspection, for the tables that were found.
    pub(crate) fn inspection(&self, settings: &OpenSettings, old: &OldTables) -> Inspection {
        let FoundTables { tables, damaged, is_running } = &old.found;
        let mut notes = self.scan.notes();
        if !is_running {
            notes.extend(self.scan.table_note(self.boot, &images(tables)));
        }
        notes.extend(damaged.iter().map(|path| format!("{} holds no live table", path.display())));
        let (entries, breaks) = (self.scan.entries(), self.scan.breaks());
        Inspection { entries, breaks, losses: self.losses(settings, old), notes }
    }

    /// Makes the databases usable without what was lost of them.
    pub(crate) fn accept_losses(&self, settings: &OpenSettings, losses: &Losses) -> Result<(), OpenError> {
        let reached = self.inventory.reached(self.gateway);
        let extent = Extent { applied: self.applied.lsn, reached, first: self.scan.extent().0 };
        accept(&settings.directory, self.gateway, extent, &losses.0, clock::wall())
    }

    /// The consents of `author` to continue without `losses`.
    pub(crate) fn consents(&self, author: &str, losses: &Losses) -> Vec<Consent> {
        consents(author, &losses.0)
    }

    /// The permanent note of a ledger whose last run's live table is missing: what only the table had is not
    /// billed.
    pub(crate) fn without_table(&self, old: &OldTables) -> Option<Consent> {
        let note = self.scan.table_note(self.boot, &images(&old.found.tables))?;
        Some(Consent::new(0, clock::wall(), (0, 0), "start", &note))
    }

    /// The permanent note of a restored backup: later entries are not in this ledger.
    pub(crate) fn restored(&self) -> Option<Consent> {
        let (made_ns, last_lsn) = self.inventory.backup_made()?;
        let made = jiff::Timestamp::from_nanosecond(made_ns.into()).unwrap_or_default();
        let what = format!(
            "restored from the backup of {made:.0}, which ends with entry {last_lsn}: what came after that \
             entry is not in this ledger"
        );
        Some(Consent::new(0, clock::wall(), (self.applied.lsn + 1, 0), "restore", &what))
    }
}

/// The consents of `author` to continue without `losses`.
fn consents(author: &str, losses: &[Loss]) -> Vec<Consent> {
    let consent = |loss: &Loss| Consent::new(0, clock::wall(), loss.lsns(), author, &loss.to_string());
    losses.iter().map(consent).collect()
}

/// Migrates a `ledger.db` of an earlier version, and returns a note of what it restored. One whose damage
/// takes some of its sums is migrated with consent only, and one that is damaged in another way is not: both
/// are reported with all other losses.
fn migrate(settings: &OpenSettings) -> Result<Option<String>, OpenError> {
    let directory = &settings.directory;
    if !SqliteSink::needs_migration(directory) {
        return Ok(None);
    }
    check_versions(settings)?;
    let damage = match damage::inspect(&directory::database(directory)) {
        Err(cause) if damage::is_damage(&cause) => return Ok(None),
        damage => damage.map_err(SinkError::from)?,
    };
    let damaged = |text| Loss::Damaged { file: "ledger.db".to_owned(), text };
    let losses: Vec<Loss> = damage.losses().into_iter().map(damaged).collect();
    if losses.is_empty() {
        SqliteSink::migrate(directory)?;
        return Ok(damage.note());
    }
    let Some(author) = &settings.accept_loss else { return Ok(None) };
    let failed = |cause| OpenError::Directory { directory: directory.join(directory::CONSENTS), cause };
    let earlier = Pending::read(directory).map_err(failed)?;
    let mut accepted = earlier.clone();
    // An interrupted start may have left some.
    let is_new = |consent: &Consent| earlier.iter().all(|known| known.what() != consent.what());
    accepted.extend(consents(author, &losses).into_iter().filter(is_new));
    // The start reads them from there.
    Pending::write(directory, &accepted).map_err(failed)?;
    if let Err(error) = SqliteSink::migrate(directory) {
        let _ = Pending::write(directory, &earlier);
        return Err(error.into());
    }
    Ok(damage.note())
}

/// Refuses files of a later version before `ledger.db` is migrated, which takes the way back.
fn check_versions(settings: &OpenSettings) -> Result<(), OpenError> {
    let directory = &settings.directory;
    let gateway = directory::gateway(directory)?;
    let journal = Directory::for_reading(&directory::journal(directory));
    let gateway = gateway.or(scan::gateway(&journal).map_err(RecoverError::from)?);
    scan::check_known(&journal).map_err(RecoverError::from)?;
    if let Some(gateway) = gateway {
        TableLocations::for_ledger(gateway, settings).map_err(RecoverError::from)?.read_unlocked()?;
    }
    for month in Month::files(directory).unwrap_or_default() {
        match sqlite_usage::open_month(directory, month) {
            // A damaged one is reported with all other losses.
            Ok(_) | Err(QueryError::Schema(SchemaError::Sqlite { .. }) | QueryError::Sqlite(_)) => {}
            Err(QueryError::Schema(error)) => return Err(error.into()),
            Err(_) => {}
        }
    }
    Ok(())
}

/// The gateway's number, a new one at its first start; and the loss if it should have had one.
fn identity(directory: &Path, inventory: &Inventory) -> Result<(u32, Option<Loss>), OpenError> {
    if let Some(gateway) = directory::gateway(directory)? {
        return Ok((gateway, None));
    }
    // The journal has a lost number too.
    let journal = Directory::for_reading(&directory::journal(directory));
    if let Some(gateway) = scan::gateway(&journal).map_err(RecoverError::from)? {
        return Ok((gateway, None));
    }
    let gateway = getrandom::u32().map_err(|error| OpenError::Thread(std::io::Error::other(error)))?;
    let gateways = inventory.gateways();
    let is_unknown = !gateways.is_empty() && inventory.backup_made().is_none();
    // Zero is the gateway of ledgers from before gateways had numbers.
    Ok((gateway.max(1), is_unknown.then_some(Loss::Identity { gateways })))
}

/// The tables in the form that recovery reads.
pub(crate) fn images(old: &[OldTable]) -> Vec<TableImage<'_>> {
    old.iter().map(image).collect()
}

fn image(old: &OldTable) -> TableImage<'_> {
    TableImage { header: old.header, layout: old.layout, word: Box::new(|index| old.view.word(index)) }
}
