//! Runs a model under schedules of shuttle: random ones, and ones by priorities that change at a few points
//! (PCT: Burckhardt et al., ASPLOS 2010).

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, MaxSteps, Runner};

const PCT_DEPTH: usize = 3;
/// A schedule of more steps counts as endless.
const STEPS_MAX: usize = 400_000;

/// Runs `model` in `schedules` schedules of each kind.
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
