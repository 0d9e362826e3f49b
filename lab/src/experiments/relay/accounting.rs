//! The cost of accounting. The gateway cannot switch it off, so its calls into the ledger are measured alone:
//! in nanoseconds for a relayed read and write, and in instructions for a whole connection, beside the
//! instructions of a complete gateway.
//!
//! Guarantees: the calls are those that the gateway makes, in its order (`gateway/src/relay.rs`, `meter.rs`);
//! the ledger behind them is a real one, with its database.

use std::ffi::OsString;
use std::hint::black_box;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ledger::record::{Class, CloseReason, Flow, Identity, Legs, Protocol, Uncertain};
use ledger::{FlowWriter, Ledger, LiveFlow, OpenSettings};
use sys::clock::WallNanos;

use super::endpoints::{Endpoints, configuration, has_echo};
use crate::kit::callgrind::CallgrindRun;
use crate::kit::child;
use crate::kit::load::{REPLY_BYTES, REQUEST_BYTES};
use crate::kit::load_process::{LoadCommand, LoadProcess, number_in};
use crate::kit::measurements::Numbers;
use crate::kit::relays::config::{ConfigInputs, USER, UserLimits, configuration_file};
use crate::kit::relays::installed::InstalledTarget;
use crate::kit::relays::running::{PROBE_TIMEOUT, Workload};

pub(super) const PART: &str = "accounting";
pub(super) const INSTRUCTIONS: &str = "instructions";

/// Nanoseconds for both calls together, although each is an I/O.
pub(super) const NS_PER_IO: &str = "accounting_ns_per_read_and_write";

/// Reads and writes of one run: about a tenth of a second.
const TIMES: u32 = 20_000_000;

/// Connections of the two runs under callgrind, which are some ten times slower there than elsewhere.
const CONNECTIONS_FEW: u32 = 200;
const CONNECTIONS_MANY: u32 = 1_200;

/// Connections at a time.
const CONCURRENCY: u32 = 20;

/// How long a gateway may take under callgrind until it forwards, and to end.
const READY: Duration = Duration::from_secs(60);

/// The arguments of `lab ledger-flows`.
#[derive(clap::Args, Debug)]
pub(crate) struct LedgerFlows {
    /// How many flows
    #[arg(long)]
    count: u32,
    /// The directory of the ledger
    #[arg(long)]
    directory: PathBuf,
}

/// The nanoseconds that accounting adds to a read and a write.
///
/// # Errors
/// The ledger could not be opened or closed.
pub(super) fn time(directory: &Path) -> Result<Numbers> {
    let (ledger, mut flow_writers) = Ledger::open(&OpenSettings::new(directory, 1, 16))?;
    let flow_writer = &mut flow_writers[0];
    let mut flow = flow_writer.open(&identity(1)).context("the live table has a slot for one flow")?;
    let started = Instant::now();
    for _ in 0..TIMES {
        move_up(flow_writer, &mut flow, black_box(1));
    }
    let spent = started.elapsed();
    flow_writer.close(flow, WallNanos(2), CloseReason::UpstreamClosed);
    drop(flow_writers);
    ledger.close()?;
    Ok(vec![(NS_PER_IO, spent.as_secs_f64() * 1e9 / f64::from(TIMES))])
}

/// The child's side of the count: the accounting of `count` connections, and nothing else.
///
/// # Errors
/// The ledger failed.
pub(crate) fn run_flows(settings: &LedgerFlows) -> Result<()> {
    let accounted = flows(settings.count, &settings.directory)?;
    ensure!(accounted == u64::from(settings.count), "of {} flows {accounted} were recorded", settings.count);
    Ok(())
}

/// The accounting of `count` connections; returns how many of them the ledger has recorded.
fn flows(count: u32, directory: &Path) -> Result<u64> {
    // A slot for each flow, so that nothing ever waits.
    let (ledger, mut flow_writers) = Ledger::open(&OpenSettings::new(directory, 1, count))?;
    let flow_writer = &mut flow_writers[0];
    for number in 0..count {
        let mut flow =
            flow_writer.open(&identity(u128::from(number) + 1)).context("each flow has its slot")?;
        move_up(flow_writer, &mut flow, black_box(REQUEST_BYTES));
        move_down(flow_writer, &mut flow, black_box(REPLY_BYTES));
        flow_writer.close(flow, WallNanos(2), CloseReason::UpstreamClosed);
    }
    drop(flow_writers);
    Ok(ledger.close()?.records)
}

/// The accounting of a read from the client and of the following write to the destination.
fn move_up(flow_writer: &mut FlowWriter, flow: &mut LiveFlow, bytes: usize) {
    let mut counters = flow_writer.counters(flow);
    let (mut received, mut sent) = counters.up();
    received.add(bytes);
    let result = sent.around(bytes, || Ok(black_box(bytes)));
    assert!(result.is_ok(), "the counters cannot fail");
    flow_writer.request_interim_if_due(flow);
}

/// The same in the other direction.
fn move_down(flow_writer: &mut FlowWriter, flow: &mut LiveFlow, bytes: usize) {
    let mut counters = flow_writer.counters(flow);
    let (mut received, mut sent) = counters.down();
    received.add(bytes);
    let result = sent.around(bytes, || Ok(black_box(bytes)));
    assert!(result.is_ok(), "the counters cannot fail");
    flow_writer.request_interim_if_due(flow);
}

fn identity(id: u128) -> Identity {
    let loopback = [127, 0, 0, 1];
    Identity::new(&Flow {
        id,
        opened: WallNanos(1),
        closed: WallNanos(0),
        account: 0,
        policy: 0,
        set: 0,
        user: USER,
        host: "127.0.0.1",
        port: 443,
        address: Some(loopback.into()),
        client: SocketAddr::from((loopback, 50_000)),
        class: Class::External,
        protocol: Protocol::HttpConnect,
        rule: "lab",
        reason: CloseReason::Fault,
        requests: 0,
        legs: Legs::default(),
        uncertain: Uncertain::default(),
    })
}

/// Instructions of a short connection: of a whole gateway, of the accounting alone, and the difference.
///
/// # Errors
/// Valgrind is not installed, the gateway did not work under it, or a connection failed.
pub(super) fn instructions(
    installed: &InstalledTarget,
    upstream: &Endpoints,
    client: &mut LoadProcess,
    directory: &Path,
    next_port: &mut u16,
) -> Result<Numbers> {
    let mut gateway = |connections| -> Result<u64> {
        let directory = tempfile::tempdir_in(directory)?;
        of_gateway(installed, upstream, client, directory.path(), next_port, connections)
    };
    let whole = per_connection(gateway(CONNECTIONS_FEW)?, gateway(CONNECTIONS_MANY)?);
    let flows = |count: u32| -> Result<u64> {
        let directory = tempfile::tempdir_in(directory)?;
        let mut arguments: Vec<OsString> =
            vec!["ledger-flows".into(), "--count".into(), count.to_string().into()];
        arguments.extend(["--directory".into(), directory.path().join("ledger").into()]);
        CallgrindRun::start(&child::own_program()?, arguments, directory.path())?.finish()
    };
    let accounting = per_connection(flows(CONNECTIONS_FEW)?, flows(CONNECTIONS_MANY)?);
    Ok(vec![
        ("instructions_per_connection", whole),
        ("of_these_accounting", accounting),
        ("without_accounting", whole - accounting),
    ])
}

fn per_connection(few: u64, many: u64) -> f64 {
    (many as f64 - few as f64) / f64::from(CONNECTIONS_MANY - CONNECTIONS_FEW)
}

/// Instructions of a gateway with one reactor, from its start to its end, for a number of relayed
/// connections.
fn of_gateway(
    installed: &InstalledTarget,
    upstream: &Endpoints,
    client: &mut LoadProcess,
    directory: &Path,
    next_port: &mut u16,
    connections: u32,
) -> Result<u64> {
    let (listen, admin) = upstream.through_relay(next_port)?;
    let inputs = ConfigInputs { listen: &listen, upstream, admin, threads: 1, directory };
    let file = configuration_file(directory);
    std::fs::write(&file, configuration::tollgate(&inputs, &UserLimits::default()))?;
    let arguments = vec!["serve".into(), "--config".into(), file.into()];
    let mut counted = CallgrindRun::start(&installed.program, arguments, directory)?;
    let deadline = Instant::now() + READY;
    while !has_echo(&listen.echo().into(), PROBE_TIMEOUT) {
        if Instant::now() > deadline || !counted.is_alive() {
            bail!("the gateway does not run under valgrind, which printed: {}", counted.last_output_line());
        }
        child::pause(PROBE_TIMEOUT)?;
    }
    let tunnel = listen.reply().into();
    let answer = client.call(&LoadCommand::Short { tunnel, connections, concurrency: CONCURRENCY })?;
    ensure!(number_in(&answer, "failed")? == 0.0, "connections failed under valgrind: {answer}");
    counted.request_stop();
    counted.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_calls_reach_the_ledger() {
        let directory = tempfile::tempdir().expect("a temporary directory can be created");
        let records = flows(7, &directory.path().join("ledger")).expect("the ledger works");
        assert_eq!(records, 7);
    }

    #[test]
    fn common_instructions_cancel_out() {
        let start = 5_000_000;
        let run = |connections: u32| start + 40_000 * u64::from(connections);
        assert_eq!(per_connection(run(CONNECTIONS_FEW), run(CONNECTIONS_MANY)), 40_000.0);
    }
}
