//! Schedules of shuttle for a model, as this crate's models are explored: at random, and by priorities that
//! change at a few points (PCT: Burckhardt et al., ASPLOS 2010).

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, MaxSteps, Runner};

const PCT_DEPTH: usize = 3;
/// Beyond these a schedule is taken not to end.
const STEPS_MAX: usize = 400_000;

/// Runs `model` in so many schedules of each kind.
pub(crate) fn explore(schedules: usize, model: impl Fn() + Send + Sync + Copy + 'static) {
    fn run(scheduler: impl Scheduler + 'static, model: impl Fn() + Send + Sync + 'static) {
        let mut config = Config::new();
        config.stack_size = 0x2_0000;
        config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
        Runner::new(scheduler, config).run(model);
    }
    run(RandomScheduler::new(schedules), model);
    run(PctScheduler::new(PCT_DEPTH, schedules), model);
}
