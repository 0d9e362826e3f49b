//! The latch behind a turnstile for each CPU: of the writers on one CPU a single one may wait for the latch,
//! which is how a vendor's option for sequential keys works. Fewer writers contend; one that holds the latch
//! is without its CPU as long as before.

use std::sync::{Mutex, PoisonError};

use anyhow::Result;

use super::latch::Latch;
use super::row::Row;
use super::store::{InsertResult, SharedStore};
use crate::kit::machine;

pub(super) struct Turnstile {
    /// By CPU number, each on cache lines of its own.
    gates: Vec<Gate>,
    latch: Latch,
}

#[repr(align(128))]
struct Gate(Mutex<()>);

impl Turnstile {
    pub(super) fn new() -> Self {
        let cpus = machine::allowed_cpus().into_iter().max().map_or(1, |highest| highest + 1);
        Self { gates: (0..cpus).map(|_| Gate(Mutex::new(()))).collect(), latch: Latch::new() }
    }
}

impl SharedStore for Turnstile {
    fn insert(&self, row: &Row) -> Result<InsertResult> {
        // The writer may move to another CPU while it waits: the turnstile limits load and is not needed for
        // safety.
        let cpu = rustix::thread::sched_getcpu() % self.gates.len();
        let _admitted = self.gates[cpu].0.lock().unwrap_or_else(PoisonError::into_inner);
        self.latch.insert(row)
    }
}
