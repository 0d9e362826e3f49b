//! Who may reach what: pure functions of facts and now.

#![forbid(unsafe_code)]
