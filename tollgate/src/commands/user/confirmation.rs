//! Confirmation of an irreversible change: `--yes`, or an answer at the terminal.
//!
//! Guarantees: without either nothing happens, and the error says so. A pipe is never read as an answer,
//! since it may hold a password.

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::bail;
use clap::Args;

/// Bytes of an answer that are read: a longer one is no "yes".
const ANSWER_BYTES_MAX: u64 = 16;

/// `--yes`, flattened into the options of a command.
#[derive(Args)]
pub(crate) struct Confirmation {
    /// Do it without asking.
    #[arg(long)]
    yes: bool,
}

impl Confirmation {
    /// Requires `--yes` or a yes at the terminal, after printing `what` would happen.
    ///
    /// # Errors
    /// The answer is not yes, or there is no terminal.
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
