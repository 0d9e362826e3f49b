//! A workspace: the directory of one ledger with its configuration, and Tollgate's commands run in it.
//!
//! Guarantees: every command ends, and its output is kept. Dropping a running gateway kills it.

use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Reactor threads of each gateway: at most one call of each is cut by a kill.
pub(crate) const REACTORS: usize = 2;

/// How long a command, a start or a stop may take. Only a failure waits this long.
const TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The files of standard output and standard error.
type Files = (&'static str, &'static str);

/// Of a gateway, and of other commands.
const SERVE_FILES: Files = ("serve-out.txt", "serve-errors.txt");
const COMMAND_FILES: Files = ("out.txt", "errors.txt");

/// Few connections, so that the live table is small and copied fast.
const CONFIGURATION: &str = r#"
[[listener]]
address = "127.0.0.1:0"
[admin]
address = "127.0.0.1:0"
[log]
to = "log.jsonl"
[timeouts]
drain = "0s"
[limits]
connections = 1024
[[user]]
name = "me"
from = ["127.0.0.0/8"]
allow = ["127.0.0.0/8"]
[ledger]
directory = "data"
live_table = "table"
segment = "256KiB"
"#;

/// The directory of one ledger with its configuration.
#[derive(Debug)]
pub(crate) struct Workspace {
    pub(crate) directory: PathBuf,
}

/// The outcome of a command.
#[derive(Clone, Debug)]
pub(crate) struct CommandOutput {
    pub(crate) status: ExitStatus,
    pub(crate) out: String,
    pub(crate) stderr: String,
    /// It did not end in time, and was killed.
    pub(crate) is_late: bool,
}

/// A gateway that serves.
pub(crate) struct RunningGateway<'r> {
    pub(crate) child: Child,
    pub(crate) listener: SocketAddr,
    workspace: &'r Workspace,
}

impl Workspace {
    /// A workspace in `directory`, which is created, with the files of `tree` if one is given.
    pub(crate) fn create(directory: PathBuf, tree: Option<&Path>) -> Workspace {
        fs::create_dir_all(&directory).unwrap();
        if let Some(tree) = tree {
            copy_tree(tree, &directory).unwrap();
        }
        fs::create_dir_all(directory.join("table")).unwrap();
        let text = format!("{CONFIGURATION}[threads]\nreactors = {REACTORS}\n");
        fs::write(directory.join("tollgate.toml"), text).unwrap();
        Workspace { directory }
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    /// Runs a command until its end.
    pub(crate) fn run(&self, words: &[&str]) -> CommandOutput {
        let mut child = self.spawn(words, &[], COMMAND_FILES);
        self.wait_until(&mut child, Instant::now() + TIMEOUT, COMMAND_FILES)
    }

    /// Starts a gateway.
    ///
    /// # Errors
    /// It ended before it served.
    pub(crate) fn serve(&self, environment: &[(&str, &str)]) -> Result<RunningGateway<'_>, CommandOutput> {
        let mut child = self.spawn(&["serve"], environment, SERVE_FILES);
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let ended = child.try_wait().unwrap().is_some() || Instant::now() > deadline;
            let out = self.text(SERVE_FILES.0);
            if out.contains("after a power failure") {
                let words = out.split_whitespace();
                let listener = words.into_iter().find_map(|word| word.parse().ok());
                let listener = listener.expect("a gateway prints its listeners first");
                return Ok(RunningGateway { child, listener, workspace: self });
            }
            if ended {
                return Err(self.wait_until(&mut child, deadline, SERVE_FILES));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Events of the gateways' log with level warning or error.
    pub(crate) fn log_warnings(&self) -> Vec<String> {
        let log = self.text("log.jsonl");
        let is_warning =
            |line: &&str| ["\"warning\"", "\"warn\"", "\"error\""].iter().any(|level| line.contains(level));
        log.lines().filter(is_warning).map(str::to_owned).collect()
    }

    /// The standard error of the last gateway.
    pub(crate) fn stderr(&self) -> String {
        self.text(SERVE_FILES.1)
    }

    fn spawn(&self, words: &[&str], environment: &[(&str, &str)], (out, stderr): Files) -> Child {
        let file = |name: &str| File::create(self.directory.join(name)).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(words).args(["--config", "tollgate.toml"]).current_dir(&self.directory);
        command.stdin(Stdio::null()).stdout(file(out)).stderr(file(stderr));
        command.envs(environment.iter().copied()).spawn().unwrap()
    }

    fn wait_until(&self, child: &mut Child, deadline: Instant, (out, stderr): Files) -> CommandOutput {
        let mut is_late = false;
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > deadline {
                is_late = true;
                child.kill().unwrap();
                break child.wait().unwrap();
            }
            thread::sleep(POLL_INTERVAL);
        };
        CommandOutput { status, out: self.text(out), stderr: self.text(stderr), is_late }
    }

    fn text(&self, name: &str) -> String {
        let bytes = fs::read(self.directory.join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl CommandOutput {
    pub(crate) fn is_success(&self) -> bool {
        self.status.success()
    }

    /// Whether a fault of the program ended it, or a thread of it.
    pub(crate) fn is_crash(&self) -> bool {
        let is_killed = !self.is_late && self.status.signal().is_some();
        is_killed || [&self.out, &self.stderr].iter().any(|text| text.contains("panicked at"))
    }

    /// All its output.
    pub(crate) fn text(&self) -> String {
        format!("{}{}", self.out, self.stderr)
    }
}

impl<'r> RunningGateway<'r> {
    pub(crate) fn workspace(&self) -> &'r Workspace {
        self.workspace
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Stops it in order.
    pub(crate) fn stop(mut self) -> CommandOutput {
        // A gateway that has ended by itself was not reaped yet, so its pid is not reused.
        self.signal(Signal::TERM);
        let workspace = self.workspace;
        workspace.wait_until(&mut self.child, Instant::now() + TIMEOUT, SERVE_FILES)
    }
}

impl Drop for RunningGateway<'_> {
    fn drop(&mut self) {
        // It has ended if all went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Copies directories and plain files; sockets are skipped.
pub(crate) fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (kind, target) = (entry.file_type()?, to.join(entry.file_name()));
        if kind.is_dir() {
            fs::create_dir_all(&target)?;
            fs::set_permissions(&target, entry.metadata()?.permissions())?;
            copy_tree(&entry.path(), &target)?;
        } else if !kind.is_socket() {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
