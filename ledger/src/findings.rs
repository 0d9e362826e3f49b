//! What a start finds, before it changes anything: databases, journal and live tables, each held against the
//! others.
//!
//! Guarantees: looking changes nothing; what is missing is told with the file's name, and what the journal
//! can set right is not called missing. Leaves out: what is done then (`open`, `settle`, `recover`).

use std::path::{Path, PathBuf};

use sys::clock;

use crate::consent::Consent;
use crate::directory;
use crate::inventory::Inventory;
use crate::journal::scan;
use crate::limits::BATCH_ENTRIES_MAX;
use crate::live_table::place::{OldTable, Places};
use crate::loss::{Loss, Losses};
use crate::recover::{Applied, RecoverError, Survey, TableImage, survey};
use crate::repair::Inspection;
use crate::settle::{Extent, settle};
use crate::sink::SinkError;
use crate::sink::month::Month;
use crate::sink::resend::{self, Batch};
use crate::sink::schema;
use crate::sink::sqlite::SqliteSink;
use crate::storage::file::Directory;
use crate::{OpenError, OpenSettings};

/// What the files of a ledger say, before anything is changed.
pub(crate) struct Findings {
    pub(crate) gateway: u32,
    pub(crate) inventory: Inventory,
    pub(crate) applied: Applied,
    pub(crate) survey: Survey,
    pub(crate) boot: u128,
    /// Why there is no number of the gateway, if one should be there.
    unknown: Option<Loss>,
}

/// Live tables that earlier runs left, and files with such a name that hold none.
pub(crate) struct OldTables {
    pub(crate) places: Places,
    pub(crate) tables: Vec<OldTable>,
    pub(crate) damaged: Vec<PathBuf>,
}

impl Findings {
    pub(crate) fn look(settings: &OpenSettings) -> Result<(Findings, OldTables), OpenError> {
        let directory = &settings.directory;
        schema::check_sqlite()?;
        SqliteSink::migrate(directory)?;
        let inventory = Inventory::take(directory)?;
        let (gateway, unknown) = identity(directory, &inventory)?;
        let places = Places::of(gateway, settings).map_err(RecoverError::from)?;
        let (tables, damaged) = places.find()?;
        let old = OldTables { places, tables, damaged };
        let found = Findings::of(settings, gateway, inventory, &old)?;
        Ok((Findings { unknown, ..found }, old))
    }

    /// Looks without taking any lock: a gateway may have the ledger open.
    pub(crate) fn peek(settings: &OpenSettings) -> Result<Peek, OpenError> {
        let directory = &settings.directory;
        let inventory = Inventory::take(directory)?;
        let (gateway, unknown) = identity(directory, &inventory)?;
        let places = Places::of(gateway, settings).map_err(RecoverError::from)?;
        let peeked = places.peek()?;
        let (is_running, tables, damaged) = (peeked.is_running, peeked.tables, peeked.damaged);
        let old = OldTables { places, tables, damaged };
        let found = Findings { unknown, ..Findings::of(settings, gateway, inventory, &old)? };
        Ok(Peek { found, old, is_running })
    }

    /// Looks again at what was set right, beside the same tables.
    pub(crate) fn again(&self, settings: &OpenSettings, old: &OldTables) -> Result<Findings, OpenError> {
        Findings::of(settings, self.gateway, Inventory::take(&settings.directory)?, old)
    }

    fn of(
        settings: &OpenSettings,
        gateway: u32,
        inventory: Inventory,
        old: &OldTables,
    ) -> Result<Findings, OpenError> {
        let boot = sys::limits::boot_id().map_err(OpenError::Boot)?;
        let applied = inventory.applied(gateway);
        let storage = Directory::for_reading(&directory::journal(&settings.directory));
        let open = inventory.open_flows(gateway);
        let survey = survey(&storage, gateway, applied, open, &images(&old.tables))?;
        Ok(Findings { gateway, inventory, applied, survey, boot, unknown: None })
    }

    /// Everything that is missing.
    pub(crate) fn losses(&self, old: &OldTables) -> Losses {
        let has_journal = self.survey.extent() != (0, 0);
        let mut losses: Vec<Loss> = self.unknown.iter().cloned().collect();
        losses.extend(self.inventory.losses(self.gateway, has_journal));
        let reached = self.inventory.reached(self.gateway);
        let is_ledger_told = losses.iter().any(Loss::is_of_ledger);
        let journal = self.survey.losses(self.applied, reached, self.boot, &images(&old.tables));
        // How far it had come is not known then.
        losses.extend(
            journal.into_iter().filter(|loss| !(is_ledger_told && matches!(loss, Loss::Between { .. }))),
        );
        Losses(losses)
    }

    /// Makes months whole that are behind `ledger.db`, as far as the journal has what they lack; what was
    /// done.
    pub(crate) fn mend(&mut self, settings: &OpenSettings) -> Result<Vec<String>, OpenError> {
        let behind = self.inventory.months_behind(self.gateway);
        let mut notes = Vec::new();
        for month in behind {
            match resend(&settings.directory, self.gateway, month, self.applied.lsn) {
                Ok(()) => notes
                    .push(format!("{} was behind, and was made whole from the journal", month.file_name())),
                Err(error) => self.inventory.note_unmended(month, error.to_string()),
            }
        }
        if !notes.is_empty() {
            self.inventory.refresh_months(&settings.directory)?;
        }
        Ok(notes)
    }

    /// Goes on without what is lost of the databases.
    pub(crate) fn settle(&self, settings: &OpenSettings, losses: &Losses) -> Result<(), OpenError> {
        let reached = self.inventory.reached(self.gateway);
        let extent = Extent { applied: self.applied.lsn, reached, journal: self.survey.extent() };
        settle(&settings.directory, self.gateway, extent, &losses.0, clock::wall())
    }

    /// The consents of `author` to go on without `losses`.
    pub(crate) fn consents(&self, author: &str, losses: &Losses) -> Vec<Consent> {
        let consent = |loss: &Loss| Consent::new(0, clock::wall(), loss.lsns(), author, &loss.to_string());
        losses.0.iter().map(consent).collect()
    }

    /// What a restored backup says of itself, for good: what came after it is not in this ledger.
    pub(crate) fn restored(&self) -> Option<Consent> {
        let made_ns = self.inventory.backup_made()?;
        let made = jiff::Timestamp::from_nanosecond(made_ns.into()).unwrap_or_default();
        let what = format!("restored from the backup of {made:.0}: what came after it is not in this ledger");
        Some(Consent::new(0, clock::wall(), (self.applied.lsn + 1, 0), "restore", &what))
    }
}

/// What a look without a lock finds.
pub(crate) struct Peek {
    found: Findings,
    old: OldTables,
    /// Whether a gateway has the ledger's live table.
    is_running: bool,
}

impl Peek {
    pub(crate) fn inspection(&self) -> Inspection {
        let Peek { found, old, is_running } = self;
        let mut notes = found.survey.notes();
        if !is_running {
            notes.extend(found.survey.table_note(found.boot, &images(&old.tables)));
        }
        let damaged = old.damaged.iter().map(|path| format!("{} holds no live table", path.display()));
        notes.extend(damaged);
        Inspection {
            entries: found.survey.entries(),
            breaks: found.survey.breaks(),
            losses: found.losses(old),
            notes,
        }
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

/// Sends what the journal has to a month that is behind entry `applied`.
fn resend(directory: &Path, gateway: u32, month: Month, applied: u64) -> Result<(), SinkError> {
    let storage = Directory::for_reading(&directory::journal(directory));
    let mut batches: Vec<Batch> = Vec::new();
    let read = scan::each_frame(&storage, applied, |epoch, first_lsn, mut entries| {
        match batches
            .last_mut()
            .filter(|batch| batch.epoch == epoch && batch.entries.len() < BATCH_ENTRIES_MAX)
        {
            Some(batch) => batch.entries.append(&mut entries),
            None => batches.push(Batch { epoch, first_lsn, entries }),
        }
    });
    read.map_err(|error| SinkError::Final(error.to_string()))?;
    resend::resend(directory, gateway, month, &batches)
}

/// The tables as recovery reads them.
pub(crate) fn images(old: &[OldTable]) -> Vec<TableImage<'_>> {
    old.iter().map(image).collect()
}

fn image(old: &OldTable) -> TableImage<'_> {
    TableImage { header: old.header, word: Box::new(|index| old.view.word(index)) }
}
