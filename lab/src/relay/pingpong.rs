//! Small messages on one connection at a fixed rate, alone and then beside a stream that saturates the same
//! relay. Promises: the relay has one thread on one CPU, so that both connections meet on it, and the load
//! has the others; the message's two ends have a higher priority where that is allowed, so that what is
//! measured is the relay.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Effort;
use super::rivals::Running;
use super::short::figure;
use crate::agent::{Agent, Command};
use crate::child;
use crate::load::Direction;
use crate::report::Numbers;

pub(super) const ALONE: &str = "pingpong-alone";
pub(super) const BESIDE_STREAM: &str = "pingpong-beside-stream";

/// Messages a second: far below saturation, often enough for a p99 within seconds.
const RATE_PER_S: u32 = 1_000;

/// The stream runs alone before the first message, and on after the last.
const LEAD: Duration = Duration::from_millis(300);

/// Both cases through one relay.
///
/// # Errors
/// The load or the relay failed.
pub(super) fn run(
    relay: &mut Running,
    pinger: &mut Agent,
    streamer: &mut Agent,
    effort: &Effort,
) -> Result<Vec<(&'static str, Numbers)>> {
    let to = relay.ends.echo();
    let exchange = Command::PingPong { to, rate_per_s: RATE_PER_S, time: effort.ping };
    let alone = pinger.ask(&exchange).context("alone")?;
    let direction = Direction::Down;
    let stream = relay.ends.stream(direction);
    let time = effort.ping + LEAD * 2;
    streamer.begin(&Command::Stream { tunnel: stream.into(), direction, time, streams: 1 })?;
    child::pause(LEAD)?;
    let beside = pinger.ask(&exchange).context("beside a stream");
    let streamed = streamer.finish().context("the stream")?;
    ensure!(relay.is_alive(), "it ended under the load");
    let mut numbers = numbers(&beside?)?;
    numbers.push(("stream_gbit_per_s", figure(&streamed, "bytes")? * 8.0 / figure(&streamed, "elapsed_ns")?));
    Ok(vec![(ALONE, self::numbers(&alone)?), (BESIDE_STREAM, numbers)])
}

fn numbers(answer: &serde_json::Value) -> Result<Numbers> {
    Ok(vec![
        ("latency_p50_ms", figure(answer, "p50_ns")? / 1e6),
        ("latency_p99_ms", figure(answer, "p99_ns")? / 1e6),
        ("latency_p999_ms", figure(answer, "p999_ns")? / 1e6),
        ("lost_messages", figure(answer, "lost")?),
    ])
}
