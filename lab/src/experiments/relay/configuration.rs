//! What the configurations of several kinds of work have in common.

use std::net::SocketAddr;

use crate::kit::relays::config::{ConfigInputs, TUNNELS_MAX};
use crate::kit::relays::squid;

/// A tunnel takes two connections, and each worker must be able to hold all of them, since which worker gets
/// a connection is the kernel's choice.
const NGINX_CONNECTIONS_MAX: u32 = 2 * TUNNELS_MAX + 500;

/// Longer than any experiment keeps a tunnel idle.
pub(super) const IDLE_S_MAX: u32 = 600;

/// A list as TOML has it, without its brackets.
pub(super) fn quoted(addresses: &[SocketAddr]) -> String {
    let quoted: Vec<String> = addresses.iter().map(|address| format!("\"{address}\"")).collect();
    quoted.join(", ")
}

/// The head of every configuration of nginx: its workers, and the paths of its files.
pub(super) fn nginx_head<L>(inputs: &ConfigInputs<'_, L>) -> String {
    let directory = inputs.directory.display();
    // As root, nginx would become a user that may not be able to enter the directory.
    let user = if rustix::process::geteuid().is_root() { "user root;\n" } else { "" };
    format!(
        r"{user}daemon off;
worker_processes {threads};
worker_rlimit_nofile {descriptors};
pid {directory}/nginx.pid;
error_log {directory}/error.log warn;
events {{
    worker_connections {NGINX_CONNECTIONS_MAX};
}}
",
        threads = inputs.threads,
        descriptors = NGINX_CONNECTIONS_MAX + 500,
    )
}

/// Squid: no cache in memory or on disk, a worker per CPU where several can work, each with a queue of its
/// own at the port, as nginx's have; an access log that each worker writes itself, buffered, which costs less
/// than a helper process; access by `access`, and else none.
pub(super) fn squid_with<W>(inputs: &ConfigInputs<'_, W>, listen: SocketAddr, access: &str) -> String {
    let directory = inputs.directory.display();
    let workers = squid::workers(inputs.threads);
    let queues = if workers > 1 { " worker-queues" } else { "" };
    format!(
        r"http_port {listen}{queues}
visible_hostname lab
workers {workers}
cache deny all
cache_mem 0 MB
memory_cache_shared off
access_log stdio:{log} squid
buffered_logs on
cache_log {directory}/cache.log
pid_filename {directory}/squid.pid
coredump_dir {directory}
pinger_enable off
shutdown_lifetime 0 seconds
connect_timeout 5 seconds
{access}http_access deny all
",
        log = squid::log(inputs.directory, "${process_number}").display(),
    )
}
