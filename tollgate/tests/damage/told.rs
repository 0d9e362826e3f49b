//! What is told: lines of a command that an undamaged ledger does not make it say.
//!
//! Promises: numbers and names that differ from run to run do not make a line new. Leaves to others: which
//! lines are usual (`base`).

use crate::room::{Room, Said};

/// Lines of what a command said, comparable between rooms. Where all is whole `verify` says so in one line,
/// which is not among them; nor is the place of the live table, whose name is drawn.
pub(crate) fn lines(room: &Room, said: &Said) -> Vec<String> {
    let text = said.text();
    let is_news = |line: &&str| !line.starts_with("whole: ") && !line.starts_with("    live table: ");
    text.lines().filter(is_news).map(|line| normal(room, line)).collect()
}

/// Whether `verify` says that the database has not got all yet: then what `usage` says is not the last word.
pub(crate) fn has_more_to_come(verified: &Said) -> bool {
    verified.out.contains(" journal entries") && !verified.out.contains(" 0 journal entries")
}

/// A line without what differs from run to run.
pub(crate) fn normal(room: &Room, line: &str) -> String {
    let line = line.replace(&room.directory.display().to_string(), "ROOM");
    let mut normal = String::new();
    for sign in line.chars() {
        let sign = if sign.is_ascii_digit() { '#' } else { sign };
        if sign != '#' || !normal.ends_with('#') {
            normal.push(sign);
        }
    }
    // Flow or flows, byte or bytes.
    normal.replace("flows", "flow").replace("bytes", "byte")
}
