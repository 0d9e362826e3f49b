//! Automation: tidy, services, docs.

fn main() {}
