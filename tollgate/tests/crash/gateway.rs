//! The gateway as a process that is meant to die: started on a data directory, watched, ended.
//!
//! Guarantees: a start returns whether the gateway serves or died at its crash point first. An end by
//! anything but the intended kill or stop is an error with the gateway's output.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::disk::{Disk, PowerSwitch};
use crate::rng::Rng;

/// Reactor threads of each gateway: a kill interrupts at most one call of each.
pub(crate) const REACTORS: usize = 2;

/// How long an orderly stop may take. Only a failure waits this long.
const STOP_MAX: Duration = Duration::from_secs(30);

const CONFIGURATION: &str = r#"
[[listener]]
address = "127.0.0.1:0"
[admin]
address = "127.0.0.1:0"
[log]
to = "log.jsonl"
[timeouts]
drain = "0s"
[[user]]
name = "me"
from = ["127.0.0.0/8"]
allow = ["127.0.0.0/8"]
"#;

/// A directory with a configuration and, after the first start, with data.
pub(crate) struct Workspace {
    pub(crate) directory: PathBuf,
    /// The file of each start's send audit, on a tmpfs if there is one.
    pub(crate) audit_path: PathBuf,
    /// With the durability `sync`: a slot of the live table is free once its flow is durable.
    pub(crate) is_sync: bool,
    /// The disk and the live tables' directory, if the power is to fail.
    power: Option<Power>,
}

struct Power {
    disk: Disk,
    tables: PathBuf,
    /// The boot id that the gateway uses.
    boot: u128,
}

/// The outcome of a start.
pub(crate) enum StartOutcome {
    Serves(Running),
    /// It died at its crash point.
    Died,
}

/// A gateway that serves.
pub(crate) struct Running {
    child: Child,
    pub(crate) listener: SocketAddr,
    /// The address of its metrics; `None` if it died before it printed it.
    pub(crate) admin: Option<SocketAddr>,
}

/// Watches a gateway until its end: a failing harness leaves no gateway behind.
pub(crate) struct Watcher(Option<JoinHandle<Result<Exit, String>>>);

/// The end of a gateway.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Exit {
    /// At its crash point.
    Aimed,
    /// By the harness's SIGKILL.
    Signalled,
    /// In order.
    Stopped,
}

impl Workspace {
    /// Prepares a workspace in `directory`, which is empty.
    pub(crate) fn new(directory: &Path, audit_path: PathBuf, durability: Option<&str>) -> Workspace {
        Workspace::prepare(directory, audit_path, durability, "")
    }

    /// Prepares one on a disk whose power may fail, with live tables in `tables`.
    ///
    /// # Errors
    /// Those of mounting.
    pub(crate) fn on_disk(
        directory: &Path,
        audit_path: PathBuf,
        durability: Option<&str>,
        tables: PathBuf,
        mount: impl FnOnce(&Path) -> io::Result<Disk>,
    ) -> io::Result<Workspace> {
        let table = format!("live_table = {tables:?}\n");
        let mut workspace = Workspace::prepare(directory, audit_path, durability, &table);
        fs::create_dir(workspace.data())?;
        fs::create_dir(&tables)?;
        workspace.power = Some(Power { disk: mount(&workspace.data())?, tables, boot: 1 });
        Ok(workspace)
    }

    fn prepare(directory: &Path, audit_path: PathBuf, durability: Option<&str>, more: &str) -> Workspace {
        let is_sync = durability == Some("sync");
        let durability = durability.map_or(String::new(), |word| format!("durability = \"{word}\"\n"));
        let text = format!(
            "{CONFIGURATION}[threads]\nreactors = {REACTORS}\n\
             [ledger]\ndirectory = \"data\"\nsegment = \"256KiB\"\n{durability}{more}"
        );
        fs::write(directory.join("tollgate.toml"), text).unwrap();
        Workspace { directory: directory.to_owned(), audit_path, is_sync, power: None }
    }

    /// The switch of this workspace's disk.
    pub(crate) fn switch(&self) -> Option<PowerSwitch> {
        self.power.as_ref().map(|power| power.disk.switch())
    }

    /// The directory of live tables, if the power may fail.
    pub(crate) fn tables(&self) -> Option<&Path> {
        self.power.as_ref().map(|power| power.tables.as_path())
    }

    /// Ends a power failure, with another boot id, without the live table or with an invalid one. The last
    /// visible state of the databases is copied to `seen`.
    ///
    /// # Errors
    /// Those of mounting.
    pub(crate) fn restore_power(&mut self, seen: &Path, rng: &mut Rng) -> io::Result<()> {
        let power = self.power.as_mut().expect("power fails only where the workspace has a test disk");
        power.disk.restore_power(seen)?;
        power.boot += 1;
        for entry in fs::read_dir(&power.tables)? {
            let path = entry?.path();
            // A table in memory is lost. One on a disk remains, perhaps with torn pages; it must not be
            // trusted in either case.
            match rng.random_range(0..3) {
                0 => corrupt_pages(&path, rng)?,
                1 => {}
                _ => fs::remove_file(path)?,
            }
        }
        Ok(())
    }

    /// Copies the test disk's files beside it, where they stay.
    pub(crate) fn save(&self) {
        if let Some(power) = &self.power {
            power.disk.save(&self.directory.join("data-saved")).expect("the disk's files can be copied");
        }
    }

    /// Runs `tollgate ledger verify`.
    ///
    /// # Errors
    /// The command's output, if it found a problem.
    pub(crate) fn verify(&self) -> Result<(), String> {
        let mut command = self.command_of(&["ledger", "verify"]);
        let output = command.stderr(Stdio::piped()).output().unwrap();
        let text_of = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let text = || format!("`ledger verify`: {}\n{}", text_of(&output.stdout), text_of(&output.stderr));
        if output.status.success() { Ok(()) } else { Err(text()) }
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    /// Whether `tollgate check` accepts the configuration.
    pub(crate) fn accepts_configuration(&self) -> bool {
        self.command("check").stderr(Stdio::null()).output().unwrap().status.success()
    }

    /// Starts the gateway, with a crash point if one is given.
    ///
    /// # Errors
    /// It neither serves nor died at a crash point; with its output.
    pub(crate) fn start(&self, kill_at: Option<&str>) -> Result<StartOutcome, String> {
        let mut child = self.spawn(kill_at);
        // A gateway that is killed behind its first lines has served all the same, for a moment.
        if let (Some(listener), admin) = read_banner(&mut child) {
            return Ok(StartOutcome::Serves(Running { child, listener, admin }));
        }
        let status = child.wait().unwrap();
        if kill_at.is_some() && was_killed(status) {
            return Ok(StartOutcome::Died);
        }
        Err(format!("the gateway does not start: {status}\n{}", self.stderr()))
    }

    /// Starts the gateway, and cuts the power when `after` has passed; returns whether it served first.
    ///
    /// # Errors
    /// It ended by itself; with its output.
    pub(crate) fn start_and_cut(&self, after: Duration) -> Result<bool, String> {
        let switch = self.switch().expect("power fails only where the workspace has a test disk");
        let mut child = self.spawn(None);
        let pid = Pid::from_child(&child);
        // The child is not reaped before the cut is over, so its pid is not reused.
        let cut = thread::spawn(move || {
            thread::sleep(after);
            switch.freeze();
            // It may be dead already, which the status shows.
            let _ = kill_process(pid, Signal::KILL);
            switch.power_off();
        });
        let (listener, _) = read_banner(&mut child);
        cut.join().expect("cutting the power does not panic");
        let status = child.wait().unwrap();
        if was_killed(status) {
            return Ok(listener.is_some());
        }
        Err(format!("the gateway does not start: {status}\n{}", self.stderr()))
    }

    /// The totals of `tollgate usage`: flows, bytes up, bytes down.
    pub(crate) fn usage(&self) -> (u64, u64, u64) {
        let output = self.command("usage").arg("--json").output().unwrap();
        let usage: serde_json::Value =
            serde_json::from_slice(&output.stdout).expect("usage prints its totals");
        let total = |key: &str| usage["total"][key].as_u64().expect("a total is a number");
        (total("flows"), total("up"), total("down"))
    }

    /// The standard error of the last gateway.
    pub(crate) fn stderr(&self) -> String {
        fs::read_to_string(self.directory.join("stderr.txt")).unwrap_or_default()
    }

    fn spawn(&self, kill_at: Option<&str>) -> Child {
        let stderr = fs::File::create(self.directory.join("stderr.txt")).unwrap();
        let mut command = self.command("serve");
        command.stderr(stderr).env("TOLLGATE_SEND_AUDIT", &self.audit_path);
        if let Some(target) = kill_at {
            command.env("TOLLGATE_KILL_AT", target);
        }
        if let Some(power) = &self.power {
            command.env("TOLLGATE_BOOT_ID", power.boot.to_string());
        }
        command.spawn().unwrap()
    }

    fn command(&self, word: &str) -> Command {
        self.command_of(&[word])
    }

    fn command_of(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(words).args(["--config", "tollgate.toml"]).current_dir(&self.directory);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }
}

impl Running {
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Watches it on a thread of its own, and kills it after `after` if it still lives: by a power failure
    /// where there is a `switch`.
    pub(crate) fn kill_after(mut self, after: Duration, switch: Option<PowerSwitch>) -> Watcher {
        let deadline = Instant::now() + after;
        Watcher::new(move || {
            while Instant::now() < deadline {
                if let Some(status) = self.child.try_wait().unwrap() {
                    return if was_killed(status) { Ok(Exit::Aimed) } else { Err(unexpected_exit(status)) };
                }
                let left = deadline.saturating_duration_since(Instant::now());
                thread::sleep(left.min(Duration::from_millis(1)));
            }
            kill(&mut self.child, switch.as_ref());
            let status = self.child.wait().unwrap();
            if was_killed(status) { Ok(Exit::Signalled) } else { Err(unexpected_exit(status)) }
        })
    }

    /// Watches on a thread of its own for its stop, once [`stop`] has requested it; kills it at `kill_at` if
    /// that is set, by a power failure where there is a `switch`.
    pub(crate) fn await_stop(
        mut self,
        kill_at: Arc<OnceLock<Instant>>,
        switch: Option<PowerSwitch>,
    ) -> Watcher {
        Watcher::new(move || {
            let deadline = Instant::now() + STOP_MAX;
            loop {
                match self.child.try_wait().unwrap() {
                    Some(status) if status.success() => return Ok(Exit::Stopped),
                    Some(status) if was_killed(status) && kill_at.get().is_some() => {
                        return Ok(Exit::Signalled);
                    }
                    Some(status) => return Err(unexpected_exit(status)),
                    None => thread::sleep(Duration::from_millis(1)),
                }
                let now = Instant::now();
                if kill_at.get().is_some_and(|at| now >= *at) || now > deadline {
                    kill(&mut self.child, switch.as_ref());
                }
                if now > deadline {
                    let _ = self.child.wait();
                    return Err(format!("the gateway has not stopped after {} s", STOP_MAX.as_secs()));
                }
            }
        })
    }
}

impl Watcher {
    fn new(watcher: impl FnOnce() -> Result<Exit, String> + Send + 'static) -> Watcher {
        Watcher(Some(thread::spawn(watcher)))
    }

    /// Whether the gateway has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.0.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the gateway's end.
    ///
    /// # Errors
    /// It was not the intended end.
    pub(crate) fn end(mut self) -> Result<Exit, String> {
        let thread = self.0.take().expect("the thread is joined once, by `end` or by `drop`");
        thread.join().expect("the watcher thread does not panic")
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // Another error is already reported.
        self.0.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// Kills a gateway, which may have ended a moment ago. In a power failure nothing that it does between the
/// freeze and its death takes effect.
fn kill(child: &mut Child, switch: Option<&PowerSwitch>) {
    switch.into_iter().for_each(PowerSwitch::freeze);
    let _ = child.kill();
    switch.into_iter().for_each(PowerSwitch::power_off);
}

/// Reads what a gateway prints when it serves: the addresses of its listener and of its metrics.
fn read_banner(child: &mut Child) -> (Option<SocketAddr>, Option<SocketAddr>) {
    let mut addresses = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok) {
        if line.starts_with("  ledger in") {
            break;
        }
        let address = |word: &str| {
            let word = word.strip_prefix("http://").unwrap_or(word);
            word.split('/').next().and_then(|word| word.parse::<SocketAddr>().ok())
        };
        addresses.extend(line.split_whitespace().find_map(address));
    }
    (addresses.first().copied(), addresses.get(1).copied())
}

/// Leaves a torn live table, as a disk may have it.
fn corrupt_pages(path: &Path, rng: &mut Rng) -> io::Result<()> {
    let mut bytes = fs::read(path)?;
    for page in bytes.chunks_mut(4096) {
        if rng.random_percent(50) {
            page.fill(0);
        }
    }
    fs::write(path, bytes)
}

/// Requests an orderly stop.
pub(crate) fn stop(pid: Pid) {
    kill_process(pid, Signal::TERM).unwrap();
}

fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(Signal::KILL.as_raw())
}

fn unexpected_exit(status: ExitStatus) -> String {
    format!("the gateway ended by itself: {status}")
}
