//! On which CPUs a pool's threads run, so that no two share one while another has none.
//!
//! Promises: a count for each CPU; a thread that begins to run, finds another on its CPU and knows of a CPU
//! without any, goes there. Hints, right for jobs that are shorter than the milliseconds of the kernel's
//! balancer: it moves threads without a word, and a thread says where it is when a job begins. A thread that
//! was suspected to sleep is counted again with its next job. Others than the pool's are not seen. Leaves to
//! others: how many may run (`handoff.rs`).
//!
//! Why not the kernel: it wakes a thread on the CPU where it slept or on its waker's, and looks for an idle
//! one only while the machine has many (`SIS_UTIL` in `kernel/sched/features.h`); its balancer comes by every
//! few milliseconds and leaves a thread alone that has just run. A pool with as many threads running as
//! there are CPUs meets this at every change of threads: of one that ran jobs of 40 us and some waits, a
//! twentieth of the CPUs' time was idle for it.

use std::time::Duration;

use sys::clock::{Nanos, monotonic};
use sys::limits::cpus::nudge_thread;
use sys::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sys::thread::current_cpu;

/// CPUs that are told apart; above them two have one count, and threads may seem to share a CPU that do not.
const CPUS_MAX: usize = if cfg!(shuttle) { 2 } else { 1024 };

/// Between two moves in a pool. One takes some 10 us, so 5 % of a CPU at the most where they are of no use:
/// the counts are wrong, or others have the CPU.
const MOVE_INTERVAL_MIN: Duration = Duration::from_micros(200);

/// See the file's header.
pub(super) struct Cpus {
    threads: Box<[AtomicU32]>,
    /// When one was moved last; `u64::MAX` if none is to be.
    last_move: AtomicU64,
}

/// Where a thread is counted: its CPU plus one, or zero.
pub(super) struct CpuSlot(AtomicU32);

impl CpuSlot {
    pub(super) fn unset() -> CpuSlot {
        CpuSlot(AtomicU32::new(0))
    }

    fn cpu(&self) -> Option<u32> {
        self.0.load(Ordering::Relaxed).checked_sub(1)
    }
}

impl Cpus {
    /// A pool whose threads are to yield to others moves none: whoever keeps the other CPU busy would have to
    /// be pushed aside there, or waited for.
    pub(super) fn new(may_move: bool) -> Cpus {
        let last_move = if may_move { 0 } else { u64::MAX };
        Cpus {
            threads: (0..CPUS_MAX).map(|_| AtomicU32::new(0)).collect(),
            last_move: AtomicU64::new(last_move),
        }
    }

    /// The calling thread begins to run, and is counted in `place`. If it shares its CPU and may move, it
    /// costs a system call to look for another CPU, and three to go there.
    pub(super) fn begin_running(&self, slot: &CpuSlot) {
        let cpu = current_cpu();
        self.count(slot, Some(cpu));
        if self.threads_on(cpu) > 1 && self.may_move(monotonic()) {
            nudge_thread(|other| self.threads_on(other as u32) == 0);
            self.count(slot, Some(current_cpu()));
        }
    }

    /// The thread in `place` does not run any more.
    pub(super) fn stop_running(&self, slot: &CpuSlot) {
        self.count(slot, None);
    }

    /// Whether another runs on the CPU of the one in `place`.
    pub(super) fn is_shared(&self, slot: &CpuSlot) -> bool {
        slot.cpu().is_some_and(|cpu| self.threads_on(cpu) > 1)
    }

    fn count(&self, slot: &CpuSlot, cpu: Option<u32>) {
        if slot.cpu() == cpu {
            return;
        }
        let last = slot.0.swap(cpu.map_or(0, |cpu| cpu + 1), Ordering::Relaxed);
        if let Some(last) = last.checked_sub(1) {
            self.at(last).fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(cpu) = cpu {
            self.at(cpu).fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether the last move is long enough ago; of those who ask at once one is told so.
    fn may_move(&self, now: Nanos) -> bool {
        let last_move = self.last_move.load(Ordering::Relaxed);
        last_move != u64::MAX
            && now.since(Nanos(last_move)) >= MOVE_INTERVAL_MIN
            && self.last_move.compare_exchange(last_move, now.0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// On all CPUs.
    #[cfg(test)]
    pub(super) fn total(&self) -> u32 {
        self.threads.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    fn threads_on(&self, cpu: u32) -> u32 {
        self.at(cpu).load(Ordering::Relaxed)
    }

    fn at(&self, cpu: u32) -> &AtomicU32 {
        &self.threads[cpu as usize % CPUS_MAX]
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;
    use sys::limits::cpus::allowed_cpus;

    #[test]
    fn cpu_with_two_threads_is_shared() {
        let (cpus, one, two) = (Cpus::new(true), CpuSlot::unset(), CpuSlot::unset());
        cpus.count(&one, Some(0));
        assert!(!cpus.is_shared(&one));
        cpus.count(&two, Some(0));
        assert!(cpus.is_shared(&one) && cpus.is_shared(&two));
        cpus.count(&two, Some(3));
        assert!(!cpus.is_shared(&one) && !cpus.is_shared(&two));
        cpus.count(&one, Some(3));
        cpus.stop_running(&one);
        cpus.stop_running(&one);
        assert!(!cpus.is_shared(&one) && !cpus.is_shared(&two));
        assert_eq!(cpus.threads_on(3), 1);
    }

    #[test]
    fn moves_keep_their_interval() {
        let cpus = Cpus::new(true);
        let start = Nanos(1_000_000_000);
        let may = |us: &u64| cpus.may_move(start + Duration::from_micros(*us));
        assert_eq!((0..500).filter(may).collect::<Vec<_>>(), [0, 200, 400]);
    }

    #[test]
    fn thread_moves_to_an_unused_cpu() {
        let allowed = allowed_cpus();
        let (cpus, own, other) = (Cpus::new(true), CpuSlot::unset(), CpuSlot::unset());
        // The kernel may move it in between, and the moves are apart: until one has been seen.
        let moves = || {
            cpus.count(&other, Some(current_cpu()));
            cpus.begin_running(&own);
            own.cpu() != other.cpu()
        };
        assert!(allowed.len() == 1 || (0..1_000_000).any(|_| moves()));
        assert_eq!(allowed_cpus(), allowed, "it may be moved on");
        cpus.stop_running(&own);
        cpus.stop_running(&other);
        assert_eq!(cpus.total(), 0);
    }

    #[test]
    fn nice_pool_moves_no_thread() {
        assert!(!Cpus::new(false).may_move(monotonic()));
    }
}
