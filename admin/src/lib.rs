//! The control side: health and metrics on a thread of its own.

#![forbid(unsafe_code)]
