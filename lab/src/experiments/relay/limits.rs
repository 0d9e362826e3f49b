//! What limits cost: the same work through a Tollgate without limits, and through one whose user has a rate
//! and two quotas, one of them of its team, that are never reached.
//!
//! Guarantees: both take turns in the same rounds; each run starts its gateway anew, so the memory layout of
//! one process decides nothing.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::endpoints::Endpoints;
use super::plan::Effort;
use super::route::Route;
use super::{bulk, pingpong, requests, short};
use crate::kit::load::{Direction, Persistence, pingpong::PingPong};
use crate::kit::load_process::{LoadCommand, LoadProcess, number_in};
use crate::kit::measurements::Numbers;
use crate::kit::relays::cost::wait_until_quiet;
use crate::kit::relays::running::RunningRelay;
use crate::kit::relays::target::Target;

pub(super) const TARGETS: &[Target] = &[Target::Tollgate, Target::TollgateLimited];

/// The names of the three runs of a round in the progress.
pub(super) const WHAT: [&str; 3] =
    ["limits: tunnels", "limits: small messages", "limits: requests on kept connections"];

const SHORT: &str = "limits-short";
pub(super) const BULK: [bulk::Case; 2] = [
    bulk::Case { part: "limits-bulk-down", direction: Direction::Down, streams: 1 },
    bulk::Case { part: "limits-bulk-up", direction: Direction::Up, streams: 1 },
];
pub(super) const PINGPONG: &str = "limits-pingpong";
const REQUESTS: &str = "limits-requests";

pub(super) const MESSAGE_CPU: &str = "process_cpu_us_per_message";

/// Few, so that their set-up is no part of the cost.
const CONNECTIONS: u32 = 10;

/// A good part of one CPU, and so precise.
const MESSAGES_PER_S: u32 = 20_000;

/// Short connections, and then a stream each way.
///
/// # Errors
/// The load or the relay failed.
pub(super) fn tunnels(
    relay: &mut RunningRelay<Endpoints>,
    client: &mut LoadProcess,
    server: &mut LoadProcess,
    effort: &Effort,
) -> Result<Vec<(&'static str, Numbers)>> {
    let mut cases = vec![(SHORT, short::run(relay, client, effort.tunnels, effort.concurrency)?)];
    cases.extend(bulk::run(relay, client, server, &BULK, effort.stream / 2)?);
    Ok(cases)
}

/// Small messages, through a relay with one thread on one CPU.
///
/// # Errors
/// The load or the relay failed.
pub(super) fn messages(
    relay: &mut RunningRelay<Endpoints>,
    pinger: &mut LoadProcess,
    time: Duration,
) -> Result<Vec<(&'static str, Numbers)>> {
    let to = relay.endpoints.echo();
    let before = relay.cpu();
    let exchange = PingPong { to, connections: CONNECTIONS, rate_per_s: MESSAGES_PER_S, time };
    let answer = pinger.call(&LoadCommand::PingPong(exchange))?;
    let after = wait_until_quiet(relay, 0)?;
    ensure!(relay.is_alive(), "the relay ended under the load");
    let us_per_message = 1e6 / number_in(&answer, "sent")?;
    let data_plane = relay.data_plane(&after, &before);
    let mut numbers = vec![
        (MESSAGE_CPU, after.total_since(&before).as_secs_f64() * us_per_message),
        ("data_plane_cpu_us_per_message", data_plane.as_secs_f64() * us_per_message),
    ];
    numbers.extend(pingpong::numbers(&answer)?);
    Ok(vec![(PINGPONG, numbers)])
}

/// Plain requests on kept connections.
///
/// # Errors
/// The load or the relay failed.
pub(super) fn kept_requests(
    relay: &mut RunningRelay<Route>,
    client: &mut LoadProcess,
    server: &mut LoadProcess,
    effort: &Effort,
) -> Result<Vec<(&'static str, Numbers)>> {
    let (count, concurrency) = effort.requests(Persistence::KeepAlive);
    Ok(vec![(REQUESTS, requests::run(relay, client, server, (count / 2, concurrency))?)])
}
