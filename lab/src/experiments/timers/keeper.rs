//! A thread that keeps timers, and what it shares with those who arm them. Promises: when the last who holds
//! it lets go, the thread is told to end and is joined. Leaves to others: what the thread does.

use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// What a thread does that keeps timers.
pub(super) trait Keep: Send + Sync + 'static {
    /// The whole life of the thread; returns soon after `close`.
    fn run(&self);

    /// Has `run` return, also when it sleeps.
    fn close(&self);
}

/// See the file's header.
pub(super) struct Keeper<K: Keep> {
    kept: Arc<K>,
    thread: Option<JoinHandle<()>>,
}

impl<K: Keep> Keeper<K> {
    /// # Errors
    /// No thread can be created.
    pub(super) fn start(name: &str, kept: K) -> io::Result<Arc<Self>> {
        let kept = Arc::new(kept);
        let running = Arc::clone(&kept);
        let thread = thread::Builder::new().name(name.into()).spawn(move || running.run())?;
        Ok(Arc::new(Self { kept, thread: Some(thread) }))
    }
}

impl<K: Keep> Deref for Keeper<K> {
    type Target = K;

    fn deref(&self) -> &K {
        &self.kept
    }
}

impl<K: Keep> Drop for Keeper<K> {
    fn drop(&mut self) {
        self.kept.close();
        // A panic of the thread has been told by the thread.
        drop(self.thread.take().map(JoinHandle::join));
    }
}
