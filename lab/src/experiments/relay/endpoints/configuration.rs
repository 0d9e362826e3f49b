//! The configurations under which the relays compete: the same listeners, the same work, logging really on.
//!
//! Guarantees: each relay has what its own manual recommends for the job, and no relay has to do less than
//! another.
//!
//! Equal for all: as many threads as given CPUs, TCP only, one log line per connection to a file, capacity
//! for the same number of tunnels. What a relay does beyond that stays: nginx buffers its log, HAProxy
//! splices where it is configured to, Tollgate decides and bills each flow and writes two log lines.

use std::net::SocketAddr;
use std::path::Path;

use super::super::configuration::{IDLE_S_MAX, nginx_head, quoted};
use super::{Endpoints, STREAMS_MAX};
use crate::kit::relays::bare;
use crate::kit::relays::config::{ConfigInputs, TUNNELS_MAX, USER, UserLimits, tollgate_tables};

/// Pipes that HAProxy may hold: a stream that splices holds one, and without one it copies.
const HAPROXY_PIPES_MAX: u32 = 256;

const _: () = assert!(HAPROXY_PIPES_MAX >= 2 * STREAMS_MAX);

/// Tollgate: `forward` listeners billed to a user, with policy, metering, close log and ledger on.
pub(crate) fn tollgate(inputs: &ConfigInputs<'_, Endpoints>, limits: &UserLimits) -> String {
    let listener = |(listen, upstream)| {
        format!(
            r#"[[listener]]
address = "{listen}"
kind = "forward"
to = "{upstream}"
user = "{USER}"

"#
        )
    };
    let listeners: String = inputs.listen.pairs(inputs.upstream).map(listener).collect();
    format!(
        r#"{listeners}[[user]]
name = "{USER}"
allow = [{}]
connections = {TUNNELS_MAX}
{}{}{}"#,
        quoted(inputs.upstream.all()),
        limits.of_user,
        tollgate_tables(inputs),
        limits.of_team,
    )
}

/// HAProxy: TCP mode; `tcplog` written to its standard output, which is the log file (as cheap for it as a
/// ring buffer, and cheaper than a datagram socket); splicing for the streams, where it pays, and not for the
/// short connections, where it would cost.
pub(crate) fn haproxy(inputs: &ConfigInputs<'_, Endpoints>) -> String {
    let directory = inputs.directory.display();
    let listener = |(name, (listen, upstream)): (&str, (SocketAddr, SocketAddr))| {
        let splicing =
            if Endpoints::is_stream(name) { "option splice-request\n    option splice-response" } else { "" };
        format!(
            r"
listen {name}
    bind {listen}
    server {name} {upstream}
    {splicing}
"
        )
    };
    let listeners: String =
        Endpoints::NAMES.into_iter().zip(inputs.listen.pairs(inputs.upstream)).map(listener).collect();
    format!(
        r"global
    nbthread {threads}
    maxconn {TUNNELS_MAX}
    maxpipes {HAPROXY_PIPES_MAX}
    stats socket {directory}/stats.sock mode 600 level admin
    log stdout format raw local0

defaults
    mode tcp
    log global
    option tcplog
    timeout connect 5s
    timeout client {IDLE_S_MAX}s
    timeout server {IDLE_S_MAX}s
{listeners}",
        threads = inputs.threads,
    )
}

/// The bare relay has no configuration: its command, its threads and its routes.
pub(crate) fn bare_relay(inputs: &ConfigInputs<'_, Endpoints>) -> Vec<String> {
    let command = [bare::relay::COMMAND.to_owned(), format!("--threads={}", inputs.threads)];
    command.into_iter().chain(routes(inputs)).collect()
}

/// Neither has the bare splice, which has two threads for each connection.
pub(crate) fn bare_splice(inputs: &ConfigInputs<'_, Endpoints>) -> Vec<String> {
    std::iter::once(bare::splice::COMMAND.to_owned()).chain(routes(inputs)).collect()
}

fn routes(inputs: &ConfigInputs<'_, Endpoints>) -> impl Iterator<Item = String> {
    inputs.listen.pairs(inputs.upstream).map(|(listen, upstream)| bare::route(listen, upstream))
}

/// nginx: the stream module, one worker per CPU with its own listening sockets, a buffered access log.
/// `module` is the stream module's file where it is not built in.
pub(crate) fn nginx(inputs: &ConfigInputs<'_, Endpoints>, module: Option<&Path>) -> String {
    let directory = inputs.directory.display();
    let load = module.map_or_else(String::new, |module| format!("load_module {};\n", module.display()));
    let server = |(listen, upstream)| {
        format!(
            r"    server {{
        listen {listen} reuseport backlog=4096;
        proxy_pass {upstream};
    }}
"
        )
    };
    let servers: String = inputs.listen.pairs(inputs.upstream).map(server).collect();
    format!(
        r"{load}{head}stream {{
    log_format lab '$remote_addr [$time_local] $protocol $status $bytes_sent $bytes_received $session_time '
                   '$upstream_addr $upstream_bytes_sent $upstream_bytes_received';
    access_log {directory}/connections.log lab buffer=64k flush=1s;
    proxy_connect_timeout 5s;
    proxy_half_close on;
    proxy_timeout {IDLE_S_MAX}s;
{servers}}}
",
        head = nginx_head(inputs),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(write: impl Fn(&ConfigInputs<'_, Endpoints>) -> String) -> String {
        let end = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let endpoints = |first| Endpoints::new([end(first), end(first + 1), end(first + 2), end(first + 3)]);
        write(&ConfigInputs {
            listen: &endpoints(21_000),
            upstream: &endpoints(22_000),
            admin: end(23_000),
            threads: 2,
            directory: Path::new("/tmp/lab"),
        })
    }

    fn check(text: &str, expected: &[&str]) {
        for line in expected {
            assert!(text.contains(line), "{line:?} is missing from:\n{text}");
        }
    }

    #[test]
    fn tollgate_config_forwards_bills_and_logs() {
        let text = text_of(|inputs| tollgate(inputs, &UserLimits::default()));
        let listener =
            "[[listener]]\naddress = \"127.0.0.1:21003\"\nkind = \"forward\"\nto = \"127.0.0.1:22003\"\n";
        let allow =
            "allow = [\"127.0.0.1:22000\", \"127.0.0.1:22001\", \"127.0.0.1:22002\", \"127.0.0.1:22003\"]";
        check(
            &text,
            &[listener, "user = \"lab\"", allow, "directory = \"/tmp/lab/ledger\"", "connections = 9500"],
        );
        check(
            &text,
            &[
                "[log]\nto = \"/tmp/lab/connections.log\"",
                "[limits]\nconnections = 9500\n",
                "reactors = 2\n",
                "[admin]\naddress = \"127.0.0.1:23000\"",
            ],
        );
        assert!(!text.contains("quota") && !text.contains("rate"));
        let text = text_of(|inputs| tollgate(inputs, &UserLimits::never_reached()));
        check(&text, &["connections = 9500\nteam = \"lab\"\nquota = ", "\n[teams.lab]\nquota = "]);
    }

    #[test]
    fn haproxy_config_splices_streams_only() {
        let text = text_of(haproxy);
        check(&text, &["nbthread 2", "option tcplog", "log stdout", "bind 127.0.0.1:21000", "maxpipes 256"]);
        let splicing = |section: &str| section.contains("option splice-request\n    option splice-response");
        let sections: Vec<bool> = text.split("\nlisten ").skip(1).map(splicing).collect();
        assert_eq!(sections, [false, false, true, true]);
    }

    #[test]
    fn nginx_config_has_a_worker_per_cpu_and_a_log() {
        let text = text_of(|inputs| nginx(inputs, Some(Path::new("/usr/lib/stream.so"))));
        check(
            &text,
            &["load_module /usr/lib/stream.so;\n", "worker_processes 2;", "connections.log lab buffer=64k"],
        );
        check(&text, &["listen 127.0.0.1:21000 reuseport", "proxy_pass 127.0.0.1:22000;"]);
        assert_eq!(text.matches("server {").count(), 4);
        assert!(!text_of(|inputs| nginx(inputs, None)).contains("load_module"));
    }
}
