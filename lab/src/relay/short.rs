//! Short connections through each relay: rate, latency, failures, and the relay's CPU time for one
//! connection. Promises: the CPU time includes what a relay does after the last connection (logging,
//! billing), until it is quiet.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::Effort;
use super::rivals::{Kind, Running};
use crate::agent::{Agent, Command};
use crate::child;
use crate::measure::CpuReading;
use crate::report::Numbers;

pub(super) const PART: &str = "short";

/// A relay that uses less than this in a look of `LOOK` has finished its work.
const QUIET: Duration = Duration::from_millis(1);
const LOOK: Duration = Duration::from_millis(100);

/// Looks that a relay gets until it has to be quiet.
const LOOKS_MAX: usize = 50;

/// Quiet looks after which a log that is still not complete has lost lines; longer than logs are buffered.
const QUIET_LOOKS_MAX: usize = 12;

/// One run of one relay.
///
/// # Errors
/// The load or the relay failed.
pub(super) fn run(relay: &mut Running, client: &mut Agent, effort: &Effort) -> Result<Numbers> {
    let lines = relay.log_lines()?;
    let before = relay.cpu();
    let (connections, concurrency) = (effort.connections, effort.concurrency);
    let answer = client.ask(&Command::Short { to: relay.ends.reply(), connections, concurrency })?;
    let completed = figure(&answer, "completed")?;
    let after = settled(relay, lines + completed as u64)?;
    anyhow::ensure!(relay.is_alive(), "it ended under the load");
    anyhow::ensure!(completed > 0.0, "no connection came through: {}", answer["failures"]);
    let mut numbers = vec![
        ("connections_per_s", completed / (figure(&answer, "elapsed_ns")? / 1e9)),
        ("latency_p50_ms", figure(&answer, "p50_ns")? / 1e6),
        ("latency_p99_ms", figure(&answer, "p99_ns")? / 1e6),
        ("failed_connections", figure(&answer, "failed")?),
        ("connections_slower_than_1_s", figure(&answer, "slow")?),
    ];
    if relay.kind != Kind::Direct {
        let per_connection = |time: Duration| time.as_secs_f64() * 1e6 / completed;
        let data_plane = after.since(&before, |thread| relay.is_data_plane(thread));
        let logged = relay.log_lines()?.saturating_sub(lines);
        numbers.push(("process_cpu_us_per_connection", per_connection(after.whole_since(&before))));
        numbers.push(("data_plane_cpu_us_per_connection", per_connection(data_plane)));
        numbers.push(("log_lines_per_connection", logged as f64 / completed));
    }
    Ok(numbers)
}

/// Waits until the relay does nothing more for the load that has ended, and reads its CPU time then.
///
/// # Errors
/// Its log cannot be read.
pub(super) fn settled(relay: &Running, lines: u64) -> Result<CpuReading> {
    let mut reading = relay.cpu();
    let mut quiet_looks = 0;
    for _ in 0..LOOKS_MAX {
        child::pause(LOOK)?;
        let next = relay.cpu();
        let is_quiet = next.whole_since(&reading) < QUIET;
        quiet_looks = if is_quiet { quiet_looks + 1 } else { 0 };
        reading = next;
        let is_logged = relay.kind == Kind::Direct || relay.log_lines()? >= lines;
        if quiet_looks == QUIET_LOOKS_MAX || (is_quiet && is_logged) {
            break;
        }
    }
    Ok(reading)
}

/// A number of an agent's answer.
///
/// # Errors
/// The answer has no such number.
pub(super) fn figure(answer: &Value, name: &str) -> Result<f64> {
    answer[name].as_f64().with_context(|| format!("an agent's answer has no {name}: {answer}"))
}
