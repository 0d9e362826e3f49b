//! A fixed number of threads that take requests from a queue, whatever they wait for. The queue is the
//! fastest of the usual ones, an array of numbers that threads claim by an exchange; no closure is boxed, and
//! no thread sleeps while there is a request. A queue under a mutex with a condition variable, as most
//! programs have it, costs more, and would make our rival look worse.

use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result};

use super::Strategy;
use super::recording::ThreadPlacement;
use super::waits::Wait;
use super::work::Work;

pub(super) struct Pool {
    pub(super) threads: usize,
}

impl Strategy for Pool {
    fn run(&self, work: &Arc<Work>) -> Result<()> {
        let (sender, receiver) = crossbeam_channel::bounded(work.requests() as usize);
        thread::scope(|scope| {
            for number in 0..self.threads {
                let receiver = receiver.clone();
                let thread = move || {
                    let mut enter = work.enter(ThreadPlacement::Slot(number as u32));
                    receiver.iter().for_each(|request| work.request(request, &mut enter, Wait::hold_thread));
                };
                thread::Builder::new().spawn_scoped(scope, thread).context("creating a thread")?;
            }
            (0..work.requests()).try_for_each(|request| sender.send(request))?;
            drop(sender);
            Ok(())
        })
    }
}
