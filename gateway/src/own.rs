//! Whether a connection that stands leads back to this gateway.
//!
//! Guarantees: judged once the connection stands, by the configuration and the kernel's routes of that
//! moment. So neither an address that was added, nor a listener that a reload added, nor a SYN that was sent
//! before either is missed. Leaves out: translation of addresses, which an operator states (`[network]
//! own_addresses`), and what is known before dialling, which the policy denies.
//!
//! A list of interface addresses that rtnetlink's notices keep fresh was considered: it lags, it can
//! overflow, and it lacks local routes. The addresses of a socket's two ends do not tell either: Linux leaves
//! for a secondary address from the primary one.

use std::io;
use std::net::SocketAddr;

use policy::{AddressClass, Policy};

/// Whether a connection to `address` reaches a listener that `policy` knows as the gateway's own.
///
/// # Errors
/// Why the kernel does not say.
pub(crate) fn leads_back(policy: &Policy, address: SocketAddr) -> io::Result<bool> {
    let (ip, port) = (address.ip(), address.port());
    if policy.address_class(ip, port) == AddressClass::Ours {
        return Ok(true);
    }
    for heard in policy.heard_if_local(ip, port) {
        if sys::route::is_local(heard)? {
            return Ok(true);
        }
    }
    Ok(false)
}
