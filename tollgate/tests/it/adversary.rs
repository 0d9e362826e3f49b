//! Attacks: each runs against the real program beside a valid user, whose requests succeed while it lasts.
//!
//! Guarantees: a test's header says what an attacker spends per unit of harm; what the attack took is given
//! back afterwards. Leaves out: single malformed messages (`bad_inputs`).

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
