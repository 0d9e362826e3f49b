//! The content of a file: as programs see it, and what of it a power failure is sure to leave.
//!
//! Guarantees: a sync makes durable what was done before it began, and no more; of later changes a power
//! failure leaves any sectors, in any order.

use std::collections::VecDeque;

use crate::rng::Rng;

/// A disk writes a sector whole or not at all.
const SECTOR_BYTES: usize = 512;

/// The bytes of a file: current, durable, and the changes in between.
#[derive(Default)]
pub(super) struct Content {
    current: Vec<u8>,
    durable: Vec<u8>,
    /// Changes since the last sync, in order.
    unsynced: VecDeque<Change>,
    /// The number of earlier changes.
    synced: u64,
}

enum Change {
    Written { at: usize, bytes: Vec<u8> },
    Length(usize),
}

impl Change {
    /// Applies the change to `bytes`, for each sector or the length where `survives` returns true.
    fn apply(&self, bytes: &mut Vec<u8>, mut survives: impl FnMut() -> bool) {
        match self {
            Change::Length(length) if survives() => bytes.resize(*length, 0),
            Change::Length(_) => {}
            Change::Written { at, bytes: written } => {
                let mut done = 0;
                while done < written.len() {
                    let sector_left = SECTOR_BYTES - (at + done) % SECTOR_BYTES;
                    let end = written.len().min(done + sector_left);
                    if survives() {
                        write_at(bytes, at + done, &written[done..end]);
                    }
                    done = end;
                }
            }
        }
    }
}

fn write_at(content: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if content.len() < at + bytes.len() {
        content.resize(at + bytes.len(), 0);
    }
    content[at..at + bytes.len()].copy_from_slice(bytes);
}

impl Content {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.current
    }

    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) {
        self.change(Change::Written { at, bytes: bytes.to_vec() });
    }

    pub(super) fn set_length(&mut self, length: usize) {
        self.change(Change::Length(length));
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.current, || true);
        self.unsynced.push_back(change);
    }

    /// The number of changes so far.
    pub(super) fn change_count(&self) -> u64 {
        self.synced + self.unsynced.len() as u64
    }

    /// Makes durable the changes before [`Content::change_count`] was `done`.
    pub(super) fn sync(&mut self, done: u64) {
        while self.synced < done
            && let Some(change) = self.unsynced.pop_front()
        {
            change.apply(&mut self.durable, || true);
            self.synced += 1;
        }
    }

    /// What a power failure leaves.
    pub(super) fn after_power_failure(mut self, rng: &mut Rng) -> Content {
        // All changes, as if written back a moment ago; or none; or some, torn: a sector that was written
        // twice has its state before, in between, or at the end.
        let survival = Survival::random(rng);
        for change in std::mem::take(&mut self.unsynced) {
            let percent = match survival {
                Survival::All => 100,
                Survival::None => 0,
                // Pages are written in any order, and most of them whole.
                Survival::Some => *rng.choose(&[0, 50, 100, 100]),
            };
            change.apply(&mut self.durable, || rng.random_percent(percent));
        }
        Content { current: self.durable.clone(), durable: self.durable, ..Content::default() }
    }
}

/// How many of the unsynced changes a power failure leaves.
#[derive(Clone, Copy, Debug)]
pub(super) enum Survival {
    All,
    None,
    Some,
}

impl Survival {
    pub(super) fn random(rng: &mut Rng) -> Survival {
        *rng.choose(&[Survival::All, Survival::None, Survival::Some, Survival::Some])
    }
}
