//! The configurations under which forward proxies open tunnels: one listener, any of the endpoints, logging
//! really on.
//!
//! Guarantees: each proxy has what its own manual recommends for the job, and no proxy has to do less than
//! another.
//!
//! Equal for all: as many threads, workers or servers as given CPUs where a proxy has a choice; only clients
//! of 127.0.0.1, and only destinations on 127.0.0.1; a log of the connections in a file. What a proxy does
//! beyond that, or not at all, stays: microsocks refuses no client, tinyproxy logs nothing, Tollgate decides
//! and bills each flow.

use std::net::SocketAddr;

use anyhow::{Context, Result};

use super::super::configuration::{IDLE_S_MAX, quoted, squid_with};
use super::ForwardTunnels;
use crate::kit::load::handshake::Protocol;
use crate::kit::relays::config::{ConfigInputs, TUNNELS_MAX, USER, tollgate_tables};

/// Connections that may wait to be accepted: more than there are clients.
const BACKLOG: u32 = 4_096;

fn listen(inputs: &ConfigInputs<'_, ForwardTunnels>) -> Result<SocketAddr> {
    inputs.listen.proxy.context("a proxy has a listen address")
}

/// Ports of the endpoints, in decimal.
fn ports(inputs: &ConfigInputs<'_, ForwardTunnels>) -> Vec<String> {
    inputs.upstream.endpoints.all().iter().map(|end| end.port().to_string()).collect()
}

/// Tollgate: a listener for the one protocol, a user known by address, policy, metering, close log and ledger
/// on.
pub(super) fn tollgate(inputs: &ConfigInputs<'_, ForwardTunnels>) -> Result<String> {
    let listener_kind = match inputs.listen.protocol {
        Protocol::Connect => "http",
        Protocol::Socks5 => "socks5",
    };
    Ok(format!(
        r#"[[listener]]
address = "{}"
kind = "{listener_kind}"

[[user]]
name = "{USER}"
from = ["127.0.0.1/32"]
allow = [{}]
connections = {TUNNELS_MAX}
{}"#,
        listen(inputs)?,
        quoted(inputs.upstream.endpoints.all()),
        tollgate_tables(inputs),
    ))
}

/// Squid: as for plain requests, except that only CONNECT to the endpoints is allowed.
pub(super) fn squid(inputs: &ConfigInputs<'_, ForwardTunnels>) -> Result<String> {
    let access = format!(
        "acl tunnel method CONNECT\n\
         acl end dst 127.0.0.1\n\
         acl end_port port {}\n\
         http_access allow tunnel localhost end end_port\n",
        ports(inputs).join(" ")
    );
    Ok(squid_with(inputs, listen(inputs)?, &access))
}

/// tinyproxy: a thread per connection is its only mode. It syncs its log to the disk line by line, which
/// would dominate the measurement, so it is configured to log no connections.
pub(super) fn tinyproxy(inputs: &ConfigInputs<'_, ForwardTunnels>) -> Result<String> {
    let listen = listen(inputs)?;
    let ports: String = ports(inputs).iter().map(|port| format!("ConnectPort {port}\n")).collect();
    Ok(format!(
        r#"Listen {}
Port {}
Timeout {IDLE_S_MAX}
LogFile "{}/connections.log"
LogLevel Notice
MaxClients {TUNNELS_MAX}
Allow 127.0.0.1
{ports}"#,
        listen.ip(),
        listen.port(),
        inputs.directory.display(),
    ))
}

/// 3proxy: a thread per connection is its only mode; the log's format is its manual's; `TCP_NODELAY`, which
/// its page on high load advises.
pub(super) fn three_proxy(inputs: &ConfigInputs<'_, ForwardTunnels>) -> Result<String> {
    let listen = listen(inputs)?;
    let service = match inputs.listen.protocol {
        Protocol::Connect => "proxy",
        Protocol::Socks5 => "socks",
    };
    Ok(format!(
        r#"log {directory}/connections.log
logformat "- +_L%t.%.  %N.%p %E %U %C:%c %R:%r %O %I %h %T"
maxconn {TUNNELS_MAX}
backlog {BACKLOG}
timeouts 1 5 30 60 {IDLE_S_MAX} {IDLE_S_MAX} 15 60
auth iponly
allow * 127.0.0.1 127.0.0.1 {ports}
internal {address}
external {address}
{service} -p{port} -ocTCP_NODELAY -osTCP_NODELAY
"#,
        directory = inputs.directory.display(),
        ports = ports(inputs).join(","),
        address = listen.ip(),
        port = listen.port(),
    ))
}

/// Dante: its log has a line for each tunnel at its end, with the bytes. The number of its servers is an
/// argument of the command line.
pub(super) fn dante(inputs: &ConfigInputs<'_, ForwardTunnels>) -> Result<String> {
    let listen = listen(inputs)?;
    Ok(format!(
        r"logoutput: {directory}/connections.log
internal: {address} port = {port}
external: {address}
clientmethod: none
socksmethod: none
timeout.io: {IDLE_S_MAX}
client pass {{
    from: 127.0.0.1/32 to: 127.0.0.1/32
}}
socks pass {{
    from: 127.0.0.1/32 to: 127.0.0.1/32
    command: connect
    log: disconnect
}}
",
        directory = inputs.directory.display(),
        address = listen.ip(),
        port = listen.port(),
    ))
}

/// microsocks has no configuration: a thread per connection, a line of log for each, no client refused.
pub(super) fn microsocks(inputs: &ConfigInputs<'_, ForwardTunnels>) -> Result<Vec<String>> {
    let listen = listen(inputs)?;
    Ok(vec!["-i".to_owned(), listen.ip().to_string(), "-p".to_owned(), listen.port().to_string()])
}

/// g3proxy: as in its own benchmark, a worker per CPU with its own listening socket; and its log on.
pub(super) fn g3proxy(inputs: &ConfigInputs<'_, ForwardTunnels>) -> Result<String> {
    let server = match inputs.listen.protocol {
        Protocol::Connect => "http_proxy",
        Protocol::Socks5 => "socks_proxy",
    };
    // g3proxy resolves nothing: every destination is an address.
    Ok(format!(
        r#"runtime:
  thread_number: {threads}
worker:
  thread_number: {threads}
  sched_affinity: true
log: stdout
resolver:
  - name: unused
    type: hickory
    server: 127.0.0.1
escaper:
  - name: direct
    type: direct_fixed
    resolver: unused
    egress_network_filter:
      default: forbid
      allow: 127.0.0.1
server:
  - name: lab
    type: {server}
    escaper: direct
    listen:
      address: "{listen}"
      backlog: {BACKLOG}
    listen_in_worker: true
    ingress_network_filter:
      default: forbid
      allow: 127.0.0.1
"#,
        threads = inputs.threads,
        listen = listen(inputs)?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::relay::endpoints::Endpoints;
    use std::path::Path;

    fn check(
        write: fn(&ConfigInputs<'_, ForwardTunnels>) -> Result<String>,
        protocol: Protocol,
        expected: &[&str],
        absent: &str,
    ) {
        let end = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let upstream = ForwardTunnels::to(
            &Endpoints::new([end(22_000), end(22_001), end(22_002), end(22_003)]),
            protocol,
        );
        let listen = ForwardTunnels { proxy: Some(end(21_000)), ..upstream.clone() };
        let directory = Path::new("/tmp/lab");
        let inputs =
            ConfigInputs { listen: &listen, upstream: &upstream, admin: end(23_000), threads: 2, directory };
        let text = write(&inputs).expect("the configuration has a listener");
        for line in expected {
            assert!(text.contains(line), "{line:?} is missing from:\n{text}");
        }
        assert!(!text.contains(absent), "{absent:?} is in:\n{text}");
    }

    #[test]
    fn tollgate_config_has_protocol_and_user_by_source() {
        let user = "from = [\"127.0.0.1/32\"]\nallow = [\"127.0.0.1:22000\", \"127.0.0.1:22001\", ";
        let listener = "address = \"127.0.0.1:21000\"\nkind = \"http\"";
        check(tollgate, Protocol::Connect, &[listener, user, "reactors = 2\n"], "socks5");
        check(tollgate, Protocol::Socks5, &["kind = \"socks5\"", user, "to = \"/tmp/lab/"], "\"http\"");
    }

    #[test]
    fn squid_config_permits_only_the_endpoints() {
        let ports = "acl end_port port 22000 22001 22002 22003\n";
        let rules = "http_access allow tunnel localhost end end_port\nhttp_access deny all\n";
        check(squid, Protocol::Connect, &["http_port 127.0.0.1:21000", ports, rules], "persistent");
    }

    #[test]
    fn threaded_proxies_have_capacity_and_a_log() {
        let expected = ["Port 21000\n", "LogLevel Notice", "MaxClients 9500", "ConnectPort 22003\n"];
        check(tinyproxy, Protocol::Connect, &expected, "socks");
        let rule = "allow * 127.0.0.1 127.0.0.1 22000,22001,22002,22003\n";
        let log = "log /tmp/lab/connections.log";
        check(three_proxy, Protocol::Connect, &["proxy -p21000", "maxconn 9500", rule, log], "socks");
        check(three_proxy, Protocol::Socks5, &["socks -p21000", rule], "proxy -p");
    }

    #[test]
    fn dante_config_logs_each_tunnel_once() {
        let internal = "internal: 127.0.0.1 port = 21000\n";
        check(dante, Protocol::Socks5, &[internal, "log: disconnect\n"], "log: connect");
    }

    #[test]
    fn g3proxy_config_listens_in_each_worker() {
        let listen = "address: \"127.0.0.1:21000\"";
        let expected = [listen, "listen_in_worker: true", "log: stdout", "  thread_number: 2\n"];
        check(g3proxy, Protocol::Connect, &[&expected[..], &["type: http_proxy"]].concat(), "socks_proxy");
        check(g3proxy, Protocol::Socks5, &[&expected[..], &["type: socks_proxy"]].concat(), "http_proxy");
    }
}
