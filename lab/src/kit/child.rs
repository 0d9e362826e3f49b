//! Child processes: started through the lab's own launcher, and ended with the lab however it ends.
//!
//! Guarantees: no child outlives the lab, also when Ctrl-C or a kill ends it; each child has its own process
//! group, so signals of the terminal reach the lab alone.
//!
//! The launcher (`lab launch`) runs in the child before the program: it ties the child's life to the lab's,
//! sets CPUs and priority, raises the descriptor limit, and then executes the program.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};

use crate::kit::usage;

/// How long a child may take to end after each signal, before the next and harder one.
const STOP_MS_MAX: u64 = 3_000;

/// How often a wait polls its condition.
const POLL_MS: u64 = 10;

/// Set once by the signal thread; read by every wait of the main thread.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// The CPUs and the priority of a child.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChildSettings {
    /// The allowed CPUs; empty for all of the lab's.
    pub(crate) cpus: Vec<usize>,
    /// The nice value; below 0 only where the lab may raise priorities.
    pub(crate) niceness: i32,
}

/// A running child; dropping it ends the child.
#[derive(Debug)]
pub(crate) struct Child {
    process: std::process::Child,
}

/// The arguments of `lab launch`.
#[derive(clap::Args, Debug)]
pub(crate) struct Launch {
    /// CPUs that the program may use, as numbers between commas
    #[arg(long, value_delimiter = ',')]
    cpus: Vec<usize>,
    /// Nice value of the program
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    niceness: i32,
    /// The process that starts the program, and with which the program is to end
    #[arg(long)]
    parent: i32,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    program: Vec<OsString>,
}

impl Child {
    /// Starts `program` and appends its output to the file `output`.
    ///
    /// # Errors
    /// The file or the process could not be created.
    pub(crate) fn start(
        program: &Path,
        arguments: &[OsString],
        settings: &ChildSettings,
        output: &Path,
    ) -> Result<Self> {
        let file = File::options().create(true).append(true).open(output);
        let file = file.with_context(|| format!("opening {}", output.display()))?;
        let mut command = launcher(program, arguments, settings)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        Self::spawn(command, program)
    }

    /// Starts `program` with its input and output piped to the lab.
    ///
    /// # Errors
    /// The process could not be created.
    pub(crate) fn start_piped(
        program: &Path,
        arguments: &[OsString],
        settings: &ChildSettings,
    ) -> Result<Self> {
        let mut command = launcher(program, arguments, settings)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Self::spawn(command, program)
    }

    fn spawn(mut command: Command, program: &Path) -> Result<Self> {
        let process = command.process_group(0).spawn();
        Ok(Self { process: process.with_context(|| format!("starting {}", program.display()))? })
    }

    /// The process id; the launcher executes the program, so both have the same id.
    pub(crate) fn id(&self) -> i32 {
        Pid::from_child(&self.process).as_raw_nonzero().get()
    }

    /// The input and output, if they are piped and were not taken before.
    pub(crate) fn take_pipes(&mut self) -> Option<(std::process::ChildStdin, std::process::ChildStdout)> {
        Some((self.process.stdin.take()?, self.process.stdout.take()?))
    }

    /// Whether the child still runs.
    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }

    /// Waits until the child ends by itself.
    ///
    /// # Errors
    /// The child failed.
    pub(crate) fn wait(&mut self) -> Result<()> {
        let status = self.process.wait()?;
        fail_if_interrupted()?;
        if !status.success() {
            bail!("the process ended with {status}");
        }
        Ok(())
    }

    /// Sends SIGTERM once, without waiting.
    pub(crate) fn request_stop(&self) {
        // ESRCH means that the child has ended by itself.
        let _ = rustix::process::kill_process(Pid::from_child(&self.process), Signal::TERM);
    }

    /// Sends SIGTERM, a second time if need be (the second makes a draining server hurry), then kills the
    /// child and everything it started.
    pub(crate) fn stop(&mut self) {
        let id = Pid::from_child(&self.process);
        for _ in 0..2 {
            if !self.is_alive() {
                return;
            }
            self.request_stop();
            if self.exits_within(Duration::from_millis(STOP_MS_MAX)) {
                return;
            }
        }
        let _ = rustix::process::kill_process_group(id, Signal::KILL);
        let _ = self.process.wait();
    }

    fn exits_within(&mut self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while Instant::now() < deadline {
            if !self.is_alive() {
                return true;
            }
            thread::sleep(Duration::from_millis(POLL_MS));
        }
        false
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.stop();
    }
}

/// From now on SIGINT and SIGTERM end the children and make the experiment return an error, so that the
/// temporary directory is removed as well.
///
/// # Errors
/// The handlers could not be installed.
pub(crate) fn stop_children_on_signals() -> Result<()> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
    thread::spawn(move || {
        for _ in signals.forever() {
            // Pairs with the load in `fail_if_interrupted`; it publishes nothing but itself.
            INTERRUPTED.store(true, Ordering::Relaxed);
            let own = std::process::id() as i32;
            for descendant in usage::process_tree(own).into_iter().filter(|&process| process != own) {
                let Some(id) = Pid::from_raw(descendant) else { continue };
                let _ = rustix::process::kill_process(id, Signal::TERM);
            }
        }
    });
    Ok(())
}

/// Whether the user asked the lab to stop.
pub(crate) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Fails when the user asked the lab to stop.
///
/// # Errors
/// The user asked the lab to stop.
pub(crate) fn fail_if_interrupted() -> Result<()> {
    if interrupted() {
        bail!("interrupted");
    }
    Ok(())
}

/// Sleeps, and fails at once when the user asks the lab to stop.
///
/// # Errors
/// The user asked the lab to stop.
pub(crate) fn pause(time: Duration) -> Result<()> {
    let deadline = Instant::now() + time;
    loop {
        fail_if_interrupted()?;
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(Duration::from_millis(POLL_MS)));
    }
}

/// Raises the descriptor limit of this process and its children to the hard limit, and returns it.
pub(crate) fn raise_descriptor_limit() -> u64 {
    sys::limits::raise_descriptors().unwrap_or_else(|_| sys::limits::descriptor_limits().0)
}

/// The lab's own executable.
///
/// # Errors
/// `/proc` is not mounted.
pub(crate) fn own_program() -> Result<PathBuf> {
    std::env::current_exe().context("finding the lab's own executable")
}

/// The lab's side of a launch: the command that runs the launcher.
fn launcher(program: &Path, arguments: &[OsString], settings: &ChildSettings) -> Result<Command> {
    let mut command = Command::new(own_program()?);
    command.arg("launch").arg("--parent").arg(std::process::id().to_string());
    if !settings.cpus.is_empty() {
        let cpus: Vec<String> = settings.cpus.iter().map(usize::to_string).collect();
        command.arg("--cpus").arg(cpus.join(","));
    }
    command.arg("--niceness").arg(settings.niceness.to_string());
    command.arg("--").arg(program).args(arguments);
    Ok(command)
}

/// The child's side of a launch: executes the program, so it returns only when it fails.
///
/// # Errors
/// A setting could not be applied, the lab has ended already, or the program could not be executed.
pub(crate) fn launch(settings: &Launch) -> Result<()> {
    // The death signal survives execve(2). It is SIGTERM because nginx's workers end only with a master that
    // received it.
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
    if rustix::process::getppid().map(|parent| parent.as_raw_nonzero().get()) != Some(settings.parent) {
        bail!("the lab ended before its child began");
    }
    if !settings.cpus.is_empty() {
        let mut set = rustix::thread::CpuSet::new();
        settings.cpus.iter().for_each(|&cpu| set.set(cpu));
        rustix::thread::sched_setaffinity(None, &set).context("choosing CPUs")?;
    }
    if settings.niceness != 0 {
        rustix::process::setpriority_process(None, settings.niceness).context("setting the priority")?;
    }
    raise_descriptor_limit();
    let program = settings.program.first().context("no program is named")?;
    let failure = Command::new(program).args(&settings.program[1..]).exec();
    Err(failure).with_context(|| format!("starting {}", program.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launch_arguments_precede_the_program() {
        let settings = ChildSettings { cpus: vec![0, 3], niceness: -5 };
        let command =
            launcher(Path::new("/bin/true"), &["--flag".into()], &settings).expect("the lab has a path");
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        let parent = std::process::id().to_string();
        let expected =
            ["launch", "--parent", &parent, "--cpus", "0,3", "--niceness", "-5", "--", "/bin/true", "--flag"];
        assert_eq!(words, expected);
    }
}
