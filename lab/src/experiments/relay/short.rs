//! Short connections through each relay: rate, latency, failures, and the relay's cost for one connection.

use anyhow::Result;

use super::billing::Bill;
use super::endpoints::Transport;
use crate::kit::load::{REPLY_BYTES, REQUEST_BYTES};
use crate::kit::load_process::{LoadCommand, LoadProcess, number_in};
use crate::kit::measurements::Numbers;
use crate::kit::relays::cost::CostBaseline;
use crate::kit::relays::running::RunningRelay;
use crate::kit::relays::target::Target;

/// The relays, and their floor.
pub(super) const TARGETS: &[Target] =
    &[Target::Direct, Target::BareRelay, Target::Tollgate, Target::Haproxy, Target::Nginx];

pub(super) const PART: &str = "short";

pub(super) const CPU: &str = "process_cpu_us_per_connection";
/// The same of the threads that move connections.
pub(super) const THREADS_CPU: &str = "data_plane_cpu_us_per_connection";
pub(super) const RATE: &str = "connections_per_s";
pub(super) const FAILED: &str = "failed_connections";

pub(super) const BILL: Bill = bill("billing", PART);

/// Each connection is a flow. The bytes of the handshake that opens a tunnel are not part of it.
pub(super) const fn bill(part: &'static str, of: &'static str) -> Bill {
    let numbers = [
        ("billed_flows_per_connection", Some(1.0)),
        ("billed_up_bytes_per_connection", Some(REQUEST_BYTES as f64)),
        ("billed_down_bytes_per_connection", Some(REPLY_BYTES as f64)),
    ];
    Bill { part, of, failed: FAILED, numbers }
}

/// One run of one relay: `connections`, `concurrency` of them at once.
///
/// # Errors
/// The load or the relay failed.
pub(super) fn run<W: Transport>(
    relay: &mut RunningRelay<W>,
    client: &mut LoadProcess,
    connections: u32,
    concurrency: u32,
) -> Result<Numbers> {
    let before = CostBaseline::read(relay)?;
    let answer = client.call(&LoadCommand::Short {
        tunnel: relay.endpoints.reply_tunnel(),
        connections,
        concurrency,
    })?;
    let completed = number_in(&answer, "completed")?;
    let cost = before.cost_after(relay, completed)?;
    anyhow::ensure!(relay.is_alive(), "the relay ended under the load");
    anyhow::ensure!(completed > 0.0, "no connection came through: {}", answer["failures"]);
    let mut numbers = vec![
        (RATE, completed / (number_in(&answer, "elapsed_ns")? / 1e9)),
        ("latency_p50_ms", number_in(&answer, "p50_ns")? / 1e6),
        ("latency_p99_ms", number_in(&answer, "p99_ns")? / 1e6),
        (FAILED, number_in(&answer, "failed")?),
        ("connections_slower_than_1_s", number_in(&answer, "slow")?),
    ];
    let names = [CPU, THREADS_CPU, "log_lines_per_connection"];
    numbers.extend(cost.into_iter().flat_map(|cost| cost.per_unit(completed, names)));
    Ok(numbers)
}
