//! Tests of the crate from outside: tables in `testdata/` and properties, in one binary.

mod classes;
mod decisions;
mod model;
mod reasons;
mod rules;
mod table;
