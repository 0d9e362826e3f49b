//! One value from any thread to one task.
//!
//! Guarantees: the receiver's poll is wait-free. A descheduled sender delays its own value and blocks no
//! other thread. A sender that is dropped without a value is an error, not silence.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use atomic_waker::AtomicWaker;

struct Channel<T> {
    value: OnceLock<T>,
    /// Set when the sender is dropped, after `value` if there is one.
    closed: AtomicBool,
    waker: AtomicWaker,
}

/// The sender was dropped without a value: its job panicked or was dropped at shutdown.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Canceled;

impl std::fmt::Display for Canceled {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("the work was dropped before it gave a result")
    }
}

impl std::error::Error for Canceled {}

/// A connected pair.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Channel {
        value: OnceLock::new(),
        closed: AtomicBool::new(false),
        waker: AtomicWaker::new(),
    });
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

/// The end that sends the value, once.
pub struct Sender<T>(Arc<Channel<T>>);

impl<T> Sender<T> {
    /// Stores `value` and wakes the receiver.
    pub fn send(self, value: T) {
        // `send` consumes the only sender, so the cell is empty.
        let _ = self.0.value.set(value);
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        // Release pairs with the Acquire in `outcome`: a receiver that sees `closed` also sees the value, if
        // there is one.
        self.0.closed.store(true, Ordering::Release);
        self.0.waker.wake();
    }
}

/// A future of the value.
pub struct Receiver<T>(Arc<Channel<T>>);

impl<T: Clone> Receiver<T> {
    fn outcome(&self) -> Option<Result<T, Canceled>> {
        if !self.0.closed.load(Ordering::Acquire) {
            return None;
        }
        Some(self.0.value.get().cloned().ok_or(Canceled))
    }
}

/// Clones the value out instead of moving it: the sender may still hold a reference, and the receiver must
/// not wait for another thread.
impl<T: Clone> Future for Receiver<T> {
    type Output = Result<T, Canceled>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(outcome) = self.outcome() {
            return Poll::Ready(outcome);
        }
        self.0.waker.register(context.waker());
        // The value may have arrived between the check and the registration.
        self.outcome().map_or(Poll::Pending, Poll::Ready)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::Wake;

    struct Thread(std::thread::Thread);

    impl Wake for Thread {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
        let waker = Arc::new(Thread(std::thread::current())).into();
        let mut future = pin!(future);
        loop {
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(value) => return value,
                Poll::Pending => std::thread::park(),
            }
        }
    }

    #[test]
    fn value_arrives_from_another_thread() {
        for round in 0..1_000 {
            let (sender, receiver) = channel();
            let thread = std::thread::spawn(move || sender.send(round));
            assert_eq!(block_on(receiver), Ok(round));
            thread.join().unwrap();
        }
    }

    #[test]
    fn dropped_sender_is_an_error() {
        let (sender, receiver) = channel::<u8>();
        drop(sender);
        assert_eq!(block_on(receiver), Err(Canceled));
    }
}
