//! Credit: what users and teams may still move.

pub mod calendar;
