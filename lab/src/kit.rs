//! What the experiments share: processes and load, machine facts, measuring, rounds, statistics, verdicts and
//! the report. No part of the kit knows an experiment.

pub(crate) mod burn;
pub(crate) mod callgrind;
pub(crate) mod child;
pub(crate) mod disturbance;
pub(crate) mod flame;
pub(crate) mod kernel_setting;
pub(crate) mod load;
pub(crate) mod load_process;
pub(crate) mod machine;
pub(crate) mod markup;
pub(crate) mod measurements;
pub(crate) mod options;
pub(crate) mod plot;
pub(crate) mod presentation;
pub(crate) mod progress;
pub(crate) mod relays;
pub(crate) mod report;
pub(crate) mod rounds;
pub(crate) mod stacks;
pub(crate) mod statistics;
pub(crate) mod strace;
pub(crate) mod usage;
pub(crate) mod verdict;
pub(crate) mod worker_process;
