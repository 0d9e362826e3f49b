//! The simulation's second reader of the journal. It stops, lags, crashes with the process, and is restored
//! to an older position.
//!
//! Guarantees: it misses entries only where its bound, a failing disk or its own restore permits that.

use std::collections::{BTreeMap, BTreeSet};

use super::Random;
use super::process::{Build, Process, SECOND_READER};
use crate::entry::Entry;
use crate::journal::follower::Follower;
use crate::journal::reader::ReadError;
use crate::readers::ReaderStatus;
use crate::storage::faulty::Faulty;

/// What the reader has, as its own store keeps it over crashes.
pub(super) struct SecondReader {
    kept_bytes_max: Option<u64>,
    follower: Option<Follower<Faulty>>,
    entries: BTreeMap<u64, Entry>,
    missed: BTreeSet<u64>,
    /// It has released everything up to here.
    released: u64,
    /// Whether the stored position is all that it knows.
    has_lost_position: bool,
    /// Whether a power failure may have left an older position in the file.
    may_be_older: bool,
    /// Whether it may miss entries although its bound was kept.
    may_lapse: bool,
    lapses: u64,
}

impl SecondReader {
    pub(super) fn new(kept_bytes_max: Option<u64>) -> SecondReader {
        SecondReader {
            kept_bytes_max,
            follower: None,
            entries: BTreeMap::new(),
            missed: BTreeSet::new(),
            released: 0,
            has_lost_position: false,
            may_be_older: false,
            may_lapse: false,
            lapses: 0,
        }
    }

    /// How often it lapsed, and how many entries it got.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.lapses, self.entries.len() as u64)
    }

    /// The number up to which it has, or misses, everything.
    fn position(&self) -> u64 {
        let last = |of: Option<u64>| of.unwrap_or(0);
        last(self.entries.last_key_value().map(|(lsn, _)| *lsn)).max(last(self.missed.last().copied()))
    }

    /// Forgets everything behind `position`.
    fn restore(&mut self, position: u64) {
        self.entries.split_off(&(position + 1));
        self.missed.split_off(&(position + 1));
    }

    /// What it does beside a step of the process.
    pub(super) fn step(&mut self, process: &Process, random: &mut Random) -> Result<(), String> {
        self.check_hold(process)?;
        match random.below(40) {
            0..3 if self.follower.is_none() => self.follow(process)?,
            // It stops.
            3 => self.follower = None,
            4..12 => drop(self.read(process)?),
            12..16 => self.release(random),
            _ => {}
        }
        self.check_hold(process)
    }

    fn follow(&mut self, process: &Process) -> Result<(), String> {
        if self.kept_bytes_max.is_none() {
            return Ok(());
        }
        let position = (!self.has_lost_position).then(|| self.position());
        let follower = match Follower::new(&process.journal, SECOND_READER, position) {
            Ok(follower) => follower,
            Err(error) if error.to_string().contains("simulated") => return Ok(()),
            Err(error) => return Err(format!("the second reader cannot follow from {position:?}: {error}")),
        };
        let begins_behind = follower.next_lsn() - 1;
        if begins_behind > self.position() {
            return Err(format!("the stored position {begins_behind} is beyond {}", self.position()));
        }
        self.restore(begins_behind);
        // A position from which it follows is released.
        self.released = begins_behind;
        (self.has_lost_position, self.may_be_older) = (false, false);
        if Follower::new(&process.journal, SECOND_READER, None).is_ok() {
            return Err("two handles follow the journal by one name".to_owned());
        }
        self.follower = Some(follower);
        Ok(())
    }

    /// Reads a frame; returns whether there was one.
    fn read(&mut self, process: &Process) -> Result<bool, String> {
        let Some(follower) = &mut self.follower else { return Ok(false) };
        let (mut entries, first_lsn) = (Vec::new(), follower.next_lsn());
        match follower.read(&mut entries) {
            Ok(None) => return Ok(false),
            Ok(Some(_)) => {}
            Err(ReadError::Lapsed { first_lsn, next_lsn }) => {
                let is_bounded = self.kept_bytes_max.is_some_and(|bytes| bytes < u64::MAX);
                if !is_bounded && !self.may_lapse && process.storage.faults() == 0 {
                    return Err(format!("the second reader lapsed within its bound at entry {first_lsn}"));
                }
                self.lapses += 1;
                self.missed.extend(first_lsn..next_lsn);
                return Ok(true);
            }
            Err(error) if error.to_string().contains("simulated") => return Ok(false),
            Err(error) => return Err(format!("the second reader, at entry {first_lsn}: {error}")),
        }
        if first_lsn != self.position() + 1 {
            return Err(format!("the second reader is at {}, and got {first_lsn}", self.position()));
        }
        self.entries.extend((first_lsn..).zip(entries));
        Ok(true)
    }

    fn release(&mut self, random: &mut Random) {
        let Some(follower) = &self.follower else { return };
        let lsn = self.position() - random.below(self.position() + 1) / 4;
        if follower.release(lsn).is_ok() {
            self.released = self.released.max(lsn);
        }
    }

    /// The process ends, and the reader with it. Its own store may have lost its last entries, or, restored
    /// from a backup, also such that it has released.
    pub(super) fn crash(&mut self, process: &Process, random: &mut Random) {
        self.follower = None;
        self.note_faults(process.storage.faults());
        let position = self.position();
        if random.chance(30) {
            self.restore(position - random.below(position - self.released.min(position) + 1));
        } else if random.chance(20) {
            self.restore(random.below(position + 1));
            self.may_lapse = true;
        }
        self.released = self.released.min(self.position());
        self.has_lost_position = random.chance(20) && !self.may_lapse;
    }

    /// A disk that fails may take what was kept for it, or its position.
    pub(super) fn note_faults(&mut self, faults: u64) {
        self.may_lapse |= faults > 0;
    }

    /// The name of the file was not synced.
    pub(super) fn note_power_failure(&mut self) {
        self.may_be_older = true;
    }

    fn status(process: &Process) -> Option<ReaderStatus> {
        process.journal.readers().status().pop()
    }

    /// No segment that it holds is reused or removed.
    pub(super) fn check_hold(&self, process: &Process) -> Result<(), String> {
        let (Some(status), first_lsn) = (Self::status(process), process.journal.first_lsn()) else {
            return Ok(());
        };
        match status.released + 1 < first_lsn {
            true => {
                Err(format!("the second reader holds entry {}: {first_lsn} is first", status.released + 1))
            }
            false => Ok(()),
        }
    }

    /// A start knows a position that is no newer than the reader's own, and no older without a power failure.
    pub(super) fn check_start(&mut self, process: &Process) -> Result<(), String> {
        let Some(status) = Self::status(process) else { return Ok(()) };
        if status.released > self.released && !status.is_lapsed && !self.may_lapse && self.released > 0 {
            return Err(format!("a start placed the reader at {}, not {}", status.released, self.released));
        }
        if status.released < self.released && !self.may_be_older && !self.may_lapse {
            return Err(format!(
                "a start placed the reader at {}, before {}",
                status.released, self.released
            ));
        }
        self.check_hold(process)
    }

    /// If the journal is full, it is so without what is kept for this reader alone.
    pub(super) fn check_full(
        &self,
        process: &Process,
        build: Build,
        outcome: Result<(), String>,
    ) -> Result<(), String> {
        // A rewrite that the bound ended has removed the segments that it had begun, which were needed.
        let is_full = process.journal.is_whole() && outcome.is_err_and(|error| error.contains("journal_max"));
        let needed = process.journal.needed_by_database() + 2;
        match is_full && needed * build.segment_bytes <= build.bytes_max {
            true => Err(format!("the journal is full, and the database needs {needed} segments of it")),
            false => Ok(()),
        }
    }

    /// Reads to the end, and compares what it has with what the database has.
    pub(super) fn finish(&mut self, process: &Process, log: &BTreeMap<u64, Entry>) -> Result<(), String> {
        if self.kept_bytes_max.is_none() {
            return Ok(());
        }
        if self.follower.is_none() {
            self.follow(process)?;
        }
        while self.read(process)? {}
        for (lsn, entry) in log {
            match (self.entries.get(lsn), self.missed.contains(lsn)) {
                (Some(own), false) if own == entry => {}
                (None, true) => {}
                (own, missed) => {
                    let text = "the database and the second reader differ";
                    return Err(format!("{text} at entry {lsn}: {entry:?}, {own:?}, missed: {missed}"));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::super::memory_sink::MemorySink;
    use super::super::process::{CLOSED_AT, PreviousState, identity};
    use super::*;
    use crate::Durability;
    use crate::journal::reader::numbers;
    use crate::record::CloseReason;
    use crate::storage::faulty::{Call, Fault};
    use crate::storage::memory::Memory;

    const SEGMENT: u64 = 20 << 10;

    /// A process with a reader that holds all, on a disk whose reads fail while the flag is set.
    fn start() -> (Process, Arc<AtomicBool>) {
        let fails = Arc::new(AtomicBool::new(false));
        let failing = Arc::clone(&fails);
        let plan = Box::new(move |call, _| {
            let is_read = matches!(call, Call::Read | Call::Open);
            (is_read && failing.load(Ordering::Relaxed)).then_some(Fault::Broken)
        });
        let build = Build {
            durability: Durability::Delayed,
            regions: 1,
            slots: 12,
            segment_bytes: SEGMENT,
            bytes_max: 4 * SEGMENT,
            kept_bytes_max: Some(u64::MAX),
        };
        let storage = Faulty::new(Memory::default(), Random::from_seed(1), plan);
        let previous = PreviousState { sink: MemorySink::default(), table: None, boot: 1 };
        (Process::start(&storage, build, &previous).unwrap(), fails)
    }

    /// Runs a flow, whose entry has a frame of its own.
    fn run_flow(process: &mut Process, id: u128) -> Result<(), String> {
        let flow = process.writers[0].open(&identity(id)).expect("the table has a free slot");
        process.writers[0].close(flow, CLOSED_AT, CloseReason::ClientClosed);
        process.commit()?;
        process.flush()
    }

    /// The journal has as much as it may, and the database takes nothing: it lags, or it fails. Only a
    /// failing one may lack the space that is kept for the reader.
    #[test]
    fn failing_database_takes_what_is_kept() {
        for is_failing in [false, true] {
            let (mut process, fails) = start();
            for id in 1..=40 {
                run_flow(&mut process, id).unwrap();
                process.apply().and_then(|()| process.checkpoint()).unwrap();
                process.prepare().unwrap();
            }
            let status = |process: &Process| SecondReader::status(process).unwrap();
            let segments = |process: &Process| numbers(&process.storage).unwrap().len();
            let kept = segments(&process);
            assert!(kept >= 10 && status(&process).lapses == 0, "{kept}: {:?}", status(&process));
            fails.store(is_failing, Ordering::Relaxed);
            let full = (41..80).find_map(|id| {
                let outcome = run_flow(&mut process, id);
                assert!(!is_failing || outcome.is_err() || process.apply().is_err());
                let _ = process.prepare();
                outcome.err()
            });
            assert!(full.as_ref().is_some_and(|error| error.contains("journal_max")), "{full:?}");
            fails.store(false, Ordering::Relaxed);
            assert_eq!(status(&process).lapses, u64::from(is_failing));
            // Of what the database needs, nothing goes.
            let applied = process.journal.readers().database();
            assert_eq!(status(&process).released, if is_failing { applied } else { 0 });
            let _ = process.prepare();
            let left = segments(&process);
            assert!(if is_failing { left <= 5 } else { left >= kept }, "{left} of {kept} are left");
            process.apply().and_then(|()| process.checkpoint()).unwrap();
            process.commit().unwrap();
        }
    }
}
