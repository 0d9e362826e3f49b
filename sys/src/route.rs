//! Whether the kernel would deliver a packet to this machine or route it elsewhere (netlink RTM_GETROUTE).
//!
//! Guarantees: the result covers what a list of interface addresses lacks: secondary addresses, local routes
//! (`ip route add local`), policy routing. The call never waits: the kernel looks the route up within it.
//!
//! Not handled here: address translation (NAT), which happens after the lookup.
//!
//! ```text
//!   request: nlmsghdr (16 bytes)  rtmsg (12)  RTA_DST: length, type, address
//!   reply:   nlmsghdr, with the type of a route: rtmsg, whose eighth byte is the route's type
//!            nlmsghdr, with the type of an error: a negative errno
//! ```
//!
//! Source: rtnetlink(7), netlink(7), and the numbers of Linux' `linux/netlink.h` and `linux/rtnetlink.h`.

use std::io;
use std::net::IpAddr;

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

const NLMSG_ERROR: u16 = 2;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const NLM_F_REQUEST: u16 = 1;
const RTA_DST: u16 = 1;
const RTN_LOCAL: u8 = 2;

const HEADER_BYTES: usize = 16;
const ROUTE_BYTES: usize = 12;
/// The offset of the route's type, a byte of `rtmsg`.
const ROUTE_TYPE_OFFSET: usize = HEADER_BYTES + 7;

/// The receive buffer; a reply has some 100 bytes, and a longer one is cut after the parts that are read.
const REPLY_BYTES: usize = 1024;

/// Whether a connection to `address` ends at this machine.
///
/// # Errors
/// `EMFILE`, `ENFILE`, `ENOBUFS` or `ENOMEM` for the netlink socket; `EAFNOSUPPORT` where `AF_NETLINK` is
/// forbidden; `EPROTO` for a malformed reply.
pub fn is_local(address: IpAddr) -> io::Result<bool> {
    #[cfg(feature = "simulation")]
    if let Some(simulation) = crate::simulation::current() {
        return Ok(simulation.is_local(address));
    }
    let socket = net::socket_with(AddressFamily::NETLINK, SocketType::RAW, FLAGS, None)?;
    // An unconnected netlink socket sends to the kernel.
    net::send(&socket, &request(address), SendFlags::empty())?;
    let mut reply = [0; REPLY_BYTES];
    let (count, _) = net::recv(&socket, &mut reply[..], RecvFlags::empty())?;
    Ok(parse_reply(&reply[..count])?)
}

fn request(address: IpAddr) -> Vec<u8> {
    let (family, octets) = match address.to_canonical() {
        IpAddr::V4(v4) => (AddressFamily::INET, v4.octets().to_vec()),
        IpAddr::V6(v6) => (AddressFamily::INET6, v6.octets().to_vec()),
    };
    let attribute_bytes = 4 + octets.len();
    let length = HEADER_BYTES + ROUTE_BYTES + attribute_bytes;
    let mut request = Vec::with_capacity(length);
    request.extend(u32::try_from(length).expect("a request has at most 48 bytes").to_ne_bytes());
    request.extend(RTM_GETROUTE.to_ne_bytes());
    request.extend(NLM_F_REQUEST.to_ne_bytes());
    // Sequence number and port id: zero, for one request on this socket.
    request.extend([0; 8]);
    let mut route = [0; ROUTE_BYTES];
    // Both numbers fit into a byte: families are small, and an address has at most 128 bits.
    route[0] = family.as_raw() as u8;
    route[1] = 8 * octets.len() as u8;
    request.extend(route);
    request.extend(u16::try_from(attribute_bytes).expect("an attribute has at most 20 bytes").to_ne_bytes());
    request.extend(RTA_DST.to_ne_bytes());
    request.extend(octets);
    request
}

fn parse_reply(reply: &[u8]) -> Result<bool, Errno> {
    let kind = reply.get(4..6).map(|kind| u16::from_ne_bytes([kind[0], kind[1]]));
    match kind {
        Some(RTM_NEWROUTE) => reply.get(ROUTE_TYPE_OFFSET).map(|kind| *kind == RTN_LOCAL).ok_or(Errno::PROTO),
        Some(NLMSG_ERROR) => {
            let code = reply.get(HEADER_BYTES..HEADER_BYTES + 4).ok_or(Errno::PROTO)?;
            let code = i32::from_ne_bytes([code[0], code[1], code[2], code[3]]);
            match Errno::from_raw_os_error(-code) {
                Errno::NOMEM => Err(Errno::NOMEM),
                Errno::NOBUFS => Err(Errno::NOBUFS),
                // No route, or a prohibiting one: the kernel delivers nothing here.
                _ => Ok(false),
            }
        }
        _ => Err(Errno::PROTO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_local_documentation_is_not() {
        let check = |address: &str, expected: bool| {
            assert_eq!(is_local(address.parse().unwrap()).unwrap(), expected, "{address}");
        };
        check("127.0.0.1", true);
        // All addresses of the loopback network are local, although the interface has only the first.
        check("127.200.3.4", true);
        check("::ffff:127.0.0.1", true);
        // Documentation addresses are not local, with or without a route to them.
        check("192.0.2.1", false);
        check("2001:db8::1", false);
    }

    #[test]
    fn interface_addresses_are_local() {
        for address in crate::socket::local_addresses().unwrap() {
            // Each interface may have the same link-local address, and the request names no interface.
            let is_link_local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
            assert!(is_link_local || is_local(address).unwrap(), "{address}");
        }
    }

    #[test]
    fn truncated_reply_is_an_error() {
        for length in [0, 5, 16, 20] {
            let mut reply = vec![0; length];
            if let Some(kind) = reply.get_mut(4..6) {
                kind.copy_from_slice(&RTM_NEWROUTE.to_ne_bytes());
            }
            assert_eq!(parse_reply(&reply), Err(Errno::PROTO), "{length} bytes");
        }
    }
}
