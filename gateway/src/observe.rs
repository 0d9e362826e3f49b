//! What an operator sees of the gateway: log, counters, pressure.

pub mod log;
pub mod pressure;
pub mod stats;
