//! The schedule: all queued jobs, and which one is next.
//!
//! Guarantees: classes with queued jobs get CPU time in proportion to their weights, as measured. A class
//! that was idle has saved no CPU time. A class at its bound of threads is skipped and delays no other. Pure:
//! the times are arguments.
//!
//! This is start-time fair queueing (Goyal, Vin and Cheng, 1996). The cost of a job is estimated as the mean
//! of its class when it begins, and corrected when it ends; so a newly active class may be ahead by one job
//! of each other class. Deficit round robin needs no search for the least virtual time, but needs costs in
//! advance, and there are few classes.

use std::time::Duration;

use sys::clock::Nanos;

use super::class_queue::{ClassQueue, DROPS_MAX, Dropped};
use super::job::Job;
use super::settings::{Class, PoolSettings};

/// The most CPU time that the others can owe a class, however long it could not run. A class at its bound of
/// threads waits only for its own jobs.
const LAG_NS_MAX: u64 = 100_000_000;

/// The queues of all classes, in start-time fair queueing.
pub(super) struct Schedule {
    classes: Vec<ClassQueue>,
    /// The greatest virtual time at which a job has begun; the start of a class that had no queued job.
    virtual_ns: u64,
}

impl Schedule {
    pub(super) fn new(settings: &PoolSettings, threads_max: usize) -> Schedule {
        let classes = settings.classes.iter().zip(settings.concurrency(threads_max));
        Schedule {
            classes: classes.map(|(class, threads)| ClassQueue::new(class, threads)).collect(),
            virtual_ns: 0,
        }
    }

    pub(super) fn put(&mut self, job: Job) {
        let class = &mut self.classes[usize::from(job.class.0)];
        if class.is_empty() {
            class.virtual_ns = class.virtual_ns.max(self.virtual_ns);
        }
        class.put(job);
    }

    /// Whether [`Schedule::take`] would find a job, to run or to drop.
    pub(super) fn is_eligible(&self) -> bool {
        self.classes.iter().any(ClassQueue::is_eligible)
    }

    /// The job to run next. Dropped jobs are appended to `dropped`. When that has reached its bound, the
    /// result is `None` although more jobs may be eligible.
    pub(super) fn take(&mut self, now: Nanos, dropped: &mut Dropped) -> Option<Job> {
        // Also classes at their bound: their threads may be stuck, and no other call would report the expiry.
        self.classes.iter_mut().filter(|class| !class.is_eligible()).for_each(|it| it.drop_old(now, dropped));
        let least = self.virtual_ns.saturating_sub(LAG_NS_MAX);
        while dropped.len() < DROPS_MAX {
            let eligible = self.classes.iter_mut().filter(|class| class.is_eligible());
            let class = eligible.min_by_key(|class| class.virtual_ns)?;
            class.virtual_ns = class.virtual_ns.max(least);
            let begun_at = class.virtual_ns;
            if let Some(job) = class.take(now, dropped) {
                self.virtual_ns = self.virtual_ns.max(begun_at);
                return Some(job);
            }
        }
        None
    }

    /// Drops expired jobs, wherever they are queued, up to the bound of `dropped`.
    pub(super) fn drop_expired(&mut self, now: Nanos, dropped: &mut Dropped) {
        self.classes.iter_mut().for_each(|class| class.drop_expired(now, dropped));
    }

    /// A job of this class has ended, after `cpu` of CPU time and `service` of its thread's time.
    pub(super) fn finish(&mut self, class: Class, cpu: Duration, service: Duration) {
        self.classes[usize::from(class.0)].finish(cpu, service);
    }

    /// The mean CPU time and the mean service time of a job of this class, in nanoseconds.
    pub(super) fn means(&self, class: Class) -> (u64, u64) {
        let class = &self.classes[usize::from(class.0)];
        (class.cost_ns, class.service_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::job::Failure;
    use crate::pool::settings::{ClassSettings, Shedding};
    use std::sync::mpsc::{Receiver, Sender, channel};

    const MS: u64 = 1_000_000;

    /// A schedule whose jobs are numbers; dropped ones are reported in `ended`.
    struct Model {
        schedule: Schedule,
        now: Nanos,
        run: Sender<u64>,
        ran: Receiver<u64>,
        end: Sender<(u64, Failure)>,
        ended: Receiver<(u64, Failure)>,
    }

    impl Model {
        fn new(classes: Vec<ClassSettings>) -> Model {
            let settings = PoolSettings { classes, threads_max: 8, ..PoolSettings::default() };
            let ((run, ran), (end, ended)) = (channel(), channel());
            Model { schedule: Schedule::new(&settings, 8), now: Nanos(1_000 * MS), run, ran, end, ended }
        }

        fn put(&mut self, class: u8, number: u64, deadline_ms: u64) {
            let (run, end) = (self.run.clone(), self.end.clone());
            let deadline = self.now + Duration::from_millis(deadline_ms);
            let work = move || run.send(number).unwrap();
            let reply = move |outcome: Result<(), Failure>| {
                if let Err(failure) = outcome {
                    end.send((number, failure)).unwrap();
                }
            };
            self.schedule.put(Job::new((Class(class), self.now, deadline), work, reply));
        }

        fn pass(&mut self, ms: u64) {
            self.now = self.now + Duration::from_millis(ms);
        }

        /// Takes the next job and runs it; returns its number and class.
        fn take(&mut self) -> Option<(u64, Class)> {
            let mut dropped = Vec::new();
            let job = self.schedule.take(self.now, &mut dropped);
            dropped.into_iter().for_each(|(job, failure)| job.fail(failure));
            let class = job.as_ref().map(|job| job.class)?;
            job?.run();
            Some((self.ran.recv().unwrap(), class))
        }

        /// The next job, with no CPU time.
        fn take_and_finish(&mut self) -> Option<u64> {
            let (number, class) = self.take()?;
            self.finish(class, Duration::ZERO);
            Some(number)
        }

        fn finish(&mut self, class: Class, cpu: Duration) {
            self.schedule.finish(class, cpu, cpu);
        }

        fn dropped(&self) -> Vec<(u64, Failure)> {
            self.ended.try_iter().collect()
        }
    }

    fn class(weight: u32, concurrency_max: usize) -> ClassSettings {
        let concurrency_max = Some(concurrency_max);
        ClassSettings { weight, concurrency_max, ..ClassSettings::default() }
    }

    #[test]
    fn cpu_time_is_shared_by_weight_not_by_jobs() {
        let mut model = Model::new(vec![class(3, 8), class(1, 8)]);
        (0..4_000).for_each(|n| model.put(u8::from(n % 2 == 1), n, 1_000_000));
        let (mut cpu_times, costs) = ([0u64; 2], [1, 4]);
        for _ in 0..1_000 {
            let (_, Class(class)) = model.take().unwrap();
            let cost = costs[usize::from(class)];
            cpu_times[usize::from(class)] += cost;
            model.finish(Class(class), Duration::from_millis(cost));
        }
        let share = cpu_times[0] as f64 / cpu_times[1] as f64;
        assert!((2.7..3.3).contains(&share), "{cpu_times:?}");
    }

    #[test]
    fn idle_class_saves_no_cpu_time() {
        let mut model = Model::new(vec![class(1, 8), class(1, 8)]);
        (0..200).for_each(|n| model.put(0, n, 1_000_000));
        for _ in 0..100 {
            model.take().unwrap();
            model.finish(Class(0), Duration::from_millis(1));
        }
        (1_000..1_100).for_each(|n| model.put(1, n, 1_000_000));
        let mut late = 0;
        for _ in 0..20 {
            let (_, class) = model.take().unwrap();
            late += usize::from(class == Class(1));
            model.finish(class, Duration::from_millis(1));
        }
        assert!((8..=12).contains(&late), "{late} of 20");
    }

    /// How many of 400 jobs of 1 ms the second class gets, when both have many queued.
    fn second_class_share(model: &mut Model) -> usize {
        let mut count = 0;
        for _ in 0..400 {
            let (_, class) = model.take().unwrap();
            count += usize::from(class == Class(1));
            model.finish(class, Duration::from_millis(1));
        }
        count
    }

    #[test]
    fn class_at_its_bound_saves_no_cpu_time() {
        for (bound, queued) in [(8, 0), (1, 500)] {
            let mut model = Model::new(vec![class(1, 8), class(1, bound)]);
            // One job of the second class waits for a very long time, perhaps with others behind it.
            (0..=queued).for_each(|n| model.put(1, n, 1_000_000));
            assert_eq!(model.take().unwrap().1, Class(1));
            (0..3_000).for_each(|n| model.put(0, n, 1_000_000));
            for _ in 0..2_000 {
                assert_eq!(model.take().unwrap().1, Class(0));
                model.finish(Class(0), Duration::from_millis(1));
            }
            if bound == 1 {
                model.finish(Class(1), Duration::from_millis(1));
            }
            (1..500).for_each(|n| model.put(1, n, 1_000_000));
            let share = second_class_share(&mut model);
            assert!((190..=310).contains(&share), "{share} of 400 after {bound}");
        }
    }

    #[test]
    fn class_at_its_bound_is_skipped() {
        let mut model = Model::new(vec![class(1, 2), class(1, 8)]);
        (0..5).for_each(|n| model.put(0, n, 1_000_000));
        assert_eq!([model.take(), model.take()], [Some((0, Class(0))), Some((1, Class(0)))]);
        assert_eq!(model.take(), None);
        assert!(!model.schedule.is_eligible(), "no job is eligible");
        model.put(1, 9, 1_000_000);
        assert!(model.schedule.is_eligible());
        assert_eq!(model.take(), Some((9, Class(1))));
        model.finish(Class(0), Duration::ZERO);
        assert_eq!(model.take(), Some((2, Class(0))));
    }

    #[test]
    fn expired_job_is_not_run() {
        let mut model = Model::new(vec![class(1, 8)]);
        model.put(0, 0, 10);
        model.put(0, 1, 20);
        model.pass(10);
        assert_eq!(model.take(), Some((1, Class(0))));
        assert_eq!(model.dropped(), [(0, Failure::Expired)]);
        // More than one call may drop.
        (0..DROPS_MAX as u64 + 5).for_each(|n| model.put(0, n, 1));
        model.put(0, 1_000, 100);
        model.pass(5);
        assert_eq!(model.take(), None);
        assert!(model.schedule.is_eligible());
        assert_eq!(model.take(), Some((1_000, Class(0))));
        assert_eq!(model.dropped().len(), DROPS_MAX + 5);
    }

    #[test]
    fn expired_jobs_of_a_blocked_class_are_dropped() {
        let mut model = Model::new(vec![class(1, 1), class(1, 8)]);
        model.put(0, 0, 1_000_000);
        model.put(0, 1, 10);
        assert_eq!(model.take(), Some((0, Class(0))));
        model.pass(20);
        assert_eq!(model.take(), None);
        assert_eq!(model.dropped(), [(1, Failure::Expired)]);
    }

    #[test]
    fn expired_newest_job_is_not_run() {
        let shedding =
            Some(Shedding { target: Duration::from_millis(5), interval: Duration::from_millis(20) });
        let mut model = Model::new(vec![ClassSettings { shedding, ..class(1, 8) }]);
        (0..20).for_each(|n| model.put(0, n, 1_000_000));
        for _ in 0..3 {
            model.pass(9);
            model.take_and_finish();
        }
        model.put(0, 1_000, 1_000_000);
        model.put(0, 1_001, 1);
        model.pass(2);
        assert_eq!(model.take(), Some((1_000, Class(0))), "the newest that has not expired");
        assert!(model.dropped().contains(&(1_001, Failure::Expired)));
    }

    #[test]
    fn past_overload_sheds_no_job() {
        let shedding = Some(Shedding::default());
        let mut model = Model::new(vec![ClassSettings { shedding, ..class(1, 8) }]);
        (0..2_000).for_each(|n| model.put(0, n, 1_000_000));
        (0..40).for_each(|_| {
            model.pass(6);
            model.take_and_finish();
        });
        while model.schedule.is_eligible() {
            model.take_and_finish();
        }
        assert!(!model.dropped().is_empty(), "it was overloaded");
        model.pass(3_600_000);
        model.put(0, 9_000, 1_000_000);
        model.pass(12);
        assert_eq!(model.take(), Some((9_000, Class(0))));
    }

    #[test]
    fn overload_runs_newest_and_sheds_oldest() {
        let shedding = Some(Shedding::default());
        let mut model = Model::new(vec![ClassSettings { shedding, ..class(1, 8) }]);
        // Two jobs arrive each millisecond and one is taken: the queue grows.
        let mut next = 0;
        let mut last = None;
        for _ in 0..300 {
            for _ in 0..2 {
                model.put(0, next, 1_000_000);
                next += 1;
            }
            model.pass(1);
            if let Some(taken) = model.take() {
                last = Some(taken);
                model.finish(Class(0), Duration::from_millis(1));
            }
        }
        assert_eq!(last, Some((next - 1, Class(0))), "the newest");
        let dropped = model.dropped();
        assert!(dropped.len() > 100, "{}", dropped.len());
        assert!(dropped.iter().all(|(_, failure)| *failure == Failure::Shed));
        // After a quiet time the overload is over: the remaining jobs run, oldest first.
        model.pass(5_000);
        assert!(model.take().is_some_and(|(oldest, _)| oldest < next - 1));
        assert_eq!(model.dropped(), []);
    }
}
