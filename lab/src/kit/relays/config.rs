//! The inputs of a relay's configuration, and the tables that every configuration of Tollgate has.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Tunnels that every relay can hold. Under a descriptor limit of 20,000 more would not fit beside the pipes.
pub(crate) const TUNNELS_MAX: u32 = 9_500;

/// The user that Tollgate bills for everything.
pub(crate) const USER: &str = "lab";

/// Limits of Tollgate's user.
#[derive(Clone, Debug, Default)]
pub(crate) struct UserLimits {
    /// Lines of the user.
    pub(crate) of_user: String,
    /// The table of the team that these lines name.
    pub(crate) of_team: String,
}

impl UserLimits {
    /// Two quotas and a rate that no experiment reaches: the greatest ones.
    pub(crate) fn never_reached() -> Self {
        let quota = "quota = [{ limit = \"4PB\", per = \"day\" }]\n";
        Self {
            of_user: format!("team = \"lab\"\n{quota}rate = \"100Gbit/s\"\n"),
            of_team: format!("\n[teams.lab]\n{quota}"),
        }
    }
}

/// The inputs of a configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConfigInputs<'a, W> {
    /// Where the relay listens.
    pub(crate) listen: &'a W,
    /// Where the relay connects.
    pub(crate) upstream: &'a W,
    /// One more free port on loopback, for Tollgate's health and metrics.
    pub(crate) admin: SocketAddr,
    pub(crate) threads: usize,
    /// Where the relay keeps its files.
    pub(crate) directory: &'a Path,
}

/// The file of a relay's configuration in its directory.
pub(crate) fn configuration_file(directory: &Path) -> PathBuf {
    directory.join("configuration")
}

/// The tables with which every configuration of Tollgate ends: admin address, ledger and log.
pub(crate) fn tollgate_tables<L>(inputs: &ConfigInputs<'_, L>) -> String {
    let directory = inputs.directory.display();
    format!(
        r#"
[admin]
address = "{}"

[ledger]
directory = "{directory}/ledger"

[log]
to = "{directory}/connections.log"

[limits]
connections = {TUNNELS_MAX}

[threads]
reactors = {}
"#,
        inputs.admin, inputs.threads,
    )
}
