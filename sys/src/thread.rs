//! Threads as the kernel knows them: their ids, what they do now, and how long they ran and waited.
//!
//! Promises: a look costs microseconds and stops nobody; names of threads, whatever bytes they hold, mislead
//! nothing. Leaves to others: what a look is good for (`engine::pool`, `pressure`).

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::time::Duration;

/// The calling thread's id in the kernel (`gettid`); no other thread of the system has it while it lives.
pub fn thread_id() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// The CPU that the calling thread runs on at this moment; on x86-64 no system call.
#[cfg(not(shuttle))]
pub fn current_cpu() -> u32 {
    rustix::thread::sched_getcpu() as u32
}

/// As above, of a thread of a model: one of two, as chance has it.
#[cfg(shuttle)]
pub fn current_cpu() -> u32 {
    use shuttle::rand::{Rng, thread_rng};
    thread_rng().gen_range(0..2)
}

/// What a thread does: the state letter of `/proc/PID/stat` (proc_pid_stat(5)).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ThreadState {
    /// R: it runs, or is ready and waits for a CPU.
    Running,
    /// S: it waits for something and can be interrupted: a lock, a socket, a sleep.
    Sleeping,
    /// D: it waits for something, mostly a disk, and cannot be interrupted.
    Uninterruptible,
    /// T, t: a signal or a debugger has stopped it.
    Stopped,
    /// Z, X: it has ended.
    Ended,
    /// A letter of another kernel's.
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

/// What the thread `id` of this process does at this moment.
///
/// # Errors
/// `ENOENT` or `ESRCH` when there is no such thread (any more), `EMFILE`, and `InvalidData` for a file of
/// another form.
#[cfg(not(shuttle))]
pub fn thread_state(id: i32) -> io::Result<ThreadState> {
    let mut buffer = [0; STAT_BYTES];
    let mut file = File::open(format!("/proc/self/task/{id}/stat"))?;
    let count = file.read(&mut buffer)?;
    parse_state(&buffer[..count])
        .ok_or_else(|| io::Error::new(ErrorKind::InvalidData, format!("/proc/self/task/{id}/stat: no state")))
}

/// As above, of a thread of a model: it is ready or waits, as chance has it.
#[cfg(shuttle)]
#[expect(clippy::missing_errors_doc, reason = "it has none")]
pub fn thread_state(_id: i32) -> io::Result<ThreadState> {
    use shuttle::rand::{Rng, thread_rng};
    Ok(if thread_rng().gen_bool(0.5) { ThreadState::Running } else { ThreadState::Sleeping })
}

/// An id of 10 digits, a name of 64 bytes (kernel threads have longer ones than the 15 of ours) and the
/// state have room.
const STAT_BYTES: usize = 128;

/// `id (name) S ...`: a name may hold blanks and brackets, and nothing behind it holds a bracket.
fn parse_state(stat: &[u8]) -> Option<ThreadState> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    match stat.get(end + 1..)? {
        [b' ', letter, b' ', ..] => Some(ThreadState::from_letter(*letter)),
        _ => None,
    }
}

/// How long a thread ran, and how long it was ready and had no CPU, since it began.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RunTime {
    /// On a CPU.
    pub on_cpu: Duration,
    /// Ready, in a run queue: what others on its CPU took from it. A busy SMT sibling does not show here.
    pub delay: Duration,
}

/// How long the thread `id` of this process ran and waited for a CPU so far.
///
/// # Errors
/// As of [`thread_state`].
pub fn run_time(id: i32) -> io::Result<RunTime> {
    let path = format!("/proc/self/task/{id}/schedstat");
    let text = std::fs::read_to_string(&path)?;
    RunTime::parse(&text).ok_or_else(|| io::Error::new(ErrorKind::InvalidData, format!("{path}: {text:?}")))
}

impl RunTime {
    /// What a `schedstat` file says: nanoseconds on a CPU, nanoseconds in a run queue, slices. The kernel
    /// keeps the first two whether or not it was built with CONFIG_SCHEDSTATS.
    pub(crate) fn parse(text: &str) -> Option<RunTime> {
        let mut fields = text.split_whitespace().map(str::parse);
        match (fields.next(), fields.next()) {
            (Some(Ok(on_cpu)), Some(Ok(delay))) => {
                Some(RunTime { on_cpu: Duration::from_nanos(on_cpu), delay: Duration::from_nanos(delay) })
            }
            _ => None,
        }
    }

    /// What was added since `earlier`.
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
        // The kernel takes it off its list a moment after the join.
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
