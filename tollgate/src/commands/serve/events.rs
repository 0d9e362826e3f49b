//! Events of a running gateway: signals, and requests at its control socket.
//!
//! Guarantees: SIGUSR1 takes effect at once, also during a reload; of several SIGHUPs one is queued.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::Duration;

use gateway::observe::log::Log;
use signal_hook::consts::{SIGHUP, SIGUSR1};
use signal_hook::iterator::Signals;

use crate::control::Request;

/// Capacity of the queue: one SIGHUP, one control request, and stop signals, of which the second has the full
/// effect.
const QUEUE_MAX: usize = 8;

/// An event for the main loop.
pub(super) enum Event {
    /// Reload, by SIGHUP.
    Reload,
    /// A client's request.
    Request(Request),
    /// Stop.
    Stop,
}

/// The queue of events, and the thread that watches signals.
pub(super) struct Events {
    queue: Receiver<Event>,
    sender: SyncSender<Event>,
    /// A SIGHUP is queued; another one would request the same.
    has_hangup: Arc<AtomicBool>,
}

impl Events {
    /// Watches `signals` on a thread that lives as long as the process, so that each is handled when it
    /// arrives.
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
                    SIGHUP => Event::Reload,
                    _ => Event::Stop,
                };
                // Only stop signals can exceed the capacity, and then enough of them are queued.
                let _ = sender.try_send(event);
            }
        });
        events
    }

    /// The callback by which the control socket queues its requests.
    pub(super) fn on_request(&self) -> impl Fn(Request) + Send + 'static {
        let sender = self.sender.clone();
        // Dropping the request refuses it.
        move |request| _ = sender.send(Event::Request(request))
    }

    /// The next event, if one comes within `span`.
    pub(super) fn next(&self, span: Duration) -> Option<Event> {
        match self.queue.recv_timeout(span) {
            Ok(event) => {
                if matches!(event, Event::Reload) {
                    // Before the reload reads a file: a later change needs another SIGHUP.
                    self.has_hangup.store(false, Ordering::Release);
                }
                Some(event)
            }
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => unreachable!("`self.sender` keeps the channel connected"),
        }
    }
}
