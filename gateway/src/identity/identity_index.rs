//! What is derived once from each configuration, so that identifying a client is a lookup.
//!
//! Guarantees: immutable, and shared by all threads. Where source networks nest, an address belongs to the
//! user of the smallest network that holds it.
//!
//! Not handled here: that no network belongs to two users, which `config` checks.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use policy::UserIndex;

use crate::config::User;
use crate::users::{Argon2Cost, Credential, PasswordHash};

/// Source networks by address, and the hashes that make all password checks equally slow.
pub struct IdentityIndex {
    /// Source networks by their first address; an enclosing network precedes those inside it. IPv4 sorts
    /// before IPv6.
    sources: Box<[Source]>,
    /// A hash of each cost that users' passwords have. Each check computes one of every cost, so that its
    /// time reveals neither the user nor whether the name exists.
    decoys: Arc<[PasswordHash]>,
}

struct Source {
    first: IpAddr,
    last: IpAddr,
    user: UserIndex,
    /// The position of the smallest network that encloses this one.
    enclosing: Option<usize>,
}

impl IdentityIndex {
    /// The index of these users.
    pub fn new(users: &[User]) -> IdentityIndex {
        let networks = users.iter().flat_map(|user| user.from.iter().map(|network| (network, user.index)));
        let mut sources: Vec<Source> = networks
            .map(|(network, user)| Source {
                first: network.network(),
                last: network.broadcast(),
                user,
                enclosing: None,
            })
            .collect();
        sources.sort_by_key(|source| (source.first, Reverse(source.last)));
        // Networks are nested or disjoint. So the network that encloses the next one is the one before it, or
        // one that encloses that.
        for next in 1..sources.len() {
            let mut enclosing = Some(next - 1);
            while let Some(outer) = enclosing.filter(|&outer| sources[outer].last < sources[next].first) {
                enclosing = sources[outer].enclosing;
            }
            sources[next].enclosing = enclosing;
        }
        let passwords = users.iter().filter_map(|user| match &user.credential {
            Some(Credential::Password(hash)) => Some(hash),
            _ => None,
        });
        let decoys: BTreeMap<Argon2Cost, &PasswordHash> = passwords.map(|hash| (hash.cost(), hash)).collect();
        IdentityIndex { sources: sources.into(), decoys: decoys.into_values().cloned().collect() }
    }

    /// The user with the smallest source network that holds `address`.
    pub(crate) fn user_at(&self, address: IpAddr) -> Option<UserIndex> {
        let address = address.to_canonical();
        let after = self.sources.partition_point(|source| source.first <= address);
        let mut source = self.sources.get(after.checked_sub(1)?)?;
        // At most as many steps as networks can nest: one for each prefix length.
        while source.last < address {
            source = &self.sources[source.enclosing?];
        }
        Some(source.user)
    }

    /// A hash of each cost; empty if no user has a password.
    pub(crate) fn decoys(&self) -> &Arc<[PasswordHash]> {
        &self.decoys
    }
}

/// Shows no contents: they do not belong into a log.
impl fmt::Debug for IdentityIndex {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("IdentityIndex").finish_non_exhaustive()
    }
}
