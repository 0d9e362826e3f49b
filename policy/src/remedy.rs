//! The remedy of a denial: the narrowest rule that would allow the request, in configuration syntax.
//!
//! Guarantees: the rule, added to the user's allow list directly or as a set, allows this host on this port
//! and address, and opens no other port. A remedy for a name opens nothing for another name.
//!
//! Not handled here: targets that no rule opens, and targets of a deny rule, which would have to be removed.

use std::fmt;
use std::net::IpAddr;

use crate::address::{self, AddressClass};
use crate::host::Host;
use crate::ports::PortRange;
use crate::rules::{Rule, RuleTarget, unmapped};
use crate::verdict::Reason;

/// The rule that would allow a denied request. `Display` writes lines of TOML.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remedy {
    /// A rule for an allow list or, where there is an address, for a set.
    pub rule: Rule,
    /// The address that the set must open to its name.
    pub address: Option<IpAddr>,
}

impl Remedy {
    /// The remedy for a denial with this reason, of a host that resolved to this address, if it was resolved.
    pub fn for_denial(reason: Reason, host: Host<'_>, port: u16, address: Option<IpAddr>) -> Option<Self> {
        if !matches!(reason, Reason::NoRule(_) | Reason::AddressForbidden(_)) || port == 0 {
            return None;
        }
        let (target, resolved) = match host {
            Host::Name(name) => {
                (RuleTarget::Name(name.into()), address.map(|address| address.to_canonical()))
            }
            Host::Address(address) => (RuleTarget::Network(unmapped(address.into())), None),
        };
        let dialled = if let Host::Address(address) = host { Some(address) } else { resolved };
        let class = dialled.map_or(AddressClass::Public, address::classify);
        if matches!(class, AddressClass::Multicast | AddressClass::Unspecified | AddressClass::Own) {
            return None;
        }
        let rule = Rule { target, ports: PortRange { first: port, last: port } };
        Some(Self { rule, address: resolved.filter(|_| class != AddressClass::Public) })
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, address } = self;
        match address {
            None => write!(formatter, "allow = [\"{rule}\"]"),
            Some(address) => {
                write!(formatter, "[destinations.NAME]\nto = [\"{rule}\"]\naddresses = [\"{address}\"]")
            }
        }
    }
}
