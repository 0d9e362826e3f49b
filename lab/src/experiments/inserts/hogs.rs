//! Hogs: processes that compute without end at the usual priority, each in a session of its own, as other
//! users' work is.
//!
//! Guarantees: all of them compute when `start` returns, and none outlives the lab.

use std::hint;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use sys::limits::cpus::pin_thread;

use crate::kit::child;

/// The line that a hog prints when it begins.
const SPINNING: &str = "spinning";

/// The arguments of `lab hog`.
#[derive(clap::Args, Debug)]
pub(crate) struct Hog {
    /// The process that starts it and with which it is to end
    #[arg(long)]
    parent: i32,
    /// The only CPU that it may use
    #[arg(long)]
    cpu: Option<usize>,
}

/// Running hogs; dropping them ends them.
#[derive(Debug, Default)]
pub(super) struct Hogs {
    processes: Vec<Child>,
}

impl Hogs {
    /// Starts one hog for each entry: pinned to that CPU, or free.
    ///
    /// # Errors
    /// A process could not be created, or did not begin.
    pub(super) fn start(cpus: &[Option<usize>]) -> Result<Self> {
        let mut hogs = Self::default();
        for cpu in cpus {
            hogs.processes.push(spawn(*cpu)?);
        }
        for process in &mut hogs.processes {
            let output = process.stdout.take().context("a hog's output is piped")?;
            let mut line = String::new();
            BufReader::new(output).read_line(&mut line)?;
            if line.trim_end() != SPINNING {
                bail!("a hog did not start");
            }
        }
        Ok(hogs)
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // The signal that ends the lab may have killed it already.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Not through the lab's launcher: that gives its child a process group, and the leader of one cannot begin a
/// session.
fn spawn(cpu: Option<usize>) -> Result<Child> {
    let mut command = Command::new(child::own_program()?);
    command.arg("hog").arg("--parent").arg(std::process::id().to_string());
    if let Some(cpu) = cpu {
        command.arg("--cpu").arg(cpu.to_string());
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.spawn().context("starting a hog")
}

/// The hog's side: computes until it is killed, so it returns only when it fails.
///
/// # Errors
/// A setting could not be applied, or the lab has ended already.
pub(crate) fn spin(settings: &Hog) -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if rustix::process::getppid().map(|parent| parent.as_raw_nonzero().get()) != Some(settings.parent) {
        bail!("the lab ended before its hog began");
    }
    rustix::process::setsid().context("beginning a session")?;
    if let Some(cpu) = settings.cpu {
        pin_thread(cpu).with_context(|| format!("choosing CPU {cpu}"))?;
    }
    writeln!(std::io::stdout(), "{SPINNING}")?;
    let mut value: u64 = 1;
    loop {
        value = hint::black_box(value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
}
