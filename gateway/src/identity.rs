//! What identifies clients: the index of users, the cache of verified credentials, the checks of passwords.

mod check_queue;
pub(crate) mod credential_cache;
mod identity_index;
pub(crate) mod shared;
pub mod throttle;

pub(crate) use credential_cache::CredentialCache;
pub use identity_index::IdentityIndex;
pub use shared::AuthShared;
