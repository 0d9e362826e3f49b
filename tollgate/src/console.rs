//! The console of a running gateway: what it prints to standard error while it serves.
//!
//! Guarantees: a slow, stopped or closed reader blocks nothing and causes no error. While [`LINES_MAX`] lines
//! are queued, a further line is dropped; the log has it too.

use std::io::Write;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::Duration;

/// Lines that are queued for a slow reader.
const LINES_MAX: usize = 64;

/// How long [`Console::finish`] waits for the last lines.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Prints lines to standard error from a thread of its own, by a bounded queue.
pub(crate) struct Console {
    lines: SyncSender<String>,
    /// Disconnected once the queue is empty and the thread has ended.
    finished: Receiver<()>,
}

impl Console {
    /// Starts the thread, which alone blocks on the reader.
    pub(crate) fn new() -> Console {
        let (lines, queue) = mpsc::sync_channel::<String>(LINES_MAX);
        let (running, finished) = mpsc::sync_channel(0);
        // Without a thread nothing is printed. That is no reason not to serve.
        let _ = thread::Builder::new().name("console".into()).spawn(move || {
            let _running: SyncSender<()> = running;
            for line in queue {
                // The reader may have closed the pipe.
                let _ = writeln!(std::io::stderr(), "{line}");
            }
        });
        Console { lines, finished }
    }

    /// Queues a line, or drops it where the queue is full.
    pub(crate) fn print_line(&self, line: String) {
        let _ = self.lines.try_send(line);
    }

    /// Waits until the queue is empty, for at most [`LAST_LINES`].
    pub(crate) fn finish(self) {
        drop(self.lines);
        // Nothing is ever sent: the wait ends by disconnection or by the time-out.
        let _ = self.finished.recv_timeout(LAST_LINES);
    }
}
