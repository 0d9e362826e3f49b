//! Short connections through a gateway: many at a time, at light load, or while it is reconfigured, with the
//! same figures of each.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sys::limits::ProcRoot;
use sys::pressure::ListenDrops;

use super::background::run_beside;
use super::gateway::Gateway;
use super::losses::Losses;
use crate::kit::load_process::{LoadCommand, LoadProcess, number_in};
use crate::kit::measurements::Numbers;
use crate::kit::relays::cost::CostBaseline;

/// Names of the numbers behind verdicts.
pub(super) const CPU: &str = "process_cpu_us_per_connection";
pub(super) const FIRST_BYTE_P99: &str = "first_byte_p99_ms";
pub(super) const FAILED: &str = "failed_connections";

/// How often the clients of each thread are counted: some ten times in the shortest run.
const POLL: Duration = Duration::from_millis(100);

/// With fewer clients at a time a ratio of counts says nothing.
const CLIENTS_MIN: f64 = 100.0;

/// How often a configuration is loaded. Each time the previous one's listener is removed, and it stays for
/// 200 ms for handshakes in progress, so its end falls into the next one.
const RELOAD: Duration = Duration::from_millis(150);

/// One run: the result of a load and its cost. `case` is its name among the losses.
///
/// # Errors
/// The load or the gateway failed.
pub(super) fn run(
    gateway: &mut Gateway,
    client: &mut LoadProcess,
    load: &LoadCommand,
    case: &str,
    losses: &mut Losses,
) -> Result<Numbers> {
    let balances = Mutex::new(Vec::new());
    let measured = measure(gateway, losses, case, |gateway| {
        let poll = || {
            let Ok(counts) = gateway.counts() else { return };
            if counts.clients() >= CLIENTS_MIN {
                balances.lock().unwrap_or_else(PoisonError::into_inner).extend(counts.balance());
            }
        };
        run_beside(POLL, poll, || client.call(load))
    });
    let mut numbers = measured?;
    let balances = balances.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !balances.is_empty() {
        let mean = balances.iter().sum::<f64>() / balances.len() as f64;
        numbers.push(("most_to_mean_clients", mean));
    }
    Ok(numbers)
}

/// The same while listeners are added and removed beside the one under load.
///
/// # Errors
/// As `run`, or the gateway refused a configuration.
pub(super) fn run_reloading(
    gateway: &mut Gateway,
    client: &mut LoadProcess,
    load: &LoadCommand,
    case: &str,
    losses: &mut Losses,
) -> Result<Numbers> {
    let before = gateway.counts()?;
    let mut reload_result = Ok(());
    let mut numbers = measure(gateway, losses, case, |gateway| {
        let mut spares = [0, 1].into_iter().cycle();
        let reload = || {
            if reload_result.is_ok() {
                reload_result = gateway.reload(spares.next());
            }
        };
        run_beside(RELOAD, reload, || client.call(load))
    })?;
    reload_result.context("reloading the configuration")?;
    gateway.reload(None)?;
    let (reloads, failed) = gateway.counts()?.since(&before).reloads();
    ensure!(failed == 0.0, "the gateway refused {failed} configurations");
    numbers.push(("reloads", reloads));
    Ok(numbers)
}

fn measure(
    gateway: &mut Gateway,
    losses: &mut Losses,
    case: &str,
    load: impl FnOnce(&Gateway) -> Result<Value>,
) -> Result<Numbers> {
    let (drops, before) =
        (ListenDrops::read(&ProcRoot::machine()), CostBaseline::read(&mut gateway.running)?);
    let counts = gateway.counts()?;
    let answer = load(gateway)?;
    losses.record(case, &answer);
    let completed = number_in(&answer, "completed")?;
    let counts = gateway.counts()?.since(&counts);
    let cost = before.cost_after(&mut gateway.running, completed)?;
    ensure!(gateway.running.is_alive(), "the relay ended under the load");
    ensure!(completed > 0.0, "no connection came through: {}", answer["failures"]);
    let mut numbers = client_numbers(&answer)?;
    if let (Some(now), Some(then)) = (ListenDrops::read(&ProcRoot::machine()), drops) {
        numbers.push(("listen_overflows", now.since(then).overflows as f64));
    }
    let names = [CPU, "data_plane_cpu_us_per_connection", "log_lines_per_connection"];
    numbers.extend(cost.into_iter().flat_map(|cost| cost.per_unit(completed, names)));
    numbers.extend(counts.per_accept());
    numbers.extend(counts.balance_of_accepts().map(|balance| ("most_to_mean_accepts", balance)));
    Ok(numbers)
}

/// The numbers that the clients measured.
///
/// # Errors
/// The answer is not that of clients.
pub(super) fn client_numbers(answer: &Value) -> Result<Numbers> {
    let seconds = number_in(answer, "elapsed_ns")? / 1e9;
    let ms = |name: &str| Ok::<f64, anyhow::Error>(number_in(answer, name)? / 1e6);
    Ok(vec![
        ("time_s", seconds),
        ("connections_per_s", number_in(answer, "completed")? / seconds),
        (FAILED, number_in(answer, "failed")?),
        ("connections_slower_than_1_s", number_in(answer, "slow")?),
        ("first_byte_p50_ms", ms("first_byte_p50_ns")?),
        (FIRST_BYTE_P99, ms("first_byte_p99_ns")?),
        ("first_byte_p99.9_ms", ms("first_byte_p99.9_ns")?),
    ])
}
