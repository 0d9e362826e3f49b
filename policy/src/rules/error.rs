//! The errors of rules. Each text names the fault and the correct form; it quotes input only in printable
//! form, so that a log or a terminal can show it.

use ipnet::IpNet;
use thiserror::Error;

use super::RULE_BYTES_MAX;
use crate::host::{LABEL_BYTES_MAX, NAME_BYTES_MAX};

/// Why a text is not a rule; always the operator's mistake. The text names the remedy.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "each variant's text is its documentation")]
pub enum RuleError {
    #[error("a rule is empty; write host:port, *.domain:port, network/length:port or @set")]
    Empty,
    #[error("a rule has {bytes} bytes; at most {RULE_BYTES_MAX} can be read")]
    TooLong { bytes: usize },
    #[error("{found} cannot stand in a rule; write host:port, *.domain:port, network/length:port or @set")]
    Unexpected { found: Box<str> },
    #[error("a rule has no scheme; leave out {scheme}:// and write {host}, with a port if you mean one")]
    Scheme { scheme: Box<str>, host: Box<str> },
    #[error("what stands before / is no address; a rule has no path, and a network is like 10.20.0.0/16")]
    Path,
    #[error("@ stands only at the start of a rule, before the name of a set")]
    At,
    #[error(
        "@{name} with a port: a set's rules carry their own ports; write @{name} and set the ports in the set"
    )]
    SetPort { name: Box<str> },
    #[error(
        "@{name} names no possible set; \
         a name is 1 to 64 letters, digits and . _ - + @, beginning with none of . - + @"
    )]
    SetName { name: Box<str> },
    #[error(
        "* stands only at the start, as in *.example.com; for every public address write 0.0.0.0/0 and ::/0"
    )]
    Wildcard,
    #[error("the name is missing; write host:port, or *.domain:port for all below a domain")]
    HostMissing,
    #[error("a name cannot begin with a dot; write {name} for the name itself, *.{name} for all below it")]
    LeadingDot { name: Box<str> },
    #[error("a name is written without the dot at its end; write {name}")]
    TrailingDot { name: Box<str> },
    #[error("a name has two dots in a row")]
    EmptyLabel,
    #[error("a part of a name has {bytes} bytes; at most {LABEL_BYTES_MAX} are possible between two dots")]
    LabelTooLong { bytes: usize },
    #[error("a part of a name begins or ends with -; no host is called so")]
    Hyphen,
    #[error("a name has {bytes} bytes; at most {NAME_BYTES_MAX} are possible")]
    NameTooLong { bytes: usize },
    #[error("not a valid international name; check its letters and its xn-- parts")]
    NotInternational,
    #[error(
        "{text} looks like an address in a spelling that programs read differently; \
         write four decimal numbers without leading zeros, such as 10.0.0.1"
    )]
    AmbiguousAddress { text: Box<str> },
    #[error("an IPv6 address needs brackets; write {advice}")]
    Unbracketed { advice: Box<str> },
    #[error("more than one colon; write host:port, and an IPv6 address in brackets, as in [2001:db8::1]:443")]
    Colons,
    #[error("brackets hold one IPv6 address, as in [2001:db8::1]:443 or [2001:db8::]/32:443")]
    Brackets,
    #[error("an address in a rule has no zone; leave out the part from % on")]
    Zone,
    #[error("/{text} is no prefix length; write a number from 0 to {bits_max}")]
    PrefixLength { text: Box<str>, bits_max: u8 },
    #[error(
        "the address has bits set beyond the prefix; write {network} for the network, or {address} alone"
    )]
    HostBits { network: IpNet, address: Box<str> },
    #[error("the port is missing after the colon; leave out the colon for any port")]
    PortMissing,
    #[error("a port cannot be *; leave out the colon and the port for any port")]
    PortWildcard,
    #[error(
        "{text} is no port; write one number from 1 to 65535 without leading zeros, or a range like 8000-8999"
    )]
    Port { text: Box<str> },
    #[error("the ports {first}-{last} run backwards; write {last}-{first}")]
    PortsReversed { first: u16, last: u16 },
}

impl RuleError {
    /// The error for a character that is not allowed in a rule, in printable form.
    pub(crate) fn unexpected(found: char) -> Self {
        Self::Unexpected { found: format!("{found:?}").into() }
    }
}
