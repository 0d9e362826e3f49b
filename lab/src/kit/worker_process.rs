//! A process that works for the lab; both exchange lines of text.
//!
//! Guarantees: a process that ends without an answer is an error and not a hang.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout};

use anyhow::{Context, Result, bail};

use crate::kit::child::{self, Child, ChildSettings};

/// The line by which a process reports that it is prepared, and the line that it then waits for.
pub(crate) const READY: &str = "ready";
pub(crate) const GO: &str = "go";

/// The lab's end of the process; dropping it ends the process.
pub(crate) struct WorkerProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl WorkerProcess {
    /// Starts a program.
    ///
    /// # Errors
    /// The process could not be created.
    pub(crate) fn start(program: &Path, arguments: &[OsString]) -> Result<Self> {
        let mut child = Child::start_piped(program, arguments, &ChildSettings::default())?;
        let (input, output) =
            child.take_pipes().context("the worker process has no pipe for its input or its output")?;
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    /// The process id.
    pub(crate) fn id(&self) -> i32 {
        self.child.id()
    }

    /// Waits for a line of the process.
    ///
    /// # Errors
    /// The process ended without a line, or the user interrupts.
    pub(crate) fn read_line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        child::fail_if_interrupted()?;
        if line.is_empty() {
            bail!("the process ended without an answer");
        }
        line.truncate(line.trim_end().len());
        Ok(line)
    }

    /// Waits for a line that is this word.
    ///
    /// # Errors
    /// As `read_line`, or the line is another.
    pub(crate) fn expect_line(&mut self, word: &str) -> Result<()> {
        let line = self.read_line()?;
        if line != word {
            bail!("the process printed {line:?} in place of {word:?}");
        }
        Ok(())
    }

    /// Sends a word to the process.
    ///
    /// # Errors
    /// The process has ended.
    pub(crate) fn send(&mut self, word: &str) -> Result<()> {
        writeln!(self.input, "{word}").context("the process has ended")
    }

    /// Closes the process's input, and waits for its end.
    ///
    /// # Errors
    /// The process failed.
    pub(crate) fn finish(mut self) -> Result<()> {
        drop(self.input);
        self.child.wait()
    }
}

/// The process's side: prints a line.
///
/// # Errors
/// The lab has ended.
pub(crate) fn print_line(line: &str) -> Result<()> {
    let mut output = std::io::stdout();
    writeln!(output, "{line}")?;
    output.flush().context("the lab has ended")
}
