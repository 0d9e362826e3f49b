//! A running relay: how it is started and ended, which threads are its data plane, and what it can prove
//! about its own work.
//!
//! Guarantees: a relay counts as running once a reply came back through it.

use std::fs;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};

use super::config::{ConfigInputs, configuration_file};
use super::installed::InstalledTarget;
use super::log::Log;
use super::squid::{self, LeftoverFiles};
use super::target::Target;
use crate::kit::child::{self, Child, ChildSettings};
use crate::kit::rounds::RoundTarget;
use crate::kit::usage::{self, CpuReading, Thread};

/// How long a relay may take until it forwards.
const READY_MS_MAX: u64 = 10_000;

/// The timeout of a single probe while waiting for the relay.
pub(crate) const PROBE_TIMEOUT: Duration = Duration::from_millis(500);

/// A kind of work: where its clients connect, which servers are behind, and the configuration of each relay
/// for it.
pub(crate) trait Workload: Clone {
    /// The same work through a relay that listens on ports that are free now, and one more free port.
    ///
    /// # Errors
    /// No port is free.
    fn through_relay(&self, next_port: &mut u16) -> Result<(Self, SocketAddr)>;

    /// The configuration with which `installed` does the work.
    ///
    /// # Errors
    /// The relay cannot do the work.
    fn configuration(installed: &InstalledTarget, inputs: &ConfigInputs<'_, Self>) -> Result<String>;

    /// The arguments of `installed` on its command line.
    ///
    /// # Errors
    /// The relay cannot do the work.
    fn arguments(installed: &InstalledTarget, inputs: &ConfigInputs<'_, Self>) -> Result<Vec<String>> {
        Ok(arguments(installed.target, inputs))
    }

    /// Whether the relay forwards: a reply came back.
    ///
    /// # Errors
    /// The reply shows that waiting will not help.
    fn is_forwarding(&self) -> Result<bool>;
}

/// A relay that forwards, or nothing in its place; ends when dropped.
#[derive(Debug)]
pub(crate) struct RunningRelay<W> {
    pub(crate) target: Target,
    /// Where clients connect.
    pub(crate) endpoints: W,
    child: Option<Child>,
    program: PathBuf,
    directory: PathBuf,
    log: Log,
    /// Dropped after the child, since fields are dropped in order.
    _leftovers: Option<LeftoverFiles>,
}

impl<W> RoundTarget for RunningRelay<W> {
    fn name(&self) -> &'static str {
        self.target.name()
    }
}

/// Where a relay is to run and for which work.
#[derive(Debug)]
pub(crate) struct StartSettings<'a, W> {
    pub(crate) upstream: &'a W,
    pub(crate) threads: usize,
    pub(crate) settings: &'a ChildSettings,
    /// A directory of the relay's own.
    pub(crate) directory: &'a Path,
}

impl<W: Workload> RunningRelay<W> {
    /// Starts a relay and waits until a reply came back through it.
    ///
    /// # Errors
    /// Makes the relay use another configuration from now on, by SIGHUP, on which Tollgate, HAProxy's master
    /// and nginx reload.
    pub(crate) fn start(
        installed: &InstalledTarget,
        settings: &StartSettings<'_, W>,
        next_port: &mut u16,
    ) -> Result<Self> {
        let directory = settings.directory.to_owned();
        let mut running = Self {
            target: installed.target,
            endpoints: settings.upstream.clone(),
            child: None,
            program: installed.program.clone(),
            directory: directory.clone(),
            log: log(installed.target, &directory, settings.threads),
            _leftovers: (installed.target == Target::Squid).then(|| LeftoverFiles::of(&directory)),
        };
        if installed.target == Target::Direct {
            return Ok(running);
        }
        fs::create_dir_all(&directory)?;
        if installed.target == Target::Squid {
            squid::chown_directory(&directory).context("giving Squid its directory")?;
        }
        let (listen, admin) = settings.upstream.through_relay(next_port)?;
        let inputs = ConfigInputs {
            listen: &listen,
            upstream: settings.upstream,
            admin,
            threads: settings.threads,
            directory: &directory,
        };
        fs::write(configuration_file(&directory), W::configuration(installed, &inputs)?)?;
        let arguments: Vec<_> = W::arguments(installed, &inputs)?.into_iter().map(Into::into).collect();
        let output = output_file(&directory);
        running.child = Some(Child::start(&installed.program, &arguments, settings.settings, &output)?);
        running.endpoints = listen;
        running.wait_until_ready(&output)?;
        Ok(running)
    }

    fn wait_until_ready(&mut self, output: &Path) -> Result<()> {
        let deadline = Instant::now() + Duration::from_millis(READY_MS_MAX);
        loop {
            if self.endpoints.is_forwarding()? {
                return Ok(());
            }
            if !self.is_alive() {
                bail!("it ended at once and printed: {}", tail(output));
            }
            if Instant::now() > deadline {
                bail!("it did not forward within {READY_MS_MAX} ms and printed: {}", tail(output));
            }
            child::pause(Duration::from_millis(20))?;
        }
    }

    /// Makes the relay use another configuration from now on; SIGHUP reloads Tollgate and nginx, SIGUSR2
    /// HAProxy's master.
    ///
    /// # Errors
    /// The file could not be written, or the relay has ended.
    pub(crate) fn reconfigure(&self, text: &str) -> Result<()> {
        let child = self.child.as_ref().context("there is no relay to reconfigure")?;
        // Renamed into place: the relay may be reading the old file.
        let (file, next) = (configuration_file(&self.directory), self.directory.join("configuration.next"));
        fs::write(&next, text)?;
        fs::rename(&next, &file)?;
        let id = Pid::from_raw(child.id()).context("a process id is positive")?;
        rustix::process::kill_process(id, Signal::HUP).context("it has ended")
    }

    /// Whether the relay still runs.
    pub(crate) fn is_alive(&mut self) -> bool {
        self.child.as_mut().is_none_or(Child::is_alive)
    }

    /// The program that reports the bill, and the configuration that leads it to the ledger.
    pub(crate) fn ledger(&self) -> Option<(&Path, PathBuf)> {
        (self.target == Target::Tollgate)
            .then(|| (self.program.as_path(), configuration_file(&self.directory)))
    }

    /// The processes of the relay; none for a direct connection.
    pub(crate) fn processes(&self) -> Vec<i32> {
        self.child.as_ref().map_or_else(Vec::new, |child| usage::process_tree(child.id()))
    }

    /// The CPU time of all threads so far.
    pub(crate) fn cpu(&self) -> CpuReading {
        CpuReading::read(&self.processes())
    }

    /// The CPU time between two readings of the threads that move connections: Tollgate's reactors, the
    /// workers of nginx, Squid and g3proxy, all threads of the others.
    pub(crate) fn data_plane(&self, after: &CpuReading, before: &CpuReading) -> Duration {
        let main = self.child.as_ref().map(Child::id);
        let named = |name: &str| after.since(before, |thread: &Thread| thread.name.starts_with(name));
        match self.target {
            Target::Tollgate | Target::TollgateLimited => named("reactor-"),
            Target::G3proxy => named("worker"),
            Target::Nginx | Target::Squid => after.since(before, |thread| Some(thread.process) != main),
            Target::Direct
            | Target::BareRelay
            | Target::BareSplice
            | Target::BareQuota
            | Target::Haproxy
            | Target::Tinyproxy
            | Target::ThreeProxy
            | Target::Dante
            | Target::Microsocks => after.total_since(before),
        }
    }

    /// Lines in the log so far.
    ///
    /// # Errors
    /// The log cannot be read.
    pub(crate) fn log_lines(&mut self) -> Result<u64> {
        self.log.lines()
    }

    /// Spliced bytes by the relay's own count, where it keeps one.
    ///
    /// # Errors
    /// Its statistics cannot be read.
    pub(crate) fn spliced_bytes(&self) -> Result<Option<u64>> {
        if self.target != Target::Haproxy {
            return Ok(None);
        }
        let mut socket = UnixStream::connect(self.directory.join("stats.sock"))?;
        socket.set_read_timeout(Some(PROBE_TIMEOUT))?;
        socket.write_all(b"show info\n")?;
        let mut text = String::new();
        socket.read_to_string(&mut text)?;
        Ok(parse_spliced_bytes(&text))
    }
}

/// The arguments that name the configuration, and keep the relay in the foreground.
pub(crate) fn arguments<W>(target: Target, inputs: &ConfigInputs<'_, W>) -> Vec<String> {
    let directory = inputs.directory;
    let text = |path: PathBuf| path.display().to_string();
    let file = text(configuration_file(directory));
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    match target {
        Target::Direct | Target::BareRelay | Target::BareSplice | Target::BareQuota | Target::Microsocks => {
            Vec::new()
        }
        Target::Tollgate | Target::TollgateLimited => words(&["serve", "--config", &file]),
        Target::Haproxy => words(&["-f", &file]),
        Target::Nginx => {
            let (prefix, errors) = (text(directory.to_owned()), text(directory.join("error.log")));
            words(&["-p", &prefix, "-e", &errors, "-c", &file])
        }
        Target::Squid => {
            let log_to_output = "-d1";
            words(&["--foreground", log_to_output, "-n", &squid::service(directory), "-f", &file])
        }
        Target::Tinyproxy => words(&["-d", "-c", &file]),
        Target::ThreeProxy => words(&[&file]),
        Target::Dante => {
            let pid_file = text(directory.join("danted.pid"));
            words(&["-f", &file, "-p", &pid_file, "-N", &inputs.threads.to_string()])
        }
        Target::G3proxy => {
            let control = text(directory.to_owned());
            words(&["-c", &file, "--group-name", "lab", "--control-dir", &control])
        }
    }
}

fn output_file(directory: &Path) -> PathBuf {
    directory.join("output.log")
}

fn log(target: Target, directory: &Path, threads: usize) -> Log {
    Log::in_files(match target {
        Target::Direct | Target::BareRelay | Target::BareSplice | Target::BareQuota => Vec::new(),
        Target::Haproxy | Target::Microsocks | Target::G3proxy => vec![output_file(directory)],
        Target::Tollgate
        | Target::TollgateLimited
        | Target::Nginx
        | Target::Tinyproxy
        | Target::ThreeProxy
        | Target::Dante => vec![directory.join("connections.log")],
        Target::Squid => squid::logs(directory, threads),
    })
}

/// The end of a relay's output, for an error message.
fn tail(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(5)..].join(" | ")
}

/// HAProxy's `show info`. The name was misspelt as `TotalSplicdedBytesOut` until 2.7.
fn parse_spliced_bytes(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("TotalSpli"))?;
    line.split_once(':')?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn haproxy_splice_count_has_two_spellings() {
        for name in ["TotalSplicdedBytesOut", "TotalSplicedBytesOut"] {
            let text = format!("Name: HAProxy\nTotalBytesOut: 7\n{name}: 4096\nBytesOutRate: 1\n");
            assert_eq!(parse_spliced_bytes(&text), Some(4_096));
        }
        assert_eq!(parse_spliced_bytes("TotalBytesOut: 7\n"), None);
    }
}
