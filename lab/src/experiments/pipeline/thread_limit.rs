//! How many threads a process can create, and which kernel limit stops it.

pub(super) mod child;
pub(super) mod limits;
pub(super) mod probe;
pub(super) mod report;
