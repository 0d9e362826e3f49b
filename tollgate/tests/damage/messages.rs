//! What is told: lines of a command that an undamaged ledger does not make it say.
//!
//! Promises: numbers and names that differ from run to run do not make a line new. Leaves to others: which
//! lines are usual (`base`).

use crate::workspace::{CommandOutput, Workspace};

/// Lines of what a command said, comparable between rooms. Where all is whole `verify` says so in one line,
/// which is not among them; nor is the place of the live table, whose name is drawn.
pub(crate) fn lines(workspace: &Workspace, output: &CommandOutput) -> Vec<String> {
    let text = output.text();
    let is_news = |line: &&str| !line.starts_with("whole: ") && !line.starts_with("    live table: ");
    text.lines().filter(is_news).map(|line| normalize(workspace, line)).collect()
}

/// Whether `verify` says that the database has not got all yet: then what `usage` says is not the last word.
pub(crate) fn has_unapplied_entries(verified: &CommandOutput) -> bool {
    verified.out.contains(" journal entries") && !verified.out.contains(" 0 journal entries")
}

/// A line without what differs from run to run.
pub(crate) fn normalize(workspace: &Workspace, line: &str) -> String {
    let line = line.replace(&workspace.directory.display().to_string(), "ROOM");
    let mut normalize = String::new();
    for sign in line.chars() {
        let sign = if sign.is_ascii_digit() { '#' } else { sign };
        if sign != '#' || !normalize.ends_with('#') {
            normalize.push(sign);
        }
    }
    // Flow or flows, byte or bytes.
    normalize.replace("flows", "flow").replace("bytes", "byte")
}
