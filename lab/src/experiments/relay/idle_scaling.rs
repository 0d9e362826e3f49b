//! The cost of a short connection through each relay while 100 and while 9,000 idle tunnels are open beside
//! it.
//!
//! Guarantees: the tunnels were open before the first connection and still carried bytes after the last; both
//! counts are of one round, through one running relay.

use anyhow::{Result, ensure};

use super::endpoints::Endpoints;
use super::short;
use crate::kit::load_process::{LoadCommand, LoadProcess, number_in};
use crate::kit::measurements::Numbers;
use crate::kit::relays::config::TUNNELS_MAX;
use crate::kit::relays::cost::wait_until_quiet;
use crate::kit::relays::running::RunningRelay;

/// A number of open tunnels, and the name of the part then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) part: &'static str,
    tunnels: u32,
}

pub(super) const FEW: Case = Case { part: "open-100", tunnels: 100 };
pub(super) const MANY: Case = Case { part: "open-9000", tunnels: 9_000 };

/// Clients at a time.
const CONCURRENCY: u32 = 100;

// Some connections are still being closed when as many new ones have arrived.
const _: () = assert!(MANY.tunnels + 4 * CONCURRENCY <= TUNNELS_MAX);

/// One run of one relay: short connections beside each number of tunnels.
///
/// # Errors
/// The load or the relay failed, or a tunnel was lost.
pub(super) fn run(
    relay: &mut RunningRelay<Endpoints>,
    client: &mut LoadProcess,
    connections: u32,
) -> Result<Vec<(&'static str, Numbers)>> {
    let cases = [FEW, MANY].map(|case| beside(relay, client, case, connections));
    let lines = relay.log_lines()?;
    // Also after a failure, or the next relay would be measured beside this one's tunnels.
    client.call(&LoadCommand::Release)?;
    // Each tunnel's end is a log line, which some relays buffer for a while.
    wait_until_quiet(relay, lines + u64::from(MANY.tunnels))?;
    cases.into_iter().collect()
}

fn beside(
    relay: &mut RunningRelay<Endpoints>,
    client: &mut LoadProcess,
    Case { part, tunnels }: Case,
    connections: u32,
) -> Result<(&'static str, Numbers)> {
    client.call(&LoadCommand::Hold { to: relay.endpoints.echo(), tunnels })?;
    wait_until_quiet(relay, 0)?;
    let numbers = short::run(relay, client, connections, CONCURRENCY)?;
    let touched = client.call(&LoadCommand::Touch)?;
    ensure!(number_in(&touched, "lost")? == 0.0, "some of {tunnels} tunnels were lost: {touched}");
    Ok((part, numbers))
}
