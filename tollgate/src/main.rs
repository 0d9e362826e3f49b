//! Tollgate: a metered egress gateway.

fn main() {}
