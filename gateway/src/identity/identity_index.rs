//! What is worked out once for each configuration, so that recognising a client is a lookup.
//!
//! Promises: immutable, shared by all threads; where source networks nest, an address belongs to the user of
//! the smallest one that holds it. Leaves to others: names (the policy's own table) and that no network
//! belongs to two users (`config`).

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use policy::UserIndex;

use crate::config::User;
use crate::identity::users::{Argon2Cost, Credential, PasswordHash};

/// See the file's header.
pub struct IdentityIndex {
    /// Source networks by their first address, an enclosing one before those inside it. IPv4 sorts before
    /// IPv6.
    sources: Box<[Source]>,
    /// A hash of each cost that users' passwords have. A check makes one of every cost, so that its time does
    /// not tell whose it is, nor whether there is such a user.
    decoys: Arc<[PasswordHash]>,
}

struct Source {
    first: IpAddr,
    last: IpAddr,
    user: UserIndex,
    /// The position of the smallest network around this one.
    enclosing: Option<usize>,
}

impl IdentityIndex {
    /// The roster of these users.
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
        // Networks are nested or apart, so the one around the next is the one before it, or around that.
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

    /// The user to whom `address` belongs.
    pub(super) fn user_at(&self, address: IpAddr) -> Option<UserIndex> {
        let address = address.to_canonical();
        let after = self.sources.partition_point(|source| source.first <= address);
        let mut source = self.sources.get(after.checked_sub(1)?)?;
        // As many steps as networks can nest: one for each length of a prefix.
        while source.last < address {
            source = &self.sources[source.enclosing?];
        }
        Some(source.user)
    }

    /// A hash of each cost; none if nobody has a password.
    pub(super) fn decoys(&self) -> &Arc<[PasswordHash]> {
        &self.decoys
    }
}

/// Nothing of it belongs into a log.
impl fmt::Debug for IdentityIndex {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Roster").finish_non_exhaustive()
    }
}
