//! The voice of a running gateway: what it says on standard error while it serves.
//!
//! Promises: whoever reads it may be gone, or may have stopped reading, and nothing waits for him and nothing
//! fails; a line that finds [`LINES_MAX`] before it is dropped, the log has it too. Leaves to others: what is
//! said once the gateway has ended (`main`).

use std::io::Write;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::Duration;

/// Lines that wait for a reader who is slow.
const LINES_MAX: usize = 64;

/// How long the last lines may take.
const LAST_LINES: Duration = Duration::from_secs(1);

/// See the file's header.
pub(crate) struct Console {
    lines: SyncSender<String>,
    /// Disconnected once all has been said.
    finished: Receiver<()>,
}

impl Console {
    /// A voice on a thread of its own, which alone waits for the reader.
    pub(crate) fn new() -> Console {
        let (lines, queue) = mpsc::sync_channel::<String>(LINES_MAX);
        let (running, finished) = mpsc::sync_channel(0);
        // Without a thread nothing is said, which is no reason not to serve.
        let _ = thread::Builder::new().name("console".into()).spawn(move || {
            let _running: SyncSender<()> = running;
            for line in queue {
                // The reader may be gone.
                let _ = writeln!(std::io::stderr(), "{line}");
            }
        });
        Console { lines, finished }
    }

    /// Says a line, now or never.
    pub(crate) fn print_line(&self, line: String) {
        let _ = self.lines.try_send(line);
    }

    /// Waits until all has been said, or for a second.
    pub(crate) fn finish(self) {
        drop(self.lines);
        // Nothing is ever sent: it ends by the thread's end, or by the time-out.
        let _ = self.finished.recv_timeout(LAST_LINES);
    }
}
