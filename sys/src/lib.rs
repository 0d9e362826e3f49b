//! Tollgate's floor: system calls, clock, ring and limits; the only crate with unsafe code.
