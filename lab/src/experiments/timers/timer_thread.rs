//! A thread that keeps timers, and what it shares with those who arm them. Promises: when the last who holds
//! it lets go, the thread is told to end and is joined. Leaves to others: what the thread does.

use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// What a thread does that keeps timers.
pub(super) trait TimerLoop: Send + Sync + 'static {
    /// The whole life of the thread; returns soon after `close`.
    fn run(&self);

    /// Has `run` return, also when it sleeps.
    fn close(&self);
}

/// See the file's header.
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
        // A panic of the thread has been told by the thread.
        drop(self.thread.take().map(JoinHandle::join));
    }
}
