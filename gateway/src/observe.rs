//! What an operator observes of the gateway: the log, the counters and the CPU pressure.

pub mod log;
pub mod pressure;
pub mod stats;
