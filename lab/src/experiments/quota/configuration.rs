//! The configurations under which relays limit tunnels: one listener, clients and destinations on 127.0.0.1,
//! logging really on.
//!
//! Guarantees: each relay has what its own manual recommends for the job. A quota is a number of MiB in a
//! day, since 3proxy counts in these.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};

use super::limited_tunnels::{Limit, LimitedTunnels};
use crate::kit::load::Direction;
use crate::kit::relays::config::{ConfigInputs, TUNNELS_MAX, USER, tollgate_tables};

fn listen(inputs: &ConfigInputs<'_, LimitedTunnels>) -> Result<SocketAddr> {
    inputs.listen.proxy.context("a relay has a listen address")
}

/// Tollgate: a user known by address, with the limit; policy, metering, close log and ledger on.
pub(super) fn tollgate(inputs: &ConfigInputs<'_, LimitedTunnels>) -> Result<String> {
    let limit = match inputs.listen.limit {
        Limit::None => String::new(),
        Limit::Quota { mebibytes, .. } => {
            format!("quota = [{{ limit = \"{mebibytes}MiB\", per = \"day\" }}]\n")
        }
        Limit::Rate { bits_per_s } => format!("rate_down = \"{}kbit/s\"\n", bits_per_s / 1_000),
    };
    let LimitedTunnels { source, sink, .. } = inputs.upstream;
    Ok(format!(
        r#"[[listener]]
address = "{}"
kind = "http"

[[user]]
name = "{USER}"
from = ["127.0.0.1/32"]
allow = ["{source}", "{sink}"]
connections = {TUNNELS_MAX}
{limit}{}"#,
        listen(inputs)?,
        tollgate_tables(inputs),
    ))
}

/// 3proxy: a counter in a file, for the direction of the streams; the rest as its manual has it.
pub(super) fn three_proxy(inputs: &ConfigInputs<'_, LimitedTunnels>) -> Result<String> {
    let Limit::Quota { mebibytes, direction } = inputs.listen.limit else {
        bail!("3proxy is measured with a counter only");
    };
    // `countall` counts in both directions, and in 1.0.0 adds what came in alone.
    let counter = match direction {
        Direction::Down => "countin",
        Direction::Up => "countout",
    };
    let (listen, directory) = (listen(inputs)?, inputs.directory.display());
    Ok(format!(
        r#"log {directory}/connections.log
logformat "- +_L%t.%.  %N.%p %E %U %C:%c %R:%r %O %I %h %T"
maxconn {TUNNELS_MAX}
counter {directory}/counters.3cf
auth iponly
allow * 127.0.0.1 127.0.0.1 {},{}
{counter} 1 D {mebibytes} *
internal {address}
external {address}
proxy -p{port} -ocTCP_NODELAY -osTCP_NODELAY
"#,
        inputs.upstream.source.port(),
        inputs.upstream.sink.port(),
        address = listen.ip(),
        port = listen.port(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn check(
        write: fn(&ConfigInputs<'_, LimitedTunnels>) -> Result<String>,
        limit: Limit,
        expected: &[&str],
    ) {
        let end = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let upstream = LimitedTunnels { proxy: None, source: end(22_000), sink: end(22_001), limit };
        let listen = LimitedTunnels { proxy: Some(end(21_000)), ..upstream.clone() };
        let directory = Path::new("/tmp/lab");
        let inputs =
            ConfigInputs { listen: &listen, upstream: &upstream, admin: end(23_000), threads: 2, directory };
        let text = write(&inputs).expect("the configuration has a listener");
        for line in expected {
            assert!(text.contains(line), "{line:?} is missing from:\n{text}");
        }
    }

    #[test]
    fn user_of_tollgate_has_the_limit() {
        let quota = |direction| Limit::Quota { mebibytes: 100, direction };
        let line = "connections = 9500\nquota = [{ limit = \"100MiB\", per = \"day\" }]\n\n[admin]";
        check(tollgate, quota(Direction::Up), &["address = \"127.0.0.1:21000\"\nkind = \"http\"", line]);
        check(tollgate, Limit::Rate { bits_per_s: 64_000 }, &["rate_down = \"64kbit/s\"\n"]);
        check(tollgate, Limit::None, &["connections = 9500\n\n[admin]"]);
    }

    #[test]
    fn three_proxy_counts_the_direction_of_the_streams() {
        let quota = |direction| Limit::Quota { mebibytes: 100, direction };
        let file = "counter /tmp/lab/counters.3cf\n";
        check(three_proxy, quota(Direction::Down), &[file, "countin 1 D 100 *\n", "proxy -p21000"]);
        check(three_proxy, quota(Direction::Up), &["countout 1 D 100 *\n", "127.0.0.1 22000,22001\n"]);
    }
}
