//! Connections that stay, and how evenly threads hold them.
//!
//! Guarantees: all of them were open when they were counted, and still carried bytes afterwards.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::gateway::Gateway;
use super::losses::Losses;
use super::short::FAILED;
use crate::kit::child;
use crate::kit::load_process::{LoadCommand, LoadProcess, number_in};
use crate::kit::measurements::Numbers;

/// The name of the balance.
pub(super) const BALANCE: &str = "most_to_mean_clients";

/// How often, and for how long, the previous run's tunnels are awaited to close.
const POLL: Duration = Duration::from_millis(20);
const POLLS_MAX: usize = 500;

/// One run: opens the tunnels one after the other, counts, sends a message through each, and closes them.
///
/// # Errors
/// A tunnel could not be opened, or the gateway does not report its counts.
pub(super) fn run(
    gateway: &mut Gateway,
    client: &mut LoadProcess,
    tunnels: u32,
    case: &str,
    losses: &mut Losses,
) -> Result<Numbers> {
    wait_until_empty(gateway)?;
    let numbers = hold(gateway, client, tunnels, case, losses);
    // Also after a failure, or the next gateway would be measured beside this one's tunnels.
    client.call(&LoadCommand::Release)?;
    wait_until_empty(gateway)?;
    numbers
}

fn hold(
    gateway: &Gateway,
    client: &mut LoadProcess,
    tunnels: u32,
    case: &str,
    losses: &mut Losses,
) -> Result<Numbers> {
    let before = gateway.counts()?;
    let held = client.call(&LoadCommand::Hold { to: gateway.running.endpoints.address, tunnels });
    if held.is_err() {
        losses.record_held(case, tunnels.into(), 1);
    }
    held?;
    let counts = gateway.counts()?;
    let lost = number_in(&client.call(&LoadCommand::Touch)?, "lost")?;
    losses.record_held(case, tunnels.into(), lost as u64);
    let balance = counts.balance();
    let mut numbers = vec![(FAILED, lost)];
    numbers.extend(balance.map(|balance| (BALANCE, balance)));
    numbers.extend(counts.since(&before).per_accept());
    Ok(numbers)
}

fn wait_until_empty(gateway: &Gateway) -> Result<()> {
    for _ in 0..POLLS_MAX {
        if gateway.counts()?.clients() == 0.0 {
            return Ok(());
        }
        child::pause(POLL)?;
    }
    ensure!(gateway.counts()?.clients() == 0.0, "the gateway still counts closed connections");
    Ok(())
}
