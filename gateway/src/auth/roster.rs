//! What is worked out once for each configuration, so that recognising a client is a lookup.
//!
//! Promises: immutable, shared by all threads. Leaves to others: names (the policy's own table) and that no
//! address belongs to two users (`config`).

use std::fmt;
use std::net::IpAddr;

use policy::UserIndex;

use crate::config::User;
use crate::users::{Credential, PasswordHash};

/// See the file's header.
pub struct Roster {
    /// Source networks by their first address, none inside another. IPv4 sorts before IPv6.
    sources: Box<[Source]>,
    /// What the secret of an unknown user is hashed against: somebody's own hash, so that it costs the same.
    decoy: Option<PasswordHash>,
}

struct Source {
    first: IpAddr,
    last: IpAddr,
    user: UserIndex,
}

impl Roster {
    /// The roster of these users.
    pub fn new(users: &[User]) -> Roster {
        let networks = users.iter().flat_map(|user| user.from.iter().map(|network| (network, user.index)));
        let mut sources: Vec<Source> = networks
            .map(|(network, user)| Source { first: network.network(), last: network.broadcast(), user })
            .collect();
        // The wider network comes first, and swallows those inside it: they are the same user's.
        sources.sort_by(|a, b| (a.first, b.last).cmp(&(b.first, a.last)));
        sources.dedup_by(|inner, outer| inner.first <= outer.last);
        let decoy = users.iter().find_map(|user| match &user.credential {
            Some(Credential::Password(hash)) => Some(hash.clone()),
            _ => None,
        });
        Roster { sources: sources.into(), decoy }
    }

    /// The user to whom `address` belongs.
    pub(super) fn user_at(&self, address: IpAddr) -> Option<UserIndex> {
        let address = address.to_canonical();
        let after = self.sources.partition_point(|source| source.first <= address);
        let source = self.sources[..after].last()?;
        (address <= source.last).then_some(source.user)
    }

    pub(super) fn decoy(&self) -> Option<&PasswordHash> {
        self.decoy.as_ref()
    }
}

/// Nothing of it belongs into a log.
impl fmt::Debug for Roster {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Roster").finish_non_exhaustive()
    }
}
