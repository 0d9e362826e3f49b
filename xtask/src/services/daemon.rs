//! One background process: started detached, recognised by a later run through its pid file, and stopped.
//!
//! Guarantees: `start` returns when the service accepts connections; if it never does, the error shows the
//! end of its log. `stop` signals a process only if its pid and start time match the pid file, so never a
//! process that reuses the pid.

use std::{
    fs::{self, File},
    io::ErrorKind,
    net::TcpStream,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::Instance;

/// A process to start, its readiness check and its stop signal.
pub(super) struct Daemon {
    /// Must stay in the foreground, so that the child's pid is the service's pid.
    pub(super) command: Command,
    pub(super) is_ready: fn(&Instance) -> bool,
    pub(super) stop_signal: Signal,
}

impl Daemon {
    /// A service that is ready when it accepts a connection, and that SIGTERM stops cleanly.
    pub(super) fn new(command: Command) -> Daemon {
        Daemon { command, is_ready: accepts_connections, stop_signal: Signal::TERM }
    }
}

const START_TIME_MAX: Duration = Duration::from_secs(60);
const STOP_TIME_MAX: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const LOG_LINES_SHOWN_MAX: usize = 20;

/// Starts the process in its own process group, so that Ctrl-C in the caller's terminal does not reach it;
/// waits until it is ready, and writes the file `pid`.
pub(super) fn start(daemon: Daemon, instance: &Instance) -> Result<()> {
    let Daemon { mut command, is_ready, stop_signal } = daemon;
    let log = File::create(instance.directory.join("log"))?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
    let mut child = command.spawn().with_context(|| format!("running {command:?}"))?;
    wait_until_ready(&mut child, is_ready, instance).with_context(|| log_end(instance))?;
    let pid = child.id();
    let started = start_time(pid).ok_or_else(|| anyhow!("it exited at once\n{}", log_end(instance)))?;
    let line = format!("{pid} {started} {} {}\n", instance.port, stop_signal.as_raw());
    fs::write(instance.directory.join("pid"), line).context("writing the pid file")
}

/// The port of the service in this folder, if it runs.
pub(super) fn running(directory: &Path) -> Result<Option<u16>> {
    Ok(read_pid_file(directory)?.filter(PidFile::is_alive).map(|pid_file| pid_file.port))
}

/// Stops the service in this folder; returns whether one was running.
pub(super) fn stop(directory: &Path) -> Result<bool> {
    let Some(pid_file) = read_pid_file(directory)? else { return Ok(false) };
    let was_alive = pid_file.is_alive();
    if was_alive {
        terminate(&pid_file)?;
    }
    fs::remove_file(directory.join("pid"))?;
    Ok(was_alive)
}

/// Whether a process accepts connections on the service's port.
pub(super) fn accepts_connections(instance: &Instance) -> bool {
    TcpStream::connect(("127.0.0.1", instance.port)).is_ok()
}

fn wait_until_ready(child: &mut Child, is_ready: fn(&Instance) -> bool, instance: &Instance) -> Result<()> {
    let deadline = Instant::now() + START_TIME_MAX;
    while !is_ready(instance) {
        if let Some(status) = child.try_wait()? {
            bail!("it exited with {status}");
        }
        if Instant::now() > deadline {
            child.kill()?;
            bail!("it was not ready on port {} within {} s", instance.port, START_TIME_MAX.as_secs());
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

fn terminate(pid_file: &PidFile) -> Result<()> {
    kill_process(pid_file.pid, pid_file.stop_signal)?;
    let deadline = Instant::now() + STOP_TIME_MAX;
    while pid_file.is_alive() {
        if Instant::now() > deadline {
            kill_process(pid_file.pid, Signal::KILL)?;
            return Ok(());
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// The contents of the file `pid`. The start time identifies the process: the kernel reuses pids.
struct PidFile {
    pid: Pid,
    started: u64,
    port: u16,
    stop_signal: Signal,
}

impl PidFile {
    fn is_alive(&self) -> bool {
        start_time(self.pid.as_raw_pid().cast_unsigned()) == Some(self.started)
    }
}

fn read_pid_file(directory: &Path) -> Result<Option<PidFile>> {
    let text = match fs::read_to_string(directory.join("pid")) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text?,
    };
    let pid_file = parse_pid_file(&text);
    pid_file.map(Some).with_context(|| format!("{}/pid is damaged: remove it", directory.display()))
}

fn parse_pid_file(text: &str) -> Option<PidFile> {
    let mut fields = text.split_whitespace();
    Some(PidFile {
        pid: Pid::from_raw(fields.next()?.parse().ok()?)?,
        started: fields.next()?.parse().ok()?,
        port: fields.next()?.parse().ok()?,
        stop_signal: Signal::from_named_raw(fields.next()?.parse().ok()?)?,
    })
}

/// Clock ticks from boot to the start of a live process: field 22 of `/proc/<pid>/stat`, see proc(5). `None`
/// for a zombie, which has exited.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name, in parentheses, may itself contain spaces and parentheses.
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace();
    let state = fields.next()?;
    if state == "Z" { None } else { fields.nth(18)?.parse().ok() }
}

fn log_end(instance: &Instance) -> String {
    let log = fs::read_to_string(instance.directory.join("log")).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    let shown = &lines[lines.len().saturating_sub(LOG_LINES_SHOWN_MAX)..];
    format!("the end of {}:\n{}", instance.path("log"), shown.join("\n"))
}
