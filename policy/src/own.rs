//! The gateway's own listening addresses, to which no client may be tunnelled.
//!
//! Guarantees: every spelling of an address that reaches a listener is recognised. For a listener on a
//! wildcard address these include all loopback and unspecified addresses.
//!
//! Not handled here: the addresses of the machine's interfaces (the caller expands wildcards).

use std::net::{IpAddr, SocketAddr};

use crate::address::{self, AddressClass};

/// The listeners' addresses and ports.
#[derive(Debug, Default)]
pub(crate) struct OwnAddresses {
    /// Sorted, without IPv4-mapped addresses.
    exact: Box<[(IpAddr, u16)]>,
    /// Wildcard listeners, sorted: the port, and whether it is the IPv6 wildcard, which accepts IPv4 too.
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

    /// Whether a connection to this address would reach the gateway itself.
    pub(crate) fn contains(&self, address: IpAddr, port: u16) -> bool {
        if self.contains_directly(address, port) {
            return true;
        }
        match address {
            IpAddr::V4(_) => false,
            IpAddr::V6(v6) => {
                address::embedded(v6).any(|embedded| self.contains_directly(embedded.into(), port))
            }
        }
    }

    /// Of an address and its embedded ones, those through which a connection to this port reaches a wildcard
    /// listener if they are local to the machine.
    pub(crate) fn reached_if_local(&self, address: IpAddr, port: u16) -> impl Iterator<Item = IpAddr> {
        let embedded = match address {
            IpAddr::V4(_) => None,
            IpAddr::V6(v6) => Some(address::embedded(v6).map(IpAddr::V4)),
        };
        let all = std::iter::once(address).chain(embedded.into_iter().flatten());
        all.filter(move |address| self.has_wildcard_listener(*address, port))
    }

    /// Whether a wildcard listener accepts this port on all addresses of the family. The IPv6 wildcard counts
    /// for IPv4 too, because the admin listener's socket is dual-stack.
    fn has_wildcard_listener(&self, address: IpAddr, port: u16) -> bool {
        let by_wildcard = |is_ipv6| self.wildcards.binary_search(&(port, is_ipv6)).is_ok();
        by_wildcard(true) || (address.is_ipv4() && by_wildcard(false))
    }

    fn contains_directly(&self, address: IpAddr, port: u16) -> bool {
        let is_this_machine =
            matches!(address::classify(address), AddressClass::Loopback | AddressClass::Unspecified);
        self.exact.binary_search(&(address, port)).is_ok()
            || (is_this_machine && self.has_wildcard_listener(address, port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcard_listeners_cover_local_addresses() {
        let listeners = ["0.0.0.0:3128", "[::]:9128", "192.0.2.1:1080"].map(|text| text.parse().unwrap());
        let own = OwnAddresses::new(&listeners);
        let check = |address: &str, port, expected: &[&str]| {
            let reached: Vec<IpAddr> = own.reached_if_local(address.parse().unwrap(), port).collect();
            let expected: Vec<IpAddr> = expected.iter().map(|text| text.parse().unwrap()).collect();
            assert_eq!(reached, expected, "{address} {port}");
        };
        check("198.51.100.7", 3128, &["198.51.100.7"]);
        check("198.51.100.7", 9128, &["198.51.100.7"]);
        check("198.51.100.7", 1080, &[]);
        check("2001:db8::7", 3128, &[]);
        check("2001:db8::7", 9128, &["2001:db8::7"]);
        // By way of a NAT64 gateway it reaches the IPv4 address.
        check("64:ff9b::c633:6407", 3128, &["198.51.100.7"]);
        check("64:ff9b::c633:6407", 9128, &["64:ff9b::c633:6407", "198.51.100.7"]);
    }
}
