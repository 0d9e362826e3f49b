//! One background process: started detached, recognised again by a later run, and ended.
//! Promises: `start` returns only when the service answers, and shows the end of its log when it does
//! not; a process is ended only if it is the very one that was started (pid and start time agree).

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

use super::Place;

/// A process to start, and how to know that it is ready and how to end it.
pub(super) struct Daemon {
    /// Stays in the foreground, so that the child's pid is the service's pid.
    pub(super) command: Command,
    pub(super) ready: fn(&Place) -> bool,
    pub(super) stop_signal: Signal,
}

impl Daemon {
    /// A service that is ready when it accepts a connection and ends cleanly at SIGTERM.
    pub(super) fn new(command: Command) -> Daemon {
        Daemon { command, ready: accepts, stop_signal: Signal::TERM }
    }
}

const START_TIME_MAX: Duration = Duration::from_secs(60);
const STOP_TIME_MAX: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const LOG_LINES_SHOWN_MAX: usize = 20;

/// Starts the process in a group of its own (a Ctrl-C in the caller's terminal does not reach it), waits
/// until it is ready, and notes it in the file `pid`.
pub(super) fn start(daemon: Daemon, place: &Place) -> Result<()> {
    let Daemon { mut command, ready, stop_signal } = daemon;
    let log = File::create(place.directory.join("log"))?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
    let mut child = command.spawn().with_context(|| format!("running {command:?}"))?;
    wait_until_ready(&mut child, ready, place).with_context(|| log_end(place))?;
    let pid = child.id();
    let started = start_time(pid).ok_or_else(|| anyhow!("it ended at once\n{}", log_end(place)))?;
    let note = format!("{pid} {started} {} {}\n", place.port, stop_signal.as_raw());
    fs::write(place.directory.join("pid"), note).context("writing the pid file")
}

/// The port of the service whose folder this is, if it runs.
pub(super) fn running(directory: &Path) -> Result<Option<u16>> {
    Ok(noted(directory)?.filter(Note::is_alive).map(|note| note.port))
}

/// Ends the service whose folder this is; says whether there was one to end.
pub(super) fn stop(directory: &Path) -> Result<bool> {
    let Some(note) = noted(directory)? else { return Ok(false) };
    let was_alive = note.is_alive();
    if was_alive {
        end(&note)?;
    }
    fs::remove_file(directory.join("pid"))?;
    Ok(was_alive)
}

/// True once something accepts connections on the service's port.
pub(super) fn accepts(place: &Place) -> bool {
    TcpStream::connect(("127.0.0.1", place.port)).is_ok()
}

fn wait_until_ready(child: &mut Child, ready: fn(&Place) -> bool, place: &Place) -> Result<()> {
    let deadline = Instant::now() + START_TIME_MAX;
    while !ready(place) {
        if let Some(status) = child.try_wait()? {
            bail!("it ended with {status}");
        }
        if Instant::now() > deadline {
            child.kill()?;
            bail!("it did not answer on port {} within {} s", place.port, START_TIME_MAX.as_secs());
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

fn end(note: &Note) -> Result<()> {
    kill_process(note.pid, note.stop_signal)?;
    let deadline = Instant::now() + STOP_TIME_MAX;
    while note.is_alive() {
        if Instant::now() > deadline {
            kill_process(note.pid, Signal::KILL)?;
            return Ok(());
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// What the file `pid` says. A process id alone may have been given to another process since.
struct Note {
    pid: Pid,
    started: u64,
    port: u16,
    stop_signal: Signal,
}

impl Note {
    fn is_alive(&self) -> bool {
        start_time(self.pid.as_raw_pid().cast_unsigned()) == Some(self.started)
    }
}

fn noted(directory: &Path) -> Result<Option<Note>> {
    let text = match fs::read_to_string(directory.join("pid")) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text?,
    };
    let note = parse_note(&text);
    note.map(Some).with_context(|| format!("{}/pid is damaged: remove it", directory.display()))
}

fn parse_note(text: &str) -> Option<Note> {
    let mut fields = text.split_whitespace();
    Some(Note {
        pid: Pid::from_raw(fields.next()?.parse().ok()?)?,
        started: fields.next()?.parse().ok()?,
        port: fields.next()?.parse().ok()?,
        stop_signal: Signal::from_named_raw(fields.next()?.parse().ok()?)?,
    })
}

/// Clock ticks from boot to the start of a live process: field 22 of `/proc/<pid>/stat`, see proc(5).
/// A zombie counts as ended.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name, in parentheses, may itself hold spaces and parentheses.
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace();
    let state = fields.next()?;
    if state == "Z" { None } else { fields.nth(18)?.parse().ok() }
}

fn log_end(place: &Place) -> String {
    let log = fs::read_to_string(place.directory.join("log")).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    let shown = &lines[lines.len().saturating_sub(LOG_LINES_SHOWN_MAX)..];
    format!("the end of {}:\n{}", place.path("log"), shown.join("\n"))
}
