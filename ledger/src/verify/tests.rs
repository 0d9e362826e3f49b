//! Flips single bits in files at rest.

use std::path::Path;

use super::*;
use crate::query::{Answer, Filter, FlowRow, GroupBy, Row};
use crate::random::Random;
use crate::sink::{Sink, SinkSettings};
use crate::sqlite_sink::SqliteSink;
use crate::sqlite_sink::tests::{later, small};
use crate::sqlite_usage::SqliteUsage;

/// All results that a bill uses.
fn bills(directory: &Path) -> Result<(Vec<Answer>, Row, Vec<FlowRow>), QueryError> {
    let usage = SqliteUsage::open(directory)?;
    let all = Filter::default();
    let groups = [GroupBy::User, GroupBy::Host, GroupBy::Class, GroupBy::Hour, GroupBy::Day, GroupBy::Month];
    let answers = groups.map(|group| usage.rows(&all, &[group])).into_iter().collect::<Result<_, _>>()?;
    Ok((answers, usage.total(&all)?, usage.flows(&all, 100)?))
}

#[test]
fn flipped_bit_is_found_or_changes_no_bill() {
    let store = small();
    let directory = store.path();
    let expected = bills(&directory).unwrap();
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let (mut found, mut harmless) = (0, 0);
    for name in ["ledger.db", "usage-202601.db", "usage-202602.db"] {
        let path = directory.join(name);
        let whole = std::fs::read(&path).unwrap();
        for (at, byte) in whole.iter().enumerate() {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Most of a small file is zero. Flipping every bit would take a minute.
            if !(seed >> 40).is_multiple_of(if *byte == 0 { 499 } else { 9 }) {
                continue;
            }
            let bit = (seed >> 33) % 8;
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << bit;
            std::fs::write(&path, flipped).unwrap();
            if verify(&directory).is_ok_and(|report| report.is_clean()) {
                assert_eq!(bills(&directory).unwrap(), expected, "bit {bit} of byte {at} of {name}");
                harmless += 1;
            } else {
                found += 1;
            }
        }
        std::fs::write(&path, &whole).unwrap();
    }
    assert!(verify(&directory).unwrap().is_clean());
    assert!(found > 500 && harmless > 5, "{found} found, {harmless} harmless");
}

/// A gateway that writes on after a bit has flipped: it is refused, or the damage is still found afterwards,
/// or the bill is the same. The damage must never get a new checksum.
#[test]
fn flipped_bit_is_never_resealed_by_writing() {
    let store = small();
    let source = store.path();
    let copy = |to: &Path| {
        for entry in std::fs::read_dir(&source).unwrap().map(|entry| entry.unwrap()) {
            if entry.path().extension().is_some_and(|extension| extension == "db") {
                std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
            }
        }
    };
    let write_on = |directory: &Path| -> Result<(), String> {
        let settings = SinkSettings { rows_per_month_max: 4, ..SinkSettings::default() };
        let mut sink = SqliteSink::open(directory, 1, settings).map_err(|error| error.to_string())?;
        let outcome = sink.apply(2, 7, &later()).and_then(|()| sink.seal());
        outcome.map_err(|error| error.to_string())
    };
    let whole = tempfile::tempdir().unwrap();
    copy(whole.path());
    write_on(whole.path()).unwrap();
    let expected = bills(whole.path()).unwrap();
    let (mut random, mut reported, mut harmless) = (Random::from_seed(1), 0, 0);
    for name in ["ledger.db", "usage-202601.db", "usage-202602.db"] {
        let bytes = std::fs::read(source.join(name)).unwrap();
        let used: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
        for _ in 0..200 {
            let (at, bit) = (used[random.below(used.len() as u64) as usize], random.below(8));
            let damaged = tempfile::tempdir().unwrap();
            copy(damaged.path());
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << bit;
            std::fs::write(damaged.path().join(name), flipped).unwrap();
            let refused = write_on(damaged.path()).is_err();
            if refused || !verify(damaged.path()).is_ok_and(|report| report.is_clean()) {
                reported += 1;
                continue;
            }
            assert_eq!(bills(damaged.path()).unwrap(), expected, "bit {bit} of byte {at} of {name}");
            harmless += 1;
        }
    }
    assert!(reported > 100 && harmless > 5, "{reported} reported, {harmless} harmless");
}
