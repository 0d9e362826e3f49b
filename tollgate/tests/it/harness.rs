//! A gateway process: started with a configuration in a directory of its own, and observed by its output,
//! log, metrics and ledger.

use std::fmt::Display;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde_json::Value;
use tempfile::{NamedTempFile, TempDir};

/// How long a test waits for an event that certainly happens. Only a failure waits this long.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// The head of every configuration: one listener for both protocols, with a kernel-chosen port.
const HEAD: &str = r#"
[[listener]]
address = "127.0.0.1:0"
[admin]
address = "127.0.0.1:0"
[log]
to = "log.jsonl"
"#;

/// Configuration that begins so has its settings of this table behind those of [`HEAD`].
pub(crate) const LOG: &str = "[log]\n";

/// A gateway that is killed at a test's end leaves its live table, which is removed with the directory.
const SMALL_LEDGER: &str = "[ledger]\nlive_table = \".\"\nsegment = \"1MiB\"\n";

/// Enough for tests that run in parallel; a configuration with its own `[threads]` omits it.
const FEW_THREADS: &str = "[threads]\nreactors = 2\n";

/// The default number of reactors: one for each CPU.
pub(crate) const EVERY_CPU: &str = "[threads]\nreactors = 0\n";

/// A user with a known address that may reach this machine, by address and as `localhost`.
pub(crate) const LOCAL_USER: &str = r#"
[[user]]
name = "me"
from = ["127.0.0.1/32"]
allow = ["127.0.0.0/8", "[::1]", "@here"]
[destinations.here]
to = ["localhost"]
class = "internal"
"#;

/// Every accept strategy, as configuration; two are for comparison, and no document lists them.
pub(crate) const STRATEGIES: [&str; 5] = [
    "[accept]\nstrategy = \"lab:shared\"\n",
    "[accept]\nstrategy = \"mutex\"\n",
    "[accept]\nstrategy = \"lab:exclusive\"\n",
    "[accept]\nstrategy = \"reuse_port\"\n",
    "[accept]\nstrategy = \"handoff\"\n",
];

/// A running `tollgate serve`; killed on drop.
pub(crate) struct Gateway {
    dir: TempDir,
    child: Child,
    /// The listeners, in the order of the configuration.
    pub(crate) listeners: Vec<SocketAddr>,
    pub(crate) admin: SocketAddr,
}

impl Gateway {
    /// Starts with [`LOCAL_USER`] and `extra` lines of configuration.
    pub(crate) fn local(extra: &str) -> Gateway {
        Gateway::start(&format!("{LOCAL_USER}{extra}"))
    }

    /// Starts with [`LOCAL_USER`], a second listener, a `forward` to `to` for that user, and `extra`.
    pub(crate) fn forwarding(to: impl Display, extra: &str) -> Gateway {
        Gateway::local(&format!("{}{extra}", forward("127.0.0.2:0", to, "me")))
    }

    /// Starts with `extra` lines of configuration behind the common head.
    pub(crate) fn start(extra: &str) -> Gateway {
        Gateway::start_in(TestDir::new(extra))
    }

    /// Starts in a prepared directory.
    pub(crate) fn start_in(dir: TestDir) -> Gateway {
        Gateway::start_by(Command::new(env!("CARGO_BIN_EXE_tollgate")), dir)
    }

    /// Starts by `command`: the executable, or a program that runs it with the arguments that follow.
    pub(crate) fn start_by(mut command: Command, TestDir(dir): TestDir) -> Gateway {
        let errors = fs::File::create(dir.path().join("stderr.txt")).unwrap();
        command.args(["serve", "--config"]).arg(dir.path().join("tollgate.toml"));
        command.current_dir(dir.path()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors);
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (mut listeners, mut admin) = (Vec::new(), None);
        for line in lines.by_ref().map_while(Result::ok) {
            if let Some((_, url)) = line.split_once("http://") {
                admin = url.strip_suffix("/metrics").and_then(|address| address.parse().ok());
            } else if line.starts_with("  ledger in") {
                break;
            } else {
                listeners.extend(line.split_whitespace().find_map(|word| word.parse::<SocketAddr>().ok()));
            }
        }
        let Some(admin) = admin else {
            panic!(
                "the gateway did not start: {}",
                fs::read_to_string(dir.path().join("stderr.txt")).unwrap()
            );
        };
        Gateway { dir, child, listeners, admin }
    }

    /// Starts it again in the same directory, after it has ended.
    pub(crate) fn restart(mut self) -> Gateway {
        let dir = std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap());
        Gateway::start_in(TestDir(dir))
    }

    /// A connection to the first listener.
    pub(crate) fn connect(&self) -> TcpStream {
        with_timeouts(TcpStream::connect(self.listeners[0]).unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).unwrap();
    }

    /// Stops the process by SIGSTOP: it does nothing until [`Gateway::resume`].
    pub(crate) fn pause(&self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP).unwrap();
        // waitpid(2) returns once the last of its threads has stopped.
        let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "the gateway has ended: {status:?}");
    }

    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Writes the configuration anew.
    pub(crate) fn write_configuration(&self, extra: &str) {
        write_configuration(self.dir.path(), extra);
    }

    /// Writes the configuration anew and requests a reload.
    pub(crate) fn request_reload(&self, extra: &str) {
        self.write_configuration(extra);
        self.signal(Signal::HUP);
    }

    /// Reloads with `extra` behind the head, and waits until the log reports it.
    pub(crate) fn reload(&self, extra: &str) {
        // Counted in the text: under load the log is long, and parsing it would take the test's time.
        let reload_count = || {
            let log = fs::read_to_string(self.path("log.jsonl")).unwrap_or_default();
            log.matches("\"text\":\"configuration reloaded\"").count()
        };
        let before = reload_count();
        self.request_reload(extra);
        eventually("the log reports the reload", || reload_count() > before);
    }

    /// Kills the process, as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for the process to end by itself; returns the exit code.
    pub(crate) fn wait(&mut self) -> i32 {
        let mut code = None;
        eventually("the process ends", || {
            code = self
                .child
                .try_wait()
                .unwrap()
                .map(|status| status.code().expect("the process exits, and no signal ends it"));
            code.is_some()
        });
        code.unwrap()
    }

    /// Stops it in order, with all connections closed or to be closed now.
    pub(crate) fn stop(&mut self) {
        self.signal(Signal::TERM);
        assert_eq!(self.wait(), 0, "{}", self.errors());
        let log = fs::read_to_string(self.path("log.jsonl")).unwrap();
        assert!(log.ends_with('\n'), "the last line of the log is whole");
    }

    /// The complete lines of the log.
    pub(crate) fn log(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.path("log.jsonl")).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| serde_json::from_str(line).expect("a log line is a JSON object")).collect()
    }

    /// Waits for a log line that `wanted` accepts, and returns the first one.
    pub(crate) fn await_log_line(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut found = None;
        eventually(what, || {
            found = self.log().into_iter().find(|line| wanted(line));
            found.is_some()
        });
        found.unwrap()
    }

    /// All lines of the log about this event.
    pub(crate) fn events(&self, event: &str) -> Vec<Value> {
        self.log().into_iter().filter(|line| line["event"] == event).collect()
    }

    /// Waits for the close line of this client's flow.
    pub(crate) fn await_close_line(&self, client: SocketAddr) -> Value {
        let client = client.to_string();
        self.await_log_line("the log has the close", |line| {
            line["event"] == "close" && line["client_addr"] == client.as_str()
        })
    }

    /// Checks the close reason of this client's flow.
    #[track_caller]
    pub(crate) fn check_closed(&self, client: SocketAddr, reason: &str) {
        assert_eq!(self.await_close_line(client)["close_reason"], reason);
    }

    /// Its standard error.
    pub(crate) fn errors(&self) -> String {
        fs::read_to_string(self.path("stderr.txt")).unwrap_or_default()
    }

    /// The sum of a metric over its labels. `None` if the gateway does not respond.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let mut stream = with_timeouts(TcpStream::connect(self.admin).ok()?);
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.admin);
        stream.write_all(request.as_bytes()).ok()?;
        let mut page = String::new();
        stream.read_to_string(&mut page).ok()?;
        let sample = |line: &str| {
            let (key, value) = line.rsplit_once(' ')?;
            (key.split('{').next() == Some(name)).then(|| value.parse::<f64>().ok())?
        };
        let samples: Vec<f64> = page.lines().filter_map(sample).collect();
        (!samples.is_empty()).then(|| samples.iter().sum())
    }

    /// Waits until a metric has this value.
    pub(crate) fn await_metric(&self, name: &str, value: f64) {
        eventually(&format!("{name} becomes {value}"), || self.metric(name) == Some(value));
    }

    /// Runs `tollgate` with the words of `line` on the same configuration; returns the standard output.
    pub(crate) fn run(&self, line: &str, input: &[u8]) -> String {
        run_in(self.dir.path(), line, input)
    }

    /// Runs `tollgate` as [`Gateway::run`] does, with any exit code; returns the printed object.
    pub(crate) fn explain(&self, line: &str) -> Value {
        let output = output_in(self.dir.path(), line, b"");
        serde_json::from_slice(&output.stdout).expect("the command prints a JSON object")
    }

    /// The totals of the ledger: flows, bytes up, bytes down.
    pub(crate) fn usage(&self) -> (u64, u64, u64) {
        self.totals("usage --json")
    }

    /// The plain HTTP requests of flows that have ended.
    pub(crate) fn requests(&self) -> u64 {
        let usage: Value = serde_json::from_str(&self.run("usage --json", b"")).unwrap();
        usage["total"]["requests"].as_u64().unwrap()
    }

    /// The totals of one user.
    pub(crate) fn usage_of(&self, user: &str) -> (u64, u64, u64) {
        self.totals(&format!("usage --json --user {user}"))
    }

    fn totals(&self, line: &str) -> (u64, u64, u64) {
        let usage: Value = serde_json::from_str(&self.run(line, b"")).unwrap();
        let total = |key: &str| usage["total"][key].as_u64().unwrap();
        (total("flows"), total("up"), total("down"))
    }

    /// Open descriptors of the process.
    pub(crate) fn descriptors(&self) -> usize {
        fs::read_dir(self.process_file("fd")).unwrap().count()
    }

    /// Open sockets of the process: unlike files, which the ledger opens at any time.
    pub(crate) fn sockets(&self) -> usize {
        let links = fs::read_dir(self.process_file("fd")).unwrap();
        // A descriptor that was closed meanwhile has no link any more.
        let targets = links.filter_map(|link| fs::read_link(link.ok()?.path()).ok());
        targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
    }

    /// Threads of the process.
    pub(crate) fn threads(&self) -> usize {
        fs::read_dir(self.process_file("task")).unwrap().count()
    }

    /// Private memory that the process has written (proc(5), `smaps_rollup`): excludes the executable's
    /// pages, which gateways of other tests share.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.mapped_bytes("Private_Dirty:")
    }

    /// Private memory including pages that the process has not written: those of the live table exist from
    /// the start. For a test that is alone on the machine.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.memory_bytes() + self.mapped_bytes("Private_Clean:")
    }

    fn mapped_bytes(&self, kind: &str) -> u64 {
        let text = fs::read_to_string(self.process_file("smaps_rollup")).unwrap();
        let line =
            text.lines().find_map(|line| line.strip_prefix(kind)).expect("the kernel reports the field");
        let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number of kB");
        kilobytes * 1024
    }

    fn process_file(&self, name: &str) -> String {
        format!("/proc/{}/{name}", self.pid())
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if thread::panicking() {
            let log = fs::read_to_string(self.path("log.jsonl")).unwrap_or_default();
            let last: Vec<&str> = log.lines().rev().take(20).collect();
            eprintln!("--- stderr of the gateway\n{}--- its last log lines, latest first", self.errors());
            eprintln!("{}", last.join("\n"));
        }
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory with a configuration, in which a gateway can be started.
pub(crate) struct TestDir(TempDir);

impl TestDir {
    pub(crate) fn new(extra: &str) -> TestDir {
        let dir = tempfile::tempdir().unwrap();
        write_configuration(dir.path(), extra);
        TestDir(dir)
    }

    /// Adds a user with this password, and further options of `tollgate user add`.
    pub(crate) fn add_user(&self, name: &str, password: &str, options: &str) {
        let line = format!("user add {name} {options} --password-stdin");
        self.run(&line, format!("{password}\n").as_bytes());
    }

    /// Runs `tollgate` with the words of `line`; returns the standard output.
    pub(crate) fn run(&self, line: &str, input: &[u8]) -> String {
        run_in(self.0.path(), line, input)
    }
}

/// The configuration of a `forward` listener at `address` to `to`, whose flows are billed to `user`.
pub(crate) fn forward(address: &str, to: impl Display, user: &str) -> String {
    format!("[[listener]]\naddress = \"{address}\"\nkind = \"forward\"\nto = \"{to}\"\nuser = \"{user}\"\n")
}

/// Polls until `holds` returns true.
#[track_caller]
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// The local address of each IPv4 TCP socket of this machine, and its state as a number of Linux'
/// `net/tcp_states.h`.
pub(crate) fn kernel_sockets() -> Vec<(SocketAddr, u8)> {
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let socket = |line: &str| {
        // Number, local address, remote address, state, and more.
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (ip, port) = fields[1].split_once(':').unwrap();
        // The address is in network byte order, printed as a native number.
        let ip = u32::from_str_radix(ip, 16).unwrap().to_ne_bytes();
        let port = u16::from_str_radix(port, 16).unwrap();
        (SocketAddr::from((ip, port)), u8::from_str_radix(fields[3], 16).unwrap())
    };
    table.lines().skip(1).map(socket).collect()
}

/// Sets timeouts, so that a stuck stream fails the test instead of blocking it.
pub(crate) fn with_timeouts(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    stream
}

fn write_configuration(dir: &Path, extra: &str) {
    let threads = if extra.contains("[threads]") { "" } else { FEW_THREADS };
    let (log, extra) = match extra.strip_prefix(LOG) {
        Some(extra) => extra.split_at(extra.find("\n[").map_or(extra.len(), |end| end + 1)),
        None => ("", extra),
    };
    // Put in place whole: the gateway may read it at any moment.
    let mut file = NamedTempFile::new_in(dir).unwrap();
    write!(file, "{HEAD}{log}{SMALL_LEDGER}{threads}{extra}").unwrap();
    file.persist(dir.join("tollgate.toml")).unwrap();
}

fn run_in(dir: &Path, line: &str, input: &[u8]) -> String {
    let output = output_in(dir, line, input);
    assert!(output.status.success(), "tollgate {line}");
    String::from_utf8(output.stdout).unwrap()
}

fn output_in(dir: &Path, line: &str, input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(line.split_whitespace()).arg("--config").arg(dir.join("tollgate.toml")).current_dir(dir);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}
