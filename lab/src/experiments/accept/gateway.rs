//! A gateway that is measured: one strategy, a number of threads.
//!
//! Guarantees: it is warm before it is measured.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Result, ensure};

use super::counts::Counts;
use super::listeners::GatewayListeners;
use super::losses::Losses;
use super::strategy::Strategy;
use crate::kit::child::ChildSettings;
use crate::kit::load_process::{LoadCommand, LoadProcess};
use crate::kit::relays::config::ConfigInputs;
use crate::kit::relays::installed::InstalledTarget;
use crate::kit::relays::running::{RunningRelay, StartSettings};
use crate::kit::rounds::RoundTarget;

/// A running gateway.
#[derive(Debug)]
pub(super) struct Gateway {
    pub(super) strategy: Strategy,
    pub(super) running: RunningRelay<GatewayListeners>,
    upstream: GatewayListeners,
    threads: usize,
    directory: PathBuf,
}

impl RoundTarget for Gateway {
    fn name(&self) -> &'static str {
        self.strategy.name()
    }
}

impl Gateway {
    /// Starts a gateway in a directory of its own and waits until a reply came back through it.
    ///
    /// # Errors
    /// The gateway could not be started or did not forward.
    pub(super) fn start(
        installed: &InstalledTarget,
        strategy: Strategy,
        upstream: SocketAddr,
        threads: usize,
        directory: PathBuf,
        next_port: &mut u16,
    ) -> Result<Self> {
        let upstream = GatewayListeners::before(upstream, strategy);
        let settings = StartSettings {
            upstream: &upstream,
            threads,
            settings: &ChildSettings::default(),
            directory: &directory,
        };
        let running = RunningRelay::start(installed, &settings, next_port)?;
        Ok(Self { strategy, running, upstream, threads, directory })
    }

    /// Sends it connections that do not count, unless they fail.
    ///
    /// # Errors
    /// The gateway forwards nothing.
    pub(super) fn warm_up(
        &self,
        client: &mut LoadProcess,
        work: &LoadCommand,
        losses: &mut Losses,
    ) -> Result<()> {
        let answer = client.call(work);
        client.call(&LoadCommand::Release)?;
        let answer = answer?;
        losses.record(self.strategy.name(), &answer);
        ensure!(answer["completed"] != 0, "the gateway completed no connection: {}", answer["failures"]);
        Ok(())
    }

    /// The counts of its threads so far.
    ///
    /// # Errors
    /// The gateway does not report them.
    pub(super) fn counts(&self) -> Result<Counts> {
        Counts::of_gateway(self.running.endpoints.admin)
    }

    /// Makes it load a configuration without the spare listeners, or with the one of that number.
    ///
    /// # Errors
    /// The gateway has ended.
    pub(super) fn reload(&self, spare: Option<usize>) -> Result<()> {
        let listeners = &self.running.endpoints;
        let inputs = ConfigInputs {
            listen: listeners,
            upstream: &self.upstream,
            admin: listeners.admin,
            threads: self.threads,
            directory: &self.directory,
        };
        self.running.reconfigure(&listeners.text(&inputs, spare))
    }
}
