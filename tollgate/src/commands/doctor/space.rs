//! Whether the file system of the live table has space for it.
//!
//! Guarantees: JSON and text have the same facts.

use ledger::OpenSettings;
use ledger::live_table::space::TableSpace;
use serde_json::{Value, json};

/// The space of the live table's file system, or why it is unknown.
pub(super) struct LiveTableSpace(Result<TableSpace, String>);

impl LiveTableSpace {
    pub(super) fn read(settings: &OpenSettings) -> LiveTableSpace {
        LiveTableSpace(TableSpace::measure(settings).map_err(|error| error.to_string()))
    }

    #[cfg(test)]
    pub(super) fn from_space(space: TableSpace) -> LiveTableSpace {
        LiveTableSpace(Ok(space))
    }

    /// Whether the space suffices, or is unknown.
    pub(super) fn is_enough(&self) -> bool {
        self.0.as_ref().is_ok_and(TableSpace::is_enough) || self.0.is_err()
    }

    /// A sentence, and the remedy if the space does not suffice.
    pub(super) fn finding(&self) -> (String, Option<String>) {
        match &self.0 {
            Ok(space) => {
                let TableSpace { directory, needed, free, .. } = space;
                let directory = directory.display();
                let text =
                    format!("the live table takes {needed} bytes in {directory}, where {free} are free");
                let command = format!(
                    "mount -o remount,size={} {directory} # or set [ledger] live_table to another tmpfs",
                    space.size_needed()
                );
                match space.is_enough() {
                    true => (format!("Fine: {text}."), None),
                    false => (
                        format!("fails: {text}: the table is put on a disk, or `serve` refuses to start."),
                        Some(command),
                    ),
                }
            }
            Err(error) => (format!("Unknown: the space for the live table: {error}."), None),
        }
    }

    pub(super) fn json(&self) -> Value {
        let space = self.0.as_ref().ok();
        json!({
            "directory": space.map(|space| space.directory.display().to_string()),
            "needed": space.map(|space| space.needed),
            "free": space.map(|space| space.free),
            "enough": space.map(TableSpace::is_enough),
            "command": self.finding().1,
            "trouble": self.0.as_ref().err(),
        })
    }
}
