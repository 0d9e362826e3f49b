//! Real peers for the ignored tests: a web and git server, with and without TLS, that has packages for apt,
//! npm and pip; sshd, PostgreSQL, Redis, iperf3; client libraries; and a trace viewer, a web page.
//!
//! Guarantees: every service listens on loopback only. A second run changes nothing and is quick.
//! `target/services.env` (lines of KEY=VALUE, see `endpoints`) holds the address of each peer for the tests.
//! Not handled here: the rivals' configurations (lab).
//!
//! Each service has a folder `target/services/<name>/` with its configuration, its `log`, and its `pid` while
//! it runs.

mod daemon;
mod debian;
mod git;
mod iperf;
mod libraries;
mod nginx;
mod npm;
mod packages;
mod plain;
mod postgres;
mod python;
mod redis;
mod ssh;
mod tool;
mod viewer;
mod web;

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use daemon::Daemon;

/// The folder of a service and its port on 127.0.0.1.
struct Instance {
    directory: PathBuf,
    port: u16,
}

impl Instance {
    /// A path inside the service's folder, as text for a configuration or a command line.
    fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }
}

/// A service that `start` runs.
struct Service {
    name: &'static str,
    /// The preferred port; if it is taken, one of the next [`PORT_TRIES_MAX`]. All are below the range of
    /// ephemeral ports, from which the kernel picks ports for outgoing connections.
    port: u16,
    /// Writes the service's files into its folder and returns the command that starts it.
    prepare: fn(&Instance) -> Result<Daemon>,
    /// The keys and values of `target/services.env` with which tests reach it.
    endpoints: fn(&Instance) -> Result<Endpoints>,
}

type Endpoints = Vec<(&'static str, String)>;

/// Ports to try, upward from the preferred one.
const PORT_TRIES_MAX: u16 = 20;

/// In starting order: the configurations of `web` and `plain` contain the port of `git`.
const SERVICES: [Service; 7] = [
    Service { name: "git", port: 26418, prepare: git::prepare, endpoints: git::endpoints },
    Service { name: "web", port: 26443, prepare: web::prepare, endpoints: web::endpoints },
    Service { name: "plain", port: 26080, prepare: plain::prepare, endpoints: plain::endpoints },
    Service { name: "ssh", port: 26022, prepare: ssh::prepare, endpoints: ssh::endpoints },
    Service { name: "postgres", port: 26432, prepare: postgres::prepare, endpoints: postgres::endpoints },
    Service { name: "redis", port: 26379, prepare: redis::prepare, endpoints: redis::endpoints },
    Service { name: "iperf", port: 26201, prepare: iperf::prepare, endpoints: iperf::endpoints },
];

/// Installs missing programs, starts the services that do not run, and writes `target/services.env`.
pub(crate) fn start(root: &Path) -> Result<()> {
    packages::install(&packages::PEERS).context("installing the test peers")?;
    let mut lines = String::new();
    for service in &SERVICES {
        let instance = start_one(service, root).with_context(|| format!("starting {}", service.name))?;
        println!("{:<10} 127.0.0.1:{}", service.name, instance.port);
        for (key, value) in (service.endpoints)(&instance)? {
            lines.push_str(&format!("{key}={value}\n"));
        }
    }
    let libraries = libraries::install(&root.join("target/services/libraries"));
    for (key, value) in libraries.context("installing client libraries")? {
        lines.push_str(&format!("{key}={value}\n"));
    }
    let viewer = viewer::unpack(&root.join("target/services/viewer")).context("fetching the trace viewer")?;
    lines.push_str(&format!("TRACE_VIEWER={}\n", viewer.display()));
    let path = environment_file(root);
    fs::write(&path, lines).with_context(|| format!("writing {}", path.display()))?;
    println!("written: {}", path.display());
    Ok(())
}

/// Installs the proxies that the lab compares with, without starting them.
pub(crate) fn install_rivals() -> Result<()> {
    packages::install(&packages::RIVALS).context("installing the rivals")
}

/// Stops the services that `start` started, and removes the environment file, which is stale then.
pub(crate) fn stop(root: &Path) -> Result<()> {
    for service in &SERVICES {
        let directory = directory(service, root);
        if daemon::stop(&directory).with_context(|| format!("stopping {}", service.name))? {
            println!("{:<10} stopped", service.name);
        }
    }
    postgres::remove_cluster(&root.join("target/services/postgres"))?;
    match fs::remove_file(environment_file(root)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

fn start_one(service: &Service, root: &Path) -> Result<Instance> {
    let directory = directory(service, root);
    if let Some(port) = daemon::running(&directory)? {
        return Ok(Instance { directory, port });
    }
    fs::create_dir_all(&directory)?;
    let instance = Instance { port: free_port(service.port)?, directory };
    let daemon = (service.prepare)(&instance)?;
    daemon::start(daemon, &instance)?;
    Ok(instance)
}

fn free_port(first: u16) -> Result<u16> {
    for port in first..first + PORT_TRIES_MAX {
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("ports {first} to {} are all taken: free one", first + PORT_TRIES_MAX - 1)
}

fn directory(service: &Service, root: &Path) -> PathBuf {
    root.join("target/services").join(service.name)
}

fn environment_file(root: &Path) -> PathBuf {
    root.join("target/services.env")
}
