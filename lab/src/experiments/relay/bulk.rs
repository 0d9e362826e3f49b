//! Bulk streams through each relay, down and up, one and a hundred at a time: rate, and the relay's CPU time
//! for a gigabyte.
//!
//! Guarantees: both ends count the same number of bytes, or the run fails.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::endpoints::{STREAMS_MAX, Transport};
use crate::kit::load::Direction;
use crate::kit::load_process::{LoadCommand, LoadProcess, number_in};
use crate::kit::measurements::Numbers;
use crate::kit::relays::cost::wait_until_quiet;
use crate::kit::relays::running::RunningRelay;
use crate::kit::relays::target::Target;

/// Streams of one direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) part: &'static str,
    pub(super) direction: Direction,
    /// Streams at a time.
    pub(super) streams: u32,
}

/// The relays, and their floor.
pub(super) const TARGETS: &[Target] =
    &[Target::Direct, Target::BareSplice, Target::Tollgate, Target::Haproxy, Target::Nginx];

/// Through relays that know their destination.
pub(super) const CASES: [Case; 4] = [
    Case { part: "bulk-down-1", direction: Direction::Down, streams: 1 },
    Case { part: "bulk-up-1", direction: Direction::Up, streams: 1 },
    Case { part: "bulk-down-100", direction: Direction::Down, streams: STREAMS_MAX },
    Case { part: "bulk-up-100", direction: Direction::Up, streams: STREAMS_MAX },
];

/// One stream at a time.
pub(super) const SINGLE: [Case; 2] = [CASES[0], CASES[1]];

/// One run of each case through one relay.
///
/// # Errors
/// The load or the relay failed, or bytes were lost.
pub(super) fn run<W: Transport>(
    relay: &mut RunningRelay<W>,
    client: &mut LoadProcess,
    server: &mut LoadProcess,
    cases: &[Case],
    time: Duration,
) -> Result<Vec<(&'static str, Numbers)>> {
    cases.iter().map(|case| Ok((case.part, one(relay, client, server, *case, time)?))).collect()
}

fn one<W: Transport>(
    relay: &mut RunningRelay<W>,
    client: &mut LoadProcess,
    server: &mut LoadProcess,
    Case { direction, streams, .. }: Case,
    time: Duration,
) -> Result<Numbers> {
    let totals = server.call(&LoadCommand::Totals)?;
    let spliced = relay.spliced_bytes()?;
    let before = relay.cpu();
    let tunnel = relay.endpoints.stream_tunnel(direction);
    let answer = client.call(&LoadCommand::Stream { tunnel, direction, time, streams })?;
    let after = wait_until_quiet(relay, 0)?;
    ensure!(relay.is_alive(), "the relay ended under the stream");
    let bytes = number_in(&answer, "bytes")?;
    let counted =
        counted_bytes(&server.call(&LoadCommand::Totals)?, direction)? - counted_bytes(&totals, direction)?;
    ensure!(bytes == counted, "{direction}: one end counted {bytes} bytes and the other {counted}");
    let mut numbers = vec![("gbit_per_s", bytes * 8.0 / number_in(&answer, "elapsed_ns")?)];
    if direction == Direction::Up {
        numbers.push(("passes_half_close", f64::from(answer["half_closed"] == true)));
    }
    if relay.target != Target::Direct {
        let gigabytes = bytes / 1e9;
        let data_plane = relay.data_plane(&after, &before);
        numbers.push(("process_cpu_s_per_gb", after.total_since(&before).as_secs_f64() / gigabytes));
        numbers.push(("data_plane_cpu_s_per_gb", data_plane.as_secs_f64() / gigabytes));
    }
    if let (Some(before), Some(after)) = (spliced, relay.spliced_bytes()?) {
        numbers.push(("own_count_spliced_share", after.saturating_sub(before) as f64 / bytes));
    }
    Ok(numbers)
}

fn counted_bytes(totals: &serde_json::Value, direction: Direction) -> Result<f64> {
    number_in(
        totals,
        match direction {
            Direction::Down => "sent_bytes",
            Direction::Up => "received_bytes",
        },
    )
}
