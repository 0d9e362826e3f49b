//! Flips bits of an idle ledger: in each part of its journal, and in its live table.
//!
//! Guarantees: each flip is reported at the next start, or every flow's record is unchanged. In either case
//! no flow is billed twice, nor for more than it moved.
//! Not handled here: the database (`verify`), and single structures (their own tests).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Random;
use super::process::PreviousState;
use super::scenario::{BUILD, Scenario};
use crate::record::Record;
use crate::storage::memory::Memory;
use crate::storage::{Storage, StorageFile};

/// The outcome of a start.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Outcome {
    /// It was refused, or reported something.
    Reported,
    /// Nothing was reported, and nothing is different.
    Harmless,
}

/// A killed process's ledger, and the expected records.
struct IdleLedger {
    scenario: Scenario,
    expected: BTreeMap<u128, Record>,
}

impl IdleLedger {
    fn new() -> IdleLedger {
        let mut scenario = Scenario::on(Box::new(|_, _| None), BUILD);
        scenario.play();
        scenario.kill();
        let mut idle = IdleLedger { scenario, expected: BTreeMap::new() };
        let (reported, expected) = idle.start(|_, _| {});
        assert_eq!((reported, expected.len()), (false, idle.scenario.expectations.len()));
        idle.expected = expected;
        idle
    }

    /// Starts a copy that `damage` has changed: whether anything was reported, and every flow's record.
    fn start(&self, damage: impl FnOnce(&Memory, &mut Vec<u64>)) -> (bool, BTreeMap<u128, Record>) {
        let memory = self.scenario.memory.copy();
        let mut table =
            self.scenario.previous.table.as_ref().expect("a killed process leaves its table").to_vec();
        damage(&memory, &mut table);
        let sink = self.scenario.previous.sink.copy();
        let mut copy = Scenario::on(Box::new(|_, _| None), BUILD);
        copy.previous = PreviousState { sink, table: Some(Arc::new(table)), ..self.scenario.previous };
        copy.memory = memory;
        match copy.finish() {
            Err(_) => (true, BTreeMap::new()),
            Ok(found) => {
                assert_eq!(copy.previous.sink.doubled(), None);
                let ids = self.scenario.expectations.keys();
                let records =
                    ids.filter_map(|id| copy.previous.sink.final_of(*id).map(|record| (*id, record)));
                (found.corruption.is_some() || found.damaged > 0, records.collect())
            }
        }
    }

    fn check(&self, case: &str, damage: impl FnOnce(&Memory, &mut Vec<u64>)) -> Outcome {
        let (is_reported, records) = self.start(damage);
        for (id, expected) in &self.expected {
            let record = records.get(id);
            let billed = record.map_or(0, |record| record.flow().legs.upstream_tx);
            assert!(billed <= expected.flow().legs.upstream_tx, "{case}: {record:?}");
            assert!(is_reported || record == Some(expected), "{case}: {record:?}");
        }
        if is_reported { Outcome::Reported } else { Outcome::Harmless }
    }
}

/// Runs `count` flips, and returns how many were reported.
fn count_reported(count: u64, mut flip: impl FnMut(&mut Random) -> Outcome) -> u64 {
    (0..count).map(|seed| u64::from(flip(&mut Random::from_seed(seed)) == Outcome::Reported)).sum()
}

#[test]
fn journal_bit_flip_is_reported_or_harmless() {
    let idle = IdleLedger::new();
    let names = idle.scenario.memory.names().unwrap();
    assert!(names.len() > 3, "{names:?}");
    let in_headers = |random: &mut Random| random.below(6) * 4096 * 8 + random.below(128 * 8);
    let anywhere = |random: &mut Random| random.below(24 * 1024 * 8);
    for (part, position) in [("headers", in_headers as fn(&mut Random) -> u64), ("anywhere", anywhere)] {
        let reported = count_reported(2_000, |random| {
            let name = &names[random.below(names.len() as u64) as usize];
            let bit = position(random);
            let bytes = idle.scenario.memory.open(name).unwrap().length().unwrap();
            let case = format!("bit {} of byte {} of {} in {name}", bit % 8, bit / 8, bytes);
            idle.check(&case, |memory, _| memory.flip(name, bit as usize))
        });
        assert!((10..1_990).contains(&reported), "{part}: {reported} reported");
    }
}

#[test]
fn live_table_bit_flip_is_reported_or_harmless() {
    let idle = IdleLedger::new();
    let words = idle.scenario.previous.table.as_ref().unwrap().len() as u64;
    let in_header = |random: &mut Random, _| random.below(9 * 64);
    let in_slots = |random: &mut Random, words| 512 * 64 + random.below((words - 512) * 64);
    for (part, position) in [("header", in_header as fn(&mut Random, u64) -> u64), ("slots", in_slots)] {
        let reported = count_reported(2_000, |random| {
            let bit = position(random, words);
            let case = format!("{part}: bit {} of word {}", bit % 64, bit / 64);
            idle.check(&case, |_, table| table[(bit / 64) as usize] ^= 1 << (bit % 64))
        });
        assert!(reported > 10, "{part}: {reported} reported");
    }
}
