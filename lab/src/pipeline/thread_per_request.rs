//! A thread for each request, none joined before all were created. Promises: a thread that cannot be created
//! ends the run with an error that says how far it came. Leaves to others: why (`death.rs`).

use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result};

use super::Strategy;
use super::recording::{Place, Track};
use super::waits::Wait;
use super::work::Work;

pub(super) struct ThreadPerRequest;

impl Strategy for ThreadPerRequest {
    fn run(&self, work: &Arc<Work>) -> Result<()> {
        let mut main = work.main_track();
        let mut threads = Vec::with_capacity(work.requests() as usize);
        for request in 0..work.requests() {
            threads.push(create(work, request).with_context(|| format!("after {request} threads"))?);
            main.as_mut().map(Track::look);
        }
        for thread in threads {
            thread.join().expect("a request does not panic");
        }
        Ok(())
    }
}

/// A thread that does one request and ends.
///
/// # Errors
/// `EAGAIN` where the kernel gives no further thread.
pub(super) fn create(work: &Arc<Work>, request: u32) -> std::io::Result<thread::JoinHandle<()>> {
    let work = Arc::clone(work);
    thread::Builder::new().spawn(move || work.request(request, &mut work.lane(Place::Any), Wait::hold_thread))
}
