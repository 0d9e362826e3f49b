//! What a running gateway is asked from outside: by signals, and at its control socket.
//!
//! Guarantees: USR1 is obeyed at once, whatever a reload waits for; of signals that ask for the same, one
//! waits. Leaves out: what is done (`serve`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::Duration;

use gateway::log::Log;
use signal_hook::consts::{SIGHUP, SIGUSR1};
use signal_hook::iterator::Signals;

use crate::control::Request;

/// Requests that may wait: one HUP, one at the control socket, and signals that end the process, of which
/// the second says all.
const QUEUE_MAX: usize = 8;

/// What is asked.
pub(super) enum Event {
    /// To reload: by HUP, or by a client that waits for the outcome.
    Reload(Option<Request>),
    /// To end.
    Stop,
}

/// See the file's header.
pub(super) struct Events {
    queue: Receiver<Event>,
    sender: SyncSender<Event>,
    /// A HUP waits; another one would ask for the same.
    has_hangup: Arc<AtomicBool>,
}

impl Events {
    /// Watches `signals`, on a thread that lives as long as the process: a signal is delivered whenever it
    /// comes.
    pub(super) fn watch(mut signals: Signals, log: Arc<Log>) -> Events {
        let (sender, queue) = mpsc::sync_channel(QUEUE_MAX);
        let has_hangup = Arc::new(AtomicBool::new(false));
        let events = Events { queue, sender: sender.clone(), has_hangup: Arc::clone(&has_hangup) };
        thread::spawn(move || {
            for signal in signals.forever() {
                let event = match signal {
                    SIGUSR1 => {
                        log.reopen();
                        continue;
                    }
                    SIGHUP if has_hangup.swap(true, Ordering::AcqRel) => continue,
                    SIGHUP => Event::Reload(None),
                    _ => Event::Stop,
                };
                // Only what ends the process can be too much, and then enough of that waits.
                let _ = sender.try_send(event);
            }
        });
        events
    }

    /// How requests of the control socket get here.
    pub(super) fn on_request(&self) -> impl Fn(Request) + Send + 'static {
        let sender = self.sender.clone();
        // Dropped, the request is refused.
        move |request| _ = sender.send(Event::Reload(Some(request)))
    }

    /// The next event, if one comes within `span`.
    pub(super) fn next(&self, span: Duration) -> Option<Event> {
        match self.queue.recv_timeout(span) {
            Ok(event) => {
                if matches!(event, Event::Reload(None)) {
                    // Before the reload reads anything: what is written later asks anew.
                    self.has_hangup.store(false, Ordering::Release);
                }
                Some(event)
            }
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => unreachable!("this end holds a sender, too"),
        }
    }
}
