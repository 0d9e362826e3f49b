//! The process that creates threads until it cannot.
//!
//! Guarantees: it reports its failure, stays unchanged while the lab reads its limits, and needs no further
//! memory map for that.
//!
//! It fails in one of two ways. A thread that cannot be created is an error. A thread that was created and
//! then gets no stack for signals makes Rust's runtime panic before the thread's own code begins, which would
//! abort the process: the panic hook is the last code that can run there.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead, Read, Write as _};
use std::os::fd::AsFd;
use std::panic::PanicHookInfo;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

use anyhow::Result;

use super::super::recording::ThreadPlacement;
use super::super::text;
use super::super::waits::Wait;
use super::super::work::Work;
use crate::kit::worker_process::{GO, READY, print_line};

/// The arguments of `lab create-threads`.
#[derive(clap::Args, Debug)]
pub(crate) struct CreateThreads {
    /// Threads to create
    #[arg(long)]
    pub(in crate::experiments::pipeline) threads: u32,
    /// The threads do no request and live on
    #[arg(long)]
    pub(in crate::experiments::pipeline) living: bool,
    /// The text that responses quote
    #[arg(long)]
    pub(in crate::experiments::pipeline) text: Option<PathBuf>,
}

/// Threads created so far. Orderings in this file are Relaxed: each value stands alone.
static CREATED: AtomicU32 = AtomicU32::new(0);

/// Whether a thread has reported the failure.
static HAS_FAILED: AtomicBool = AtomicBool::new(false);

/// The ends of the pipes to the lab, opened while there are maps and memory.
static PIPES: OnceLock<(File, File)> = OnceLock::new();

/// The beginning of the report: `died after COUNT: REASON`, or that it did not.
pub(in crate::experiments::pipeline) const DIED: &str = "died after ";
pub(in crate::experiments::pipeline) const LIVED: &str = "lived";

/// Longer reasons are cut.
const TEXT_BYTES_MAX: usize = 256;

/// Creates the threads on command; returns only if all could be created.
///
/// # Errors
/// The text cannot be read, or the lab has ended.
pub(crate) fn create_threads(arguments: &CreateThreads) -> Result<()> {
    let work = Arc::new(Work::new(arguments.threads, text::read(arguments.text.as_deref())?));
    let mut threads = Vec::with_capacity(arguments.threads as usize);
    let pipes = (io::stdin().as_fd().try_clone_to_owned()?, io::stdout().as_fd().try_clone_to_owned()?);
    PIPES.get_or_init(|| (pipes.0.into(), pipes.1.into()));
    std::panic::set_hook(Box::new(report_panic));
    print_line(READY)?;
    let mut words = io::stdin().lock().lines();
    let Some(GO) = words.next().transpose()?.as_deref() else { return Ok(()) };
    for request in 0..arguments.threads {
        let created = match arguments.living {
            true => spawn_parked(),
            false => spawn_request(&work, request),
        };
        match created {
            Ok(thread) => threads.push(thread),
            // The text of an error would need memory.
            Err(error) => match error.raw_os_error() {
                Some(number) => report_errno(number),
                None => report_failure("an error without a number"),
            },
        }
        CREATED.fetch_add(1, Ordering::Relaxed);
        if HAS_FAILED.load(Ordering::Relaxed) {
            hold_until_read();
        }
    }
    print_line(LIVED)?;
    words.next();
    Ok(())
}

/// A thread that ends after the failure would unmap its stack, while the lab counts the maps.
fn spawn_request(work: &Arc<Work>, request: u32) -> io::Result<thread::JoinHandle<()>> {
    let work = Arc::clone(work);
    thread::Builder::new().spawn(move || {
        work.request(request, &mut work.enter(ThreadPlacement::Any), Wait::hold_thread);
        if HAS_FAILED.load(Ordering::Relaxed) {
            hold_until_read();
        }
    })
}

fn spawn_parked() -> io::Result<thread::JoinHandle<()>> {
    thread::Builder::new().spawn(|| {
        loop {
            thread::park();
        }
    })
}

/// Reports the runtime's own panic, for a thread without a stack for signals, by its error: formatting its
/// message would need memory, and without a hook the panic aborts the process.
fn report_panic(panic: &PanicHookInfo<'_>) {
    let error = io::Error::last_os_error().raw_os_error();
    let is_of_runtime = panic.location().is_some_and(|it| it.file().ends_with("stack_overflow.rs"));
    match error {
        Some(number) if is_of_runtime => report_errno(number),
        _ => report_failure(panic.payload_as_str().unwrap_or("a panic")),
    }
}

fn report_errno(number: i32) -> ! {
    let mut reason = FixedText::default();
    let _ = write!(reason, "os error {number}");
    report_failure(reason.as_str())
}

/// Reports the failure, unless another thread has, and stays.
fn report_failure(reason: &str) -> ! {
    if !HAS_FAILED.swap(true, Ordering::Relaxed) {
        let mut words = FixedText::default();
        let _ = write!(words, "{DIED}{}: {reason}", CREATED.load(Ordering::Relaxed));
        if let Some((_, output)) = PIPES.get() {
            let mut output = output;
            // If the lab has ended there is no reader.
            let _ = output.write_all(words.as_str().as_bytes()).and_then(|()| output.write_all(b"\n"));
        }
    }
    hold_until_read()
}

/// Stays until the lab has read enough.
fn hold_until_read() -> ! {
    if let Some((input, _)) = PIPES.get() {
        let mut input = input;
        let _ = input.read(&mut [0]);
    }
    std::process::exit(0)
}

/// Text in a fixed buffer, for code that must not allocate.
struct FixedText {
    bytes: [u8; TEXT_BYTES_MAX],
    length: usize,
}

impl Default for FixedText {
    fn default() -> Self {
        Self { bytes: [0; TEXT_BYTES_MAX], length: 0 }
    }
}

impl FixedText {
    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }
}

impl std::fmt::Write for FixedText {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let free = &mut self.bytes[self.length..];
        let text = &text[..text.floor_char_boundary(free.len())];
        free[..text.len()].copy_from_slice(text.as_bytes());
        self.length += text.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_is_cut_at_a_character() {
        let mut words = FixedText::default();
        let _ = write!(words, "{}", "v".repeat(TEXT_BYTES_MAX - 1));
        let _ = write!(words, "\u{e9}");
        assert_eq!(words.as_str(), "v".repeat(TEXT_BYTES_MAX - 1));
        let _ = write!(words, "w and more");
        assert_eq!(words.as_str().len(), TEXT_BYTES_MAX);
        assert!(words.as_str().ends_with("vw"));
    }
}
