//! Plain HTTP requests through each forward proxy, on kept connections and on a connection for each request:
//! rate, latency, failures, and the proxy's cost for one request.
//!
//! Guarantees: every response was checked to its last byte; the report has the number of connections on both
//! sides.

use anyhow::{Result, ensure};

use super::billing::Bill;
use super::route::Route;
use crate::kit::load::{Persistence, requests::Requests};
use crate::kit::load_process::{LoadCommand, LoadProcess, number_in};
use crate::kit::measurements::Numbers;
use crate::kit::relays::cost::CostBaseline;
use crate::kit::relays::running::RunningRelay;

/// One persistence of the connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) part: &'static str,
    /// The name in the progress.
    pub(super) what: &'static str,
    pub(super) persistence: Persistence,
    pub(super) bill: Bill,
}

pub(super) const CASES: [Case; 2] = [KEPT, CLOSED];

pub(super) const KEPT: Case = Case {
    part: "requests-keep-alive",
    what: "requests on kept connections",
    persistence: Persistence::KeepAlive,
    // Requests of a connection are one flow, or a few where they take long.
    bill: bill("billing-keep-alive", "requests-keep-alive", None),
};

pub(super) const CLOSED: Case = Case {
    part: "requests-close",
    what: "requests on a connection each",
    persistence: Persistence::Close,
    bill: bill("billing-close", "requests-close", Some(1.0)),
};

/// The proxy determines the length of its heads, so bytes are only shown.
const fn bill(part: &'static str, of: &'static str, flows: Option<f64>) -> Bill {
    let numbers = [
        ("billed_flows_per_request", flows),
        ("billed_up_bytes_per_request", None),
        ("billed_down_bytes_per_request", None),
    ];
    Bill { part, of, failed: FAILED, numbers }
}

pub(super) const FAILED: &str = "failed_requests";

/// One run of one proxy.
///
/// # Errors
/// The load or the proxy failed.
pub(super) fn run(
    relay: &mut RunningRelay<Route>,
    client: &mut LoadProcess,
    server: &mut LoadProcess,
    (count, concurrency): (u32, u32),
) -> Result<Numbers> {
    let before = CostBaseline::read(relay)?;
    let connections_before = number_in(&server.call(&LoadCommand::Totals)?, "origin_connections")?;
    let Route { via, origin, persistence } = relay.endpoints;
    let requests = Requests { via, origin, persistence, count, concurrency };
    let answer = client.call(&LoadCommand::Requests(requests))?;
    let completed = number_in(&answer, "completed")?;
    let cost = before.cost_after(relay, completed)?;
    let connections =
        number_in(&server.call(&LoadCommand::Totals)?, "origin_connections")? - connections_before;
    ensure!(relay.is_alive(), "the relay ended under the load");
    ensure!(completed > 0.0, "no request came through: {}", answer["failures"]);
    let mut numbers = vec![
        ("requests_per_s", completed / (number_in(&answer, "elapsed_ns")? / 1e9)),
        ("latency_p50_ms", number_in(&answer, "p50_ns")? / 1e6),
        ("latency_p99_ms", number_in(&answer, "p99_ns")? / 1e6),
        (FAILED, number_in(&answer, "failed")?),
        ("client_connections_per_request", number_in(&answer, "connections")? / completed),
        ("origin_connections_per_request", connections / completed),
    ];
    let names = ["process_cpu_us_per_request", "data_plane_cpu_us_per_request", "log_lines_per_request"];
    numbers.extend(cost.into_iter().flat_map(|cost| cost.per_unit(completed, names)));
    Ok(numbers)
}
