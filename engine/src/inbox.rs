//! An inbox: any thread sends messages to one reactor thread.
//!
//! Guarantees: a sender never waits, and a descheduled sender never delays a receiver that is awake. A wake
//! is a system call only while the receiver sleeps. One of several senders makes it; if that sender is
//! descheduled, the sleep lasts until it runs again.
//!
//! Not handled here: a bound. Only the control side sends here, one message for each change of configuration.
//! Task wakes travel as bits (`executor`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use sys::epoll::WakeUp;
use sys::park_flag::ParkFlag;
use sys::stack::Stack;

/// Wakes a thread that sleeps, and knows whether it does: an eventfd and a park flag.
#[derive(Debug)]
pub struct Notifier {
    flag: ParkFlag,
    wake_up: WakeUp,
}

impl Notifier {
    /// A notifier of a thread that is awake.
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

    /// Whether the thread sleeps or has announced a sleep: see [`ParkFlag::is_announced`].
    pub(crate) fn is_announced(&self) -> bool {
        self.flag.is_announced()
    }

    /// Announces that the thread will sleep unless its next check finds work.
    pub(crate) fn announce(&self) {
        self.flag.announce();
    }

    /// Withdraws the announcement: the thread is awake.
    pub(crate) fn retract(&self) {
        self.flag.retract();
    }

    /// Drains the signals that ended the sleep.
    pub(crate) fn clear(&self) {
        self.wake_up.clear();
    }
}

impl AsFd for Notifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake_up.as_fd()
    }
}

struct InboxState<M> {
    messages: Stack<M>,
    notifier: Arc<Notifier>,
}

/// The receiving end; the reactor's thread owns it.
pub struct Inbox<M>(Arc<InboxState<M>>);

impl<M> Inbox<M> {
    /// An empty inbox of the thread that `notifier` wakes.
    pub fn new(notifier: Arc<Notifier>) -> Inbox<M> {
        Inbox(Arc::new(InboxState { messages: Stack::new(), notifier }))
    }

    /// A sender for other threads.
    pub fn sender(&self) -> Sender<M> {
        Sender(Arc::clone(&self.0))
    }

    /// Whether no message is queued.
    pub fn is_empty(&self) -> bool {
        self.0.messages.is_empty()
    }

    /// Takes all messages, oldest first.
    pub fn take(&self) -> impl Iterator<Item = M> + use<M> {
        self.0.messages.take()
    }
}

/// A sending end of an [`Inbox`], for any thread.
pub struct Sender<M>(Arc<InboxState<M>>);

impl<M> Sender<M> {
    /// Queues `message` and wakes the receiver.
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
