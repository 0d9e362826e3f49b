//! A reserve descriptor, so that health checks are served when the process has used up its descriptors.
//!
//! Guarantees: at the process's limit (`EMFILE`) one connection at a time can be accepted.
//! Not handled here: the machine's limit (`ENFILE`), where another process may take the freed descriptor.

use std::fs::File;

/// An open descriptor of `/dev/null`, closed to make way for an accepted connection.
pub(crate) struct SpareDescriptor(Option<File>);

impl SpareDescriptor {
    /// Opens the descriptor, if the limit allows it.
    pub(crate) fn new() -> SpareDescriptor {
        let mut spare = SpareDescriptor(None);
        spare.reserve();
        spare
    }

    /// Opens the descriptor again after a release, if the limit allows it.
    pub(crate) fn reserve(&mut self) {
        if self.0.is_none() {
            self.0 = File::open("/dev/null").ok();
        }
    }

    /// Closes the descriptor for an accept that follows at once; returns whether one was open.
    pub(crate) fn release(&mut self) -> bool {
        self.0.take().is_some()
    }
}
