//! SOCKS5 on the server's side: RFC 1928, with the user and password of RFC 1929. Only CONNECT is served.
//!
//! Guarantees: each parser takes a buffer with less or more than one message, and returns the length of the
//! message. It refuses a wrong version, command or type before the rest of the message has arrived.
//!
//! Not handled here: the order of the messages, and the choice of the method.
//!
//! ```text
//!  client                                         server
//!  greeting        05 n methods..           --->
//!                                           <---  05 method            write_method
//!  user_password   01 n user.. n secret..   --->
//!                                           <---  01 status            write_password_status
//!  request         05 01 00 type host port  --->
//!                                           <---  05 reply 00 address  write_reply
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;

use crate::credentials::{Credentials, CredentialsError};
use crate::target::{Host, Target, TargetError};

/// The SOCKS4 reply "rejected": reply version 0, code 91, six unused bytes.
pub const SOCKS4_REFUSED: [u8; 8] = [0, 91, 0, 0, 0, 0, 0, 0];

const VERSION: u8 = 5;
/// The version of RFC 1929's own messages.
const PASSWORD_VERSION: u8 = 1;
const COMMAND_CONNECT: u8 = 1;
const ADDRESS_IPV4: u8 = 1;
const ADDRESS_NAME: u8 = 3;
const ADDRESS_IPV6: u8 = 4;

/// A whole message and its length in bytes, or `None` while bytes are missing.
pub type Parsed<T> = Result<Option<(T, usize)>, Socks5Error>;

/// An authentication method, as numbered on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Method {
    /// No authentication.
    NoAuthentication = 0x00,
    /// User and password (RFC 1929).
    UserPassword = 0x02,
    /// No offered method is acceptable: the client must close.
    Unacceptable = 0xff,
}

/// The known methods that a client offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// The client offers to send no credentials.
    pub offers_no_authentication: bool,
    /// The client offers to send user and password.
    pub offers_user_password: bool,
}

/// Parses the list of methods that a client offers.
pub fn greeting(buffer: &[u8]) -> Parsed<Greeting> {
    match *buffer {
        [version, ..] if version != VERSION => Err(Socks5Error::GreetingVersion(version)),
        [_, 0, ..] => Err(Socks5Error::MethodsMissing),
        [_, count, ref rest @ ..] => Ok(rest.get(..usize::from(count)).map(|methods| {
            let offers = |method: Method| methods.contains(&(method as u8));
            let greeting = Greeting {
                offers_no_authentication: offers(Method::NoAuthentication),
                offers_user_password: offers(Method::UserPassword),
            };
            (greeting, 2 + methods.len())
        })),
        _ => Ok(None),
    }
}

/// Parses the user and password of RFC 1929; `None` for an empty password, which that RFC does not allow.
///
/// A Java client without configured credentials offers [`Method::UserPassword`] all the same. It then sends
/// the name of its system account with an empty password: it presents no credentials.
pub fn user_password(buffer: &[u8]) -> Parsed<Option<Credentials>> {
    let Some((&version, rest)) = buffer.split_first() else { return Ok(None) };
    if version != PASSWORD_VERSION {
        return Err(Socks5Error::PasswordVersion(version));
    }
    let Some((user, rest)) = split_counted(rest) else { return Ok(None) };
    let Some((secret, rest)) = split_counted(rest) else { return Ok(None) };
    let credentials = (!secret.is_empty()).then(|| Credentials::new(user, secret)).transpose()?;
    Ok(Some((credentials, buffer.len() - rest.len())))
}

/// Parses a request: the target of a CONNECT. The commands BIND and UDP ASSOCIATE are errors.
pub fn request(buffer: &[u8]) -> Parsed<Target> {
    match *buffer {
        [version, ..] if version != VERSION => Err(Socks5Error::RequestVersion(version)),
        [_, command, ..] if command != COMMAND_CONNECT => Err(Socks5Error::CommandUnsupported(command)),
        [_, _, reserved, ..] if reserved != 0 => Err(Socks5Error::ReservedNotZero(reserved)),
        [_, _, _, address_type, ref rest @ ..] => {
            let Some((host, rest)) = split_host(address_type, rest)? else { return Ok(None) };
            let Some((port, rest)) = rest.split_first_chunk() else { return Ok(None) };
            let host = host.parse()?;
            let port = NonZeroU16::new(u16::from_be_bytes(*port)).ok_or(TargetError::PortInvalid)?;
            Ok(Some((Target { host, port }, buffer.len() - rest.len())))
        }
        _ => Ok(None),
    }
}

/// Appends the choice of a method.
pub fn write_method(out: &mut Vec<u8>, method: Method) {
    out.extend_from_slice(&[VERSION, method as u8]);
}

/// Appends the status of user and password. After a refusal the server must close (RFC 1929, section 2).
pub fn write_password_status(out: &mut Vec<u8>, accepted: bool) {
    out.extend_from_slice(&[PASSWORD_VERSION, u8::from(!accepted)]);
}

/// Appends the reply to a request. `bound` is the local address of the upstream connection; `None` becomes
/// `0.0.0.0:0`, for a failed request or an address that stays private.
pub fn write_reply(out: &mut Vec<u8>, reply: Reply, bound: Option<SocketAddr>) {
    let bound = bound.unwrap_or(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0));
    out.extend_from_slice(&[VERSION, reply as u8, 0]);
    match bound.ip().to_canonical() {
        IpAddr::V4(address) => {
            out.push(ADDRESS_IPV4);
            out.extend_from_slice(&address.octets());
        }
        IpAddr::V6(address) => {
            out.push(ADDRESS_IPV6);
            out.extend_from_slice(&address.octets());
        }
    }
    out.extend_from_slice(&bound.port().to_be_bytes());
}

/// How a request ended, as numbered on the wire (RFC 1928, section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reply {
    /// The tunnel is open.
    Succeeded = 0,
    /// Another failure; here, overload.
    GeneralFailure = 1,
    /// Policy, a quota or a cap refuses.
    NotAllowed = 2,
    /// No route to the network.
    NetworkUnreachable = 3,
    /// No route to the host, or an unknown name.
    HostUnreachable = 4,
    /// The destination refused the connection.
    ConnectionRefused = 5,
    /// The connection took too long to open.
    TtlExpired = 6,
    /// A command other than CONNECT.
    CommandNotSupported = 7,
    /// An address that cannot be used.
    AddressTypeNotSupported = 8,
}

/// Why a message is refused; always the client's fault. [`Socks5Error::write_refusal`] has the reply of each
/// stage of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Socks5Error {
    /// The first byte of a connection is not 5.
    #[error("the client does not speak SOCKS5: its greeting has version {0}")]
    GreetingVersion(u8),
    /// A greeting that offers no method.
    #[error("the SOCKS5 greeting offers no authentication method")]
    MethodsMissing,
    /// RFC 1929 counts from 1; a 5 here is a common slip.
    #[error("the user and password message has version {0}: RFC 1929 requires 1")]
    PasswordVersion(u8),
    /// User or password cannot be used.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The request's version byte is not 5.
    #[error("the SOCKS5 request has version {0}: it must be 5")]
    RequestVersion(u8),
    /// BIND, UDP ASSOCIATE or an unknown command.
    #[error("the SOCKS5 command {0} is not served: only CONNECT (1) is")]
    CommandUnsupported(u8),
    /// The byte that RFC 1928 reserves is in use.
    #[error("the reserved byte of the SOCKS5 request is {0}: it must be 0")]
    ReservedNotZero(u8),
    /// An address type other than IPv4, name and IPv6.
    #[error("the SOCKS5 address type {0} is unknown: send 1 (IPv4), 3 (name) or 4 (IPv6)")]
    AddressTypeUnknown(u8),
    /// The destination cannot be used.
    #[error("the destination of the SOCKS5 request is refused: {0}")]
    Target(#[from] TargetError),
}

impl Socks5Error {
    /// The reply code. Faults before the request have none of their own and count as general failures.
    pub fn reply(&self) -> Reply {
        match self {
            Self::CommandUnsupported(_) => Reply::CommandNotSupported,
            Self::AddressTypeUnknown(_) => Reply::AddressTypeNotSupported,
            Self::Target(error) => error.reply(),
            Self::GreetingVersion(_)
            | Self::MethodsMissing
            | Self::PasswordVersion(_)
            | Self::Credentials(_)
            | Self::RequestVersion(_)
            | Self::ReservedNotZero(_) => Reply::GeneralFailure,
        }
    }

    /// Appends the reply before closing, in the format of the failed stage. A client that does not speak
    /// SOCKS5 gets none.
    pub fn write_refusal(&self, out: &mut Vec<u8>) {
        match self {
            Self::GreetingVersion(_) => {}
            Self::MethodsMissing => write_method(out, Method::Unacceptable),
            Self::PasswordVersion(_) | Self::Credentials(_) => write_password_status(out, false),
            Self::RequestVersion(_)
            | Self::CommandUnsupported(_)
            | Self::ReservedNotZero(_)
            | Self::AddressTypeUnknown(_)
            | Self::Target(_) => write_reply(out, self.reply(), None),
        }
    }
}

impl TargetError {
    /// The SOCKS5 reply for a request with such a target. RFC 1928 has no reply for a malformed address; 08
    /// is the nearest that clients know not to retry.
    pub fn reply(&self) -> Reply {
        Reply::AddressTypeNotSupported
    }
}

/// A host as sent, complete and not yet checked.
enum WireHost<'a> {
    Address(IpAddr),
    Name(&'a [u8]),
}

impl WireHost<'_> {
    /// Some clients send an address as a name; it is parsed as strictly as in an authority.
    fn parse(&self) -> Result<Host, TargetError> {
        match *self {
            Self::Address(address) => Ok(Host::from(address)),
            Self::Name(name) => Host::parse(name),
        }
    }
}

type HostAndRest<'a> = Option<(WireHost<'a>, &'a [u8])>;

fn split_host(address_type: u8, bytes: &[u8]) -> Result<HostAndRest<'_>, Socks5Error> {
    Ok(match address_type {
        ADDRESS_IPV4 => bytes
            .split_first_chunk()
            .map(|(octets, rest)| (WireHost::Address(Ipv4Addr::from_octets(*octets).into()), rest)),
        ADDRESS_IPV6 => bytes
            .split_first_chunk()
            .map(|(octets, rest)| (WireHost::Address(Ipv6Addr::from_octets(*octets).into()), rest)),
        ADDRESS_NAME => split_counted(bytes).map(|(name, rest)| (WireHost::Name(name), rest)),
        _ => return Err(Socks5Error::AddressTypeUnknown(address_type)),
    })
}

/// Splits off a field with a length byte before it.
fn split_counted(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&length, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(length))
}
