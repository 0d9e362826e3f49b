//! A quota that 64 tunnels use up at the same time: the bytes that arrive beyond it, or that it leaves
//! unused.
//!
//! Guarantees: bytes count where they arrive: at clients and at servers. A relay that does not end its
//! tunnels is cut off after a time, and the report says how many were open.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::limited_tunnels::{LimitedTunnels, Load};
use super::plan::Effort;
use crate::kit::child;
use crate::kit::load::{Direction, watched_streams::WatchedStreams};
use crate::kit::load_process::{LoadCommand, number_in};
use crate::kit::measurements::Numbers;
use crate::kit::relays::running::RunningRelay;

/// Tunnels at the same time.
pub(super) const TUNNELS: u32 = 64;

/// Tunnels without a byte for this long have ended, as far as a client can see.
const QUIET: Duration = Duration::from_secs(2);

/// Between two looks at what the servers have received, and how often it may grow.
const POLL: Duration = Duration::from_millis(200);
const POLLS_MAX: usize = 50;

/// The direction of the streams.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) part: &'static str,
    pub(super) direction: Direction,
}

pub(super) const CASES: [Case; 2] = [
    Case { part: "quota-down", direction: Direction::Down },
    Case { part: "quota-up", direction: Direction::Up },
];

pub(super) const OVERSHOOT: &str = "overshoot_bytes";
pub(super) const PERCENT: &str = "overshoot_percent_of_limit";
pub(super) const UNUSED: &str = "unused_bytes";
pub(super) const OPEN: &str = "open_tunnels";

/// One run of a relay with nothing used.
///
/// # Errors
/// The load failed, or the relay ended.
pub(super) fn run(
    relay: &mut RunningRelay<LimitedTunnels>,
    load: &mut Load,
    Case { direction, .. }: Case,
    effort: &Effort,
) -> Result<Numbers> {
    let before = load.received_by_servers()?;
    let tunnel = relay.endpoints.tunnel(direction);
    let (streams, time) = (TUNNELS, effort.tunnels_time_max);
    let streams = WatchedStreams { tunnel, direction, streams, time, quiet: QUIET };
    let answer = load.client.call(&LoadCommand::WatchedStreams(streams))?;
    let by_clients = match direction {
        Direction::Down => number_in(&answer, "bytes")?,
        Direction::Up => 0.0,
    };
    let moved = by_clients + settled(load)? - before;
    ensure!(relay.is_alive(), "the relay ended under the load");
    let limit = f64::from(effort.quota_mebibytes) * f64::from(1 << 20);
    let overshoot = (moved - limit).max(0.0);
    Ok(vec![
        ("limit_bytes", limit),
        ("moved_bytes", moved),
        (OVERSHOOT, overshoot),
        (PERCENT, 100.0 * overshoot / limit),
        (UNUSED, (limit - moved).max(0.0)),
        (OPEN, f64::from(TUNNELS) - number_in(&answer, "ended")?),
        ("ended_after_ms", number_in(&answer, "elapsed_ns")? / 1e6),
    ])
}

/// What the servers have received, once it stays the same.
fn settled(load: &mut Load) -> Result<f64> {
    let mut last = load.received_by_servers()?;
    for _ in 0..POLLS_MAX {
        child::pause(POLL)?;
        let next = load.received_by_servers()?;
        if next == last {
            break;
        }
        last = next;
    }
    Ok(last)
}
