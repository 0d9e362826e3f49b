//! What a strategy's CPU time goes to: each sampled stack has one purpose, found by the names in it.
//!
//! Guarantees: the frame nearest to the leaf that has a purpose decides, so that a lock taken by a
//! computation is locking; a stack without such a frame is `other`, and not guessed.

use crate::kit::flame::Palette;
use crate::kit::measurements::Numbers;
use crate::kit::stacks::{Profile, Stack, matches};

/// The purposes of CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Purpose {
    /// A request's own steps.
    Work,
    /// Creating threads, and their first and last steps.
    Threads,
    /// Taking locks, passing requests from thread to thread, waking.
    Locking,
    /// Yielding, going to sleep, timers.
    Waits,
    Other,
}

/// The purposes of a flame graph.
pub(super) const PALETTE: Palette = Palette {
    title: "lab pipeline: where CPU time goes",
    purposes: &[
        ("work", "a request's own steps"),
        ("threads", "creating and ending threads"),
        ("locking", "locking and waking"),
        ("waits", "yields, sleeps and timers"),
        ("other", "other or unknown"),
    ],
    purpose_of: |stack| Purpose::of_stack(stack) as usize,
};

impl Purpose {
    /// The purpose of a stack.
    pub(super) fn of_stack(stack: &Stack) -> Self {
        let has = |patterns: &[&str]| {
            stack.frames.iter().any(|frame| patterns.iter().any(|pattern| matches(&frame.name, pattern)))
        };
        // The end of a thread frees memory and wakes the joining thread; both count as its end, and not as
        // locking.
        if has(ENDS) {
            return Self::Threads;
        }
        let purpose_of_name = |name: &str| MARKS.iter().find(|mark| matches(name, mark.0)).map(|mark| mark.1);
        if let Some(purpose) = stack.frames.iter().rev().find_map(|frame| purpose_of_name(&frame.name)) {
            return purpose;
        }
        let is_around_a_thread = has(AROUND) || has(ENTRIES) && !has(CLOSURES);
        if is_around_a_thread { Self::Threads } else { Self::Other }
    }
}

/// Where a thread ends, in the kernel and in the C library.
const ENDS: &[&str] =
    &["do_exit", "*::exit_thread", "__nptl_free_stacks", "__nptl_free_tcb", "advise_stack_range"];

/// Frames that determine a purpose by themselves: whole names, or with `*` in front or behind.
const MARKS: &[(&str, Purpose)] = &[
    ("*::work::Work*", Purpose::Work),
    ("*::waits::Wait*::of_request", Purpose::Work),
    ("kernel_clone", Purpose::Threads),
    ("ret_from_fork*", Purpose::Threads),
    ("schedule_tail", Purpose::Threads),
    ("pthread_create*", Purpose::Threads),
    ("__pthread_create*", Purpose::Threads),
    ("create_thread", Purpose::Threads),
    ("allocate_stack", Purpose::Threads),
    ("*::thread::*::spawn*", Purpose::Threads),
    ("*::thread_local::destructors*", Purpose::Threads),
    ("*::spawnhook::*", Purpose::Threads),
    ("__cxa_thread_atexit*", Purpose::Threads),
    ("pthread_getaffinity_np*", Purpose::Threads),
    ("*arena_thread_freeres", Purpose::Threads),
    ("*futex*", Purpose::Locking),
    ("*lll_lock*", Purpose::Locking),
    ("pthread_mutex*", Purpose::Locking),
    ("pthread_cond*", Purpose::Locking),
    ("*::mutex::*", Purpose::Locking),
    ("*::condvar::*", Purpose::Locking),
    ("*crossbeam_channel::*", Purpose::Locking),
    ("*::thread::park*", Purpose::Locking),
    ("*::unpark", Purpose::Locking),
    ("*engine::pool::*", Purpose::Locking),
    ("*sys::parker::*", Purpose::Locking),
    ("*sys::stack::*", Purpose::Locking),
    ("*sched_yield*", Purpose::Waits),
    ("*nanosleep*", Purpose::Waits),
    ("*::thread::sleep*", Purpose::Waits),
    ("*::yield_now", Purpose::Waits),
    ("*epoll*", Purpose::Waits),
    ("*engine::deadline::*", Purpose::Waits),
    ("*engine::reactor::*", Purpose::Waits),
    ("*engine::timer::*", Purpose::Waits),
];

/// Calls on a thread's stack around its life, which are also made for other purposes: they count where
/// nothing else does.
const AROUND: &[&str] =
    &["*mmap*", "*munmap*", "*mprotect*", "*madvise*", "sigaltstack", "__sigaltstack", "*stack_overflow*"];

/// Where a thread is created and begins, the roots of all its stacks; without its closure, this is the cost
/// of the thread itself.
const ENTRIES: &[&str] = &["clone", "__clone", "clone3", "__clone3", "start_thread", "*::thread_start"];
const CLOSURES: &[&str] = &["*__rust_begin_short_backtrace*"];

/// Shares of a strategy's samples in percent, those of its main thread among them.
pub(super) fn numbers(profile: &Profile) -> Numbers {
    let samples = |counts: &dyn Fn(&Stack) -> bool| {
        profile.stacks.iter().filter(|stack| counts(stack)).map(|stack| stack.samples).sum::<u64>() as f64
    };
    let all = samples(&|_| true);
    let percent = |counts: &dyn Fn(&Stack) -> bool| 100.0 * samples(counts) / all.max(1.0);
    let of = |purpose| percent(&|stack: &Stack| Purpose::of_stack(stack) == purpose);
    vec![
        ("work_percent", of(Purpose::Work)),
        ("threads_percent", of(Purpose::Threads)),
        ("locking_percent", of(Purpose::Locking)),
        ("waits_percent", of(Purpose::Waits)),
        ("other_percent", of(Purpose::Other)),
        ("main_thread_percent", percent(&|stack| stack.is_main)),
        (
            "main_creating_threads_percent",
            percent(&|stack| stack.is_main && Purpose::of_stack(stack) == Purpose::Threads),
        ),
        ("samples", all),
    ]
}

#[cfg(test)]
mod tests {
    use std::any::type_name_of_val;

    use super::super::{waits::Wait, work::Work};
    use super::*;

    const FINISH: &str = "lab::experiments::pipeline::work::Work::finish";

    /// A stack of frames as perf names them, the root first.
    fn stack(frames: &str, samples: u64) -> Stack {
        Stack::new(false, frames.split(' '), samples)
    }

    /// A pattern whose function was renamed would silently count its time as other.
    #[test]
    fn patterns_match_functions_of_the_crates() {
        let check = |name: &str, expected| assert_eq!(Purpose::of_stack(&stack(name, 1)), expected, "{name}");
        check(type_name_of_val(&Work::finish), Purpose::Work);
        check(type_name_of_val(&Wait::of_request), Purpose::Work);
        check(type_name_of_val(&engine::pool::Pool::permits_max), Purpose::Locking);
        check(type_name_of_val(&sys::parker::Parker::unpark), Purpose::Locking);
        check(type_name_of_val(&sys::stack::Stack::<u32>::push), Purpose::Locking);
        check(type_name_of_val(&engine::reactor::Reactor::load), Purpose::Waits);
        check(type_name_of_val(&engine::timer::Timers::arm), Purpose::Waits);
    }

    #[test]
    fn frame_nearest_to_the_leaf_decides_the_purpose() {
        let check =
            |frames: &str, expected| assert_eq!(Purpose::of_stack(&stack(frames, 1)), expected, "{frames}");
        let thread = "clone3 start_thread std::sys::thread::unix::Thread::new::thread_start \
                      std::sys::backtrace::__rust_begin_short_backtrace \
                      lab::experiments::pipeline::work::Work::request";
        let inside = |frames: &str| format!("{thread} {frames}");
        check(&inside(FINISH), Purpose::Work);
        check(&inside(&format!("{FINISH} malloc asm_exc_page_fault")), Purpose::Work);
        check(&inside(&format!("{FINISH} sysmalloc __mprotect")), Purpose::Work);
        check(&inside(&format!("{FINISH} malloc __lll_lock_wait_private")), Purpose::Locking);
        check(&inside("__sched_yield entry_SYSCALL_64_after_hwframe schedule"), Purpose::Waits);
        check(&inside("clock_nanosleep do_syscall_64 hrtimer_nanosleep"), Purpose::Waits);
        check(&inside("alloc::fmt::format::format_inner"), Purpose::Work);
        check("[unknown] memcpy", Purpose::Other);
        check(
            "start_thread std::sys::thread::unix::Thread::new::thread_start __mmap do_mmap",
            Purpose::Threads,
        );
        check("start_thread", Purpose::Threads);
        check("start_thread __nptl_free_tcb __munmap rwsem_down_write_slowpath", Purpose::Threads);
        check("__madvise do_madvise", Purpose::Threads);
        check("clone3 do_syscall_64 kernel_clone copy_process", Purpose::Threads);
        check("clone3", Purpose::Threads);
        check("ret_from_fork_asm ret_from_fork schedule_tail", Purpose::Threads);
        check("start_thread __x64_sys_exit do_exit mm_release do_futex futex_wake", Purpose::Threads);
        check("main pthread_create@GLIBC_2.2.5 allocate_stack __mprotect", Purpose::Threads);
        check("main pthread_join __futex_abstimed_wait64 futex_wait", Purpose::Locking);
        check("main crossbeam_channel::flavors::array::Channel<T>::send", Purpose::Locking);
        check("main engine::reactor::Reactor::poll epoll_pwait2 schedule", Purpose::Waits);
        check("main lab::experiments::pipeline::trial::run_trial", Purpose::Other);
        check("[unknown]", Purpose::Other);
    }

    #[test]
    fn shares_are_percent_of_all_samples() {
        let mut main = stack("main clone3", 30);
        main.is_main = true;
        let work = stack(&format!("start_thread {FINISH}"), 60);
        let stacks = vec![main, work, stack("what", 10)];
        let numbers = numbers(&Profile { name: "batches-100".to_owned(), stacks });
        let expected = [60.0, 30.0, 0.0, 0.0, 10.0, 30.0, 30.0, 100.0];
        assert_eq!(numbers.iter().map(|number| number.1).collect::<Vec<_>>(), expected);
        let none = super::numbers(&Profile { name: "none".to_owned(), stacks: Vec::new() });
        assert!(none.iter().all(|number| number.1 == 0.0));
    }
}
