//! Instructions per call of the echo, in a process of its own under callgrind, without the process's start
//! and end.

use std::ffi::OsString;

use anyhow::{Context, Result};

use super::echo::{DeadlineMode, Echo};
use crate::kit::callgrind::CallgrindRun;
use crate::kit::child;

/// Calls of the two runs.
const CALLS_FEW: u64 = 5_000;
const CALLS_MANY: u64 = 25_000;

/// Counts the instructions of a call.
///
/// # Errors
/// Valgrind is not installed, the echo failed under it, or the user interrupts.
pub(super) fn per_call(in_flight: usize, deadlines: DeadlineMode) -> Result<f64> {
    let directory = tempfile::tempdir().context("creating a temporary directory")?;
    let count = |calls| -> Result<u64> {
        let arguments = Echo::new(in_flight, deadlines, calls).arguments();
        let arguments = arguments.into_iter().map(OsString::from).collect();
        CallgrindRun::start(&child::own_program()?, arguments, directory.path())?.finish()
    };
    let (few, many) = (count(CALLS_FEW)?, count(CALLS_MANY)?);
    Ok((many as f64 - few as f64) / (CALLS_MANY - CALLS_FEW) as f64)
}
