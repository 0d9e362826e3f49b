//! Users: their names and credentials as stored, and the identification of clients.

mod authenticator;
mod check_queue;
mod credential_cache;
mod identity_index;
mod shared;
pub mod throttle;
pub mod users;

pub use authenticator::{AuthError, Authenticator};
pub(crate) use credential_cache::CredentialCache;
pub use identity_index::IdentityIndex;
pub use shared::AuthShared;
