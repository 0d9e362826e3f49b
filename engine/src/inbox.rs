//! Inboxes: how any thread hands a message to one reactor thread.
//!
//! Promises: a sender never waits and never makes a receiver wait that is awake, wherever it is descheduled;
//! the wake is a system call only when the receiver sleeps, and of several senders one makes it: the sleep
//! lasts as long as that one is kept from it. Leaves to others: a bound: only the control side sends
//! here, a message per change of configuration, and task wakes travel as bits (`executor`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use sys::epoll::WakeUp;
use sys::parking::ParkFlag;
use sys::stack::Stack;

/// A thread's sleep and the means to end it.
#[derive(Debug)]
pub struct Notifier {
    flag: ParkFlag,
    wake_up: WakeUp,
}

impl Notifier {
    /// The parking of a thread that is awake.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`.
    pub fn new() -> io::Result<Notifier> {
        Ok(Notifier { flag: ParkFlag::new(), wake_up: WakeUp::new()? })
    }

    /// Ends the thread's sleep, if it sleeps.
    pub fn wake(&self) {
        if self.flag.must_wake() {
            self.wake_up.signal();
        }
    }

    /// Whether the thread sleeps, or has said that it will: see [`ParkFlag::is_announced`].
    pub(crate) fn is_announced(&self) -> bool {
        self.flag.is_announced()
    }

    /// Says that the thread will sleep unless its next look finds work.
    pub(crate) fn announce(&self) {
        self.flag.announce();
    }

    /// Says that the thread is awake.
    pub(crate) fn retract(&self) {
        self.flag.retract();
    }

    /// Takes the signals that ended the sleep.
    pub(crate) fn clear(&self) {
        self.wake_up.clear();
    }
}

impl AsFd for Notifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake_up.as_fd()
    }
}

struct Shared<M> {
    messages: Stack<M>,
    notifier: Arc<Notifier>,
}

/// The receiving end, kept by the reactor's thread.
pub struct Inbox<M>(Arc<Shared<M>>);

impl<M> Inbox<M> {
    /// An empty inbox of the thread that owns `parking`.
    pub fn new(notifier: Arc<Notifier>) -> Inbox<M> {
        Inbox(Arc::new(Shared { messages: Stack::new(), notifier }))
    }

    /// A sender for other threads.
    pub fn sender(&self) -> Sender<M> {
        Sender(Arc::clone(&self.0))
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.0.messages.is_empty()
    }

    /// Takes all messages, oldest first.
    pub fn take(&self) -> impl Iterator<Item = M> + use<M> {
        self.0.messages.take()
    }
}

/// A sending end.
pub struct Sender<M>(Arc<Shared<M>>);

impl<M> Sender<M> {
    /// Hands `message` over.
    pub fn send(&self, message: M) {
        self.0.messages.push(message);
        self.0.notifier.wake();
    }
}

impl<M> Clone for Sender<M> {
    fn clone(&self) -> Self {
        Sender(Arc::clone(&self.0))
    }
}
