//! Our own addresses: where this gateway itself listens, so that nobody is tunnelled into it.
//!
//! Promises: an address that reaches one of our listeners is known as ours in every spelling, and a
//! listener on a wildcard address is ours on every loopback and unspecified address too. Leaves to others:
//! which addresses the machine's interfaces have (the caller expands wildcards).

use std::net::{IpAddr, SocketAddr};

use crate::address::{self, AddressClass};

/// The listeners' addresses and ports.
#[derive(Debug, Default)]
pub(crate) struct OwnAddresses {
    /// Sorted, without IPv4-mapped addresses.
    exact: Box<[(IpAddr, u16)]>,
    /// Wildcard listeners, sorted: the port, and whether it is the IPv6 wildcard, which hears IPv4 too.
    wildcards: Box<[(u16, bool)]>,
}

impl OwnAddresses {
    pub(crate) fn new(listeners: &[SocketAddr]) -> Self {
        let canonical = listeners.iter().map(|listener| (listener.ip().to_canonical(), listener.port()));
        let (wildcards, exact): (Vec<_>, Vec<_>) =
            canonical.partition(|(address, _)| address.is_unspecified());
        let mut wildcards: Vec<_> =
            wildcards.into_iter().map(|(address, port)| (port, address.is_ipv6())).collect();
        let mut exact = exact;
        exact.sort_unstable();
        wildcards.sort_unstable();
        Self { exact: exact.into(), wildcards: wildcards.into() }
    }

    /// Whether a connection to this address would end at ourselves.
    pub(crate) fn hold(&self, address: IpAddr, port: u16) -> bool {
        if self.holds_plainly(address, port) {
            return true;
        }
        match address {
            IpAddr::V4(_) => false,
            IpAddr::V6(carrier) => {
                address::embedded(carrier).any(|carried| self.holds_plainly(carried.into(), port))
            }
        }
    }

    fn holds_plainly(&self, address: IpAddr, port: u16) -> bool {
        let by_wildcard = |is_ipv6| self.wildcards.binary_search(&(port, is_ipv6)).is_ok();
        let is_this_machine =
            matches!(address::classify(address), AddressClass::Loopback | AddressClass::Unspecified);
        self.exact.binary_search(&(address, port)).is_ok()
            || (is_this_machine && (by_wildcard(true) || (address.is_ipv4() && by_wildcard(false))))
    }
}
