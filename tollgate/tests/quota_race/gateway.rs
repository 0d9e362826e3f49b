//! The gateway as a process that is killed and started again, on one data directory.
//!
//! Guarantees: an end that was not intended is an error with the gateway's output; a failing test leaves no
//! gateway behind.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::plan::Plan;

/// How long an orderly stop may take. Only a failure waits so long.
const STOP_MAX: Duration = Duration::from_secs(60);

const CONFIGURATION: &str = r#"
[[listener]]
address = "127.0.0.1:0"
[admin]
address = "127.0.0.1:0"
[log]
to = "log.jsonl"
[timeouts]
drain = "0s"
[ledger]
directory = "data"
live_table = "."
segment = "4MiB"
"#;

/// A gateway that serves, or was killed.
pub(crate) struct Gateway {
    directory: PathBuf,
    child: Child,
    pub(crate) listener: SocketAddr,
    admin: SocketAddr,
}

impl Gateway {
    /// Starts one for the users of `plans`, in an empty directory.
    ///
    /// # Errors
    /// It does not serve; with its output.
    pub(crate) fn start(directory: &Path, plans: &[Plan], reactors: u64) -> Result<Gateway, String> {
        let users: String = plans.iter().map(Plan::configuration).collect();
        let text = format!("{CONFIGURATION}[threads]\nreactors = {reactors}\n{users}");
        fs::write(directory.join("tollgate.toml"), text).unwrap();
        let (child, listener, admin) = spawn(directory)?;
        Ok(Gateway { directory: directory.to_owned(), child, listener, admin })
    }

    /// Starts it again.
    ///
    /// # Errors
    /// It does not serve; with its output.
    pub(crate) fn restart(&mut self) -> Result<(), String> {
        (self.child, self.listener, self.admin) = spawn(&self.directory)?;
        Ok(())
    }

    /// Kills it, as `kill -9` does.
    ///
    /// # Errors
    /// It has ended before.
    pub(crate) fn kill(&mut self) -> Result<(), String> {
        if let Some(status) = self.child.try_wait().unwrap() {
            return Err(format!("the gateway ended by itself: {status}\n{}", stderr(&self.directory)));
        }
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        Ok(())
    }

    /// Stops it in order.
    ///
    /// # Errors
    /// It does not stop, or not in order; with its output.
    pub(crate) fn stop(&mut self) -> Result<(), String> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        let begin = Instant::now();
        while begin.elapsed() < STOP_MAX {
            match self.child.try_wait().unwrap() {
                Some(status) if status.success() => return Ok(()),
                Some(status) => {
                    return Err(format!("the gateway stopped: {status}\n{}", stderr(&self.directory)));
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        Err("the gateway does not stop".to_owned())
    }

    /// How many directions it has spliced.
    pub(crate) fn spliced(&self) -> u64 {
        let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let mut page = String::new();
        let mut stream = TcpStream::connect(self.admin).unwrap();
        stream.write_all(request).unwrap();
        stream.read_to_string(&mut page).unwrap();
        let value = page.lines().find_map(|line| line.strip_prefix("tollgate_splice_promotions_total "));
        value.expect("the metric exists").trim().parse().expect("the metric is a number")
    }

    /// What `tollgate usage` with these options prints.
    ///
    /// # Errors
    /// It fails; with its output.
    pub(crate) fn usage(&self, options: &[&str]) -> Result<serde_json::Value, String> {
        let output = command(&self.directory, "usage").args(options).output().unwrap();
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            return Err(format!("`tollgate usage` fails: {text}{}", String::from_utf8_lossy(&output.stderr)));
        }
        Ok(serde_json::from_slice(&output.stdout).expect("the command prints a JSON object"))
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts the process, and reads the addresses of its listener and of its metrics.
fn spawn(directory: &Path) -> Result<(Child, SocketAddr, SocketAddr), String> {
    let errors = fs::File::create(directory.join("stderr.txt")).unwrap();
    let mut child = command(directory, "serve").stderr(errors).spawn().unwrap();
    let mut addresses: Vec<SocketAddr> = Vec::new();
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
    if let [listener, admin] = addresses[..] {
        return Ok((child, listener, admin));
    }
    let _ = child.kill();
    let status = child.wait().unwrap();
    Err(format!("the gateway does not start: {status}\n{}", stderr(directory)))
}

fn command(directory: &Path, word: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args([word, "--config", "tollgate.toml"]).current_dir(directory);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn stderr(directory: &Path) -> String {
    fs::read_to_string(directory.join("stderr.txt")).unwrap_or_default()
}
