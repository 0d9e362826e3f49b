//! Progress on standard error: a bar on a terminal, a line per step elsewhere. Standard output stays free for
//! the report.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

/// The completed steps of an experiment.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    is_terminal: bool,
}

impl Progress {
    /// Expects this many steps.
    pub(crate) fn new(steps: u64) -> Self {
        let bar = ProgressBar::new(steps);
        let template = "{bar:30} {pos}/{len}  {elapsed}  {wide_msg}";
        bar.set_style(ProgressStyle::with_template(template).expect("the template is constant and valid"));
        Self { bar, is_terminal: std::io::stderr().is_terminal() }
    }

    /// Shows the step that begins.
    pub(crate) fn begin(&self, step: String) {
        if !self.is_terminal {
            let (position, length) = (self.bar.position() + 1, self.bar.length().unwrap_or(0));
            eprintln!("{position:3}/{length} {:4} s  {step}", self.bar.elapsed().as_secs());
        }
        self.bar.set_message(step);
    }

    /// Counts the step that began.
    pub(crate) fn end(&self) {
        self.bar.inc(1);
    }

    /// Adds steps to the expected number.
    pub(crate) fn expect_more(&self, steps: u64) {
        self.bar.inc_length(steps);
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
