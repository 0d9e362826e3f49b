//! The SQLite sink under the tests of every sink.

use std::collections::BTreeMap;

use tempfile::TempDir;

use super::SqliteSink;
use crate::entry::Entry;
use crate::query::{Filter, Usage};
use crate::sink::SinkSettings;
use crate::sink::conformance::{SinkFixture, check};
use crate::sqlite_usage::SqliteUsage;

struct Files {
    directory: TempDir,
    sink: SqliteSink,
}

impl Files {
    fn new() -> Files {
        let directory = tempfile::tempdir().unwrap();
        let sink = SqliteSink::open(directory.path(), 1, SinkSettings::default()).unwrap();
        Files { directory, sink }
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
