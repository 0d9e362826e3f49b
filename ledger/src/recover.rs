//! Recovery: what a start does before the first accept.
//!
//! Promises: a flow that was open or closing when the process was killed gets its final, once, however often
//! recovery itself is cut short; a journal whose durable part is damaged is refused, with what is missing,
//! and goes on only with consent; nothing is guessed. Leaves to others: finding the live table
//! (`live_table/place.rs`), bringing entries into the database (`apply`).
//!
//! ```text
//!   scan the journal beyond what the database has  -->  finals of flows that stand in the table
//!   begin a segment; append:  gap, salvaged entries  |  finals of the table's other flows  |  "a run began"
//!   sync;  confirm that what is appended counts;  sync;  only then the table is removed
//! ```
//!
//! Cut short before the confirmation is on the disk, the next start finds the same table, passes the segment
//! over and begins anew. Cut short behind it, it finds that a run began since, and the table tells nothing
//! new.

use std::collections::HashSet;

use sys::clock::{self, WallNanos};
use sys::crash::point;
use thiserror::Error;

use crate::entry::{Entry, Gist};
use crate::journal::reader::ReadError;
use crate::journal::scan::{Scan, Trouble, scan};
use crate::journal::{JournalError, Settings, Writer};
use crate::limits::ENTRY_BYTES_MAX;
use crate::live_table::{ALIVE_AT, Found, TableHeader, alive_at};
use crate::record::{CloseReason, Record};
use crate::storage::Storage;

/// How far the database has come.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Applied {
    /// The last run of which it has an entry.
    pub(crate) epoch: u32,
    /// The number of its last entry.
    pub(crate) lsn: u64,
}

/// A live table that an earlier run left.
pub(crate) struct TableImage<'a> {
    pub(crate) header: TableHeader,
    /// Reads one of its words.
    pub(crate) word: Box<dyn Fn(usize) -> u64 + 'a>,
}

impl TableImage<'_> {
    /// Shows every slot that is not free.
    pub(crate) fn each(&self, mut show: impl FnMut(Found)) {
        for region in 0..self.header.regions {
            for slot in 0..self.header.slots {
                let start = self.header.slot_at(region, slot);
                match Found::in_words(|index| (self.word)(start + index)) {
                    Found::Nothing => {}
                    found => show(found),
                }
            }
        }
    }

    /// When the run was last known to live.
    fn alive_at(&self) -> Option<WallNanos> {
        alive_at((self.word)(ALIVE_AT))
    }
}

/// What recovery found and did.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Recovery {
    /// This run.
    pub epoch: u32,
    /// Entries of the journal that the database did not have.
    pub entries: u64,
    /// Flows that were open when the process was killed.
    pub killed: u64,
    /// Flows that had ended and were not journaled.
    pub closed: u64,
    /// Bytes of which is not known whether they were sent: in both directions, of all those flows.
    pub uncertain: u64,
    /// Slots of the table that were damaged: their flows are billed as they were last journaled. Also counts
    /// the table's word of when it was last alive: then flows that were open end with this start.
    pub damaged: u64,
    /// Whether the last run's table was there, and of this boot; without it flows that were open are billed
    /// as they were last journaled.
    pub table: bool,
    /// Flows that were journaled, and of whose end nothing told: they are billed as they were last journaled.
    pub lost: u64,
    /// Files of live tables that hold none, now named `.damaged`.
    pub damaged_tables: u64,
    /// What was wrong with the journal.
    pub trouble: Option<String>,
}

/// Why a ledger cannot be recovered.
#[derive(Debug, Error)]
pub enum RecoverError {
    /// Entries that had been durable are gone.
    #[error("{0}")]
    Damaged(Box<Damage>),
    /// The journal cannot be read.
    #[error("{0}")]
    Read(String),
    /// The journal cannot be written.
    #[error("{0}")]
    Write(String),
    /// The files are another gateway's.
    #[error("the journal is that of gateway {found:08x}, and the ledger is that of gateway {expected:08x}")]
    Foreign {
        /// Whose journal it is.
        found: u32,
        /// Whose ledger.
        expected: u32,
    },
}

/// Entries that had been durable and are gone.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error(
    "the journal is damaged in segment {segment} at byte {at}: {lost} entries that had been durable are lost \
     (numbers {ranges}); {salvaged} behind them are whole. Nothing was changed. `tollgate ledger repair` \
     tells more and goes on without them"
)]
pub struct Damage {
    /// The segment.
    pub segment: u64,
    /// Where in it, in bytes.
    pub at: u64,
    /// How many are lost.
    pub lost: u64,
    /// Their numbers.
    pub ranges: String,
    /// How many behind them are whole.
    pub salvaged: u64,
}

impl Damage {
    /// The damage in `trouble`; `None` if nothing had been durable.
    pub(crate) fn of(trouble: &Trouble) -> Option<Damage> {
        if trouble.lost.is_empty() {
            return None;
        }
        let range = |(first, last): &(u64, u64)| format!("{first}-{last}");
        Some(Damage {
            segment: trouble.segment,
            at: trouble.at,
            lost: trouble.lost.iter().map(|(first, last)| last - first + 1).sum(),
            ranges: trouble.lost.iter().map(range).collect::<Vec<_>>().join(", "),
            salvaged: trouble.salvaged.len() as u64,
        })
    }
}

impl From<ReadError> for RecoverError {
    fn from(error: ReadError) -> RecoverError {
        RecoverError::Read(error.to_string())
    }
}

impl From<JournalError> for RecoverError {
    fn from(error: JournalError) -> RecoverError {
        RecoverError::Write(error.to_string())
    }
}

/// What a start goes on with.
pub(crate) struct Recovered<S: Storage> {
    pub(crate) journal: Writer<S>,
    pub(crate) report: Recovery,
}

/// The part of recovery that only looks.
pub(crate) struct Survey {
    scan: Scan,
    /// Flows of the tables.
    tabled: HashSet<u128>,
    /// Those of them that have their final in the journal.
    finals: HashSet<u128>,
    /// Flows that go on, as far as the database and the journal behind it know.
    open: HashSet<u128>,
    /// The last run that began: what earlier ones left is in the journal.
    began: u32,
}

/// Looks at the journal, without changing anything. `open` are the flows that go on as far as the database
/// knows, and `tables` what earlier runs left.
///
/// # Errors
/// It cannot be read, or is another gateway's.
pub(crate) fn survey(
    storage: &impl Storage,
    gateway: u32,
    applied: Applied,
    open: HashSet<u128>,
    tables: &[TableImage<'_>],
) -> Result<Survey, RecoverError> {
    let mut tabled = HashSet::new();
    for table in tables {
        table.each(|found| {
            tabled.extend(found.id());
        });
    }
    let mut survey = Survey { scan: Scan::default(), tabled, finals: HashSet::new(), open, began: 0 };
    let scan = scan(storage, applied.lsn, |gist| survey.note(gist))?;
    if let Some(found) = scan.gateway.filter(|found| *found != gateway) {
        return Err(RecoverError::Foreign { found, expected: gateway });
    }
    for (_, entry) in scan.trouble.iter().flat_map(|trouble| &trouble.salvaged) {
        survey.note(entry.into());
    }
    survey.scan = scan;
    Ok(survey)
}

impl Survey {
    /// Notes an entry that the database has not got.
    fn note(&mut self, gist: Gist) {
        match gist {
            Gist::Final(id) => {
                self.open.remove(&id);
                if self.tabled.contains(&id) {
                    self.finals.insert(id);
                }
            }
            Gist::Interim(id) => {
                self.open.insert(id);
            }
            Gist::RunBegan(epoch) => {
                // What earlier runs had left open ends with it.
                self.open.clear();
                self.began = self.began.max(epoch);
            }
            Gist::Other => {}
        }
    }

    /// What was durable and is gone, if anything is.
    pub(crate) fn damage(&self) -> Option<Damage> {
        self.scan.trouble.as_ref().and_then(Damage::of)
    }

    /// Places at which a segment does not continue the one before it.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn breaks(&self) -> u64 {
        self.scan.breaks
    }

    /// The run that begins now.
    pub(crate) fn epoch(&self, applied: Applied, tables: &[TableImage<'_>]) -> u32 {
        let of_tables = tables.iter().map(|table| table.header.epoch).max();
        self.scan.epoch.max(applied.epoch).max(of_tables.unwrap_or(0)).saturating_add(1)
    }

    /// Begins the journal of this run, and brings into it what the last one left. When it returns, all of
    /// that is durable, and the tables may be removed.
    ///
    /// # Errors
    /// The disk's; the files are as good as before, and a start may try again from the beginning.
    pub(crate) fn recover<S: Storage>(
        self,
        storage: S,
        settings: Settings,
        applied: Applied,
        boot: u128,
        tables: &[TableImage<'_>],
    ) -> Result<Recovered<S>, RecoverError> {
        point("recover.scanned");
        let mut report =
            Recovery { epoch: settings.epoch, entries: self.scan.entries, ..Recovery::default() };
        report.trouble = self.scan.trouble.as_ref().map(Trouble::to_string);
        let mut end = self.scan.end.clone();
        end.next_lsn = end.next_lsn.max(applied.lsn + 1);
        let left = Left { survey: &self, tables, boot, applied, epoch: settings.epoch, at: clock::wall() };
        let mut count = 0;
        left.each(&mut Recovery::default(), |_| {
            count += 1;
            Ok(())
        })?;
        let mut journal = Writer::open(storage, settings, &end, count)?;
        let mut pen = Pen { journal: &mut journal, waiting: Vec::new() };
        let mut lost = self.open.clone();
        left.each(&mut report, |entry| {
            if let Entry::Final(record) = &entry {
                lost.remove(&record.identity().id());
            }
            pen.write(entry)
        })?;
        pen.flush()?;
        report.lost = lost.len() as u64;
        point("recover.appended");
        journal.confirm()?;
        point("recover.synced");
        let last_lsn = journal.next_lsn() - 1;
        journal.shared().announce(last_lsn);
        journal.shared().announce_durable(last_lsn);
        Ok(Recovered { journal, report })
    }
}

/// What an earlier run left, and what becomes of it.
struct Left<'a> {
    survey: &'a Survey,
    tables: &'a [TableImage<'a>],
    boot: u128,
    applied: Applied,
    /// This run.
    epoch: u32,
    at: WallNanos,
}

impl Left<'_> {
    /// Shows every entry that is to be in the journal, in its order, and notes in `report` what they are.
    fn each(
        &self,
        report: &mut Recovery,
        mut show: impl FnMut(Entry) -> Result<(), RecoverError>,
    ) -> Result<(), RecoverError> {
        let Left { survey, at, epoch, .. } = *self;
        survey.scan.tail.iter().try_for_each(|(_, entry)| show(*entry))?;
        if let Some(trouble) = &survey.scan.trouble {
            show(Entry::Gap { epoch: trouble.epoch, at, first_lsn: trouble.first_lsn })?;
            trouble.salvaged.iter().try_for_each(|(_, entry)| show(*entry))?;
        }
        let last_epoch = survey.scan.epoch.max(self.applied.epoch);
        for table in self.tables.iter().filter(|table| self.has_more_to_say(&table.header)) {
            report.table |= table.header.epoch >= last_epoch;
            self.finish_flows(table, report, &mut show)?;
        }
        show(Entry::RunBegan { epoch, at })
    }

    /// Whether what is in a table may be in it alone.
    fn has_more_to_say(&self, header: &TableHeader) -> bool {
        header.boot == self.boot && header.epoch >= self.applied.epoch.max(self.survey.began)
    }

    /// Shows the finals of the flows in a table that have none.
    fn finish_flows(
        &self,
        table: &TableImage<'_>,
        report: &mut Recovery,
        mut show: impl FnMut(Entry) -> Result<(), RecoverError>,
    ) -> Result<(), RecoverError> {
        // If it cannot be told, they end now, which is told.
        let alive_at = table.alive_at().unwrap_or_else(|| {
            report.damaged += 1;
            self.at
        });
        let mut outcome = Ok(());
        table.each(|found| {
            if outcome.is_err() || found.id().is_some_and(|id| self.survey.finals.contains(&id)) {
                return;
            }
            let record = match found {
                Found::Closing(record) => {
                    report.closed += 1;
                    record
                }
                Found::Live(record) => {
                    report.killed += 1;
                    killed(record, alive_at, report)
                }
                Found::Damaged { .. } => {
                    report.damaged += 1;
                    return;
                }
                Found::Nothing => return,
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
    Record::of(*record.identity(), at, CloseReason::Killed, flow.legs).with_uncertain(flow.uncertain)
}

/// Writes entries in frames.
struct Pen<'a, S: Storage> {
    journal: &'a mut Writer<S>,
    waiting: Vec<Entry>,
}

impl<S: Storage> Pen<'_, S> {
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
        self.journal.forget_copies();
        Ok(())
    }
}
