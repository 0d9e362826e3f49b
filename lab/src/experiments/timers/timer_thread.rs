//! A thread that keeps timers, and the data that it shares with the threads that arm them.
//!
//! Guarantees: when the last holder drops it, the thread is stopped and joined.

use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// The work of a timer thread.
pub(super) trait TimerLoop: Send + Sync + 'static {
    /// The whole life of the thread; returns soon after `close`.
    fn run(&self);

    /// Makes `run` return, also when it sleeps.
    fn close(&self);
}

/// The shared data, and the thread that it keeps.
pub(super) struct TimerThread<K: TimerLoop> {
    shared: Arc<K>,
    thread: Option<JoinHandle<()>>,
}

impl<K: TimerLoop> TimerThread<K> {
    /// # Errors
    /// No thread can be created.
    pub(super) fn start(name: &str, shared: K) -> io::Result<Arc<Self>> {
        let shared = Arc::new(shared);
        let running = Arc::clone(&shared);
        let thread = thread::Builder::new().name(name.into()).spawn(move || running.run())?;
        Ok(Arc::new(Self { shared, thread: Some(thread) }))
    }
}

impl<K: TimerLoop> Deref for TimerThread<K> {
    type Target = K;

    fn deref(&self) -> &K {
        &self.shared
    }
}

impl<K: TimerLoop> Drop for TimerThread<K> {
    fn drop(&mut self) {
        self.shared.close();
        // The thread has printed its own panic.
        drop(self.thread.take().map(JoinHandle::join));
    }
}
