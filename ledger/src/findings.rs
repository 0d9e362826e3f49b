//! What a start finds, before it changes anything: databases, journal and live tables, each held against the
//! others.
//!
//! Guarantees: looking changes nothing; what is missing is told with the file's name, and what the journal
//! can set right is not called missing. Leaves out: what is done then (`open`, `settle`, `recover`).

use std::path::Path;

use sys::clock;

use crate::acceptance::{Extent, accept};
use crate::consent::Consent;
use crate::directory;
use crate::inventory::Inventory;
use crate::journal::scan;
use crate::live_table::locations::{FoundTables, OldTable, TableLocations};
use crate::loss::{Loss, Losses};
use crate::query::QueryError;
use crate::recover::{Applied, RecoverError, RecoveryScan, TableImage, scan};
use crate::sink::SinkError;
use crate::sink::month::Month;
use crate::sink::resend::Resend;
use crate::sink::schema;
use crate::sink::sqlite::SqliteSink;
use crate::storage::file::Directory;
use crate::{OpenError, OpenSettings, verify};

/// What the files of a ledger say, before anything is changed.
pub(crate) struct Findings {
    pub(crate) gateway: u32,
    pub(crate) inventory: Inventory,
    pub(crate) applied: Applied,
    pub(crate) scan: RecoveryScan,
    pub(crate) boot: u128,
    /// Why there is no number of the gateway, if one should be there.
    identity_loss: Option<Loss>,
}

/// What [`crate::repair::inspect`] found.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Inspection {
    /// Entries of the journal that the database has not got, and that can be read.
    pub entries: u64,
    /// Places at which a segment does not continue the one before it.
    pub breaks: u64,
    /// What is missing.
    pub losses: Losses,
    /// What is no loss, and worth telling: each in a sentence.
    pub notes: Vec<String>,
}

/// Live tables, and where they may lie.
pub(crate) struct OldTables {
    pub(crate) locations: TableLocations,
    pub(crate) found: FoundTables,
}

impl Findings {
    /// Looks, and takes the locks of the live tables.
    pub(crate) fn collect(settings: &OpenSettings) -> Result<(Findings, OldTables), OpenError> {
        schema::check_sqlite()?;
        SqliteSink::migrate(&settings.directory)?;
        Findings::collect_with(settings, TableLocations::lock_all)
    }

    /// Looks without taking any lock: a gateway may have the ledger open.
    pub(crate) fn collect_unlocked(settings: &OpenSettings) -> Result<(Findings, OldTables), OpenError> {
        Findings::collect_with(settings, TableLocations::read_unlocked)
    }

    /// Databases first: what they have, the journal has had before.
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

    /// Looks again at what was set right, beside the same tables.
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
        Ok(Findings { gateway, inventory, applied, scan, boot, identity_loss: None })
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
        // How far it had come is not known then.
        losses.extend(
            journal.into_iter().filter(|loss| !(is_ledger_reported && matches!(loss, Loss::Between { .. }))),
        );
        if !losses.iter().any(Loss::explains_missing_sums) {
            let behind = self.inventory.behind_months(self.gateway, self.scan.whole_to(), &losses);
            losses.extend(behind);
        }
        Losses(losses)
    }

    /// What is wrong with a `ledger.db` that had come to entry `from` and has less now. A log of SQLite
    /// that was cut leaves an older moment, which the journal brings on; but where pages had been copied
    /// from behind the cut it leaves a mixture of two moments, and that shows in the sums.
    fn incoherence(&self, settings: &OpenSettings, from: u64) -> Option<Loss> {
        let problem = match verify::verify(&settings.directory) {
            Ok(report) => report.problems.first()?.to_string(),
            // A new one is of one moment.
            Err(QueryError::Absent { .. } | QueryError::Incomplete { .. }) => return None,
            Err(error) => error.to_string(),
        };
        let applied = self.applied.lsn;
        let text =
            format!("it went back from entry {from} to {applied}, and does not hold together: {problem}");
        Some(Loss::Damaged { file: "ledger.db".to_owned(), text })
    }

    /// If months are missing or behind `ledger.db`, and nothing else is wrong, makes them whole as far as the
    /// journal has what they lack; what was done.
    pub(crate) fn resend_months(
        &mut self,
        settings: &OpenSettings,
        old: &OldTables,
    ) -> Result<Vec<String>, OpenError> {
        let is_month = |loss: &Loss| matches!(loss, Loss::Missing { .. } | Loss::Older { .. });
        let mut notes = Vec::new();
        let months = self.inventory.months_behind(self.gateway);
        if !self.losses(settings, old).0.iter().all(is_month) {
            let cause = "the journal does not bring it there while other files are missing or damaged";
            months.into_iter().for_each(|month| self.inventory.note_unrepairable(month, cause.to_owned()));
            return Ok(notes);
        }
        for month in months {
            match self.resend(&settings.directory, month) {
                Ok(()) => notes
                    .push(format!("{} was behind, and was made whole from the journal", month.file_name())),
                Err(error) => self.inventory.note_unrepairable(month, error.to_string()),
            }
        }
        if !notes.is_empty() {
            self.inventory.refresh_months(&settings.directory)?;
        }
        Ok(notes)
    }

    /// Sends what the journal has to a month that is behind.
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

    /// What there is to tell, beside the tables that were found.
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

    /// Goes on without what is lost of the databases.
    pub(crate) fn accept_losses(&self, settings: &OpenSettings, losses: &Losses) -> Result<(), OpenError> {
        let reached = self.inventory.reached(self.gateway);
        let extent = Extent { applied: self.applied.lsn, reached, first: self.scan.extent().0 };
        accept(&settings.directory, self.gateway, extent, &losses.0, clock::wall())
    }

    /// The consents of `author` to go on without `losses`.
    pub(crate) fn consents(&self, author: &str, losses: &Losses) -> Vec<Consent> {
        let consent = |loss: &Loss| Consent::new(0, clock::wall(), loss.lsns(), author, &loss.to_string());
        losses.0.iter().map(consent).collect()
    }

    /// What a ledger says for good whose last run's live table is gone: what that alone had is not billed.
    pub(crate) fn without_table(&self, old: &OldTables) -> Option<Consent> {
        let note = self.scan.table_note(self.boot, &images(&old.found.tables))?;
        Some(Consent::new(0, clock::wall(), (0, 0), "start", &note))
    }

    /// What a restored backup says of itself, for good: what came after it is not in this ledger.
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

/// The gateway's number, a new one if this is its first start; and what is missing if it should have one.
fn identity(directory: &Path, inventory: &Inventory) -> Result<(u32, Option<Loss>), OpenError> {
    if let Some(gateway) = directory::gateway(directory)? {
        return Ok((gateway, None));
    }
    // One that was lost is in the journal, too.
    let journal = Directory::for_reading(&directory::journal(directory));
    if let Some(gateway) = scan::gateway(&journal).map_err(RecoverError::from)? {
        return Ok((gateway, None));
    }
    let gateway = getrandom::u32().map_err(|error| OpenError::Thread(std::io::Error::other(error)))?;
    let gateways = inventory.gateways();
    let is_unknown = !gateways.is_empty() && inventory.backup_made().is_none();
    // Zero is the gateway of ledgers that were made before gateways had numbers.
    Ok((gateway.max(1), is_unknown.then_some(Loss::Identity { gateways })))
}

/// The tables as recovery reads them.
pub(crate) fn images(old: &[OldTable]) -> Vec<TableImage<'_>> {
    old.iter().map(image).collect()
}

fn image(old: &OldTable) -> TableImage<'_> {
    TableImage { header: old.header, word: Box::new(|index| old.view.word(index)) }
}
