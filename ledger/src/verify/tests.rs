//! Every kind of damage that a disk does to a file at rest: one bit is another.

use std::path::Path;

use super::*;
use crate::query::{Answer, Filter, FlowRow, GroupBy, Row};
use crate::sink::sqlite::tests::small;

/// Everything that a bill is made of.
fn bills(directory: &Path) -> Result<(Vec<Answer>, Row, Vec<FlowRow>), QueryError> {
    let usage = Usage::open(directory)?;
    let all = Filter::default();
    let groups = [GroupBy::User, GroupBy::Host, GroupBy::Class, GroupBy::Hour, GroupBy::Day, GroupBy::Month];
    let answers = groups.map(|group| usage.rows(&all, group)).into_iter().collect::<Result<_, _>>()?;
    Ok((answers, usage.total(&all)?, usage.flows(&all, 100)?))
}

#[test]
fn a_flipped_bit_is_found_or_changes_no_bill() {
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
            // Most of a small file is empty. All of the rest would take a minute.
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
