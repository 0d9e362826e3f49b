//! The names in a directory: as programs see them, and those that a power failure is sure to leave.
//!
//! Promises: of what was done since the last sync, a power failure leaves all, nothing, or what came first:
//! file systems journal their directories, so that nothing overtakes. Each directory has an order of its own:
//! that one directory's sync brings another's names to the disk is no promise. Leaves to others: the files.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{OsStr, OsString};

use super::content::Survival;
use crate::rng::Rng;

/// Names, and the numbers of their files.
type Inodes = BTreeMap<OsString, u64>;

/// See the file's header.
#[derive(Default)]
pub(super) struct Names {
    current: Inodes,
    durable: Inodes,
    /// What was done since the last sync, in its order.
    unsynced: VecDeque<NameChange>,
    /// How much was done before that.
    synced: u64,
}

/// What is done to a directory, each whole or not at all.
pub(super) enum NameChange {
    Insert(OsString, u64),
    Remove(OsString),
    Rename { from: OsString, to: OsString },
}

impl NameChange {
    fn apply(&self, inodes: &mut Inodes) {
        match self {
            NameChange::Insert(name, inode) => {
                inodes.insert(name.clone(), *inode);
            }
            NameChange::Remove(name) => {
                inodes.remove(name);
            }
            NameChange::Rename { from, to } => {
                if let Some(inode) = inodes.remove(from) {
                    inodes.insert(to.clone(), inode);
                }
            }
        }
    }
}

impl Names {
    pub(super) fn inode(&self, name: &OsStr) -> Option<u64> {
        self.current.get(name).copied()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (&OsString, u64)> {
        self.current.iter().map(|(name, inode)| (name, *inode))
    }

    pub(super) fn change(&mut self, change: NameChange) {
        change.apply(&mut self.current);
        self.unsynced.push_back(change);
    }

    /// How much has been done so far.
    pub(super) fn change_count(&self) -> u64 {
        self.synced + self.unsynced.len() as u64
    }

    /// Makes durable what had been done when [`Names::change_count`] said `done`.
    pub(super) fn sync(&mut self, done: u64) {
        while self.synced < done
            && let Some(change) = self.unsynced.pop_front()
        {
            change.apply(&mut self.durable);
            self.synced += 1;
        }
    }

    /// What a power failure leaves.
    pub(super) fn after_power_failure(mut self, rng: &mut Rng) -> Names {
        let count = self.unsynced.len();
        let left = match Survival::random(rng) {
            Survival::All => count,
            Survival::None => 0,
            Survival::Some => rng.random_range(0..count as u64 + 1) as usize,
        };
        self.unsynced.iter().take(left).for_each(|change| change.apply(&mut self.durable));
        Names { current: self.durable.clone(), durable: self.durable, ..Names::default() }
    }
}
