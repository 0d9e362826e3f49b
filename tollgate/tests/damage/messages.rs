//! Messages: output lines of a command that an undamaged ledger does not cause.
//!
//! Guarantees: numbers and names that differ from run to run do not make a line new. `base` collects the
//! usual lines.

use crate::workspace::{CommandOutput, Workspace};

/// Output lines of a command, comparable between workspaces. Two lines are left out: the one by which
/// `verify` reports a whole ledger, and that of the live table's path, whose name is random.
pub(crate) fn lines(workspace: &Workspace, output: &CommandOutput) -> Vec<String> {
    let text = output.text();
    let is_news = |line: &&str| !line.starts_with("whole: ") && !line.starts_with("    live table: ");
    text.lines().filter(is_news).map(|line| normalize(workspace, line)).collect()
}

/// Whether `verify` reports entries that are not in the database yet: then `usage` is not final.
pub(crate) fn has_unapplied_entries(verified: &CommandOutput) -> bool {
    verified.out.contains(" journal entries") && !verified.out.contains(" 0 journal entries")
}

/// The line without what differs from run to run.
pub(crate) fn normalize(workspace: &Workspace, line: &str) -> String {
    let line = line.replace(&workspace.directory.display().to_string(), "ROOM");
    let mut normalize = String::new();
    for sign in line.chars() {
        let sign = if sign.is_ascii_digit() { '#' } else { sign };
        if sign != '#' || !normalize.ends_with('#') {
            normalize.push(sign);
        }
    }
    // Singular and plural forms are equal.
    normalize.replace("flows", "flow").replace("bytes", "byte")
}
