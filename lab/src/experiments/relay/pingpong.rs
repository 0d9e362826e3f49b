//! Small messages at a fixed rate on 1, 100 and 1,000 connections, and on one beside a stream that saturates
//! the same relay.
//!
//! Guarantees: the relay has one thread on one CPU, so that all connections meet on it, and the load has the
//! other CPUs; both ends of the messages have a higher priority where that is allowed, so that the relay is
//! measured; what a relay adds to the direct latency is of the same round.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::endpoints::Endpoints;
use super::plan::Effort;
use crate::kit::child;
use crate::kit::load::{Direction, pingpong::PingPong};
use crate::kit::load_process::{LoadCommand, LoadProcess, number_in};
use crate::kit::measurements::{Numbers, Row};
use crate::kit::relays::running::RunningRelay;
use crate::kit::relays::target::Target;

/// Messages on connections without other load: far below saturation, and enough for a p99 within seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) part: &'static str,
    connections: u32,
    /// Over all connections.
    rate_per_s: u32,
}

pub(super) const CASES: [Case; 3] = [
    Case { part: "pingpong-1", connections: 1, rate_per_s: 1_000 },
    Case { part: "pingpong-100", connections: 100, rate_per_s: 2_000 },
    Case { part: "pingpong-1000", connections: 1_000, rate_per_s: 2_000 },
];

pub(super) const BESIDE_STREAM: &str = "pingpong-beside-stream";

pub(super) const P99: &str = "latency_p99_ms";

/// Each latency, and its excess over the direct one.
const ADDED: [(&str, &str); 3] =
    [("latency_p50_ms", "added_p50_ms"), (P99, "added_p99_ms"), ("latency_p999_ms", "added_p999_ms")];

/// The stream runs alone before the first message, and on after the last.
const LEAD: Duration = Duration::from_millis(300);

/// All cases through one relay.
///
/// # Errors
/// The load or the relay failed.
pub(super) fn run(
    relay: &mut RunningRelay<Endpoints>,
    pinger: &mut LoadProcess,
    streamer: &mut LoadProcess,
    effort: &Effort,
) -> Result<Vec<(&'static str, Numbers)>> {
    let mut cases = Vec::new();
    for Case { part, connections, rate_per_s } in CASES {
        let exchange = PingPong { to: relay.endpoints.echo(), connections, rate_per_s, time: effort.ping };
        let answer = pinger.call(&LoadCommand::PingPong(exchange)).context(part)?;
        cases.push((part, numbers(&answer)?));
    }
    cases.push((BESIDE_STREAM, beside_stream(relay, pinger, streamer, effort)?));
    ensure!(relay.is_alive(), "the relay ended under the load");
    Ok(cases)
}

fn beside_stream(
    relay: &RunningRelay<Endpoints>,
    pinger: &mut LoadProcess,
    streamer: &mut LoadProcess,
    effort: &Effort,
) -> Result<Numbers> {
    let Case { connections, rate_per_s, .. } = CASES[0];
    let exchange = PingPong { to: relay.endpoints.echo(), connections, rate_per_s, time: effort.ping };
    let direction = Direction::Down;
    let tunnel = relay.endpoints.stream(direction).into();
    let time = effort.ping + LEAD * 2;
    streamer.begin(&LoadCommand::Stream { tunnel, direction, time, streams: 1 })?;
    child::pause(LEAD)?;
    let beside = pinger.call(&LoadCommand::PingPong(exchange)).context(BESIDE_STREAM);
    let streamed = streamer.finish().context("the stream")?;
    let mut numbers = numbers(&beside?)?;
    numbers.push((
        "stream_gbit_per_s",
        number_in(&streamed, "bytes")? * 8.0 / number_in(&streamed, "elapsed_ns")?,
    ));
    Ok(numbers)
}

/// Adds to each relay's runs the excess of its latencies over the direct ones.
pub(super) fn add_excess_over_direct(rows: &mut [Row]) {
    let is_direct = |row: &Row| row.target == Target::Direct.name();
    let directs: Vec<Row> = rows.iter().filter(|row| is_direct(row)).cloned().collect();
    for row in rows.iter_mut().filter(|row| !is_direct(row)) {
        let Some(direct) = directs.iter().find(|direct| direct.part == row.part) else { continue };
        for (latency, added) in ADDED {
            for excess in row.excess_over(direct, latency).runs {
                let run = row.runs.iter_mut().find(|run| run.round == excess.round);
                let values = excess.numbers.iter().map(|&(_, value)| (added, value));
                run.into_iter().for_each(|run| run.numbers.extend(values.clone()));
            }
        }
    }
}

/// The latencies of an answer, and the lost messages.
pub(super) fn numbers(answer: &serde_json::Value) -> Result<Numbers> {
    Ok(vec![
        ("latency_p50_ms", number_in(answer, "p50_ns")? / 1e6),
        (P99, number_in(answer, "p99_ns")? / 1e6),
        ("latency_p999_ms", number_in(answer, "p999_ns")? / 1e6),
        ("lost_messages", number_in(answer, "lost")?),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::measurements::Run;

    #[test]
    fn added_latency_is_of_the_same_round() {
        let row = |target: &str, runs: &[(usize, f64)]| {
            let run = |&(round, p99)| Run { round, marks: Vec::new(), numbers: vec![(P99, p99)] };
            let runs = runs.iter().map(run).collect();
            Row { part: CASES[0].part, target: target.to_owned(), runs }
        };
        let mut rows = vec![
            row("direct", &[(0, 1.0), (1, 2.0), (3, 9.0)]),
            row("nginx", &[(0, 1.5), (1, 4.0), (2, 5.0)]),
        ];
        add_excess_over_direct(&mut rows);
        assert_eq!(rows[1].series("added_p99_ms"), [0.5, 2.0]);
        assert!(rows[0].series("added_p99_ms").is_empty());
    }
}
