//! Detects whether an established connection leads back to this gateway.
//!
//! Guarantees: decided once the connection is established, by the configuration and the kernel's routes at
//! that time. So neither an added address, nor a listener that a reload added, nor a SYN that was sent before
//! either is missed.
//!
//! Not handled here: address translation, which an operator declares (`[network] own_addresses`), and what is
//! known before dialling, which the policy denies.
//!
//! A list of interface addresses that rtnetlink keeps up to date was considered. It lags, it can overflow,
//! and it lacks local routes. The addresses of a socket's two ends do not suffice either: towards a secondary
//! address Linux uses the primary one as the source.

use std::io;
use std::net::SocketAddr;

use policy::{AddressClass, Policy};

/// Whether a connection to `address` reaches a listener that `policy` knows as the gateway's own.
///
/// # Errors
/// Why the kernel's routes cannot be read.
pub(crate) fn leads_back(policy: &Policy, address: SocketAddr) -> io::Result<bool> {
    let (ip, port) = (address.ip(), address.port());
    if policy.address_class(ip, port) == AddressClass::Own {
        return Ok(true);
    }
    for heard in policy.reached_if_local(ip, port) {
        if sys::route::is_local(heard)? {
            return Ok(true);
        }
    }
    Ok(false)
}
