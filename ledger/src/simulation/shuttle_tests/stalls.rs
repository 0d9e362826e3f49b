//! Schedules with stalls, as of a busy machine.
//!
//! Guarantees: a seed gives the same schedule.

use shuttle::scheduler::{RandomScheduler, Schedule, Scheduler, Task, TaskId};

/// Random schedules in which now and then a thread stalls for long, as one does that the kernel preempts: the
/// others proceed while it is between two of its steps.
pub(super) struct Stalls {
    random: RandomScheduler,
    /// The stalled thread, and for how many steps of the others.
    stalled: Option<(TaskId, u64)>,
}

impl Stalls {
    /// `count` schedules.
    pub(super) fn new(count: usize) -> Stalls {
        Stalls { random: RandomScheduler::new(count), stalled: None }
    }
}

impl Scheduler for Stalls {
    fn new_execution(&mut self) -> Option<Schedule> {
        self.stalled = None;
        self.random.new_execution()
    }

    fn next_task(&mut self, runnable: &[&Task], current: Option<TaskId>, yields: bool) -> Option<TaskId> {
        self.stalled = match self.stalled {
            Some((task, steps)) => (steps > 1).then(|| (task, steps - 1)),
            None => {
                let begins = self.next_u64().is_multiple_of(STEPS_BETWEEN_STALLS);
                current.filter(|_| begins).map(|task| (task, self.next_u64() % STALL_STEPS_MAX))
            }
        };
        let is_stalled = |task: &&&Task| self.stalled.is_some_and(|(stalled, _)| stalled == task.id());
        let others: Vec<&Task> = runnable.iter().filter(|task| !is_stalled(task)).copied().collect();
        self.random.next_task(if others.is_empty() { runnable } else { &others }, current, yields)
    }

    fn next_u64(&mut self) -> u64 {
        self.random.next_u64()
    }
}

const STEPS_BETWEEN_STALLS: u64 = 50;
const STALL_STEPS_MAX: u64 = 1_000;
