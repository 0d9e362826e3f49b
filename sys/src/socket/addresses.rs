//! The addresses of this machine's interfaces.
//!
//! Not handled here: other addresses that the kernel delivers to this machine (`route`).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The addresses of this machine's interfaces, each once.
///
/// # Errors
/// `ENOMEM`, or `EMFILE` for the netlink socket behind `getifaddrs`.
pub fn local_addresses() -> io::Result<Vec<IpAddr>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: `first` is a valid location for the list's head; the list is freed below, once.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut addresses = Vec::new();
    let mut next = first;
    while !next.is_null() {
        // SAFETY: `next` is a node of the list from getifaddrs, which is not freed yet.
        let node = unsafe { &*next };
        // SAFETY: an interface address is null or points to a sockaddr of its own family's size.
        if let Some(address) = unsafe { to_ip(node.ifa_addr) } {
            addresses.push(address);
        }
        next = node.ifa_next;
    }
    // SAFETY: `first` came from getifaddrs, and no borrow of the list is left.
    unsafe { libc::freeifaddrs(first) };
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}

/// # Safety
/// `address` is null or points to a socket address that is as long as its family says.
unsafe fn to_ip(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: not null, and every socket address begins with its family (guaranteed by the caller).
    match i32::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family says that it is a sockaddr_in; read_unaligned requires no alignment.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr))))
        }
        libc::AF_INET6 => {
            // SAFETY: as above, for sockaddr_in6.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_addresses_include_loopback() {
        let addresses = local_addresses().unwrap();
        assert!(addresses.contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)), "{addresses:?}");
    }
}
