//! One request after the other on one thread: the baseline of every other strategy.

use std::sync::Arc;

use anyhow::Result;

use super::Strategy;
use super::recording::ThreadPlacement;
use super::waits::Wait;
use super::work::Work;

pub(super) struct Sequential;

impl Strategy for Sequential {
    fn run(&self, work: &Arc<Work>) -> Result<()> {
        let mut enter = work.enter(ThreadPlacement::Any);
        (0..work.requests()).for_each(|request| work.request(request, &mut enter, Wait::hold_thread));
        Ok(())
    }
}
