//! Which requests a kept connection to a destination may serve.

use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use proto::target::Target;
use sys::clock::Nanos;

use crate::account::Account;
use crate::flow::closing::SentBytes;

/// How long a connection may have been silent to be trusted with a request that cannot be repeated. Servers
/// keep silent connections for 2 s and more; within a second the end and the request hardly ever cross.
const FRESH: Duration = Duration::from_secs(1);

/// The target and the user of a connection, and its use so far.
pub(crate) struct UpstreamKey {
    pub(crate) target: Box<Target>,
    /// The address that was judged and dialled.
    pub(crate) address: SocketAddr,
    pub(crate) account: Arc<Account>,
    /// When the last response ended; [`Nanos::NEVER`] before the first.
    pub(crate) used_at: Nanos,
    pub(crate) sent: SentBytes,
    /// Writes so far, as far as they matter for TCP_NODELAY: 0, 1 or 2.
    pub(crate) writes: Cell<u8>,
}

impl UpstreamKey {
    /// The key of a connection that has served no request.
    pub(crate) fn new(target: Target, address: SocketAddr, account: &Arc<Account>) -> UpstreamKey {
        let (target, account) = (Box::new(target), Arc::clone(account));
        let (used_at, sent, writes) = (Nanos::NEVER, SentBytes::default(), Cell::new(0));
        UpstreamKey { target, address, account, used_at, sent, writes }
    }

    /// Whether the user was removed or disabled.
    pub(crate) fn is_revoked(&self) -> bool {
        self.account.is_revoked()
    }

    /// Whether a request of `account` for `target` may use the connection at `now`.
    pub(crate) fn fits(
        &self,
        target: &Target,
        account: &Arc<Account>,
        is_repeatable: bool,
        now: Nanos,
    ) -> bool {
        let is_fresh = now.since(self.used_at) < FRESH;
        *self.target == *target && Arc::ptr_eq(&self.account, account) && (is_repeatable || is_fresh)
    }
}
