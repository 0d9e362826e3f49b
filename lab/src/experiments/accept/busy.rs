//! One thread is busy with each of its events while clients arrive: how far does it delay them? Measured on
//! the lab's own server (`server.rs`), since the gateway cannot be made slow.
//!
//! Guarantees: all strategies serve the same arrivals.

use std::net::SocketAddr;

use anyhow::{Context, Result};

use super::counts::Counts;
use super::losses::Losses;
use super::server::AcceptServer;
use super::short::client_numbers;
use super::strategy::Strategy;
use crate::kit::child;
use crate::kit::load_process::{LoadCommand, LoadProcess};
use crate::kit::measurements::Numbers;
use crate::kit::rounds::RoundTarget;
use crate::kit::worker_process::WorkerProcess;

/// How long the busy thread computes for an event.
const BUSY_US: u64 = 500;

/// The server of one strategy; it ends with its input.
pub(super) struct BusyServer {
    strategy: Strategy,
    worker: WorkerProcess,
    pub(super) address: SocketAddr,
}

impl RoundTarget for BusyServer {
    fn name(&self) -> &'static str {
        self.strategy.name()
    }
}

impl BusyServer {
    /// Starts a server.
    ///
    /// # Errors
    /// The server could not be started.
    pub(super) fn start(strategy: Strategy, workers: usize) -> Result<Self> {
        let settings = AcceptServer { strategy, workers, busy_us: BUSY_US };
        let mut worker = WorkerProcess::start(&child::own_program()?, &settings.arguments())?;
        let address = worker.read_line()?;
        let address = address
            .parse()
            .with_context(|| format!("the server printed {address:?} in place of its address"))?;
        Ok(Self { strategy, worker, address })
    }

    fn counts(&mut self) -> Result<Counts> {
        self.worker.send("")?;
        Counts::from_json(&self.worker.read_line()?)
    }
}

/// One run.
///
/// # Errors
/// The server or the load failed.
pub(super) fn run(
    server: &mut BusyServer,
    client: &mut LoadProcess,
    load: &LoadCommand,
    case: &str,
    losses: &mut Losses,
) -> Result<Numbers> {
    let before = server.counts()?;
    let answer = client.call(load)?;
    losses.record(case, &answer);
    let counts = server.counts()?.since(&before);
    let mut numbers = client_numbers(&answer)?;
    numbers.extend(counts.per_accept());
    numbers.extend(counts.balance_of_accepts().map(|balance| ("most_to_mean_accepts", balance)));
    Ok(numbers)
}
