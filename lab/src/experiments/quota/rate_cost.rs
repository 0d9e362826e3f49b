//! The CPU time of a gigabyte on one tunnel at a cap of 1 Gbit/s, beside that of one without a cap.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::limited_tunnels::{Limit, LimitedTunnels, Load};
use crate::kit::load::{Direction, watched_streams::WatchedStreams};
use crate::kit::load_process::{LoadCommand, number_in};
use crate::kit::measurements::Numbers;
use crate::kit::relays::cost::wait_until_quiet;
use crate::kit::relays::running::RunningRelay;
use crate::kit::relays::target::Target;

pub(super) const PART: &str = "rate-cpu";

/// That of the relaying threads: the ledger's other threads work by the time, and a cap makes a gigabyte
/// last.
pub(super) const CPU: &str = "data_plane_cpu_s_per_gb";

/// The cap of the target that has one.
pub(super) fn limit(target: Target) -> Limit {
    match target {
        Target::TollgateLimited => Limit::Rate { bits_per_s: 1_000_000_000 },
        _ => Limit::None,
    }
}

/// One run of a relay.
///
/// # Errors
/// The load failed, or the relay ended.
pub(super) fn run(
    relay: &mut RunningRelay<LimitedTunnels>,
    load: &mut Load,
    time: Duration,
) -> Result<Numbers> {
    let (tunnel, direction) = (relay.endpoints.tunnel(Direction::Down), Direction::Down);
    let streams = WatchedStreams { tunnel, direction, streams: 1, time, quiet: time };
    let before = relay.cpu();
    let answer = load.client.call(&LoadCommand::WatchedStreams(streams))?;
    let after = wait_until_quiet(relay, 0)?;
    ensure!(relay.is_alive(), "the relay ended under the stream");
    let bytes = number_in(&answer, "bytes")?;
    let per_gigabyte = |time: Duration| time.as_secs_f64() / (bytes / 1e9);
    Ok(vec![
        ("gbit_per_s", bytes * 8.0 / number_in(&answer, "elapsed_ns")?),
        ("process_cpu_s_per_gb", per_gigabyte(after.total_since(&before))),
        (CPU, per_gigabyte(relay.data_plane(&after, &before))),
    ])
}
