//! The settings of a pool: its size and its classes of jobs.
//!
//! Guarantees: a stuck class leaves threads to every other.

use std::time::Duration;

/// The size of a pool and its classes of jobs.
#[derive(Clone, Debug)]
pub struct PoolSettings {
    /// The threads' name; the kernel shows the first 15 bytes.
    pub name: &'static str,
    /// How many jobs may run at a time, at least 1: `sys::limits::cpus()` where jobs may use every CPU. Jobs
    /// inside [`super::blocking`] are not counted, and jobs that return from it may exceed the number by a
    /// quarter for a moment. So one permit is no mutual exclusion; a class with a
    /// [`ClassSettings::concurrency_max`] of one is.
    pub permits: usize,
    /// How many threads there may be, waiting ones included. At least one for each permit and class; fewer
    /// where the machine's limits require it ([`sys::limits::thread_budget`]).
    pub threads_max: usize,
    /// The threads' niceness, 0 to 19: background work yields the CPU to the reactors.
    pub niceness: i32,
    /// The classes of jobs, at least one; [`Class`] is the position in this list.
    pub classes: Vec<ClassSettings>,
}

impl Default for PoolSettings {
    /// A permit for each CPU, eight threads for each permit, no class.
    fn default() -> Self {
        let permits = sys::limits::cpus();
        PoolSettings { name: "jobs", permits, threads_max: 8 * permits, niceness: 0, classes: Vec::new() }
    }
}

/// A class of jobs, by its position in [`PoolSettings::classes`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Class(pub u8);

/// Similar jobs: they share a queue, a bound and a policy for overload.
#[derive(Clone, Debug)]
pub struct ClassSettings {
    /// Its name in statistics.
    pub name: &'static str,
    /// How many jobs may be queued.
    pub queue_max: usize,
    /// How many threads its jobs may hold, running or waiting; `None` means its share of
    /// [`PoolSettings::threads_max`] by weight. A class whose jobs never return holds no more than this.
    pub concurrency_max: Option<usize>,
    /// Its share of the CPU time among classes with queued jobs, at least 1.
    pub weight: u32,
    /// How long after its submission a job is of use. A job that would begin later is not run, and its caller
    /// gets [`super::Failure::Expired`] some milliseconds after that time at most.
    pub deadline: Option<Duration>,
    /// When the queue counts as overloaded.
    pub shedding: Option<Shedding>,
}

impl Default for ClassSettings {
    /// A queue of a thousand, a share of the threads, no deadline, no shedding.
    fn default() -> Self {
        ClassSettings {
            name: "jobs",
            queue_max: 1000,
            concurrency_max: None,
            weight: 1,
            deadline: None,
            shedding: None,
        }
    }
}

/// A queue is overloaded when no job waited for less than `target` in a whole `interval`. Then the newest job
/// runs first, and jobs that have waited for twice the target are shed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Shedding {
    /// An acceptable wait; well above the time that one job takes.
    pub target: Duration,
    /// How long a burst may last. A class that begins no job for longer is never overloaded.
    pub interval: Duration,
}

impl Default for Shedding {
    /// 5 ms and 100 ms, for jobs of less than a millisecond: the values of CoDel (RFC 8289, section 4.2 and
    /// 4.3), which folly keeps for requests.
    fn default() -> Self {
        Shedding { target: Duration::from_millis(5), interval: Duration::from_millis(100) }
    }
}

impl PoolSettings {
    /// Panics on settings that no pool could follow: they are mistakes in the caller's code.
    pub(super) fn assert_sound(&self) {
        assert!(self.permits >= 1, "a pool without permits would never run a job");
        assert!(!self.classes.is_empty(), "a pool without classes would never get a job");
        assert!(u8::try_from(self.classes.len()).is_ok(), "a class number is a byte");
        for class in &self.classes {
            assert!(class.weight >= 1 && class.queue_max >= 1, "class {} could never run", class.name);
            assert!(class.concurrency_max != Some(0), "class {} could never run", class.name);
        }
    }

    /// How many threads each class may hold of `threads_max`: by its setting or by its weight, and so that
    /// each other class has one thread left if this one is stuck.
    pub(super) fn concurrency(&self, threads_max: usize) -> impl Iterator<Item = usize> {
        let weights: usize = self.classes.iter().map(|class| class.weight as usize).sum();
        let max = threads_max.saturating_sub(self.classes.len() - 1).max(1);
        self.classes.iter().map(move |class| {
            let share = threads_max * class.weight as usize / weights;
            class.concurrency_max.unwrap_or(share).clamp(1, max)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_leaves_threads_to_the_others() {
        let check = |threads_max, classes: &[(u32, Option<usize>)], expected: &[usize]| {
            let class = |&(weight, concurrency_max)| ClassSettings {
                weight,
                concurrency_max,
                ..ClassSettings::default()
            };
            let classes = classes.iter().map(class).collect();
            let settings = PoolSettings { classes, ..PoolSettings::default() };
            settings.assert_sound();
            assert_eq!(settings.concurrency(threads_max).collect::<Vec<_>>(), expected);
        };
        check(16, &[(1, None)], &[16]);
        check(16, &[(1, None), (1, None)], &[8, 8]);
        check(16, &[(3, None), (1, None)], &[12, 4]);
        check(16, &[(1, Some(1)), (1, Some(100))], &[1, 15]);
        check(2, &[(1, None), (1, None), (1, None)], &[1, 1, 1]);
        check(1, &[(1, Some(5))], &[1]);
    }
}
