//! Attacks: each runs against the real program beside a valid user, whose requests succeed meanwhile.
//!
//! Guarantees: a test's header states an attacker's cost for each unit of harm. After the attack all
//! resources that it held are free again. `bad_inputs` tests single malformed messages.

mod admin;
mod dials;
mod flow_permits;
mod footprint;
mod lingering;
mod log_flood;
mod names;
mod orphans;
mod own_addresses;
mod passwords;
mod resolving;
mod silent_connections;
mod stale_configuration;
mod stalled_receivers;
mod unknown_clients;
mod valid_user;
