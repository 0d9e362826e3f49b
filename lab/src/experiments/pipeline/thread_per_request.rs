//! A thread for each request, none joined before all were created. A thread that cannot be created ends the
//! run with an error that has the number of threads before it (`thread_limit/probe.rs` explains why).

use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result};

use super::Strategy;
use super::recording::{ThreadPlacement, Track};
use super::waits::Wait;
use super::work::Work;

pub(super) struct ThreadPerRequest;

impl Strategy for ThreadPerRequest {
    fn run(&self, work: &Arc<Work>) -> Result<()> {
        let mut main = work.main_track();
        let mut threads = Vec::with_capacity(work.requests() as usize);
        for request in 0..work.requests() {
            let work = Arc::clone(work);
            let thread =
                move || work.request(request, &mut work.enter(ThreadPlacement::Any), Wait::hold_thread);
            let thread = thread::Builder::new().spawn(thread);
            threads.push(thread.with_context(|| format!("after {request} threads"))?);
            main.as_mut().map(Track::checkpoint);
        }
        for thread in threads {
            thread.join().expect("a request does not panic");
        }
        Ok(())
    }
}
