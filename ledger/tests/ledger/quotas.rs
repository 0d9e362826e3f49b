//! Grants and notices: durable when the call returns, applied once, kept for ever.

use std::fs;
use std::time::Duration;

use ledger::{AppendError, Grant, Notice, Owner, SqliteUsage};
use sys::clock::WallNanos;

use crate::fixture::{Fixture, close_ledger, run_flow};
use crate::locked;
use crate::losses::{copied, wait_for};

/// Longer than any disk of a test takes.
const LONG: Duration = Duration::from_secs(60);

fn grant(id: u128, until: u64) -> Grant {
    Grant {
        id,
        at: WallNanos(id as u64),
        owner: if id.is_multiple_of(2) { Owner::User(7) } else { Owner::Team("web".to_owned()) },
        quota: "user:ci/month".to_owned(),
        bytes: 5 << 30,
        from: WallNanos(1_000),
        until: WallNanos(until),
        author: "root".to_owned(),
        reason: "a release".to_owned(),
    }
}

fn notice(period_start: u64, percent: u8) -> Notice {
    Notice {
        at: WallNanos(period_start + u64::from(percent)),
        owner: Owner::Team("web".to_owned()),
        quota: "team:web/day".to_owned(),
        period_start: WallNanos(period_start),
        percent,
        used: 80,
        limit: 100,
    }
}

fn usage(fixture: &Fixture) -> SqliteUsage {
    let usage = SqliteUsage::open_with_journal(&fixture.directory()).unwrap();
    assert_eq!(ledger::query::Usage::completeness(&usage).unread, None);
    usage
}

#[track_caller]
fn check(fixture: &Fixture) {
    let usage = usage(fixture);
    let grants = [grant(1, 5_000), grant(2, 6_000), grant(3, 7_000)];
    assert_eq!(usage.grants(WallNanos(0)).unwrap(), grants);
    assert_eq!(usage.grants(WallNanos(5_000)).unwrap(), grants[1..]);
    let notices = [notice(100, 80), notice(100, 100), notice(300, 80)];
    assert_eq!(usage.notices(WallNanos(0)).unwrap(), notices);
    assert_eq!(usage.notices(WallNanos(300)).unwrap(), notices[2..]);
}

#[test]
fn grants_and_notices_are_found_before_and_after_they_are_applied() {
    let fixture = Fixture::new();
    let (ledger, mut writer) = fixture.open();
    run_flow(&mut writer, 1, 10, 20);
    assert_eq!(ledger.append_grant(&grant(1, 5_000), LONG), Ok(()));
    assert_eq!(ledger.append_notice(&notice(100, 80), LONG), Ok(()));
    wait_for(|| ledger.status().applied == ledger.status().appended);
    let lock = locked(&fixture);
    assert_eq!(ledger.append_grant(&grant(2, 6_000), LONG), Ok(()));
    assert_eq!(ledger.append_grant(&grant(3, 7_000), LONG), Ok(()));
    // The same ones again, applied or not: the first one counts.
    assert_eq!(ledger.append_grant(&Grant { bytes: 1, ..grant(1, 9_000) }, LONG), Ok(()));
    assert_eq!(ledger.append_grant(&Grant { bytes: 2, ..grant(2, 9_000) }, LONG), Ok(()));
    for notice in [notice(100, 100), notice(300, 80), Notice { used: 99, ..notice(100, 80) }] {
        assert_eq!(ledger.append_notice(&notice, LONG), Ok(()));
    }
    check(&fixture);
    let killed = copied(&fixture);
    drop(lock);
    close_ledger(ledger, writer);
    check(&fixture);
    killed.restart();
    check(&killed);
    // The database alone has them, and its checks are for them too.
    assert_eq!(SqliteUsage::open(&killed.directory()).unwrap().grants(WallNanos(0)).unwrap().len(), 3);
    assert_eq!(killed.bill().len(), 1);
    let backup = killed.0.path().join("backup");
    ledger::backup::backup(&killed.directory(), &backup).unwrap();
    assert_eq!(SqliteUsage::open(&backup).unwrap().notices(WallNanos(0)).unwrap().len(), 3);
}

#[test]
fn record_beyond_a_bound_is_refused_and_a_failing_disk_confirms_nothing() {
    let fixture = Fixture::new();
    let (ledger, writer) = fixture.open();
    wait_for(|| ledger.status().applied == ledger.status().appended);
    let before = ledger.status().appended;
    let long = ledger.append_grant(&Grant { reason: "x".repeat(201), ..grant(1, 5_000) }, LONG);
    assert_eq!(long, Err(AppendError::TooLong { field: "reason", found: 201, bound: 200 }));
    assert_eq!(ledger.status().appended, before);
    let aside = fixture.directory().join("aside");
    fs::rename(fixture.journal(), &aside).unwrap();
    let wait_max = Duration::from_millis(100);
    for _ in 0..3 {
        assert_eq!(ledger.append_grant(&grant(1, 5_000), wait_max), Err(AppendError::Unconfirmed));
    }
    fs::rename(&aside, fixture.journal()).unwrap();
    assert_eq!(ledger.append_grant(&grant(1, 5_000), LONG), Ok(()));
    assert_eq!(usage(&fixture).grants(WallNanos(0)).unwrap(), [grant(1, 5_000)]);
    close_ledger(ledger, writer);
    assert_eq!(usage(&fixture).grants(WallNanos(0)).unwrap(), [grant(1, 5_000)]);
}
