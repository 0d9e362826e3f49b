//! A closure that is called once, on whatever thread, without an allocation if it is small.
//!
//! Promises: what takes up to eight words, one of which may be our own, lies in the value itself, more in a
//! box; one that is dropped drops what it holds. Leaves to others: calling it.
//!
//! What one thread allocates and another frees costs more than both calls: the second thread's allocator
//! keeps the memory and hands it out again, and whatever grows from there grows in the first one's arena,
//! under its lock (glibc's per-thread cache does so).

use smallbox::space::S8;
use smallbox::{SmallBox, smallbox};

/// See the file's header.
pub struct OnceFn<A, R>(SmallBox<dyn FnMut(A) -> R + Send, S8>);

impl<A: 'static, R: 'static> OnceFn<A, R> {
    /// Keeps `call` for later.
    pub fn new(call: impl FnOnce(A) -> R + Send + 'static) -> Self {
        // A closure behind a pointer cannot be moved out, and so not be called by value.
        let mut call = Some(call);
        Self(smallbox!(move |argument| call.take().expect("it is called once")(argument)))
    }

    /// Calls it, in the thread of the caller.
    pub fn call(mut self, argument: A) -> R {
        (self.0)(argument)
    }

    /// Whether it needed no allocation.
    pub fn is_inline(&self) -> bool {
        !self.0.is_heap()
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// Its size is that of the bytes, of an Arc and of the Option around both.
    fn capturing<const BYTES: usize>(held: Arc<()>) -> OnceFn<u8, usize> {
        let bytes = [1; BYTES];
        OnceFn::new(move |argument| {
            let _held = held;
            bytes.iter().chain([&argument]).map(|byte| usize::from(*byte)).sum()
        })
    }

    #[test]
    fn small_and_large_closures_are_dropped_once() {
        let held = Arc::new(());
        assert!(capturing::<48>(Arc::clone(&held)).is_inline());
        assert_eq!(capturing::<48>(Arc::clone(&held)).call(2), 50);
        assert!(!capturing::<100>(Arc::clone(&held)).is_inline());
        assert_eq!(capturing::<100>(Arc::clone(&held)).call(2), 102);
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[test]
    fn closure_runs_on_another_thread() {
        let held = Arc::new(());
        let call = capturing::<40>(Arc::clone(&held));
        assert_eq!(std::thread::spawn(move || call.call(1)).join().unwrap(), 41);
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
