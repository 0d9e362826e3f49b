//! How many of a stream's bytes a relay splices, counted from outside: the sum of the return values of its
//! `splice` calls, by strace.
//!
//! Guarantees: the traced stream is one of its own, since tracing slows it down; no other figure comes from
//! it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::endpoints::Endpoints;
use crate::kit::load::Direction;
use crate::kit::load_process::{LoadCommand, LoadProcess, number_in};
use crate::kit::measurements::Numbers;
use crate::kit::relays::running::RunningRelay;
use crate::kit::strace::Tracer;

/// Long enough for a relay to recognise a stream.
const STREAM: Duration = Duration::from_millis(700);

/// The spliced share of one stream in each direction.
///
/// # Errors
/// strace could not attach, or the stream failed.
pub(super) fn run(
    relay: &RunningRelay<Endpoints>,
    client: &mut LoadProcess,
    directory: &Path,
) -> Result<Vec<(&'static str, Numbers)>> {
    let share = |direction| -> Result<Numbers> {
        Ok(vec![("traced_spliced_share", one(relay, client, directory, direction)?)])
    };
    let mut share = share;
    Ok(vec![("splice-down", share(Direction::Down)?), ("splice-up", share(Direction::Up)?)])
}

fn one(
    relay: &RunningRelay<Endpoints>,
    client: &mut LoadProcess,
    directory: &Path,
    direction: Direction,
) -> Result<f64> {
    let trace = directory.join(format!("{}-{direction}.trace", relay.target.name()));
    let strace = Tracer::attach(&relay.processes(), &["-e", "trace=splice"], &trace)?;
    let to = relay.endpoints.stream(direction);
    let answer =
        client.call(&LoadCommand::Stream { tunnel: to.into(), direction, time: STREAM, streams: 1 })?;
    let trace = strace.stop();
    let text = fs::read_to_string(&trace).with_context(|| format!("reading {}", trace.display()))?;
    // Each byte passes through splice twice: from the socket into the pipe, and out of it.
    Ok(returned_bytes(&text) as f64 / 2.0 / number_in(&answer, "bytes")?)
}

/// The sum of the traced return values; a call that another thread's interrupted ends on the line with
/// `resumed`.
fn returned_bytes(trace: &str) -> u64 {
    let returned = |line: &str| -> Option<u64> {
        if !line.contains("splice") {
            return None;
        }
        line.rsplit_once(" = ")?.1.split_whitespace().next()?.parse().ok()
    };
    trace.lines().filter_map(returned).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splice_return_values_are_summed() {
        let trace = "\
77 splice(12, NULL, 14, NULL, 65536, SPLICE_F_MOVE|SPLICE_F_NONBLOCK) = 65536
77 splice(12, NULL, 14, NULL, 65536, SPLICE_F_MOVE) = -1 EAGAIN (Resource temporarily unavailable)
78 splice(13, NULL, 15, NULL, 1000, SPLICE_F_MOVE|SPLICE_F_NONBLOCK <unfinished ...>
77 splice(12, NULL, 14, NULL, 65536, SPLICE_F_MOVE) = 4096
78 <... splice resumed>)             = 1000
78 +++ exited with 0 +++
";
        assert_eq!(returned_bytes(trace), 65_536 + 4_096 + 1_000);
        assert_eq!(returned_bytes(""), 0);
    }
}
