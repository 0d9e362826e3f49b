//! A descriptor that is kept for the case that there is none: what answers health must answer then.
//!
//! Guarantees: while the process has used up its descriptors, one connection at a time can be accepted.
//! Leaves out: a descriptor of the machine (`ENFILE`), which other processes may take first.

use std::fs::File;

/// See the file's header.
pub(crate) struct Spare(Option<File>);

impl Spare {
    /// Keeps one, if there is one.
    pub(crate) fn new() -> Spare {
        let mut spare = Spare(None);
        spare.keep();
        spare
    }

    /// Keeps one again, if there is one.
    pub(crate) fn keep(&mut self) {
        if self.0.is_none() {
            self.0 = File::open("/dev/null").ok();
        }
    }

    /// Frees the one that is kept, for an accept that follows at once; says whether there was one.
    pub(crate) fn free(&mut self) -> bool {
        self.0.take().is_some()
    }
}
