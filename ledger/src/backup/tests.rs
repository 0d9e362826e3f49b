//! Backups between any two commits, and writes to them.

use super::*;
use crate::query::{Filter, GroupBy, Usage as _};
use crate::sink::{Sink, SinkSettings};
use crate::sqlite_sink::SqliteSink;
use crate::sqlite_sink::tests::{Store, mixed, small};
use crate::sqlite_usage::SqliteUsage;
use crate::verify::verify;

#[test]
fn backup_is_a_complete_ledger() {
    let store = small();
    let parent = tempfile::tempdir().unwrap();
    let target = parent.path().join("copy");
    let report = backup(&store.path(), &target).unwrap();
    assert_eq!(report.files, 3);
    assert!(verify(&target).unwrap().is_clean());
    let rows = |directory: &Path| {
        let usage = SqliteUsage::open(directory).unwrap();
        usage.rows(&Filter::default(), &[GroupBy::Host]).unwrap()
    };
    assert_eq!(rows(&target), rows(&store.path()));
    assert!(matches!(backup(&store.path(), &target), Err(BackupError::TargetNotEmpty(_))));
    let absent = backup(&parent.path().join("nowhere"), &parent.path().join("other"));
    assert!(matches!(absent, Err(BackupError::Query(QueryError::Absent { .. }))));
    assert!(!parent.path().join("other").exists());
}

#[test]
fn backup_is_one_snapshot_and_accepts_entries() {
    let entries = mixed(60);
    let batch = |number: usize| &entries[number * 6..][..6];
    let mut store = Store::new();
    let mut next = 0;
    let mut apply = |store: &mut Store| {
        store.sink.apply(1, next as u64 * 6 + 1, batch(next)).unwrap();
        next += 1;
    };
    (0..5).for_each(|_| apply(&mut store));
    let parent = tempfile::tempdir().unwrap();
    let target = parent.path().join("copy");
    let report = copy_all(&store.path(), &target, || apply(&mut store)).unwrap();
    assert!(report.files >= 3);
    assert!(verify(&target).unwrap().is_clean());
    let mut copy = SqliteSink::open(&target, 1, SinkSettings::default()).unwrap();
    assert_eq!(copy.applied_lsn(), Ok(Some(30)));
    for month in Month::files(&target).unwrap() {
        let file = crate::sqlite_usage::open_month(&target, month).unwrap().unwrap();
        assert!(month_file::applied(&file, 1).unwrap() <= 30, "no entry is later than the snapshot");
    }
    copy.apply(1, 27, &entries[26..33]).unwrap();
    copy.apply(1, 1, &entries).unwrap();
    store.sink.apply(1, 1, &entries).unwrap();
    assert!(verify(&target).unwrap().is_clean());
    for group in [GroupBy::User, GroupBy::Host, GroupBy::Hour] {
        let rows = |directory: &Path| {
            SqliteUsage::open(directory).unwrap().rows(&Filter::default(), &[group]).unwrap()
        };
        assert_eq!(rows(&target), rows(&store.path()));
    }
}
