//! Consent to what cannot be taken back: `--yes`, or an answer at the terminal.
//!
//! Promises: without either nothing happens, and the error says so; a pipe is never taken for an answer,
//! since it may hold a password. Leaves to others: what it is that happens.

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::bail;
use clap::Args;

/// Longest answer that is read, in bytes: what is longer is no "yes".
const ANSWER_BYTES_MAX: u64 = 16;

/// See the file's header.
#[derive(Args)]
pub(crate) struct Confirmation {
    /// Do it without asking.
    #[arg(long)]
    yes: bool,
}

impl Confirmation {
    /// Asks whether to go on, after saying `what` happens then.
    ///
    /// # Errors
    /// The answer is not yes, or there is no terminal to ask at.
    pub(super) fn require(&self, what: &str) -> anyhow::Result<()> {
        if self.yes {
            return Ok(());
        }
        if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
            bail!("nothing was changed: {what}; --yes does it without asking");
        }
        write!(io::stderr(), "{what}. Go on? [y/N] ")?;
        match is_yes(io::stdin().lock())? {
            true => Ok(()),
            false => bail!("nothing was changed"),
        }
    }
}

fn is_yes(input: impl BufRead) -> io::Result<bool> {
    let mut answer = String::new();
    input.take(ANSWER_BYTES_MAX).read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_is_yes() {
        for (answer, expected) in [
            ("y\n", true),
            ("Yes\n", true),
            (" y \r\n", true),
            ("yes", true),
            ("\n", false),
            ("", false),
            ("n\n", false),
            ("yesterday\n", false),
            ("yes yes yes yes yes yes\n", false),
            ("n\ny\n", false),
        ] {
            assert_eq!(is_yes(answer.as_bytes()).unwrap(), expected, "{answer:?}");
        }
    }
}
