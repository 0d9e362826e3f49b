//! Kernel threads: their ids, their states, and how long they ran and waited for a CPU.
//!
//! Guarantees: a query costs microseconds and stops no thread; a thread name with any bytes cannot mislead
//! the parser.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::time::Duration;

/// The calling thread's kernel id (`gettid`), unique in the system during the thread's life.
pub fn thread_id() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// The CPU that the calling thread runs on at this moment; on x86-64 no system call.
#[cfg(not(shuttle))]
pub fn current_cpu() -> u32 {
    rustix::thread::sched_getcpu() as u32
}

/// As above, in a model: one of two CPUs, at random.
#[cfg(shuttle)]
pub fn current_cpu() -> u32 {
    use shuttle::rand::{Rng, thread_rng};
    thread_rng().gen_range(0..2)
}

/// The state of a thread: the letter in `/proc/PID/stat` (proc_pid_stat(5)).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ThreadState {
    /// R: it runs, or is runnable and waits for a CPU.
    Running,
    /// S: an interruptible wait: a lock, a socket, a sleep.
    Sleeping,
    /// D: an uninterruptible wait, mostly for a disk.
    Uninterruptible,
    /// T, t: a signal or a debugger has stopped it.
    Stopped,
    /// Z, X: it has ended.
    Ended,
    /// An unknown letter, of another kernel version.
    Other(u8),
}

impl ThreadState {
    /// Whether it waits inside the kernel for something other than a CPU.
    pub fn is_blocked(self) -> bool {
        matches!(self, ThreadState::Sleeping | ThreadState::Uninterruptible)
    }

    fn from_letter(letter: u8) -> ThreadState {
        match letter {
            b'R' => ThreadState::Running,
            b'S' => ThreadState::Sleeping,
            b'D' => ThreadState::Uninterruptible,
            b'T' | b't' => ThreadState::Stopped,
            b'Z' | b'X' | b'x' => ThreadState::Ended,
            other => ThreadState::Other(other),
        }
    }
}

/// The present state of the thread `id` of this process.
///
/// # Errors
/// `ENOENT` or `ESRCH` when the thread does not exist (any more), `EMFILE`, and `InvalidData` for a malformed
/// file.
#[cfg(not(shuttle))]
pub fn thread_state(id: i32) -> io::Result<ThreadState> {
    let mut buffer = [0; STAT_BYTES];
    let mut file = File::open(format!("/proc/self/task/{id}/stat"))?;
    let count = file.read(&mut buffer)?;
    parse_state(&buffer[..count])
        .ok_or_else(|| io::Error::new(ErrorKind::InvalidData, format!("/proc/self/task/{id}/stat: no state")))
}

/// As above, in a model: running or sleeping, at random.
#[cfg(shuttle)]
#[expect(clippy::missing_errors_doc, reason = "it has none")]
pub fn thread_state(_id: i32) -> io::Result<ThreadState> {
    use shuttle::rand::{Rng, thread_rng};
    Ok(if thread_rng().gen_bool(0.5) { ThreadState::Running } else { ThreadState::Sleeping })
}

/// The read buffer: it fits an id of 10 digits, a name of 64 bytes (kernel threads have longer names than our
/// 15 bytes) and the state.
const STAT_BYTES: usize = 128;

/// Parses `id (name) S ...`. The name may contain blanks and brackets; no later field contains a bracket.
fn parse_state(stat: &[u8]) -> Option<ThreadState> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    match stat.get(end + 1..)? {
        [b' ', letter, b' ', ..] => Some(ThreadState::from_letter(*letter)),
        _ => None,
    }
}

/// How long a thread ran, and how long it was runnable without a CPU, since its start.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RunTime {
    /// On a CPU.
    pub on_cpu: Duration,
    /// Runnable, in a run queue, while other threads had its CPU. A busy SMT sibling does not show here.
    pub delay: Duration,
}

/// How long the thread `id` of this process has run and waited for a CPU.
///
/// # Errors
/// As [`thread_state`].
pub fn run_time(id: i32) -> io::Result<RunTime> {
    let path = format!("/proc/self/task/{id}/schedstat");
    let text = std::fs::read_to_string(&path)?;
    RunTime::parse(&text).ok_or_else(|| io::Error::new(ErrorKind::InvalidData, format!("{path}: {text:?}")))
}

impl RunTime {
    /// Parses a `schedstat` file: nanoseconds on a CPU, nanoseconds in a run queue, time slices. The kernel
    /// counts the first two with or without CONFIG_SCHEDSTATS.
    pub(crate) fn parse(text: &str) -> Option<RunTime> {
        let mut fields = text.split_whitespace().map(str::parse);
        match (fields.next(), fields.next()) {
            (Some(Ok(on_cpu)), Some(Ok(delay))) => {
                Some(RunTime { on_cpu: Duration::from_nanos(on_cpu), delay: Duration::from_nanos(delay) })
            }
            _ => None,
        }
    }

    /// The growth since `earlier`.
    pub fn since(self, earlier: RunTime) -> RunTime {
        RunTime {
            on_cpu: self.on_cpu.saturating_sub(earlier.on_cpu),
            delay: self.delay.saturating_sub(earlier.delay),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn thread_names_do_not_confuse_the_parser() {
        let check = |stat: &[u8], expected: Option<ThreadState>| assert_eq!(parse_state(stat), expected);
        check(b"12 (reactor-0) S 1 12 12 0", Some(ThreadState::Sleeping));
        check(b"12 (a) R (b) D 1 2", Some(ThreadState::Uninterruptible));
        check(b"12 (:-) S 1) R 1 2", Some(ThreadState::Running));
        check(b"12 (\xff\n) ) t 1", Some(ThreadState::Stopped));
        check(b"12 (x) Z 1", Some(ThreadState::Ended));
        check(b"12 (x) I 1", Some(ThreadState::Other(b'I')));
        for bad in [b"".as_slice(), b"12", b"12 (x", b"12 (x)", b"12 (x) ", b"12 (x) S"] {
            check(bad, None);
        }
    }

    #[test]
    fn thread_state_shows_waiting_then_no_thread() {
        let (own_id, id) = mpsc::sync_channel(0);
        let (release, gate) = mpsc::sync_channel::<()>(0);
        let thread = std::thread::spawn(move || {
            own_id.send(thread_id()).unwrap();
            let _ = gate.recv();
        });
        let id = id.recv().unwrap();
        assert_ne!(id, thread_id());
        while thread_state(id).unwrap() != ThreadState::Sleeping {
            std::thread::yield_now();
        }
        assert!(thread_state(id).unwrap().is_blocked());
        assert_eq!(thread_state(thread_id()).unwrap(), ThreadState::Running);
        drop(release);
        thread.join().unwrap();
        // The kernel removes it from the task list a moment after the join.
        while thread_state(id).is_ok() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn run_time_grows_with_work() {
        let before = run_time(thread_id()).unwrap();
        let mut iterations = 0u64;
        while run_time(thread_id()).unwrap().since(before).on_cpu.is_zero() {
            iterations = std::hint::black_box(iterations + 1);
        }
        assert!(run_time(i32::MAX).is_err());
    }

    #[test]
    fn run_times_are_parsed_and_subtracted() {
        let nanos = Duration::from_nanos;
        let first = RunTime::parse("6170 1611563 2\n").unwrap();
        assert_eq!(first, RunTime { on_cpu: nanos(6170), delay: nanos(1_611_563) });
        let later = RunTime::parse("7000 1611563 3").unwrap();
        assert_eq!(later.since(first), RunTime { on_cpu: nanos(830), delay: nanos(0) });
        assert_eq!(first.since(later).on_cpu, nanos(0));
        for bad in ["", "1", "1 x", "-1 2", "99999999999999999999 1"] {
            assert_eq!(RunTime::parse(bad), None, "{bad:?}");
        }
    }
}
