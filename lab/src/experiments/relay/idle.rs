//! The memory that an idle tunnel costs each relay: the growth of its proportional set size, shared memory
//! and tmpfs included, the kernel's own memory excluded.
//!
//! Guarantees: every tunnel was open when memory was read, and still carried bytes afterwards; each run
//! starts the relay anew.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::endpoints::Endpoints;
use crate::kit::child;
use crate::kit::load_process::{LoadCommand, LoadProcess, number_in};
use crate::kit::measurements::Numbers;
use crate::kit::relays::config::TUNNELS_MAX;
use crate::kit::relays::cost::wait_until_quiet;
use crate::kit::relays::running::RunningRelay;
use crate::kit::usage;

/// The numbers of open tunnels at which memory is read, and the name of the part then.
pub(super) const COUNTS: [(u32, &str); 3] =
    [(1_000, "idle-1000"), (5_000, "idle-5000"), (9_000, "idle-9000")];

// Every relay is configured for this many, and the ready probe's tunnel may linger beside them.
const _: () = assert!(COUNTS[2].0 < TUNNELS_MAX);

/// Tunnels that are opened and closed first, so that the pages of the program itself are not charged to
/// tunnels.
const WARM_UP: u32 = 16;

/// How long tunnels are idle before memory is read, so that a relay can free what it holds for handshakes.
const IDLE_BEFORE_READING: Duration = Duration::from_millis(500);

/// One run of one freshly started relay.
///
/// # Errors
/// A tunnel failed, or the relay's memory cannot be read.
pub(super) fn run(
    relay: &mut RunningRelay<Endpoints>,
    client: &mut LoadProcess,
) -> Result<Vec<(&'static str, Numbers)>> {
    let cases = grow(relay, client);
    // Also after a failure, or the next relay would be measured with this one's tunnels.
    client.call(&LoadCommand::Release)?;
    cases
}

fn grow(
    relay: &mut RunningRelay<Endpoints>,
    client: &mut LoadProcess,
) -> Result<Vec<(&'static str, Numbers)>> {
    let to = relay.endpoints.echo();
    client.call(&LoadCommand::Hold { to, tunnels: WARM_UP })?;
    client.call(&LoadCommand::Release)?;
    let without = settled_pss_bytes(relay)?;
    let mut last = (0, without);
    let mut cases = Vec::new();
    for (tunnels, part) in COUNTS {
        client.call(&LoadCommand::Hold { to, tunnels })?;
        let with = settled_pss_bytes(relay)?;
        let numbers = vec![
            ("pss_bytes_per_tunnel", (with - without) / f64::from(tunnels)),
            ("pss_bytes_per_further_tunnel", (with - last.1) / f64::from(tunnels - last.0)),
            ("pss_mb_without_tunnels", without / 1e6),
        ];
        last = (tunnels, with);
        cases.push((part, numbers));
    }
    let touched = client.call(&LoadCommand::Touch)?;
    ensure!(number_in(&touched, "lost")? == 0.0, "some of {} tunnels were lost: {touched}", COUNTS[2].0);
    Ok(cases)
}

fn settled_pss_bytes(relay: &mut RunningRelay<Endpoints>) -> Result<f64> {
    wait_until_quiet(relay, 0)?;
    child::pause(IDLE_BEFORE_READING)?;
    Ok(usage::pss_bytes(&relay.processes())? as f64)
}
