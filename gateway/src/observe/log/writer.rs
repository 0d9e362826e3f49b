//! The log thread: takes queued events, writes them in batches, and handles destinations that fail.
//!
//! Guarantees: one write per batch. What could not be written is kept and written later, so that no line is
//! torn or duplicated. While the destination fails, at most [`BATCH_BYTES_MAX`] and one pass's lines are
//! kept, and the rings fill up. A file with a bound never exceeds it, unless it cannot be renamed: no line is
//! lost for want of a new file.

use std::fmt;
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use crossbeam_channel::Receiver;
use sys::append;
use sys::clock::{self, Nanos};
use sys::ring::Consumer;

use super::disk_reserve::DiskReserve;
use super::line::{Level, LineWriter, Value};
use super::rotation::Rotation;
use super::{LogThreadSignals, Slot};
use crate::config::settings::LogTarget;
use crate::observe::stats::Stats;

/// How long the log thread lets events accumulate under load. A line is at most this late.
pub(super) const BATCH_DELAY: Duration = Duration::from_millis(10);
/// How long after a failure the destination is tried again.
const RETRY_SPAN: Duration = Duration::from_secs(1);
/// How long after a failed rotation the next one is tried.
const ROTATION_RETRY_SPAN: Duration = Duration::from_secs(60);
/// Text of one write: some 600 lines. After a full batch there is no delay.
const BATCH_BYTES_MAX: usize = 256 * 1024;
/// Events taken from one ring before the next ring is drained.
const PASS_EVENTS_MAX: usize = 64;
/// How many delays a blocked destination gets at the end.
const FINAL_DELAYS_MAX: usize = 250;
/// A new log file is readable by its group and by no other account: it shows which user connected where.
const FILE_MODE: u32 = 0o640;

/// The state of the log thread.
pub(super) struct LogThread {
    pub(super) signals: Arc<LogThreadSignals>,
    /// One for each reactor thread.
    rings: Vec<Consumer<Slot>>,
    pub(super) messages: Receiver<Box<[u8]>>,
    pub(super) output: Output,
    stats: Arc<Stats>,
    lines: LineWriter,
    /// Whole lines, of which `pending[..written]` is in the destination already.
    pub(super) pending: Vec<u8>,
    pub(super) written: usize,
    pub(super) reserve: DiskReserve,
    /// Dropped lines that a line has reported. <= the count of dropped lines
    dropped_reported: u64,
    /// The last write failed, and standard error has a message about it.
    failing: bool,
    /// No rotation is tried before.
    pub(super) next_rotation: Nanos,
}

/// How a flush ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum FlushOutcome {
    /// Everything is written.
    All,
    /// The destination accepts nothing more for the moment (a nonblocking pipe).
    Blocked,
    /// It failed.
    Failed,
}

impl LogThread {
    pub(super) fn new(
        signals: Arc<LogThreadSignals>,
        rings: Vec<Consumer<Slot>>,
        messages: Receiver<Box<[u8]>>,
        output: Output,
        stats: Arc<Stats>,
    ) -> LogThread {
        LogThread {
            signals,
            rings,
            messages,
            output,
            stats,
            lines: LineWriter::default(),
            pending: Vec::new(),
            written: 0,
            reserve: DiskReserve::default(),
            dropped_reported: 0,
            failing: false,
            next_rotation: Nanos(0),
        }
    }

    /// Runs until the log is closed.
    pub(super) fn run(&mut self) {
        // Acquire pairs with the Release in `Log::close`.
        while !self.signals.closing.load(Ordering::Acquire) {
            if self.signals.reopen.swap(false, Ordering::Relaxed) {
                self.reopen();
            }
            self.collect();
            let batch_bytes = self.pending.len();
            match self.flush() {
                FlushOutcome::All if batch_bytes == 0 => self.sleep(),
                FlushOutcome::All if batch_bytes >= BATCH_BYTES_MAX => {}
                FlushOutcome::All | FlushOutcome::Blocked => thread::park_timeout(BATCH_DELAY),
                FlushOutcome::Failed => self.pause_and_reopen(),
            }
        }
        self.finish();
    }

    /// Formats the queued events, until the batch is full.
    pub(super) fn collect(&mut self) {
        self.check_disk();
        let LogThread { rings, messages, lines, pending, reserve, .. } = self;
        while pending.len() < BATCH_BYTES_MAX {
            let mut count = 0;
            for ring in &mut *rings {
                count += ring.drain(PASS_EVENTS_MAX, |slot| {
                    let withheld = if reserve.is_reached { slot.event.anonymous_lines() } else { 0 };
                    reserve.withheld += withheld;
                    if withheld == 0 {
                        lines.event(pending, slot);
                    }
                });
            }
            if let Ok(line) = messages.try_recv() {
                pending.extend_from_slice(&line);
                count += 1;
            }
            if count == 0 {
                break;
            }
        }
        if pending.len() < BATCH_BYTES_MAX {
            self.report_dropped();
        }
    }

    /// Withholds lines about unknown clients while the log's disk is nearly full.
    fn check_disk(&mut self) {
        if self.output.path.is_some() && self.reserve.check(&self.output.file, clock::monotonic()) {
            let text = "the log's disk is nearly full: lines about clients that are not known are left out";
            self.lines.message(&mut self.pending, clock::wall(), Level::Warning, text, &[]);
        }
        if !self.reserve.is_reached {
            self.report_withheld();
        }
    }

    fn report_withheld(&mut self) {
        let withheld = std::mem::take(&mut self.reserve.withheld);
        if withheld > 0 {
            self.lines.withheld(&mut self.pending, clock::wall(), withheld);
        }
    }

    fn report_dropped(&mut self) {
        let dropped = self.stats.log_dropped();
        if dropped > self.dropped_reported {
            self.lines.dropped(&mut self.pending, clock::wall(), dropped - self.dropped_reported);
            self.dropped_reported = dropped;
        }
    }

    /// Writes what is pending, as far as the destination accepts it.
    pub(super) fn flush(&mut self) -> FlushOutcome {
        while self.written < self.pending.len() {
            let end = self.rotate_unless_fitting();
            match self.output.write(&self.pending[self.written..end]) {
                Ok(0) => return self.failed(&ErrorKind::WriteZero.into()),
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return FlushOutcome::Blocked,
                Err(error) => return self.failed(&error),
            }
        }
        if !self.pending.is_empty() {
            self.failing = false;
        }
        self.pending.clear();
        self.written = 0;
        FlushOutcome::All
    }

    /// The end of the lines that the file has space for. If it has none, rotates it.
    fn rotate_unless_fitting(&mut self) -> usize {
        let size_max = self.signals.rotation.size_max().filter(|_| self.output.is_regular);
        let Some(size_max) = size_max else { return self.pending.len() };
        let mut end = self.fitting(size_max);
        if end == self.written && self.rotate() {
            end = self.fitting(size_max);
            if end == self.written {
                end += first_line(&self.pending[end..]);
            }
        }
        if end == self.written { self.pending.len() } else { end }
    }

    /// The end of the lines with which the file has `size_max` bytes at most. A line that was begun is ended.
    fn fitting(&self, size_max: u64) -> usize {
        let (before, rest) = self.pending.split_at(self.written);
        let space = size_max.saturating_sub(self.output.bytes);
        let space = usize::try_from(space).unwrap_or(usize::MAX).min(rest.len());
        let is_in_line = before.last().is_some_and(|byte| *byte != b'\n');
        let lines = match rest[..space].iter().rposition(|byte| *byte == b'\n') {
            Some(at) => at + 1,
            None if is_in_line => first_line(rest),
            None => 0,
        };
        self.written + lines
    }

    /// Begins a new file; returns whether the file has changed. If that fails, the old one stays in use.
    fn rotate(&mut self) -> bool {
        let now = clock::monotonic();
        if now < self.next_rotation {
            return false;
        }
        let outcome = self.output.rotate(&self.signals.rotation);
        if let Err(error) = &outcome {
            self.next_rotation = now + ROTATION_RETRY_SPAN;
            self.report_failure("cannot be rotated", error);
        }
        outcome.is_ok()
    }

    fn failed(&mut self, error: &io::Error) -> FlushOutcome {
        self.stats.log_write_errors.fetch_add(1, Ordering::Relaxed);
        if !self.failing {
            self.failing = true;
            self.output.report_to_stderr(format_args!(
                "cannot be written: {error}; once too many lines wait, some are lost"
            ));
        }
        FlushOutcome::Failed
    }

    /// Sleeps until another thread wakes this one, unless something is queued already.
    fn sleep(&self) {
        self.signals.parked.announce();
        if self.is_idle() {
            thread::park();
        }
        self.signals.parked.retract();
    }

    fn is_idle(&self) -> bool {
        // Relaxed: the thread that sets a flag wakes this one afterwards, and a wake-up before the park ends
        // the park.
        let is_requested =
            self.signals.closing.load(Ordering::Relaxed) || self.signals.reopen.load(Ordering::Relaxed);
        !is_requested
            && self.messages.is_empty()
            && self.rings.iter().all(Consumer::is_empty)
            && self.stats.log_dropped() == self.dropped_reported
    }

    /// Waits, then reopens the file: the disk may be mounted again, or have space again.
    fn pause_and_reopen(&mut self) {
        thread::park_timeout(RETRY_SPAN);
        // An error here is not reported: the failure was, and the next write counts it.
        let _ = self.reopen_file();
    }

    fn reopen(&mut self) {
        if let Err(error) = self.reopen_file() {
            self.report_failure("cannot be opened anew", &error);
        }
    }

    /// Reports that the file in use `failure`, so it stays in use.
    fn report_failure(&mut self, failure: &str, error: &io::Error) {
        self.stats.log_write_errors.fetch_add(1, Ordering::Relaxed);
        self.output.report_to_stderr(format_args!("{failure}: {error}; the old one stays in use"));
        let (text, error) = (format!("the log file {failure}"), error.to_string());
        let fields = [("error", Value::Text(&error))];
        self.lines.message(&mut self.pending, clock::wall(), Level::Warning, &text, &fields);
    }

    pub(super) fn reopen_file(&mut self) -> io::Result<()> {
        if self.output.reopen()? {
            // The line of which the old file has the beginning is written whole to the new one.
            let line_start = self.pending[..self.written].iter().rposition(|byte| *byte == b'\n');
            self.written = line_start.map_or(0, |at| at + 1);
        }
        Ok(())
    }

    /// Writes what is queued now. Later events are ignored: a producer that continues must not delay the end.
    pub(super) fn finish(&mut self) {
        let mut lost = 0;
        for index in 0..self.rings.len() {
            let LogThread { rings, lines, pending, .. } = self;
            let waiting = rings[index].len();
            rings[index].drain(waiting, |slot| lines.event(pending, slot));
            lost += self.flush_or_give_up();
        }
        for line in self.messages.try_iter().take(self.messages.len()) {
            self.pending.extend_from_slice(&line);
        }
        self.report_withheld();
        self.report_dropped();
        lost += self.flush_or_give_up();
        if lost > 0 {
            self.output.report_to_stderr(format_args!("did not take the last {lost} lines"));
        }
    }

    /// Returns how many lines were given up.
    fn flush_or_give_up(&mut self) -> usize {
        for _ in 0..FINAL_DELAYS_MAX {
            match self.flush() {
                FlushOutcome::All => return 0,
                FlushOutcome::Blocked => thread::park_timeout(BATCH_DELAY),
                FlushOutcome::Failed => break,
            }
        }
        let lost = self.pending[self.written..].iter().filter(|byte| **byte == b'\n').count();
        self.pending.clear();
        self.written = 0;
        lost
    }
}

/// The destination of lines.
pub(super) struct Output {
    pub(super) file: File,
    /// `None` is standard error.
    pub(super) path: Option<PathBuf>,
    /// Whether it is a file with a size: no terminal, pipe or device.
    is_regular: bool,
    /// The size of a regular file, as far as this program has written to it.
    bytes: u64,
}

impl Output {
    /// A destination, `path` being its name.
    pub(super) fn new(file: File, path: Option<PathBuf>) -> io::Result<Output> {
        let metadata = file.metadata()?;
        let is_regular = path.is_some() && metadata.is_file();
        Ok(Output { file, path, is_regular, bytes: metadata.len() })
    }

    pub(super) fn open(target: &LogTarget) -> io::Result<Output> {
        match target {
            LogTarget::File(path) => {
                let named =
                    |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
                append::open(path, FILE_MODE)
                    .and_then(|file| Output::new(file, Some(path.clone())))
                    .map_err(named)
            }
            // A descriptor of our own: std's handle has a lock. A panicking thread would wait for it while
            // the log thread waits for the reader.
            LogTarget::Stderr => Output::new(File::from(io::stderr().as_fd().try_clone_to_owned()?), None),
        }
    }

    pub(super) fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let count = self.file.write(text)?;
        self.bytes += count as u64;
        Ok(count)
    }

    /// Renames the file and begins another.
    fn rotate(&mut self, rotation: &Rotation) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        // Another program may have rotated it, by renaming or by truncating it.
        if fs::metadata(path).is_ok_and(|named| is_same(&named, &self.file)) {
            let bytes = self.file.metadata()?.len();
            if bytes < self.bytes {
                self.bytes = bytes;
                return Ok(());
            }
            rotation.rename(path)?;
        }
        self.reopen().map(drop)
    }

    /// Opens the path again, closing the old file. Returns whether it is another file now.
    fn reopen(&mut self) -> io::Result<bool> {
        let Some(path) = &self.path else { return Ok(false) };
        let next = Output::new(append::open(path, FILE_MODE)?, Some(path.clone()))?;
        let is_another = !is_same(&next.file.metadata()?, &self.file);
        *self = next;
        Ok(is_another)
    }

    /// Reports on standard error what the log itself cannot.
    fn report_to_stderr(&self, what: fmt::Arguments<'_>) {
        let Some(path) = &self.path else { return };
        // If standard error fails too, the counters remain.
        let _ = writeln!(io::stderr(), "tollgate: the log {}: {what}", path.display());
    }
}

/// Whether `named` belongs to the open `file`.
fn is_same(named: &Metadata, file: &File) -> bool {
    file.metadata().is_ok_and(|open| (open.dev(), open.ino()) == (named.dev(), named.ino()))
}

/// The length of the first line.
fn first_line(text: &[u8]) -> usize {
    text.iter().position(|byte| *byte == b'\n').map_or(text.len(), |at| at + 1)
}
