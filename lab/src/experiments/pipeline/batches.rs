//! A fixed number of threads at a time, one request each; the next batch begins when all of them have ended.
//! So the longest wait of a batch delays all others, and each request pays for a thread.

use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result};

use super::Strategy;
use super::recording::{ThreadPlacement, Track};
use super::waits::Wait;
use super::work::Work;

pub(super) struct Batches {
    pub(super) threads: u32,
}

impl Strategy for Batches {
    fn run(&self, work: &Arc<Work>) -> Result<()> {
        let mut main = work.main_track();
        for first in (0..work.requests()).step_by(self.threads as usize) {
            let after_last = work.requests().min(first + self.threads);
            thread::scope(|scope| {
                for request in first..after_last {
                    let placement = ThreadPlacement::Slot(request - first);
                    let thread = move || work.request(request, &mut work.enter(placement), Wait::hold_thread);
                    thread::Builder::new().spawn_scoped(scope, thread).context("creating a thread")?;
                }
                anyhow::Ok(())
            })?;
            main.as_mut().map(Track::checkpoint);
        }
        Ok(())
    }
}
