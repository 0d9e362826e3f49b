//! The cost of a load for a relay: CPU time, of the whole process and of its data plane, and lines in its
//! log.
//!
//! Guarantees: the time includes the relay's work after the load has ended (logging, billing), until it is
//! quiet.

use std::time::Duration;

use anyhow::Result;

use super::running::{RunningRelay, Workload};
use super::target::Target;
use crate::kit::child;
use crate::kit::measurements::Numbers;
use crate::kit::usage::CpuReading;

/// A relay that uses less than this between two polls has finished its work.
const QUIET: Duration = Duration::from_millis(1);
const POLL: Duration = Duration::from_millis(100);

/// Polls after which a relay has to be quiet.
const POLLS_MAX: usize = 50;

/// Quiet polls after which an incomplete log has lost lines; longer than logs are buffered.
const QUIET_POLLS_MAX: usize = 12;

/// The usage of a relay before the load.
#[derive(Debug)]
pub(crate) struct CostBaseline {
    cpu: CpuReading,
    log_lines: u64,
}

/// The usage of a relay for the load.
#[derive(Debug)]
pub(crate) struct Cost {
    process: Duration,
    data_plane: Duration,
    log_lines: u64,
}

impl CostBaseline {
    /// Reads the usage before a load begins.
    ///
    /// # Errors
    /// The log cannot be read.
    pub(crate) fn read<W: Workload>(relay: &mut RunningRelay<W>) -> Result<Self> {
        Ok(Self { log_lines: relay.log_lines()?, cpu: relay.cpu() })
    }

    /// Waits until the relay has finished a load with `completed` successes; `None` where there is no relay.
    ///
    /// # Errors
    /// The log cannot be read.
    pub(crate) fn cost_after<W: Workload>(
        &self,
        relay: &mut RunningRelay<W>,
        completed: f64,
    ) -> Result<Option<Cost>> {
        let after = wait_until_quiet(relay, self.log_lines + completed as u64)?;
        let cost = Cost {
            process: after.total_since(&self.cpu),
            data_plane: relay.data_plane(&after, &self.cpu),
            log_lines: relay.log_lines()?.saturating_sub(self.log_lines),
        };
        Ok((relay.target != Target::Direct).then_some(cost))
    }
}

impl Cost {
    /// For each of `completed`: microseconds of the whole process, those of the data plane, and log lines,
    /// under these names.
    pub(crate) fn per_unit(&self, completed: f64, names: [&'static str; 3]) -> Numbers {
        let us = |time: Duration| time.as_secs_f64() * 1e6 / completed;
        let values = [us(self.process), us(self.data_plane), self.log_lines as f64 / completed];
        names.into_iter().zip(values).collect()
    }
}

/// Waits until the relay does nothing more for the ended load and its log has `lines`, and then reads its CPU
/// time.
///
/// # Errors
/// Its log cannot be read.
pub(crate) fn wait_until_quiet<W: Workload>(relay: &mut RunningRelay<W>, lines: u64) -> Result<CpuReading> {
    let mut reading = relay.cpu();
    let mut quiet_polls = 0;
    for _ in 0..POLLS_MAX {
        child::pause(POLL)?;
        let next = relay.cpu();
        let is_quiet = next.total_since(&reading) < QUIET;
        quiet_polls = if is_quiet { quiet_polls + 1 } else { 0 };
        reading = next;
        let is_logged = relay.target == Target::Direct || relay.log_lines()? >= lines;
        if quiet_polls == QUIET_POLLS_MAX || (is_quiet && is_logged) {
            break;
        }
    }
    Ok(reading)
}
