//! Durable usage: records, their way to SQLite, and the questions asked of them.

#![forbid(unsafe_code)]
