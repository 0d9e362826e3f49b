//! A descriptor that is kept for the case that there is none: what answers health must answer then.
//!
//! Guarantees: while the process has used up its descriptors, one connection at a time can be accepted.
//! Leaves out: a descriptor of the machine (`ENFILE`), which other processes may take first.

use std::fs::File;

/// See the file's header.
pub(crate) struct SpareDescriptor(Option<File>);

impl SpareDescriptor {
    /// Keeps one, if there is one.
    pub(crate) fn new() -> SpareDescriptor {
        let mut spare = SpareDescriptor(None);
        spare.reserve();
        spare
    }

    /// Keeps one again, if there is one.
    pub(crate) fn reserve(&mut self) {
        if self.0.is_none() {
            self.0 = File::open("/dev/null").ok();
        }
    }

    /// Frees the one that is kept, for an accept that follows at once; says whether there was one.
    pub(crate) fn release(&mut self) -> bool {
        self.0.take().is_some()
    }
}
