//! Rules: the syntax of allow and deny rules, and its parser.
//!
//! Guarantees: a rule that parses has one meaning, its `Display` is plain ASCII and parses to the same rule,
//! and an error names the correct form.
//!
//! | rule                          | matches                                                     |
//! |-------------------------------|-------------------------------------------------------------|
//! | `github.com:443`              | this name on this port                                      |
//! | `github.com:8000-8999`        | this name on these ports, both ends included                |
//! | `github.com`                  | this name on any port                                       |
//! | `*.github.com:443`            | any depth below `github.com`, not `github.com` itself       |
//! | `192.0.2.7:22`, `[2001:db8::7]:22` | this address                                           |
//! | `10.20.0.0/16:5432`           | this network                                                |
//! | `2001:db8::/32`, `2001:db8::/32:22`, `[2001:db8::]/32:22`, `[2001:db8::/32]:22` | this network   |
//! | `@corp`                       | all rules of the set `corp`                                 |

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::host::{LABEL_BYTES_MAX, NAME_BYTES_MAX};
use crate::ports::PortRange;

mod error;
mod name;

pub use error::RuleError;

/// The longest rule text, in bytes: enough for a name in any script with its ports.
pub const RULE_BYTES_MAX: usize = 2048;

/// Longest name of a user or of a set, in bytes.
pub const LABEL_NAME_BYTES_MAX: usize = 64;

/// One rule of an allow list, a deny list or a set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    pub(crate) target: RuleTarget,
    /// Any port for a reference to a set.
    pub(crate) ports: PortRange,
}

/// What a rule matches, apart from its ports.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RuleTarget {
    /// This name, in canonical form.
    Name(Box<str>),
    /// Any depth below this name, and not the name itself.
    Below(Box<str>),
    /// This network, with its host bits clear; one address is a network of full length. Never an
    /// IPv4-mapped one.
    Network(IpNet),
    /// The rules of the set of this name.
    Set(Box<str>),
}

impl Rule {
    /// Parses a rule.
    pub fn parse(text: &str) -> Result<Self, RuleError> {
        if text.is_empty() {
            return Err(RuleError::Empty);
        }
        if text.len() > RULE_BYTES_MAX {
            return Err(RuleError::TooLong { bytes: text.len() });
        }
        if let Some(name) = text.strip_prefix('@') {
            return parse_set(name);
        }
        if let Some((scheme, rest)) = text.split_once("://") {
            let host = rest.split('/').next().unwrap_or(rest);
            return Err(RuleError::Scheme { scheme: printable(scheme), host: printable(host) });
        }
        if text.contains('@') {
            return Err(RuleError::At);
        }
        if let Some(found) = text.chars().find(|found| found.is_whitespace() || found.is_control()) {
            return Err(RuleError::unexpected(found));
        }
        let (target, ports) = match text.split_once('/') {
            Some((address, rest)) => parse_network(address, rest)?,
            None if text.starts_with('[') => parse_bracketed(text)?,
            None => parse_host(text)?,
        };
        let ports = ports.map_or(Ok(PortRange::ANY), parse_ports)?;
        Ok(Self { target, ports })
    }

    /// Whether this rule matches names.
    pub(crate) fn is_by_name(&self) -> bool {
        matches!(self.target, RuleTarget::Name(_) | RuleTarget::Below(_))
    }

    /// The name of the referenced set, without the `@`.
    pub fn set_reference(&self) -> Option<&str> {
        match &self.target {
            RuleTarget::Set(name) => Some(name),
            _ => None,
        }
    }
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        Self::parse(text)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            RuleTarget::Set(name) => return write!(formatter, "@{name}"),
            RuleTarget::Name(name) => formatter.write_str(name)?,
            RuleTarget::Below(name) => write!(formatter, "*.{name}")?,
            RuleTarget::Network(network) if network.prefix_len() < network.max_prefix_len() => {
                write!(formatter, "{network}")?;
            }
            RuleTarget::Network(IpNet::V4(network)) => write!(formatter, "{}", network.addr())?,
            RuleTarget::Network(IpNet::V6(network)) => write!(formatter, "[{}]", network.addr())?,
        }
        if self.ports == PortRange::ANY { Ok(()) } else { write!(formatter, ":{}", self.ports) }
    }
}

/// Checks the name of a user or of a set. It appears in log lines, headers and rule texts, so it consists of
/// letters, digits and `. _ - + @` only, and begins with none of `. - + @`.
pub(crate) fn is_label_name(name: &str) -> bool {
    name.len() <= LABEL_NAME_BYTES_MAX
        && name.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '_')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-+@".contains(&byte))
}

/// The parsed target of a rule, and the text of its ports, if present.
type Parsed<'a> = Result<(RuleTarget, Option<&'a str>), RuleError>;

fn parse_set(name: &str) -> Result<Rule, RuleError> {
    if let Some((name, _)) = name.split_once(':') {
        return Err(RuleError::SetPort { name: printable(name) });
    }
    if !is_label_name(name) {
        return Err(RuleError::SetName { name: printable(name) });
    }
    Ok(Rule { target: RuleTarget::Set(name.into()), ports: PortRange::ANY })
}

/// `address/length`, `address/length:ports`, `[address]/length:ports` or `[address/length]:ports`.
fn parse_network<'a>(address_text: &str, rest: &'a str) -> Parsed<'a> {
    let (length, ports) = split_port(rest);
    let (address_text, length, bracketed) = match address_text.strip_prefix('[') {
        None => (address_text, length, false),
        Some(inner) => match (inner.strip_suffix(']'), length.strip_suffix(']')) {
            (Some(inner), None) => (inner, length, true),
            (None, Some(length)) => (inner, length, true),
            _ => return Err(RuleError::Brackets),
        },
    };
    let address = parse_address(address_text)?.ok_or(RuleError::Path)?;
    if bracketed && address.is_ipv4() {
        return Err(RuleError::Brackets);
    }
    let bits_max = if address.is_ipv4() { 32 } else { 128 };
    let length = parse_digits(length)
        .and_then(|length| u8::try_from(length).ok())
        .filter(|length| *length <= bits_max)
        .ok_or_else(|| RuleError::PrefixLength { text: printable(length), bits_max })?;
    let network = IpNet::new(address, length).expect("length <= bits_max");
    if network != network.trunc() {
        let address_rule = Rule { target: RuleTarget::Network(address.into()), ports: PortRange::ANY };
        return Err(RuleError::HostBits {
            network: network.trunc(),
            address: address_rule.to_string().into(),
        });
    }
    Ok((RuleTarget::Network(unmapped(network)), ports))
}

/// `[address]` or `[address]:ports`.
fn parse_bracketed(text: &str) -> Parsed<'_> {
    let (inner, rest) = text[1..].split_once(']').ok_or(RuleError::Brackets)?;
    let Some(IpAddr::V6(address)) = parse_address(inner)? else {
        return Err(RuleError::Brackets);
    };
    let ports = match rest.strip_prefix(':') {
        Some(ports) => Some(ports),
        None if rest.is_empty() => None,
        None => return Err(RuleError::Brackets),
    };
    Ok((RuleTarget::Network(unmapped(IpAddr::V6(address).into())), ports))
}

/// `host` or `host:ports`, where host is an IPv4 address, a name or `*.name`.
fn parse_host(text: &str) -> Parsed<'_> {
    if text.matches(':').count() > 1 {
        return Err(unbracketed(text));
    }
    let (host, ports) = split_port(text);
    if let Ok(address) = host.parse::<Ipv4Addr>() {
        return Ok((RuleTarget::Network(IpAddr::V4(address).into()), ports));
    }
    let (name, is_below) = host.strip_prefix("*.").map_or((host, false), |name| (name, true));
    if name.contains('*') {
        return Err(RuleError::Wildcard);
    }
    let name = name::canonical_name(name)?;
    Ok((if is_below { RuleTarget::Below(name) } else { RuleTarget::Name(name) }, ports))
}

fn split_port(text: &str) -> (&str, Option<&str>) {
    text.split_once(':').map_or((text, None), |(before, ports)| (before, Some(ports)))
}

/// Parses an address; `None` if the text is not like an address, or an error for one in a wrong spelling.
fn parse_address(text: &str) -> Result<Option<IpAddr>, RuleError> {
    if text.contains('%') {
        return Err(RuleError::Zone);
    }
    if let Ok(address) = text.parse() {
        return Ok(Some(address));
    }
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if text.split('.').all(is_number) {
        return Err(RuleError::AmbiguousAddress { text: printable(text) });
    }
    Ok(None)
}

/// The error for more than one colon without brackets: an IPv6 address, one with a port, or neither.
/// `::1:443` may be both.
fn unbracketed(text: &str) -> RuleError {
    let whole = text.parse::<Ipv6Addr>().ok().map(|address| format!("[{address}]"));
    let split = text.rsplit_once(':').and_then(|(address, port)| {
        let (address, port) = (address.parse::<Ipv6Addr>().ok()?, parse_port(port, port).ok()?);
        Some(format!("[{address}]:{port} if {port} is the port"))
    });
    match (whole, split) {
        (Some(whole), Some(split)) => {
            RuleError::Unbracketed { advice: format!("{whole}, or {split}").into() }
        }
        (Some(advice), None) | (None, Some(advice)) => RuleError::Unbracketed { advice: advice.into() },
        (None, None) if text.contains('%') => RuleError::Zone,
        (None, None) => RuleError::Colons,
    }
}

/// Replaces an IPv4-mapped network (`::ffff:10.0.0.0/104`) by its IPv4 network, so that it has one spelling.
pub(crate) fn unmapped(network: IpNet) -> IpNet {
    let mapped = |network: Ipv6Net| {
        let length = network.prefix_len().checked_sub(96)?;
        Ipv4Net::new(network.addr().to_ipv4_mapped()?, length).ok()
    };
    match network {
        IpNet::V4(_) => network,
        IpNet::V6(v6) => mapped(v6).map_or(network, IpNet::V4),
    }
}

fn parse_ports(text: &str) -> Result<PortRange, RuleError> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = PortRange { first: parse_port(first, text)?, last: parse_port(last, text)? };
    if range.first > range.last {
        return Err(RuleError::PortsReversed { first: range.first, last: range.last });
    }
    Ok(range)
}

fn parse_port(text: &str, whole: &str) -> Result<u16, RuleError> {
    if whole.is_empty() {
        return Err(RuleError::PortMissing);
    }
    if whole.contains('*') {
        return Err(RuleError::PortWildcard);
    }
    parse_digits(text)
        .and_then(|port| u16::try_from(port).ok())
        .filter(|port| *port != 0)
        .ok_or_else(|| RuleError::Port { text: printable(whole) })
}

/// A decimal number in its only spelling: digits, no sign, no leading zero.
fn parse_digits(text: &str) -> Option<u32> {
    let is_canonical =
        text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if is_canonical { text.parse().ok() } else { None }
}

/// A part of the input for an error text: printable, and cut to a readable length.
fn printable(text: &str) -> Box<str> {
    const CHARS_MAX: usize = 60;
    let mut shown = String::new();
    for character in text.chars().take(CHARS_MAX) {
        match character {
            '"' | '\'' | '\\' => shown.push(character),
            _ => shown.extend(character.escape_debug()),
        }
    }
    if text.chars().nth(CHARS_MAX).is_some() {
        shown.push_str("...");
    }
    shown.into()
}

// Every canonical rule fits into RULE_BYTES_MAX: `*.`, a name, `:`, and two ports with a dash.
const _: () = assert!(2 + NAME_BYTES_MAX + 1 + 11 <= RULE_BYTES_MAX);
const _: () = assert!(LABEL_BYTES_MAX < NAME_BYTES_MAX);
