//! Damages the files of a killed process: segments that are missing, cut, zeroed or older, flipped bits, and
//! a live table that is missing, zeroed or older.
//!
//! Guarantees: a start on damaged files is refused, or reports it, or bills each flow as a start on intact
//! ones does. In any case no flow is billed twice, nor for more than it moved, and what a start takes can be
//! applied.
//! Not handled here: databases (`sink`), and an older table that lacks less than a frame, which cannot be
//! distinguished from the last one.

use std::sync::Arc;
use std::time::Duration;

use super::Random;
use super::memory_sink::Bills;
use super::process::{Build, PreviousState, Process};
use crate::live_table::{PAGE_WORDS, SLOT_WORDS};
use crate::storage::faulty::Faulty;
use crate::storage::memory::Memory;
use crate::storage::{Storage, StorageFile};

/// The files of a killed process, and earlier copies of them.
pub(super) struct KilledState<'a> {
    pub(super) build: Build,
    pub(super) memory: &'a Memory,
    pub(super) previous: &'a PreviousState,
    /// An earlier copy of the disk, and of the table.
    pub(super) older: (Option<&'a Memory>, Option<&'a Arc<Vec<u64>>>),
}

/// The outcome of a start.
struct Outcome {
    /// Whether it was refused, or reported something.
    is_reported: bool,
    bills: Bills,
}

impl KilledState<'_> {
    /// Damages a copy, and compares a start on it with a start on an intact one; returns whether the damage
    /// was reported.
    ///
    /// # Errors
    /// The violated check.
    pub(super) fn damage(&self, random: &mut Random, moved: &Bills) -> Result<bool, String> {
        let whole = self.start(self.memory.copy(), self.previous.table.clone())?;
        let (memory, mut table) = (self.memory.copy(), self.previous.table.clone());
        let (what, is_exact) = match random.chance(75) {
            true => (self.damage_segment(random, &memory), true),
            false => self.damage_table(random, &mut table),
        };
        let damaged = self.start(memory, table).map_err(|error| format!("{what}: {error}"))?;
        for (id, bill) in &damaged.bills {
            let most = moved.get(id).map_or((0, 0), |moved| (moved.0, moved.1));
            if bill.0 > most.0 || bill.1 > most.1 {
                return Err(format!("{what}: flow {id} moved {most:?}, and is billed {bill:?}"));
            }
        }
        if is_exact && !damaged.is_reported && damaged.bills != whole.bills {
            let other = whole.bills.iter().find(|(id, bill)| damaged.bills.get(*id) != Some(*bill));
            let other = other.map(|(id, bill)| (id, bill, damaged.bills.get(id)));
            return Err(format!("{what}: nothing was reported, and a flow is billed differently: {other:?}"));
        }
        Ok(damaged.is_reported)
    }

    /// Starts on these files, and runs until everything is applied.
    fn start(&self, memory: Memory, table: Option<Arc<Vec<u64>>>) -> Result<Outcome, String> {
        let storage = Faulty::new(memory, Random::from_seed(0), Box::new(|_, _| None));
        let previous = PreviousState { sink: self.previous.sink.copy(), table, boot: self.previous.boot };
        let reported = |bills| Outcome { is_reported: true, bills };
        let Ok(mut process) = Process::start(&storage, self.build, &previous) else {
            return Ok(reported(Bills::new()));
        };
        let found = &process.recovery;
        let mut is_reported =
            process.is_stale || found.corruption.is_some() || found.damaged > 0 || found.table_missing;
        for _ in 0..PASSES {
            process.pass(Duration::from_secs(1));
            let written = process.commit().and_then(|()| process.flush());
            process.apply().map_err(|error| format!("the start took what cannot be applied: {error}"))?;
            is_reported |= written.and_then(|()| process.checkpoint()).is_err();
            let _ = process.prepare();
        }
        match previous.sink.doubled() {
            Some(flow) => Err(format!("flow {flow} has two finals")),
            None => Ok(Outcome { is_reported, bills: previous.sink.bills() }),
        }
    }

    /// Damages a segment; returns a description.
    fn damage_segment(&self, random: &mut Random, memory: &Memory) -> String {
        let names = memory.names().expect("listing names in memory cannot fail");
        let Some(name) = names.get(random.below(names.len().max(1) as u64) as usize) else {
            return "nothing".to_owned();
        };
        let bytes =
            memory.open(name).and_then(|file| file.length()).expect("the name was just listed") as usize;
        let at =
            |random: &mut Random, unit: usize| random.below((bytes / unit).max(1) as u64) as usize * unit;
        let done = match random.below(7) {
            0 => {
                memory.remove(name).expect("the name was just listed");
                "removed".to_owned()
            }
            1 => cut(memory, name, 0),
            2 => cut(memory, name, at(random, 1)),
            3 => zero(memory, name, 0..bytes),
            4 => {
                let first = at(random, 512);
                zero(memory, name, first..first + 512)
            }
            5 => {
                let bit = random.below((bytes * 8).max(1) as u64) as usize;
                memory.flip(name, bit);
                format!("bit {bit} flipped")
            }
            _ => match self.older.0.and_then(|older| older.content(name)) {
                Some(content) => {
                    memory.put_content(name, content);
                    "an older copy".to_owned()
                }
                None => "unchanged".to_owned(),
            },
        };
        format!("{name}: {done}")
    }

    /// Damages the table; returns a description, and whether every difference in the bill must be reported.
    fn damage_table(&self, random: &mut Random, table: &mut Option<Arc<Vec<u64>>>) -> (String, bool) {
        let Some(words) = table.as_ref().map(|words| words.to_vec()) else {
            return ("no table".to_owned(), true);
        };
        let (what, changed) = match random.below(4) {
            0 => ("the table is missing".to_owned(), None),
            1 => {
                let slots = ((words.len() - PAGE_WORDS) / SLOT_WORDS) as u64;
                let first = PAGE_WORDS + random.below(slots) as usize * SLOT_WORDS;
                let mut zeroed = words;
                zeroed[first..].fill(0);
                (format!("the table is zeroed from word {first} on"), Some(Arc::new(zeroed)))
            }
            2 => {
                let (word, bit) = (random.below(words.len() as u64), random.below(64));
                let mut flipped = words;
                flipped[word as usize] ^= 1 << bit;
                (format!("bit {bit} of word {word} of the table flipped"), Some(Arc::new(flipped)))
            }
            _ => match self.older.1 {
                Some(older) => {
                    *table = Some(Arc::clone(older));
                    return ("an older table".to_owned(), false);
                }
                None => ("the table is unchanged".to_owned(), table.clone()),
            },
        };
        *table = changed;
        (what, true)
    }
}

/// Passes until everything is journaled and applied.
const PASSES: u32 = 6;

fn cut(memory: &Memory, name: &str, bytes: usize) -> String {
    let mut content = memory.content(name).expect("the name was just listed");
    content.truncate(bytes);
    memory.put_content(name, content);
    format!("cut to {bytes} bytes")
}

fn zero(memory: &Memory, name: &str, range: std::ops::Range<usize>) -> String {
    let mut content = memory.content(name).expect("the name was just listed");
    let end = range.end.min(content.len());
    content[range.start.min(end)..end].fill(0);
    memory.put_content(name, content);
    format!("bytes {range:?} zeroed")
}
