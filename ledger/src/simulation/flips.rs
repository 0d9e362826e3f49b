//! Bits that flip while a ledger rests: in each part of its journal, and in its live table.
//!
//! Promises: each flip is told of at the next start, or every flow's record is the one without it; in either
//! case no flow is billed twice, nor for more than it moved. Leaves to others: the database (`verify`),
//! single structures (their own tests).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Random;
use super::process::Left;
use super::scenario::{BUILD, Scenario};
use crate::record::Record;
use crate::storage::memory::Memory;
use crate::storage::{Storage, StorageFile};

/// What a start found, in short.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Outcome {
    /// It was refused, or told of something.
    Told,
    /// Nothing was told, and nothing is different.
    Harmless,
}

/// A ledger at rest.
struct Rest {
    scenario: Scenario,
    expected: BTreeMap<u128, Record>,
}

impl Rest {
    fn new() -> Rest {
        let mut scenario = Scenario::on(Box::new(|_, _| None), BUILD);
        scenario.tell();
        scenario.kill();
        let mut rest = Rest { scenario, expected: BTreeMap::new() };
        let (told, expected) = rest.start(|_, _| {});
        assert_eq!((told, expected.len()), (false, rest.scenario.truths.len()));
        rest.expected = expected;
        rest
    }

    /// Starts a copy that `spoil` has spoilt: whether anything was told, and every flow's record.
    fn start(&self, spoil: impl FnOnce(&Memory, &mut Vec<u64>)) -> (bool, BTreeMap<u128, Record>) {
        let memory = self.scenario.memory.copy();
        let mut table = self.scenario.left.table.as_ref().expect("it was killed").to_vec();
        spoil(&memory, &mut table);
        let bill = self.scenario.left.bill.copy();
        let mut copy = Scenario::on(Box::new(|_, _| None), BUILD);
        copy.left = Left { bill, table: Some(Arc::new(table)), ..self.scenario.left };
        copy.memory = memory;
        match copy.finish() {
            Err(_) => (true, BTreeMap::new()),
            Ok(found) => {
                assert_eq!(copy.left.bill.doubled(), None);
                let ids = self.scenario.truths.keys();
                let records = ids.filter_map(|id| copy.left.bill.of(*id).map(|record| (*id, record)));
                (found.trouble.is_some() || found.damaged > 0, records.collect())
            }
        }
    }

    fn judge(&self, case: &str, spoil: impl FnOnce(&Memory, &mut Vec<u64>)) -> Outcome {
        let (is_told, records) = self.start(spoil);
        for (id, expected) in &self.expected {
            let record = records.get(id);
            let billed = record.map_or(0, |record| record.flow().legs.upstream_tx);
            assert!(billed <= expected.flow().legs.upstream_tx, "{case}: {record:?}");
            assert!(is_told || record == Some(expected), "{case}: {record:?}");
        }
        if is_told { Outcome::Told } else { Outcome::Harmless }
    }
}

/// Judges `count` flips, and says how many were told of.
fn told(count: u64, mut flip: impl FnMut(&mut Random) -> Outcome) -> u64 {
    (0..count).map(|seed| u64::from(flip(&mut Random::of(seed)) == Outcome::Told)).sum()
}

#[test]
fn a_flipped_bit_in_the_journal_is_told_of_or_changes_nothing() {
    let rest = Rest::new();
    let names = rest.scenario.memory.names().unwrap();
    assert!(names.len() > 3, "{names:?}");
    let in_headers = |random: &mut Random| random.below(6) * 4096 * 8 + random.below(128 * 8);
    let anywhere = |random: &mut Random| random.below(24 * 1024 * 8);
    for (part, place) in [("headers", in_headers as fn(&mut Random) -> u64), ("anywhere", anywhere)] {
        let told = told(2_000, |random| {
            let name = &names[random.below(names.len() as u64) as usize];
            let bit = place(random);
            let bytes = rest.scenario.memory.open(name).unwrap().length().unwrap();
            let case = format!("bit {} of byte {} of {} in {name}", bit % 8, bit / 8, bytes);
            rest.judge(&case, |memory, _| memory.flip(name, bit as usize))
        });
        assert!((10..1_990).contains(&told), "{part}: {told} told");
    }
}

#[test]
fn a_flipped_bit_in_the_live_table_is_told_of_or_changes_nothing() {
    let rest = Rest::new();
    let words = rest.scenario.left.table.as_ref().unwrap().len() as u64;
    let in_header = |random: &mut Random, _| random.below(9 * 64);
    let in_slots = |random: &mut Random, words| 512 * 64 + random.below((words - 512) * 64);
    for (part, place) in [("header", in_header as fn(&mut Random, u64) -> u64), ("slots", in_slots)] {
        let told = told(2_000, |random| {
            let bit = place(random, words);
            let case = format!("{part}: bit {} of word {}", bit % 64, bit / 64);
            rest.judge(&case, |_, table| table[(bit / 64) as usize] ^= 1 << (bit % 64))
        });
        assert!(told > 10, "{part}: {told} told");
    }
}
