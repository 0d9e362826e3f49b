//! One mutex around the last page: how a table with a sequential key grows. Who waits for long sleeps, and a
//! writer that loses its CPU inside takes everybody along for as long as it is away.

use std::sync::{Mutex, PoisonError};

use anyhow::Result;

use super::page::Tail;
use super::row::Row;
use super::store::{Answer, Shared};

pub(super) struct Latch {
    tail: Mutex<Tail>,
}

impl Latch {
    pub(super) fn new() -> Self {
        Self { tail: Mutex::new(Tail::new()) }
    }
}

impl Shared for Latch {
    fn insert(&self, row: &Row) -> Result<Answer> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner).append(row);
        Ok(Answer::Accepted(1))
    }
}
