//! The databases under the tests of every sink, and of every engine that answers questions.

use std::collections::BTreeMap;

use tempfile::TempDir;

use super::SqliteSink;
use crate::entry::Entry;
use crate::numbering::{Names, Numbers};
use crate::query::conformance::comparison::check_histories;
use crate::query::conformance::{self, UsageFixture};
use crate::query::{Filter, Usage};
use crate::sink::conformance::{SinkFixture, check};
use crate::sink::{Sink as _, SinkSettings};
use crate::sqlite_usage::SqliteUsage;

struct Files {
    directory: TempDir,
    sink: SqliteSink,
    /// The number of the last entry, where the sink does not know it.
    applied: u64,
}

impl Files {
    fn new() -> Files {
        let directory = tempfile::tempdir().unwrap();
        let sink = SqliteSink::open(directory.path(), 1, SinkSettings::default()).unwrap();
        Files { directory, sink, applied: 0 }
    }
}

impl SinkFixture for Files {
    type Sink = SqliteSink;

    fn sink(&mut self) -> &mut SqliteSink {
        &mut self.sink
    }

    fn restart(&mut self) {
        self.sink = SqliteSink::open(self.directory.path(), 1, SinkSettings::default()).unwrap();
    }

    /// The months commit, and `ledger.db` does not.
    fn apply_unfinished(&mut self, epoch: u32, first_lsn: u64, entries: &[Entry]) {
        drop(self.sink.stage(epoch, first_lsn, entries).unwrap());
        self.restart();
    }

    fn finals(&mut self) -> BTreeMap<u128, u64> {
        let usage = SqliteUsage::open(self.directory.path()).unwrap();
        let flows = usage.flows(&Filter::default(), 1_000).unwrap();
        let mut finals = BTreeMap::new();
        for flow in flows.into_iter().filter(|flow| !flow.live) {
            assert_eq!(finals.insert(flow.id, flow.up), None, "{:x} twice", flow.id);
        }
        finals
    }
}

#[test]
fn sqlite_keeps_the_contract_of_a_sink() {
    check(Files::new);
}

impl UsageFixture for Files {
    type Usage = SqliteUsage;

    fn number(&mut self, names: &Names) -> Numbers {
        self.sink.number(names).unwrap()
    }

    fn apply(&mut self, epoch: u32, entries: &[Entry]) {
        self.sink.apply(epoch, self.applied + 1, entries).unwrap();
        self.applied += entries.len() as u64;
    }

    fn usage(&mut self, unapplied: &[(u32, Entry)]) -> SqliteUsage {
        let unapplied = unapplied.iter().map(|(_, entry)| entry);
        SqliteUsage::open(self.directory.path()).unwrap().with_unapplied(1, unapplied).unwrap()
    }
}

#[test]
fn sqlite_keeps_the_contract_of_usage() {
    conformance::check(Files::new);
}

#[test]
fn sqlite_answers_as_memory_does() {
    check_histories(Files::new);
}
