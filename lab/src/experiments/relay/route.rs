//! The route of a plain request: to a proxy, or directly, and to the origin that the request names.
//!
//! Guarantees: a proxy counts as running once a correct response came through it; one with another response
//! is not waited for.

mod configuration;

use std::net::SocketAddr;

use anyhow::{Result, bail};

use crate::kit::load::{Persistence, Role, requests};
use crate::kit::load_process::LoadProcess;
use crate::kit::relays::config::{ConfigInputs, UserLimits};
use crate::kit::relays::installed::InstalledTarget;
use crate::kit::relays::ports::free_port;
use crate::kit::relays::running::{PROBE_TIMEOUT, Workload};
use crate::kit::relays::target::Target;

/// The destination of requests, and whether connections are kept, on both sides of a proxy.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    /// The proxy, or the origin itself.
    pub(crate) via: SocketAddr,
    pub(crate) origin: SocketAddr,
    pub(crate) persistence: Persistence,
}

impl Route {
    /// HAProxy is no forward proxy; the proxies that are missing here are measured by their tunnels.
    pub(super) const TARGETS: &'static [Target] =
        &[Target::Direct, Target::Tollgate, Target::Nginx, Target::Squid];

    /// Starts an origin, reached directly.
    ///
    /// # Errors
    /// The load process could not listen.
    pub(crate) fn serve(server: &mut LoadProcess, persistence: Persistence) -> Result<Self> {
        let origin = server.serve(Role::Origin)?;
        Ok(Self { via: origin, origin, persistence })
    }
}

impl Workload for Route {
    fn through_relay(&self, next_port: &mut u16) -> Result<(Self, SocketAddr)> {
        Ok((Self { via: free_port(next_port)?, ..self.clone() }, free_port(next_port)?))
    }

    fn configuration(installed: &InstalledTarget, inputs: &ConfigInputs<'_, Self>) -> Result<String> {
        Ok(match installed.target {
            Target::Tollgate => configuration::tollgate(inputs, &UserLimits::default()),
            Target::TollgateLimited => configuration::tollgate(inputs, &UserLimits::never_reached()),
            Target::Nginx => configuration::nginx(inputs),
            Target::Squid => configuration::squid(inputs),
            target => bail!("{} forwards no plain requests", target.name()),
        })
    }

    fn is_forwarding(&self) -> Result<bool> {
        match requests::probe(self.via, self.origin, PROBE_TIMEOUT) {
            Ok(None) => Ok(true),
            Ok(Some(wrong)) => bail!("the proxy's response to a plain request is wrong: {wrong}"),
            Err(_) => Ok(false),
        }
    }
}
