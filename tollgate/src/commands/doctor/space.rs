//! Whether the live table of the ledger has room where it will lie.
//!
//! Guarantees: what is told to people is told to programs too. Leaves out: looking
//! (`ledger::live_table::room`).

use ledger::OpenSettings;
use ledger::live_table::space::TableSpace;
use serde_json::{Value, json};

/// See the file's header.
pub(super) struct LiveTableSpace(Result<TableSpace, String>);

impl LiveTableSpace {
    pub(super) fn read(settings: &OpenSettings) -> LiveTableSpace {
        LiveTableSpace(TableSpace::of(settings).map_err(|error| error.to_string()))
    }

    #[cfg(test)]
    pub(super) fn from_space(space: TableSpace) -> LiveTableSpace {
        LiveTableSpace(Ok(space))
    }

    /// Whether there is room, or that cannot be told.
    pub(super) fn is_enough(&self) -> bool {
        self.0.as_ref().is_ok_and(TableSpace::is_enough) || self.0.is_err()
    }

    /// A sentence, and the command that helps if there is no room.
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
                        format!("fails: {text}: the table comes to a disk, or `serve` is refused."),
                        Some(command),
                    ),
                }
            }
            Err(error) => (format!("Unknown: the room for the live table: {error}."), None),
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
