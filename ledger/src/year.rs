//! Makes a ledger of synthetic flows, as large as a company's after a year: what `cargo xtask year` measures.
//!
//! Guarantees: the databases are written by the code that the applier runs, [`SqliteSink`]. A seed gives the
//! same rows on every machine.
//! Not handled here: the journal. The ledger is that of a gateway whose only run ended in order.

mod population;
mod traffic;

use std::path::PathBuf;
use std::time::Duration;

use sys::clock;
use thiserror::Error;

use crate::OpenError;
use crate::database::schema::SchemaError;
use crate::directory::{self, Lock};
use crate::entry::{Entry, TableFinding};
use crate::limits::CHECKPOINT_ENTRIES_MAX;
use crate::sink::{Sink, SinkError, SinkSettings};
use crate::sqlite_sink::SqliteSink;
use traffic::Traffic;

const GATEWAY: u32 = 1;
const EPOCH: u32 = 1;

/// The ledger to be made.
#[derive(Clone, Debug)]
pub struct YearSettings {
    /// A directory that does not exist, or is empty.
    pub directory: PathBuf,
    /// The seed of all that is random.
    pub seed: u64,
    /// Users.
    pub users: u32,
    /// Flows of all users.
    pub flows: u64,
    /// Days.
    pub days: u64,
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct YearReport {
    /// Entries of the journal that would have carried the flows.
    pub entries: u64,
    /// Flows, all of them closed.
    pub flows: u64,
    /// Bytes toward the upstreams.
    pub up: u64,
    /// Bytes toward the clients.
    pub down: u64,
    /// The longest transaction.
    pub longest_apply: Duration,
    /// The longest checkpoint.
    pub longest_checkpoint: Duration,
    /// The end of all files, which closes the last months.
    pub seal: Duration,
}

/// Why the ledger could not be made.
#[derive(Debug, Error)]
pub enum YearError {
    /// There is something already.
    #[error("{} is not empty: a year needs a directory of its own", .0.display())]
    NotEmpty(PathBuf),
    /// The directory cannot be used.
    #[error(transparent)]
    Directory(#[from] OpenError),
    /// A database cannot be created.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// A database cannot be written.
    #[error("{0}")]
    Sink(String),
}

impl From<SinkError> for YearError {
    fn from(error: SinkError) -> YearError {
        YearError::Sink(error.to_string())
    }
}

/// Makes the ledger, and calls `progress` after each transaction.
///
/// # Errors
/// The directory is not empty, or a file cannot be written.
pub fn make(settings: &YearSettings, progress: impl FnMut(&YearReport)) -> Result<YearReport, YearError> {
    let directory = &settings.directory;
    if directory.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(YearError::NotEmpty(directory.clone()));
    }
    let _lock = Lock::acquire(directory)?;
    directory::set_gateway(directory, GATEWAY)?;
    let mut sink = SqliteSink::open(directory, GATEWAY, SinkSettings::default())?;
    sink.register_gateway()?;
    let mut writer = YearWriter { sink, batch: Vec::new(), report: YearReport::default(), progress };
    let mut traffic = Traffic::new(settings);
    let (at, table) = (Traffic::beginning(), TableFinding::None);
    writer.batch.push(Entry::RunBegan { epoch: EPOCH, at, run: 1, table });
    let batch_entries = usize::try_from(CHECKPOINT_ENTRIES_MAX).unwrap_or(usize::MAX);
    while traffic.quarter(|entry| writer.batch.push(entry)) {
        if writer.batch.len() >= batch_entries {
            writer.apply()?;
        }
    }
    writer.batch.push(Entry::RunEnded { epoch: EPOCH, at: traffic.end() });
    writer.apply()?;
    let began = clock::monotonic();
    writer.sink.seal()?;
    writer.report.seal = clock::monotonic().since(began);
    Ok(writer.report)
}

/// The sink with the entries that it lacks.
struct YearWriter<P> {
    sink: SqliteSink,
    batch: Vec<Entry>,
    report: YearReport,
    progress: P,
}

impl<P: FnMut(&YearReport)> YearWriter<P> {
    fn apply(&mut self) -> Result<(), SinkError> {
        let began = clock::monotonic();
        self.sink.apply(EPOCH, self.report.entries + 1, &self.batch)?;
        let applied = clock::monotonic();
        self.sink.checkpoint()?;
        let report = &mut self.report;
        report.longest_apply = report.longest_apply.max(applied.since(began));
        report.longest_checkpoint = report.longest_checkpoint.max(clock::monotonic().since(applied));
        report.entries += self.batch.len() as u64;
        for entry in self.batch.drain(..) {
            if let Entry::Final(record) = entry {
                let flow = record.flow();
                report.flows += 1;
                report.up += flow.legs.upstream_tx;
                report.down += flow.legs.client_tx;
            }
        }
        (self.progress)(report);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
