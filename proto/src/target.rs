//! The target of a request: host and port, parsed strictly and once.
//!
//! Guarantees: a [`Name`] is lower-case, made of plain labels, and never an address in disguise. An address
//! has one spelling (an IPv4-mapped IPv6 address becomes IPv4).

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;
use std::str;

use crate::limits::{LABEL_BYTES_MAX, NAME_BYTES_MAX};

/// The requested host and port. `Display` writes an authority: `host:port`, `[v6]:port`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The requested host, normalised.
    pub host: Host,
    /// The requested port, never 0.
    pub port: NonZeroU16,
}

impl Target {
    /// Parses an authority without user information (RFC 9110, section 9.3.6): `name:port`, `v4:port`,
    /// `[v6]:port`. The port is required.
    pub fn parse_authority(text: &[u8]) -> Result<Self, TargetError> {
        parse_authority(text).map_err(|error| explain_authority(text, error))
    }

    /// As [`Target::parse_authority`], with an optional port.
    pub fn parse_with_port(text: &[u8], default: NonZeroU16) -> Result<Self, TargetError> {
        let names_port = match text {
            [b'[', .., b']'] => false,
            _ => text.contains(&b':'),
        };
        if names_port {
            return Self::parse_authority(text);
        }
        Ok(Self { host: Host::parse(text)?, port: default })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host {
            Host::Address(IpAddr::V6(address)) => write!(formatter, "[{address}]:{}", self.port),
            host => write!(formatter, "{host}:{}", self.port),
        }
    }
}

/// A requested host: a name to resolve, or an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::large_enum_variant, reason = "inline on purpose: a host is copied without allocating")]
pub enum Host {
    /// A host name; [`Name`] states its guarantees.
    Name(Name),
    /// An address; the parsers never yield an IPv4-mapped IPv6 address.
    Address(IpAddr),
}

impl Host {
    /// Parses a host without a port: a name, four decimal numbers, or an IPv6 address with or without
    /// brackets.
    pub fn parse(text: &[u8]) -> Result<Self, TargetError> {
        if let Some(inside) = text.strip_prefix(b"[") {
            return parse_bracketed(inside.strip_suffix(b"]").ok_or(TargetError::BracketNotClosed)?);
        }
        if text.contains(&b':') {
            return parse_ipv6(text).ok_or(TargetError::NotIpv6);
        }
        parse_name_or_ipv4(text)
    }
}

impl From<IpAddr> for Host {
    /// Normalises: an IPv4-mapped IPv6 address becomes the IPv4 address.
    fn from(address: IpAddr) -> Self {
        Self::Address(address.to_canonical())
    }
}

impl fmt::Display for Host {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(formatter),
            Self::Address(address) => address.fmt(formatter),
        }
    }
}

/// A host name in one spelling: 1 to 253 bytes of `a-z 0-9 - _` in labels of 1 to 63 bytes, no trailing dot,
/// no label that begins or ends with `-`, and a last label that no IPv4 parser reads as a number.
///
/// International names must arrive as A-labels (`xn--...`), which are matched as bytes and not decoded here.
#[derive(Clone, Copy)]
pub struct Name {
    /// The first `length` bytes are the name; the rest is zero.
    bytes: [u8; NAME_BYTES_MAX],
    /// 1 <= length <= NAME_BYTES_MAX
    length: u8,
}

impl Name {
    /// Parses and lowers the case of a name; an address in any spelling is an error.
    pub fn parse(text: &[u8]) -> Result<Self, TargetError> {
        match text {
            [] => return Err(TargetError::HostEmpty),
            [.., b'.'] => return Err(TargetError::TrailingDot),
            _ if text.len() > NAME_BYTES_MAX => return Err(TargetError::NameTooLong),
            _ => {}
        }
        let mut bytes = [0; NAME_BYTES_MAX];
        for (lower, &byte) in bytes.iter_mut().zip(text) {
            *lower = lower_case(byte)?;
        }
        let lower_case_bytes = &bytes[..text.len()];
        let mut last_label = lower_case_bytes;
        for label in lower_case_bytes.split(|&byte| byte == b'.') {
            check_label(label)?;
            last_label = label;
        }
        if is_ipv4_number(last_label) {
            return Err(TargetError::AmbiguousAddress);
        }
        Ok(Self { bytes, length: text.len() as u8 })
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        str::from_utf8(self.as_bytes()).expect("a name is ASCII: parse refuses other bytes")
    }

    /// The name as bytes, all of them ASCII.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Name {}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), formatter)
    }
}

/// Why a target is refused; always the client's fault. A text names the remedy where the error leaves it
/// open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The host is missing.
    #[error("the host is empty")]
    HostEmpty,
    /// A name of more than 253 bytes.
    #[error("the host name is longer than {NAME_BYTES_MAX} bytes")]
    NameTooLong,
    /// A label of more than 63 bytes.
    #[error("a label of the host name is longer than {LABEL_BYTES_MAX} bytes")]
    LabelTooLong,
    /// Two dots in a row, or a dot at the beginning.
    #[error("the host name has an empty label: remove the extra dot")]
    LabelEmpty,
    /// A label that begins or ends with `-`.
    #[error("a label of the host name begins or ends with a hyphen")]
    LabelHyphen,
    /// `example.com.`: a second spelling of the host without the dot.
    #[error("the host name ends with a dot: remove it")]
    TrailingDot,
    /// A byte that is forbidden in host names: NUL, controls, spaces, `%`, `/` and the like.
    #[error("the host name contains the byte '{}': only letters, digits, '-', '_' and '.' are allowed",
        .0.escape_ascii())]
    ByteForbidden(u8),
    /// A byte above 127.
    #[error("the host name is not ASCII: send an international name in its xn-- form")]
    NotAscii,
    /// `0177.0.0.1`, `127.1`, `2130706433`, `0x7f.1`: parsers disagree on their meaning.
    #[error(
        "the host looks like an IPv4 address in an unusual spelling: \
         write four decimal numbers without leading zeros"
    )]
    AmbiguousAddress,
    /// Brackets around a text that is not an IPv6 address, or a `:` in a host that is not one.
    #[error("the host is not a valid IPv6 address, and only such an address may have brackets or ':'")]
    NotIpv6,
    /// `[fe80::1%eth0]`: a zone has a meaning on the client's machine only.
    #[error("the IPv6 address carries a zone: remove the part from '%' on")]
    ZoneForbidden,
    /// `[::1` without its closing bracket.
    #[error("the '[' before the IPv6 address is never closed")]
    BracketNotClosed,
    /// `::1:443`: the end of the address is ambiguous.
    #[error("an IPv6 address with a port needs brackets: [address]:port")]
    BracketsMissing,
    /// An authority without a port.
    #[error("the port is missing: write host:port")]
    PortMissing,
    /// Port 0, 65536, -1, +443, 0443, 443x, or empty.
    #[error("the port must be a number from 1 to 65535 without sign, spaces or leading zeros")]
    PortInvalid,
    /// `user@host:port`.
    #[error("the destination contains '@': write host:port only, and set credentials as those of the proxy")]
    UserForbidden,
    /// `https://host/` instead of an authority.
    #[error("the destination must be host:port, not a URL or a path")]
    NotAuthority,
}

impl TargetError {
    /// The HTTP status for a CONNECT to such a target: 400, malformed.
    pub fn status(&self) -> u16 {
        400
    }
}

fn parse_authority(text: &[u8]) -> Result<Target, TargetError> {
    if let Some(rest) = text.strip_prefix(b"[") {
        let end = rest.iter().position(|&byte| byte == b']').ok_or(TargetError::BracketNotClosed)?;
        let host = parse_bracketed(&rest[..end])?;
        let port = match &rest[end + 1..] {
            [] => return Err(TargetError::PortMissing),
            [b':', port @ ..] => parse_port(port)?,
            _ => return Err(TargetError::PortInvalid),
        };
        return Ok(Target { host, port });
    }
    let colon = text.iter().rposition(|&byte| byte == b':').ok_or(TargetError::PortMissing)?;
    let (host, port) = (&text[..colon], &text[colon + 1..]);
    if host.contains(&b':') {
        return Err(TargetError::BracketsMissing);
    }
    Ok(Target { host: parse_name_or_ipv4(host)?, port: parse_port(port)? })
}

/// Replaces the error of the first violated rule by the real fault: a URL, or user information.
fn explain_authority(text: &[u8], error: TargetError) -> TargetError {
    if text.contains(&b'/') {
        return TargetError::NotAuthority;
    }
    if text.contains(&b'@') {
        return TargetError::UserForbidden;
    }
    error
}

/// Decimal digits only: `str::parse` alone would accept a sign and leading zeros.
fn parse_port(text: &[u8]) -> Result<NonZeroU16, TargetError> {
    if text.is_empty() || text.len() > 5 || text[0] == b'0' {
        return Err(TargetError::PortInvalid);
    }
    let mut port = 0u32;
    for &byte in text {
        if !byte.is_ascii_digit() {
            return Err(TargetError::PortInvalid);
        }
        port = port * 10 + u32::from(byte - b'0');
    }
    u16::try_from(port).ok().and_then(NonZeroU16::new).ok_or(TargetError::PortInvalid)
}

fn parse_bracketed(inside: &[u8]) -> Result<Host, TargetError> {
    parse_ipv6(inside).ok_or(if inside.contains(&b'%') {
        TargetError::ZoneForbidden
    } else {
        TargetError::NotIpv6
    })
}

fn parse_ipv6(text: &[u8]) -> Option<Host> {
    let address: Ipv6Addr = str::from_utf8(text).ok()?.parse().ok()?;
    Some(Host::from(IpAddr::V6(address)))
}

/// A host that any IPv4 parser reads as an address must be one that all parsers read alike.
fn parse_name_or_ipv4(text: &[u8]) -> Result<Host, TargetError> {
    match Name::parse(text) {
        Ok(name) => Ok(Host::Name(name)),
        Err(TargetError::AmbiguousAddress) => parse_ipv4(text).ok_or(TargetError::AmbiguousAddress),
        Err(error) => Err(error),
    }
}

/// The standard library's parser is the strict one: four decimal parts, no leading zeros.
fn parse_ipv4(text: &[u8]) -> Option<Host> {
    let address: Ipv4Addr = str::from_utf8(text).ok()?.parse().ok()?;
    Some(Host::Address(IpAddr::V4(address)))
}

fn lower_case(byte: u8) -> Result<u8, TargetError> {
    match byte {
        b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' => Ok(byte),
        b'A'..=b'Z' => Ok(byte.to_ascii_lowercase()),
        b'@' => Err(TargetError::UserForbidden),
        0x80.. => Err(TargetError::NotAscii),
        _ => Err(TargetError::ByteForbidden(byte)),
    }
}

fn check_label(label: &[u8]) -> Result<(), TargetError> {
    match label {
        [] => Err(TargetError::LabelEmpty),
        _ if label.len() > LABEL_BYTES_MAX => Err(TargetError::LabelTooLong),
        [b'-', ..] | [.., b'-'] => Err(TargetError::LabelHyphen),
        _ => Ok(()),
    }
}

/// The test of the WHATWG URL standard ("ends in a number"): `inet_aton` and its relatives read a host as an
/// IPv4 address only if its last part is decimal, octal or `0x` hexadecimal.
fn is_ipv4_number(label: &[u8]) -> bool {
    match label.strip_prefix(b"0x") {
        Some(digits) => digits.iter().all(u8::is_ascii_hexdigit),
        None => label.iter().all(u8::is_ascii_digit),
    }
}
