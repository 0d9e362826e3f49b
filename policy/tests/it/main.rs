//! Tests through the crate's public interface: tables in `testdata/` and properties, in one binary.

mod classes;
mod decisions;
mod model;
mod reasons;
mod rules;
mod table;
