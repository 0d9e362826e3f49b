//! The network that counts as one source.

use std::net::IpAddr;

/// The source of an address: the address itself of IPv4, its /64 of IPv6 (the other bits zero).
pub fn source_network(source: IpAddr) -> IpAddr {
    match source.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
    }
}
