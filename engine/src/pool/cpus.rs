//! How many of a pool's threads run on each CPU, so that no two share one while another is unused.
//!
//! Guarantees: a thread that begins to run, shares its CPU, and knows of a CPU without pool threads, moves
//! there. The counts are hints. They are right for jobs shorter than the milliseconds of the kernel's
//! balancer, which moves threads without notice; a thread reports its CPU when a job begins. A suspected
//! thread is counted again with its next job. Threads outside the pool are not counted.
//!
//! Why not leave it to the kernel: it wakes a thread on the CPU where it slept or on its waker's. It looks
//! for an idle CPU only while the machine has many (`SIS_UTIL` in `kernel/sched/features.h`). Its balancer
//! runs every few milliseconds and skips threads that have just run. A pool with as many running threads as
//! CPUs meets this at every change of threads. One that ran jobs of 40 us with some waits left a twentieth of
//! the CPU time idle.

use std::time::Duration;

use sys::clock::{Nanos, monotonic};
use sys::limits::cpus::nudge_thread;
use sys::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sys::thread::current_cpu;

/// CPUs that are counted apart. Above this number two CPUs share a count, and threads may seem to share a CPU
/// when they do not.
const CPUS_MAX: usize = if cfg!(shuttle) { 2 } else { 1024 };

/// The shortest time between two moves in a pool. A move takes some 10 us, so at most 5 % of a CPU is wasted
/// where moves are useless: the counts are wrong, or other processes use the CPU.
const MOVE_INTERVAL_MIN: Duration = Duration::from_micros(200);

/// The number of running pool threads on each CPU.
pub(super) struct Cpus {
    threads: Box<[AtomicU32]>,
    /// When a thread was last moved; `u64::MAX` if none may be moved.
    last_move: AtomicU64,
}

/// The CPU on which a thread is counted, plus one; or zero.
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
    /// With `may_move` false no thread is moved. That is for pools with niceness: on the other CPU they would
    /// have to displace a thread of higher priority, or wait for it.
    pub(super) fn new(may_move: bool) -> Cpus {
        let last_move = if may_move { 0 } else { u64::MAX };
        Cpus {
            threads: (0..CPUS_MAX).map(|_| AtomicU32::new(0)).collect(),
            last_move: AtomicU64::new(last_move),
        }
    }

    /// Counts the calling thread, which begins to run, in `slot`. If it shares its CPU and may move, the
    /// search for another CPU costs one system call, and the move three.
    pub(super) fn begin_running(&self, slot: &CpuSlot) {
        let cpu = current_cpu();
        self.count(slot, Some(cpu));
        if self.threads_on(cpu) > 1 && self.may_move(monotonic()) {
            nudge_thread(|other| self.threads_on(other as u32) == 0);
            self.count(slot, Some(current_cpu()));
        }
    }

    /// The thread of `slot` stops running.
    pub(super) fn stop_running(&self, slot: &CpuSlot) {
        self.count(slot, None);
    }

    /// Whether another pool thread runs on the CPU of `slot`'s thread.
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

    /// Whether the last move is long enough ago. Of concurrent callers only one gets true.
    fn may_move(&self, now: Nanos) -> bool {
        let last_move = self.last_move.load(Ordering::Relaxed);
        last_move != u64::MAX
            && now.since(Nanos(last_move)) >= MOVE_INTERVAL_MIN
            && self.last_move.compare_exchange(last_move, now.0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// The running threads on all CPUs.
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
        // The kernel may move the thread in between, and moves keep their interval: repeat until a move is
        // observed.
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
