//! The executable at work: started with a configuration, watched from outside, stopped, and asked what it
//! billed and logged.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// Admin's address and the log's file; a test's own tables follow.
const COMMON: &str = "\
[admin]
address = \"127.0.0.1:0\"
[log]
to = \"log\"
";

/// How long [`Gateway::settles`] waits: by far more than anything that it waits for takes.
const SETTLING_SPAN_MAX: Duration = Duration::from_secs(60);

/// A running gateway.
pub(crate) struct Gateway {
    room: Arc<TempDir>,
    child: Child,
    /// Kept open: it may say more.
    _out: BufReader<ChildStdout>,
    /// In the order of the configuration, with the ports that the kernel chose.
    pub(crate) listeners: Vec<SocketAddr>,
}

impl Gateway {
    /// Starts with the tables of `configuration`, and awaits its greeting.
    pub(crate) fn start(configuration: &str) -> Gateway {
        Gateway::start_with_users(configuration, &[])
    }

    /// The same, with users by name, password and further options of `tollgate user add`.
    pub(crate) fn start_with_users(configuration: &str, users: &[(&str, &str, &[&str])]) -> Gateway {
        let room = tempfile::tempdir().unwrap();
        fs::write(room.path().join("tollgate.toml"), format!("{COMMON}{configuration}")).unwrap();
        for (name, password, options) in users {
            add_user(&room, name, password, options);
        }
        let mut child = command(&room).arg("serve").stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().expect("it was piped"));
        let listeners = read_greeting(&mut out);
        Gateway { room: Arc::new(room), child, _out: out, listeners }
    }

    /// Descriptors that it holds now.
    pub(crate) fn descriptors(&self) -> usize {
        fs::read_dir(self.process_file("fd")).unwrap().count()
    }

    /// Threads that it has now.
    pub(crate) fn threads(&self) -> usize {
        fs::read_dir(self.process_file("task")).unwrap().count()
    }

    /// Memory that is its own now: the proportional set size (proc(5), `smaps_rollup`).
    pub(crate) fn memory_bytes(&self) -> u64 {
        let text = fs::read_to_string(self.process_file("smaps_rollup")).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).expect("the kernel tells it");
        let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number of kB");
        kilobytes * 1024
    }

    fn process_file(&self, name: &str) -> String {
        format!("/proc/{}/{name}", self.child.id())
    }

    /// Awaits that `measure` gives `expected`.
    #[track_caller]
    pub(crate) fn settles(&self, what: &str, expected: usize, measure: impl Fn(&Gateway) -> usize) {
        let deadline = Instant::now() + SETTLING_SPAN_MAX;
        while measure(self) != expected {
            assert!(Instant::now() < deadline, "{what}: {} and not {expected}", measure(self));
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Asks it to end, and awaits that it has.
    pub(crate) fn stop(mut self) -> Stopped {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        let status = self.child.wait().unwrap();
        let said = fs::read_to_string(self.room.path().join("err")).unwrap();
        assert!(status.success(), "{status}\n{said}");
        Stopped { room: Arc::clone(&self.room) }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // If it still runs, a test failed.
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
            let said = fs::read_to_string(self.room.path().join("err")).unwrap_or_default();
            eprintln!("the gateway said:\n{said}");
        }
    }
}

/// What a gateway left behind.
pub(crate) struct Stopped {
    room: Arc<TempDir>,
}

/// Flows and bytes that were billed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) flows: u64,
    pub(crate) up: u64,
    pub(crate) down: u64,
}

impl Stopped {
    /// What `tollgate usage` tells of a user.
    pub(crate) fn usage(&self, user: &str) -> Usage {
        let output = command(&self.room).args(["usage", "--json", "--user", user]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let total = &serde_json::from_slice::<Value>(&output.stdout).unwrap()["total"];
        let number = |name: &str| total[name].as_u64().unwrap_or_else(|| panic!("no {name} in {total}"));
        Usage { flows: number("flows"), up: number("up"), down: number("down") }
    }

    /// The lines of the log whose field `event` is `event`.
    pub(crate) fn log(&self, event: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.room.path().join("log")).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| line["event"] == event).collect()
    }
}

fn command(room: &TempDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["--config", "tollgate.toml"]).current_dir(room.path());
    let err = fs::OpenOptions::new().create(true).append(true).open(room.path().join("err")).unwrap();
    command.stdin(Stdio::null()).stderr(err);
    command
}

fn add_user(room: &TempDir, name: &str, password: &str, options: &[&str]) {
    let mut command = command(room);
    command.args(["user", "add", name, "--password-stdin"]).args(options);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    writeln!(child.stdin.take().expect("it was piped"), "{password}").unwrap();
    let said = || fs::read_to_string(room.path().join("err")).unwrap();
    assert!(child.wait().unwrap().success(), "user add {name}: {}", said());
}

/// Reads up to the ledger's line, which is the last one, and returns the listeners that were told before.
fn read_greeting(out: &mut impl BufRead) -> Vec<SocketAddr> {
    let mut listeners = Vec::new();
    loop {
        let mut line = String::new();
        assert_ne!(out.read_line(&mut line).unwrap(), 0, "it ended before it served");
        if line.trim().starts_with("ledger in ") {
            return listeners;
        }
        let words = line.trim_end().split(' ');
        // The first address of a line: where a forward leads to comes after it.
        listeners.extend(words.filter_map(|word| word.parse::<SocketAddr>().ok()).next());
    }
}
