//! Relays that are started for an experiment, Tollgate and its rivals: which are installed, how one runs, its
//! log, and what a load costs it.

pub(crate) mod bare;
pub(crate) mod config;
pub(crate) mod cost;
pub(crate) mod installed;
mod log;
pub(crate) mod ports;
pub(crate) mod running;
pub(crate) mod squid;
pub(crate) mod target;
