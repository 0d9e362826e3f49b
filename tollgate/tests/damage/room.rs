//! A room: the directory of one ledger with its configuration, and the product's commands run in it.
//!
//! Promises: whatever a command does, it ends, and what it said is kept; a gateway that is let go of is dead.
//! Leaves to others: what is in the room (`base`, `damage`), and what the words mean (`told`).

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
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(1);

/// Files of what is written to standard output and standard error.
type Files = (&'static str, &'static str);

/// Of a gateway, and of a command that is asked something meanwhile.
const SERVED: Files = ("serve-out.txt", "serve-errors.txt");
const ASKED: Files = ("out.txt", "errors.txt");

/// Few connections, so that the live table is small and a copy of it quick.
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

/// See the file's header.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) directory: PathBuf,
}

/// What a command came to.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    pub(crate) status: ExitStatus,
    pub(crate) out: String,
    pub(crate) errors: String,
    /// It did not end by itself, and was killed.
    pub(crate) is_late: bool,
}

/// A gateway that serves.
pub(crate) struct Serving<'r> {
    pub(crate) child: Child,
    pub(crate) listener: SocketAddr,
    room: &'r Room,
}

impl Room {
    /// A room in `directory`, which is made, with the files of `tree` if one is given.
    pub(crate) fn furnish(directory: PathBuf, tree: Option<&Path>) -> Room {
        fs::create_dir_all(&directory).unwrap();
        if let Some(tree) = tree {
            copy_tree(tree, &directory).unwrap();
        }
        fs::create_dir_all(directory.join("table")).unwrap();
        let text = format!("{CONFIGURATION}[threads]\nreactors = {REACTORS}\n");
        fs::write(directory.join("tollgate.toml"), text).unwrap();
        Room { directory }
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, words: &[&str]) -> Said {
        let mut child = self.spawn(words, &[], ASKED);
        self.end_by(&mut child, Instant::now() + PATIENCE, ASKED)
    }

    /// Starts a gateway.
    ///
    /// # Errors
    /// It ended before it served.
    pub(crate) fn serve(&self, environment: &[(&str, &str)]) -> Result<Serving<'_>, Said> {
        let mut child = self.spawn(&["serve"], environment, SERVED);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let ended = child.try_wait().unwrap().is_some() || Instant::now() > deadline;
            let out = self.text(SERVED.0);
            if out.contains("after a power failure") {
                let words = out.split_whitespace();
                let listener = words.into_iter().find_map(|word| word.parse().ok());
                let listener = listener.expect("a gateway says where it listens before anything else");
                return Ok(Serving { child, listener, room: self });
            }
            if ended {
                return Err(self.end_by(&mut child, deadline, SERVED));
            }
            thread::sleep(LOOK);
        }
    }

    /// Events of the gateways' log that are a warning or worse.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let log = self.text("log.jsonl");
        let is_complaint =
            |line: &&str| ["\"warning\"", "\"warn\"", "\"error\""].iter().any(|level| line.contains(level));
        log.lines().filter(is_complaint).map(str::to_owned).collect()
    }

    /// What the last gateway wrote to standard error.
    pub(crate) fn errors(&self) -> String {
        self.text(SERVED.1)
    }

    fn spawn(&self, words: &[&str], environment: &[(&str, &str)], (out, errors): Files) -> Child {
        let file = |name: &str| File::create(self.directory.join(name)).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(words).args(["--config", "tollgate.toml"]).current_dir(&self.directory);
        command.stdin(Stdio::null()).stdout(file(out)).stderr(file(errors));
        command.envs(environment.iter().copied()).spawn().unwrap()
    }

    fn end_by(&self, child: &mut Child, deadline: Instant, (out, errors): Files) -> Said {
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
            thread::sleep(LOOK);
        };
        Said { status, out: self.text(out), errors: self.text(errors), is_late }
    }

    fn text(&self, name: &str) -> String {
        let bytes = fs::read(self.directory.join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Said {
    pub(crate) fn is_success(&self) -> bool {
        self.status.success()
    }

    /// Whether a fault of the program ended it, or a thread of it.
    pub(crate) fn is_crash(&self) -> bool {
        let is_killed = !self.is_late && self.status.signal().is_some();
        is_killed || [&self.out, &self.errors].iter().any(|text| text.contains("panicked at"))
    }

    /// All that it said.
    pub(crate) fn text(&self) -> String {
        format!("{}{}", self.out, self.errors)
    }
}

impl<'r> Serving<'r> {
    pub(crate) fn room(&self) -> &'r Room {
        self.room
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Stops it in order.
    pub(crate) fn stop(mut self) -> Said {
        // One that has ended by itself is not waited for yet, so that its number is nobody else's.
        self.signal(Signal::TERM);
        let room = self.room;
        room.end_by(&mut self.child, Instant::now() + PATIENCE, SERVED)
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        // It has ended if all went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Copies directories and plain files; a socket is nothing that one copies.
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
