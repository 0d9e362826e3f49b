//! A closure that is called once, on any thread, without an allocation if it is small.
//!
//! Guarantees: captures of up to eight words, one of which may be this file's `Option`, lie in the value
//! itself, larger ones in a box. Dropping the closure uncalled drops its captures.
//!
//! A block that one thread allocates and another frees costs more than both calls. The second thread's
//! allocator caches the block and reuses it, and growing it later takes the lock of the first thread's arena
//! (glibc's per-thread cache does so).

use smallbox::space::S8;
use smallbox::{SmallBox, smallbox};

/// An inline or boxed `FnOnce(A) -> R` that may move to another thread.
pub struct OnceFn<A, R>(SmallBox<dyn FnMut(A) -> R + Send, S8>);

impl<A: 'static, R: 'static> OnceFn<A, R> {
    /// Stores `call`.
    pub fn new(call: impl FnOnce(A) -> R + Send + 'static) -> Self {
        // A closure behind a pointer cannot be moved out and called by value: hence the `Option`.
        let mut call = Some(call);
        Self(smallbox!(move |argument| call.take().expect("`OnceFn::call` consumes it")(argument)))
    }

    /// Calls the closure on the calling thread.
    pub fn call(mut self, argument: A) -> R {
        (self.0)(argument)
    }

    /// Whether the closure lies in the value itself, without an allocation.
    pub fn is_inline(&self) -> bool {
        !self.0.is_heap()
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// A closure of the size of the bytes, an Arc, and the Option around both.
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
