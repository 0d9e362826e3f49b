//! How exactly a rate is kept: the bytes that arrive in each second after the first 100 ms, as a share of the
//! cap, on one tunnel and on 64; and how evenly the 64 share it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::limited_tunnels::{LimitedTunnels, Load};
use crate::kit::load::{Direction, watched_streams::WatchedStreams};
use crate::kit::load_process::{LoadCommand, number_in};
use crate::kit::measurements::Numbers;
use crate::kit::relays::running::RunningRelay;

/// A cap, and the tunnels below it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    /// Its count is the cap in Mbit/s.
    pub(super) part: &'static str,
    /// The name in the progress.
    pub(super) what: &'static str,
    pub(super) bits_per_s: u64,
    pub(super) tunnels: u32,
}

const fn case(part: &'static str, what: &'static str, bits_per_s: u64, tunnels: u32) -> Case {
    Case { part, what, bits_per_s, tunnels }
}

pub(super) const CASES: [Case; 10] = [
    case("rate-one-0.064", "64 kbit/s on one tunnel", 64_000, 1),
    case("rate-one-1", "1 Mbit/s on one tunnel", 1_000_000, 1),
    case("rate-one-100", "100 Mbit/s on one tunnel", 100_000_000, 1),
    case("rate-one-1000", "1 Gbit/s on one tunnel", 1_000_000_000, 1),
    case("rate-one-10000", "10 Gbit/s on one tunnel", 10_000_000_000, 1),
    case("rate-64-0.064", "64 kbit/s on 64 tunnels", 64_000, 64),
    case("rate-64-1", "1 Mbit/s on 64 tunnels", 1_000_000, 64),
    case("rate-64-100", "100 Mbit/s on 64 tunnels", 100_000_000, 64),
    case("rate-64-1000", "1 Gbit/s on 64 tunnels", 1_000_000_000, 64),
    case("rate-64-10000", "10 Gbit/s on 64 tunnels", 10_000_000_000, 64),
];

pub(super) const LEAST: &str = "least_second_percent_of_cap";
pub(super) const GREATEST: &str = "greatest_second_percent_of_cap";
pub(super) const JAIN: &str = "jain_index";

/// Enough for the last sample, which may come late.
const MARGIN: Duration = Duration::from_millis(200);

/// One run of a relay.
///
/// # Errors
/// The load failed, or the relay ended.
pub(super) fn run(
    relay: &mut RunningRelay<LimitedTunnels>,
    load: &mut Load,
    case: Case,
    seconds: u32,
) -> Result<Numbers> {
    let (tunnel, direction) = (relay.endpoints.tunnel(Direction::Down), Direction::Down);
    let time = Duration::from_secs(seconds.into()) + MARGIN;
    let streams = WatchedStreams { tunnel, direction, streams: case.tunnels, time, quiet: time };
    let answer = load.client.call(&LoadCommand::WatchedStreams(streams))?;
    ensure!(relay.is_alive(), "the relay ended under the load");
    ensure!(number_in(&answer, "ended")? == 0.0, "the relay ended tunnels");
    let samples = answer["samples"].as_array().context("the answer has samples")?;
    let samples: Result<Vec<Sample>> = samples.iter().map(Sample::parse).collect();
    numbers(&samples?, case)
}

/// What had arrived at a moment.
#[derive(Clone, Debug)]
struct Sample {
    seconds: f64,
    /// By tunnel.
    bits: Vec<f64>,
}

impl Sample {
    fn parse(value: &Value) -> Result<Self> {
        let bytes = value["bytes"].as_array().context("a sample has bytes")?;
        let bits = bytes.iter().filter_map(Value::as_f64).map(|bytes| bytes * 8.0).collect();
        Ok(Self { seconds: number_in(value, "ns")? / 1e9, bits })
    }

    fn rate_since(&self, earlier: &Self) -> f64 {
        (self.bits.iter().sum::<f64>() - earlier.bits.iter().sum::<f64>()) / (self.seconds - earlier.seconds)
    }
}

fn numbers(samples: &[Sample], case: Case) -> Result<Numbers> {
    let [first, .., last] = samples else { anyhow::bail!("there are fewer than two samples") };
    let percent = |rate: f64| 100.0 * rate / case.bits_per_s as f64;
    let seconds = samples.windows(2).map(|pair| percent(pair[1].rate_since(&pair[0])));
    let (least, greatest) = (seconds.clone().fold(f64::MAX, f64::min), seconds.fold(0.0, f64::max));
    let mut numbers = vec![
        ("mean_percent_of_cap", percent(last.rate_since(first))),
        (LEAST, least),
        (GREATEST, greatest),
        ("first_100_ms_percent_of_cap", percent(first.bits.iter().sum::<f64>() / first.seconds)),
    ];
    if case.tunnels > 1 {
        let of_tunnels: Vec<f64> =
            last.bits.iter().zip(&first.bits).map(|(last, first)| last - first).collect();
        numbers.push((JAIN, jain_index(&of_tunnels)));
    }
    Ok(numbers)
}

/// Jain's index of fairness (Jain, Chiu, Hawe 1984): 1 where all shares are equal, 1/n where one has all.
fn jain_index(shares: &[f64]) -> f64 {
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    shares.iter().sum::<f64>().powi(2) / (shares.len() as f64 * squares)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn equal_shares_have_an_index_of_one() {
        assert_eq!(jain_index(&[3.0, 3.0, 3.0]), 1.0);
        assert_eq!(jain_index(&[5.0, 0.0]), 0.5);
    }

    #[test]
    fn seconds_are_judged_one_by_one() {
        let sample = |ns: u64, bytes: [u64; 2]| {
            Sample::parse(&json!({ "ns": ns, "bytes": bytes })).expect("it is a sample")
        };
        let samples = [
            sample(100_000_000, [1_000, 1_000]),
            sample(1_100_000_000, [2_000, 2_000]),
            sample(2_100_000_000, [3_500, 3_500]),
        ];
        let case = case("rate-64-1", "", 16_000, 2);
        let numbers = numbers(&samples, case).expect("there are seconds");
        let check = |name: &str, expected: f64| {
            let found = numbers.iter().find(|number| number.0 == name).map(|number| number.1);
            assert!(found.is_some_and(|it| (it - expected).abs() < 1e-9), "{name}: {found:?}");
        };
        check("mean_percent_of_cap", 125.0);
        check(LEAST, 100.0);
        check(GREATEST, 150.0);
        check("first_100_ms_percent_of_cap", 1_000.0);
        check(JAIN, 1.0);
    }
}
