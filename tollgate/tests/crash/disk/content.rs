//! The content of a file: as programs see it, and what of it a power failure is sure to leave.
//!
//! Promises: a sync makes durable what was done before it began, and no more; of what was done since, a power
//! failure leaves any sectors, in any order. Leaves to others: who syncs, and when (`served`).

use std::collections::VecDeque;

use crate::rng::Rng;

/// What a disk writes whole or not at all.
const SECTOR_BYTES: usize = 512;

/// See the file's header.
#[derive(Default)]
pub(super) struct Content {
    current: Vec<u8>,
    durable: Vec<u8>,
    /// What was done since the last sync, in its order.
    unsynced: VecDeque<Change>,
    /// How much was done before that.
    synced: u64,
}

enum Change {
    Written { at: usize, bytes: Vec<u8> },
    Length(usize),
}

impl Change {
    /// Does it to `bytes`; where `survives` says so of a sector, or of the length.
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

    /// How much has been done so far.
    pub(super) fn change_count(&self) -> u64 {
        self.synced + self.unsynced.len() as u64
    }

    /// Makes durable what had been done when [`Content::change_count`] said `done`.
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
        // All, as if it had been written back a moment ago; or nothing; or what had its turn, torn: each
        // sector that was written twice is as it was before, in between, or at the end.
        let survival = Survival::random(rng);
        for change in std::mem::take(&mut self.unsynced) {
            let percent = match survival {
                Survival::All => 100,
                Survival::None => 0,
                // Pages go to the disk in any order, and most of them whole.
                Survival::Some => *rng.choose(&[0, 50, 100, 100]),
            };
            change.apply(&mut self.durable, || rng.random_percent(percent));
        }
        Content { current: self.durable.clone(), durable: self.durable, ..Content::default() }
    }
}

/// How much of what was not synced a power failure leaves.
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
