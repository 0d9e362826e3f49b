//! Recovery: the work of a start before the first accept.
//!
//! Guarantees: a flow that was open or closing when the process was killed gets exactly one final, however
//! often recovery itself is interrupted. A journal whose durable part is damaged is refused with a list of
//! what is missing, and used only with consent. Nothing is guessed.
//!
//! ```text
//!   scan the journal beyond what the database has  -->  finals of flows that are in the table
//!   begin a segment; append:  gap, salvaged entries  |  finals of the table's other flows  |  "run began"
//!   sync;  confirm the appended entries;  sync;  only then the table is removed
//! ```
//!
//! If recovery is interrupted before the confirmation is on the disk, the next start finds the same table,
//! ignores the segment and begins again. If it is interrupted after that, the next start finds that a run
//! began since, and the table has nothing new.

use std::collections::HashSet;
use std::sync::Arc;

use sys::clock::{self, WallNanos};
use sys::crash::point;
use thiserror::Error;

use crate::consent::Consent;
use crate::entry::{Entry, EntryKey, TableFinding};
use crate::journal::corruption::Corruption;
use crate::journal::reader::ReadError;
use crate::journal::scan::{self, Scan};
use crate::journal::{JournalError, Settings, TableReference, Writer, positions};
use crate::limits::ENTRY_BYTES_MAX;
use crate::live_table::image::TableImage;
use crate::live_table::{ProgressMarks, SlotContents, TableHeader};
#[cfg(any(test, feature = "simulation"))]
use crate::loss::Losses;
use crate::loss::{Damage, Loss};
use crate::numbering::AccountsAhead;
use crate::readers::Readers;
use crate::record::{CloseReason, Record};
use crate::storage::Storage;

/// How far the database has come.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Applied {
    /// The last run with an applied entry.
    pub(crate) epoch: u32,
    /// The number of its last entry.
    pub(crate) lsn: u64,
    /// Whether that entry is the end of a run.
    pub(crate) is_ended: bool,
    /// Whether a run has begun since.
    pub(crate) has_begun: bool,
}

/// The report of a recovery.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Recovery {
    /// The new run.
    pub epoch: u32,
    /// Entries of the journal that the database lacked.
    pub entries: u64,
    /// Flows that were open when the process was killed.
    pub killed: u64,
    /// Flows that had ended and were not journaled.
    pub closed: u64,
    /// Bytes of all those flows, in both directions, of which it is not known whether they were sent.
    pub uncertain: u64,
    /// Damaged slots of the table: their flows are billed as they were last journaled. A damaged last-alive
    /// time counts too: then open flows end with this start.
    pub damaged: u64,
    /// Whether the last run's table was found, and is of this boot. Without it open flows are billed as they
    /// were last journaled.
    pub table: bool,
    /// Journaled flows whose end is unknown: they are billed as they were last journaled.
    pub lost: u64,
    /// Files that hold no live table, or an older one; they are renamed to `.damaged`.
    pub damaged_tables: u64,
    /// Whether the last run was killed in this boot of the machine, and its table is missing: what its flows
    /// moved since they were last journaled is not billed.
    pub table_missing: bool,
    /// The corruption of the journal, if there was any.
    pub corruption: Option<String>,
    /// Other findings and actions, each in a sentence.
    pub notes: Vec<String>,
}

/// Why a ledger cannot be recovered.
#[derive(Debug, Error)]
pub enum RecoverError {
    /// Something is lost: the error of a simulated start, in place of [`crate::OpenError::Incomplete`].
    #[cfg(any(test, feature = "simulation"))]
    #[error("{0}")]
    Incomplete(Losses),
    /// The journal cannot be read.
    #[error("{0}. Put the file back, or restore a backup")]
    Read(String),
    /// The journal has what a later version of the program wrote.
    #[error("{0}. Nothing was changed")]
    Later(String),
    /// The journal cannot be written.
    #[error("{0}. Check the permissions of the segments in `journal`, and the free space on its disk")]
    Write(String),
    /// The files belong to another gateway.
    #[error(
        "the journal is that of gateway {found:08x}, and `identity` says {expected:08x}: put back the one \
         that does not belong to the databases; without `identity`, the next start takes the journal's"
    )]
    Foreign {
        /// The gateway of the journal.
        found: u32,
        /// The gateway of the ledger.
        expected: u32,
    },
    /// The journal has segments of two copies of the ledger.
    #[error(
        "segments {one} and {next} of the journal were written by two copies of this ledger: put back the \
         segments of the copy to which the databases belong"
    )]
    Forked {
        /// The last segment of the one copy.
        one: u64,
        /// The next one, of the other.
        next: u64,
    },
}

impl From<ReadError> for RecoverError {
    fn from(error: ReadError) -> RecoverError {
        match error {
            ReadError::Malformed { .. } => RecoverError::Later(error.to_string()),
            error => RecoverError::Read(error.to_string()),
        }
    }
}

impl From<JournalError> for RecoverError {
    fn from(error: JournalError) -> RecoverError {
        RecoverError::Write(error.to_string())
    }
}

/// The result of a recovery.
pub(crate) struct Recovered<S: Storage> {
    pub(crate) journal: Writer<S>,
    pub(crate) report: Recovery,
    /// The accounts in entries that the database lacks.
    pub(crate) accounts: AccountsAhead,
}

/// The input of a recovery, besides the journal.
pub(crate) struct Start<'a> {
    pub(crate) settings: Settings,
    /// The location of this run's live table.
    pub(crate) table: TableReference,
    pub(crate) boot: u128,
    /// The tables of earlier runs.
    pub(crate) tables: &'a [TableImage<'a>],
    /// The losses that an operator accepts.
    pub(crate) consents: &'a [Consent],
    pub(crate) readers: Arc<Readers>,
}

/// The part of recovery that only reads.
#[derive(Default)]
pub(crate) struct RecoveryScan {
    journal: Scan,
    /// Flows in the tables.
    table_flows: HashSet<u128>,
    /// Flows in the tables whose final is in the journal.
    finals: HashSet<u128>,
    /// Open flows, as far as the database and the journal behind it say.
    open: HashSet<u128>,
    /// The last run that began: the tables of earlier ones have nothing new.
    began: u32,
    /// Whether the last run ended in order.
    is_ended: bool,
    /// How far the database has come.
    applied: Applied,
    /// The accounts in entries that the database lacks, and in the tables.
    accounts: AccountsAhead,
}

/// Reads the journal without changing it. `open` are the open flows in the database, and `tables` those of
/// earlier runs.
///
/// # Errors
/// It cannot be read, or belongs to another gateway.
pub(crate) fn scan(
    storage: &impl Storage,
    gateway: u32,
    applied: Applied,
    open: HashSet<u128>,
    tables: &[TableImage<'_>],
) -> Result<RecoveryScan, RecoverError> {
    let mut scan = RecoveryScan { is_ended: applied.is_ended, open, applied, ..RecoveryScan::default() };
    let mut in_tables = AccountsAhead::default();
    for table in tables {
        table.each(|found| {
            scan.table_flows.extend(found.id());
            if let SlotContents::Live(record) | SlotContents::Closing(record) = &found {
                let flow = record.flow();
                in_tables.note(flow.user, flow.account);
            }
        });
    }
    let journal = scan::scan(storage, (applied.epoch, applied.lsn), |key| scan.note(key))?;
    let foreign = journal.foreign.map(|(_, found)| found).filter(|found| *found != gateway);
    if let Some(found) = journal.gateway.filter(|found| *found != gateway).or(foreign) {
        return Err(RecoverError::Foreign { found, expected: gateway });
    }
    if let Some((one, next)) = journal.forked {
        return Err(RecoverError::Forked { one, next });
    }
    for (_, entry) in journal.corruption.iter().flat_map(|corruption| &corruption.salvaged) {
        scan.note(entry.into());
    }
    // The entries of their flows come behind all others.
    scan.accounts.append(in_tables);
    scan.journal = journal;
    Ok(scan)
}

/// The segments that are shorter than when they were created.
fn short_segments(scan: &Scan) -> impl Iterator<Item = Loss> {
    let loss = |(segment, bytes, expected): &(u64, u64, u64)| Loss::Segment {
        segment: *segment,
        bytes: *bytes,
        expected: *expected,
    };
    scan.short.iter().map(loss)
}

impl RecoveryScan {
    /// Notes an entry that the database lacks.
    fn note(&mut self, key: EntryKey) {
        self.is_ended = matches!(key, EntryKey::RunEnded(_));
        match key {
            EntryKey::Final(flow) => {
                self.accounts.note(flow.user, flow.account);
                self.open.remove(&flow.id);
                if self.table_flows.contains(&flow.id) {
                    self.finals.insert(flow.id);
                }
            }
            EntryKey::Interim(flow) => {
                self.accounts.note(flow.user, flow.account);
                self.open.insert(flow.id);
            }
            EntryKey::RunBegan(epoch) => {
                // It ends all flows that earlier runs had left open.
                self.open.clear();
                self.began = self.began.max(epoch);
            }
            EntryKey::RunEnded(_) | EntryKey::Other => {}
        }
    }

    /// The losses of the journal, according to itself, the tables of boot `boot`, and the databases, which
    /// have come to entry `reached`.
    pub(crate) fn losses(&self, reached: u64, boot: u128, tables: &[TableImage<'_>]) -> Vec<Loss> {
        let (scan, applied) = (&self.journal, self.applied);
        if scan.begins_behind(applied.lsn) {
            return vec![Loss::Between { applied: applied.lsn, first_lsn: scan.first_lsn }];
        }
        if scan.first_lsn == 0 && scan.corruption.is_none() {
            let is_ended = self.is_ended && !applied.has_begun;
            return match self.appended(boot, tables) {
                Some(appended) if appended > reached => {
                    vec![Loss::JournalEnd { first_lsn: reached + 1, last_lsn: Some(appended) }]
                }
                Some(_) => Vec::new(),
                None if is_ended => Vec::new(),
                None if reached > 0 => vec![Loss::Journal { reached }],
                // The databases have nothing, and the file says that the journal had a segment.
                None => short_segments(scan).collect(),
            };
        }
        let mut losses: Vec<Loss> = scan
            .corruption
            .as_ref()
            .and_then(Damage::from_corruption)
            .map(Loss::Entries)
            .into_iter()
            .collect();
        let end = scan.last_lsn.max(reached);
        // The last run's table is exact. Without it, the journal must at least reach what the databases have.
        match self.appended(boot, tables) {
            Some(appended) if appended > end => {
                losses.push(Loss::JournalEnd { first_lsn: end + 1, last_lsn: Some(appended) });
            }
            Some(_) => {}
            None if self.is_ended => {}
            None => {
                losses.extend(short_segments(scan));
                if scan.last_lsn < reached && losses.is_empty() {
                    losses.push(Loss::JournalEnd { first_lsn: reached + 1, last_lsn: None });
                }
            }
        }
        losses
    }

    /// The last entry that the last run had written, if its table was found and says so.
    fn appended(&self, boot: u128, tables: &[TableImage<'_>]) -> Option<u64> {
        let trusted = self.trusted(boot, tables).into_iter();
        trusted.map(|table| table.reached().appended).max().filter(|appended| *appended > 0)
    }

    /// The last entry that the database had in the last run, if that run's table says so and the database has
    /// less now.
    pub(crate) fn applied_before(&self, boot: u128, tables: &[TableImage<'_>]) -> Option<u64> {
        let trusted = self.trusted(boot, tables).into_iter();
        trusted.map(|table| table.reached().applied).max().filter(|applied| *applied > self.applied.lsn)
    }

    /// The tables that may have unjournaled flows: of each run one, the last written of its copies.
    fn trusted<'t, 'w>(&self, boot: u128, tables: &'t [TableImage<'w>]) -> Vec<&'t TableImage<'w>> {
        let mut trusted: Vec<&TableImage<'_>> =
            tables.iter().filter(|table| self.is_trusted(table, boot)).collect();
        let age = |table: &TableImage<'_>| {
            let ProgressMarks { appended, applied } = table.reached();
            (appended, applied, table.alive_at().map_or(0, |at| at.0))
        };
        trusted.sort_by_key(|table| (table.header.epoch, std::cmp::Reverse(age(table))));
        trusted.dedup_by_key(|table| table.header.epoch);
        trusted
    }

    /// Whether a table may have unjournaled flows: its run is the last one, in this boot, and it is no older
    /// copy.
    fn is_trusted(&self, table: &TableImage<'_>, boot: u128) -> bool {
        let header = &table.header;
        let is_last = header.boot == boot && header.epoch >= self.applied.epoch.max(self.began);
        is_last && !self.is_stale(table)
    }

    /// Whether a table is an older copy: its run wrote frames, or the database has entries, that it does not
    /// record. A table records each frame before the next one is written, and before the database has it.
    /// A table of another run with the journal's epoch is that of a copied ledger.
    pub(crate) fn is_stale(&self, table: &TableImage<'_>) -> bool {
        let ProgressMarks { appended, .. } = table.reached();
        let TableHeader { epoch, run, .. } = table.header;
        if epoch == self.journal.epoch && run != self.journal.run && run != 0 && self.journal.run != 0 {
            return true;
        }
        let misses_frames = epoch == self.journal.epoch && appended + 1 < self.journal.last_frame;
        let misses_entries = epoch == self.applied.epoch && appended < self.applied.lsn;
        appended > 0 && (misses_frames || misses_entries)
    }

    /// Whether a table of boot `boot` is missing: the last run began in that boot and did not end in order.
    fn lacks_table(&self, boot: u128, tables: &[TableImage<'_>]) -> bool {
        let is_there =
            tables.iter().any(|table| table.header.epoch >= self.journal.epoch && table.header.boot == boot);
        // Otherwise the end of the last run is in a part of the journal that was not read.
        let is_known = !self.journal.begins_behind(self.applied.lsn);
        is_known && self.journal.boot == boot && boot != 0 && !self.is_ended && !is_there
    }

    /// Segments that do not continue the one before them.
    pub(crate) fn breaks(&self) -> u64 {
        self.journal.breaks
    }

    /// Entries of the journal that the database lacks.
    pub(crate) fn entries(&self) -> u64 {
        self.journal.entries
    }

    /// Findings that are no loss.
    pub(crate) fn notes(&self) -> Vec<String> {
        let torn = self.journal.corruption.as_ref().filter(|corruption| corruption.lost.is_empty());
        torn.iter().map(|corruption| format!("{corruption}; no durable entry is missing")).collect()
    }

    /// The note that a table of boot `boot` is missing.
    pub(crate) fn table_note(&self, boot: u128, tables: &[TableImage<'_>]) -> Option<String> {
        self.lacks_table(boot, tables).then(|| {
            let open = self.open.len();
            format!(
                "the live table of the last run is missing: {open} flows were open as far as was journaled, \
                 and what they and later ones moved since then is not billed; nor is it known whether the \
                 journal has its last entries"
            )
        })
    }

    /// The first and the last entry of the journal; zeros if there is none.
    pub(crate) fn extent(&self) -> (u64, u64) {
        match self.journal.first_lsn {
            0 => (0, 0),
            first_lsn => (first_lsn, self.journal.last_lsn),
        }
    }

    /// The last entry before any corruption of the journal; 0 if there is none.
    pub(crate) fn whole_to(&self) -> u64 {
        let end = self.extent().1;
        self.journal.corruption.as_ref().map_or(end, |corruption| end.min(corruption.first_lsn - 1))
    }

    /// The number of the new run.
    pub(crate) fn epoch(&self, tables: &[TableImage<'_>]) -> u32 {
        let table_epoch = tables.iter().map(|table| table.header.epoch).max();
        self.journal.epoch.max(self.applied.epoch).max(table_epoch.unwrap_or(0)).saturating_add(1)
    }

    /// Begins the journal of this run, and writes what earlier runs left to it. When it returns, all of that
    /// is durable, and the tables may be removed.
    ///
    /// # Errors
    /// The disk's; the files are as usable as before, and a start may begin again.
    pub(crate) fn recover<S: Storage>(
        self,
        storage: S,
        start: Start<'_>,
    ) -> Result<Recovered<S>, RecoverError> {
        let Start { settings, table, boot, tables, consents, readers } = start;
        point("recover.scanned");
        let mut report =
            Recovery { epoch: settings.epoch, entries: self.journal.entries, ..Recovery::default() };
        report.corruption = self.journal.corruption.as_ref().map(Corruption::to_string);
        report.table_missing = self.lacks_table(boot, tables);
        let mut end = self.journal.end.clone();
        end.next_lsn = end.next_lsn.max(self.applied.lsn + 1);
        let (epoch, run, at) = (settings.epoch, settings.run, clock::wall());
        let previous = PreviousRun { scan: &self, tables, boot, epoch, run, at, consents };
        let mut count = 0;
        previous.each(&mut Recovery::default(), |_| {
            count += 1;
            Ok(())
        })?;
        let closed = self.journal.end.closed.iter().map(|closed| closed.first_lsn);
        let last_lsn = self.journal.last_lsn.max(end.next_lsn - 1);
        let first_lsn = closed.min().unwrap_or(u64::MAX).min(last_lsn + 1);
        report.notes = positions::place(&storage, settings.gateway, &readers, (first_lsn, last_lsn));
        let mut journal = Writer::open(storage, settings, table, (&end, count), readers)?;
        let mut appender = FrameAppender { journal: &mut journal, waiting: Vec::new() };
        let mut lost = self.open.clone();
        previous.each(&mut report, |entry| {
            if let Entry::Final(record) = &entry {
                lost.remove(&record.identity().id());
            }
            appender.write(entry)
        })?;
        appender.flush()?;
        report.lost = lost.len() as u64;
        point("recover.appended");
        journal.confirm()?;
        point("recover.synced");
        let last_lsn = journal.next_lsn() - 1;
        journal.shared().announce(last_lsn);
        journal.shared().announce_durable(last_lsn);
        Ok(Recovered { journal, report, accounts: self.accounts })
    }
}

/// The entries that earlier runs left to be journaled.
struct PreviousRun<'a> {
    scan: &'a RecoveryScan,
    tables: &'a [TableImage<'a>],
    boot: u128,
    /// The new run, and the number that it drew.
    epoch: u32,
    run: u128,
    at: WallNanos,
    consents: &'a [Consent],
}

impl PreviousRun<'_> {
    /// Calls `show` with every entry to be journaled, in order, and counts them in `report`.
    fn each(
        &self,
        report: &mut Recovery,
        mut show: impl FnMut(Entry) -> Result<(), RecoverError>,
    ) -> Result<(), RecoverError> {
        let PreviousRun { scan, at, epoch, .. } = *self;
        scan.journal.tail.iter().try_for_each(|(_, entry)| show(*entry))?;
        if let Some(corruption) = &scan.journal.corruption {
            show(Entry::Gap { epoch: corruption.epoch, at, first_lsn: corruption.first_lsn })?;
            // An edge is for all that is in front of it, and some of that is lost.
            let is_kept = |entry: &Entry| !matches!(entry, Entry::Edge { .. });
            let mut kept = corruption.salvaged.iter().filter(|(_, entry)| is_kept(entry));
            kept.try_for_each(|(_, entry)| show(*entry))?;
        }
        let last_epoch = scan.journal.epoch.max(scan.applied.epoch);
        self.consents.iter().try_for_each(|consent| show(Entry::Accepted(*consent)))?;
        for table in scan.trusted(self.boot, self.tables) {
            report.table |= table.header.epoch >= last_epoch;
            self.finish_flows(table, report, &mut show)?;
        }
        let table = match (report.table, scan.lacks_table(self.boot, self.tables)) {
            (true, _) => TableFinding::Found,
            (false, true) => TableFinding::Missing,
            (false, false) => TableFinding::None,
        };
        show(Entry::RunBegan { epoch, at, run: self.run, table })
    }

    /// Calls `show` with the finals of the table's flows that have none.
    fn finish_flows(
        &self,
        table: &TableImage<'_>,
        report: &mut Recovery,
        mut show: impl FnMut(Entry) -> Result<(), RecoverError>,
    ) -> Result<(), RecoverError> {
        // If the time is damaged, the flows end now, which the report says.
        let alive_at = table.alive_at().unwrap_or_else(|| {
            report.damaged += 1;
            self.at
        });
        let mut outcome = Ok(());
        table.each(|found| {
            if outcome.is_err() || found.id().is_some_and(|id| self.scan.finals.contains(&id)) {
                return;
            }
            let record = match found {
                SlotContents::Closing(record) => {
                    report.closed += 1;
                    record
                }
                SlotContents::Live(record) => {
                    report.killed += 1;
                    killed(record, alive_at, report)
                }
                SlotContents::Damaged { .. } => {
                    report.damaged += 1;
                    return;
                }
                SlotContents::Nothing => return,
            };
            outcome = show(Entry::Final(record));
        });
        outcome
    }
}

/// The final of a flow that was open when its process was killed.
fn killed(record: Record, alive_at: WallNanos, report: &mut Recovery) -> Record {
    let flow = record.flow();
    report.uncertain += u64::from(flow.uncertain.up) + u64::from(flow.uncertain.down);
    let at = alive_at.max(flow.opened);
    Record::from_parts(*record.identity(), at, CloseReason::Killed, flow.legs)
        .with_uncertain(flow.uncertain)
        .with_requests(flow.requests)
}

/// Writes entries in frames.
struct FrameAppender<'a, S: Storage> {
    journal: &'a mut Writer<S>,
    waiting: Vec<Entry>,
}

impl<S: Storage> FrameAppender<'_, S> {
    fn write(&mut self, entry: Entry) -> Result<(), RecoverError> {
        self.waiting.push(entry);
        if (self.waiting.len() + 1) * ENTRY_BYTES_MAX > self.journal.frame_bytes_max() {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), RecoverError> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let mut frame = self.journal.buffer();
        self.waiting.drain(..).for_each(|entry| frame.push(&entry));
        self.journal.append(frame)?;
        self.journal.drop_copies();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
