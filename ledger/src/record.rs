//! The record of one flow: its identity, its counts, and its end.
//!
//! Guarantees: fixed size, no pointer, and text that is always valid UTF-8. Bytes from memory or a file are
//! checked before they become a record.
//!
//! An [`Identity`] is packed once, when the flow begins; the live table and the journal hold its bytes
//! unchanged. Numbers are little-endian:
//!
//! | offset | bytes | field                                                                       |
//! |-------:|------:|-----------------------------------------------------------------------------|
//! |      0 |    16 | flow id                                                                     |
//! |     16 |     8 | opened, nanoseconds since the Unix epoch                                    |
//! |     24 |     2 | port requested and dialled                                                  |
//! |     26 |     2 | port of the client                                                          |
//! |     28 |     1 | class                                                                       |
//! |     29 |     1 | protocol                                                                    |
//! |     30 |     1 | flags: 1 dialled, 2 user cut, 4 rule cut, 8 host cut                        |
//! |     31 |     1 | bytes of the client's address: 4 or 16                                      |
//! |     32 |     1 | bytes of the dialled address: 0 if none was dialled, 4 or 16                |
//! |     33 |     1 | bytes of user                                                               |
//! |     34 |     1 | bytes of rule                                                               |
//! |     35 |     1 | bytes of host                                                               |
//! |     36 |     . | address of the client, address dialled, user, rule, host, one after another |

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use sys::clock::WallNanos;
use thiserror::Error;

use crate::limits::{HOST_BYTES_MAX, IDENTITY_BYTES_MAX, RULE_BYTES_MAX, USER_BYTES_MAX};

/// Bytes of an identity before its addresses and texts.
const FIXED_BYTES: usize = 36;

const _: () = assert!(
    FIXED_BYTES + 16 + 16 + USER_BYTES_MAX + RULE_BYTES_MAX + HOST_BYTES_MAX <= IDENTITY_BYTES_MAX,
    "the longest identity fits"
);

const USER_CUT: u8 = 2;
const RULE_CUT: u8 = 4;
const HOST_CUT: u8 = 8;

/// All that is known of a flow when it begins, packed as the file's header describes.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct Identity {
    /// 0 < length <= IDENTITY_BYTES_MAX
    length: u16,
    /// Zero from `length` on.
    bytes: [u8; IDENTITY_BYTES_MAX],
}

/// Bytes that are not a valid identity, entry or slot, and why.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("{0}")]
pub struct MalformedRecord(pub(crate) &'static str);

impl Identity {
    /// Packs the identity of `flow`. Text beyond its bound is cut at a character's border, and flagged.
    pub fn new(flow: &Flow<'_>) -> Identity {
        let user = cut(flow.user, USER_BYTES_MAX);
        let rule = cut(flow.rule, RULE_BYTES_MAX);
        let host = cut(flow.host, HOST_BYTES_MAX);
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let flags = flag(user.len() < flow.user.len(), USER_CUT)
            | flag(rule.len() < flow.rule.len(), RULE_CUT)
            | flag(host.len() < flow.host.len(), HOST_CUT);
        let (client, client_bytes) = octets(Some(flow.client.ip()));
        let (address, address_bytes) = octets(flow.address);
        let length = |bytes: usize| u8::try_from(bytes).expect("every text is at most 253 bytes long");
        let mut identity = Identity { length: 0, bytes: [0; IDENTITY_BYTES_MAX] };
        identity.put(&flow.id.to_le_bytes());
        identity.put(&flow.opened.0.to_le_bytes());
        identity.put(&flow.port.to_le_bytes());
        identity.put(&flow.client.port().to_le_bytes());
        identity.put(&[flow.class as u8, flow.protocol as u8, flags]);
        identity.put(&[length(client_bytes), length(address_bytes)]);
        identity.put(&[length(user.len()), length(rule.len()), length(host.len())]);
        identity.put(&client[..client_bytes]);
        identity.put(&address[..address_bytes]);
        identity.put(user.as_bytes());
        identity.put(rule.as_bytes());
        identity.put(host.as_bytes());
        identity
    }

    /// Parses `bytes` as one identity without further bytes.
    pub fn parse(bytes: &[u8]) -> Result<Identity, MalformedRecord> {
        if bytes.len() < FIXED_BYTES || bytes.len() > IDENTITY_BYTES_MAX {
            return Err(MalformedRecord("an identity of an impossible length"));
        }
        let mut identity = Identity { length: 0, bytes: [0; IDENTITY_BYTES_MAX] };
        identity.put(bytes);
        identity.unpack().map(|_| identity)
    }

    /// The packed form.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// The packed form, with the zeros behind it.
    pub(crate) fn padded(&self) -> &[u8; IDENTITY_BYTES_MAX] {
        &self.bytes
    }

    /// The flow's id.
    pub fn id(&self) -> u128 {
        u128::from_le_bytes(self.array(0))
    }

    /// Whether the user's, the rule's or the host's text was cut.
    pub fn is_cut(&self) -> bool {
        self.bytes[30] & (USER_CUT | RULE_CUT | HOST_CUT) != 0
    }

    /// Copies `other`, and touches only the bytes that one of the two uses.
    fn copy_from(&mut self, other: &Identity) {
        let (before, length) = (usize::from(self.length), usize::from(other.length));
        self.bytes[..length].copy_from_slice(other.bytes());
        if length < before {
            self.bytes[length..before].fill(0);
        }
        self.length = other.length;
    }

    fn put(&mut self, bytes: &[u8]) {
        let start = usize::from(self.length);
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        self.length += u16::try_from(bytes.len()).expect("an identity is shorter than 64 KiB");
    }

    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        *self.bytes[at..].first_chunk().expect("fixed fields lie within the identity")
    }

    /// The flow of this identity, without counts or an end.
    fn unpack(&self) -> Result<Flow<'_>, MalformedRecord> {
        let [class, protocol, _flags, client_bytes, address_bytes, user_bytes, rule_bytes, host_bytes] =
            self.array(28);
        let mut cursor = Cursor(&self.bytes()[FIXED_BYTES..]);
        let client = cursor.address(client_bytes)?.ok_or(MalformedRecord("a flow without a client"))?;
        let address = cursor.address(address_bytes)?;
        let user = cursor.text(user_bytes, USER_BYTES_MAX)?;
        let rule = cursor.text(rule_bytes, RULE_BYTES_MAX)?;
        let host = cursor.text(host_bytes, HOST_BYTES_MAX)?;
        if !cursor.0.is_empty() {
            return Err(MalformedRecord("an identity with bytes behind its end"));
        }
        Ok(Flow {
            id: self.id(),
            opened: WallNanos(u64::from_le_bytes(self.array(16))),
            closed: WallNanos(0),
            user,
            host,
            port: u16::from_le_bytes(self.array(24)),
            address,
            client: SocketAddr::new(client, u16::from_le_bytes(self.array(26))),
            class: Class::from_number(class).ok_or(MalformedRecord("an unknown class"))?,
            protocol: Protocol::from_number(protocol).ok_or(MalformedRecord("an unknown protocol"))?,
            rule,
            reason: CloseReason::Fault,
            legs: Legs::default(),
            uncertain: Uncertain::default(),
        })
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Identity").field(&self.unpack()).finish()
    }
}

/// The unread bytes of an identity.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, bytes: u8) -> Result<&'a [u8], MalformedRecord> {
        let (taken, remaining) = self
            .0
            .split_at_checked(usize::from(bytes))
            .ok_or(MalformedRecord("an identity that ends too early"))?;
        self.0 = remaining;
        Ok(taken)
    }

    fn address(&mut self, bytes: u8) -> Result<Option<IpAddr>, MalformedRecord> {
        let taken = self.take(bytes)?;
        if let Ok(octets) = <[u8; 4]>::try_from(taken) {
            return Ok(Some(octets.into()));
        }
        match <[u8; 16]>::try_from(taken) {
            Ok(octets) => Ok(Some(octets.into())),
            Err(_) if taken.is_empty() => Ok(None),
            Err(_) => Err(MalformedRecord("an address of neither 4 nor 16 bytes")),
        }
    }

    fn text(&mut self, bytes: u8, bytes_max: usize) -> Result<&'a str, MalformedRecord> {
        if usize::from(bytes) > bytes_max {
            return Err(MalformedRecord("a text beyond its bound"));
        }
        str::from_utf8(self.take(bytes)?).map_err(|_| MalformedRecord("a text that is not UTF-8"))
    }
}

/// A flow with its counts: at its end, or while it is open.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct Record {
    identity: Identity,
    /// When it was closed, or counted.
    at: WallNanos,
    /// Why it was closed.
    reason: CloseReason,
    legs: Legs,
    uncertain: Uncertain,
}

const _: () = assert!(size_of::<Record>() <= 512, "a record is moved between threads by value");

impl Record {
    /// The record of `flow`.
    pub fn new(flow: &Flow<'_>) -> Record {
        Record {
            identity: Identity::new(flow),
            at: flow.closed,
            reason: flow.reason,
            legs: flow.legs,
            uncertain: flow.uncertain,
        }
    }

    /// The record of a flow: its identity, and its counts as of `at`.
    pub fn from_parts(identity: Identity, at: WallNanos, reason: CloseReason, legs: Legs) -> Record {
        Record { identity, at, reason, legs, uncertain: Uncertain { up: 0, down: 0 } }
    }

    /// The same record, with bytes of which it is not known whether they were sent.
    pub fn with_uncertain(self, uncertain: Uncertain) -> Record {
        Record { uncertain, ..self }
    }

    /// Copies `other`, and touches only the bytes that one of the two uses.
    pub fn copy_from(&mut self, other: &Record) {
        let Record { identity, at, reason, legs, uncertain } = other;
        self.identity.copy_from(identity);
        (self.at, self.reason, self.legs, self.uncertain) = (*at, *reason, *legs, *uncertain);
    }

    /// The unpacked record. Addresses are canonical: IPv4-mapped ones become IPv4.
    pub fn flow(&self) -> Flow<'_> {
        let start = self.identity.unpack().expect("an identity is checked when it is made");
        Flow { closed: self.at, reason: self.reason, legs: self.legs, uncertain: self.uncertain, ..start }
    }

    /// The identity of the flow.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Record").field(&self.flow()).finish()
    }
}

/// One flow, unpacked: the contents of a [`Record`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Flow<'a> {
    /// Unique forever; ids that grow with time keep the database compact.
    pub id: u128,
    /// When its connection was accepted.
    pub opened: WallNanos,
    /// When it was closed. Usage is billed to the UTC day of this moment.
    pub closed: WallNanos,
    /// The user's name, at most [`USER_BYTES_MAX`] bytes.
    pub user: &'a str,
    /// The host as requested, name or address, at most [`HOST_BYTES_MAX`] bytes.
    pub host: &'a str,
    /// The port as requested.
    pub port: u16,
    /// The dialled address; `None` if none was dialled.
    pub address: Option<IpAddr>,
    /// The client's end of its connection.
    pub client: SocketAddr,
    /// How the destination is billed.
    pub class: Class,
    /// The protocol of the client's request.
    pub protocol: Protocol,
    /// The rule that decided on the request, at most [`RULE_BYTES_MAX`] bytes.
    pub rule: &'a str,
    /// Why the flow ended.
    pub reason: CloseReason,
    /// The counted bytes.
    pub legs: Legs,
    /// Bytes that may have been sent besides; they are not billed.
    pub uncertain: Uncertain,
}

/// Payload bytes of one flow, by leg: received from each end, and taken by the kernel toward each end.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Legs {
    /// Received from the client.
    pub client_rx: u64,
    /// Sent to the upstream: billed as `up`.
    pub upstream_tx: u64,
    /// Received from the upstream.
    pub upstream_rx: u64,
    /// Sent to the client: billed as `down`.
    pub client_tx: u64,
}

/// Bytes of a call in progress when the process was killed: whether the kernel took them is not known. Each
/// thread has at most one such call.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Uncertain {
    /// Toward the upstream.
    pub up: u32,
    /// Toward the client.
    pub down: u32,
}

/// How a destination is billed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Class {
    /// The destination is external: traffic that a company pays for.
    External = 1,
    /// The destination is a company's own service: metered, not billed by default.
    Internal = 2,
}

impl Class {
    fn from_number(number: u8) -> Option<Class> {
        [Self::External, Self::Internal].into_iter().find(|class| *class as u8 == number)
    }

    /// The word in the database and in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::External => "external",
            Self::Internal => "internal",
        }
    }
}

/// The protocol of the client's request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Protocol {
    /// HTTP CONNECT (RFC 9110 section 9.3.6).
    HttpConnect = 1,
    /// SOCKS version 5 (RFC 1928).
    Socks5 = 2,
    /// A listener with a fixed destination.
    Forward = 3,
    /// One plain HTTP request (RFC 9112 section 3.2.2).
    Http = 4,
}

impl Protocol {
    fn from_number(number: u8) -> Option<Protocol> {
        let all = [Self::HttpConnect, Self::Socks5, Self::Forward, Self::Http];
        all.into_iter().find(|protocol| *protocol as u8 == number)
    }

    /// The word in the database and in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::HttpConnect => "http_connect",
            Self::Socks5 => "socks5",
            Self::Forward => "forward",
            Self::Http => "http",
        }
    }
}

/// Why a flow ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum CloseReason {
    /// Both directions ended in order, the client's first.
    ClientClosed = 1,
    /// Both directions ended in order, the upstream's first.
    UpstreamClosed = 2,
    /// The client's connection broke.
    ClientReset = 3,
    /// The upstream's connection broke.
    UpstreamReset = 4,
    /// No byte moved for too long.
    IdleTimeout = 5,
    /// One direction had ended, and the other did not end in time.
    HalfClosedTimeout = 6,
    /// The flow reached the longest permitted lifetime.
    LifetimeTimeout = 7,
    /// A new configuration no longer permits the flow.
    PolicyChanged = 8,
    /// The gateway stopped, and the flow had not ended in time.
    Drained = 9,
    /// The gateway lacked a resource of its own.
    Overload = 10,
    /// A fault in the gateway.
    Fault = 11,
    /// The gateway was killed. The flow is billed to the last byte that the live table counted.
    Killed = 12,
    /// The machine stopped, or the live table was lost. The flow is billed as it was last journaled.
    Lost = 13,
    /// The response was complete. Its connections may have continued.
    Completed = 14,
}

impl CloseReason {
    /// Every reason, in the order of their numbers.
    pub const ALL: [CloseReason; 14] = [
        Self::ClientClosed,
        Self::UpstreamClosed,
        Self::ClientReset,
        Self::UpstreamReset,
        Self::IdleTimeout,
        Self::HalfClosedTimeout,
        Self::LifetimeTimeout,
        Self::PolicyChanged,
        Self::Drained,
        Self::Overload,
        Self::Fault,
        Self::Killed,
        Self::Lost,
        Self::Completed,
    ];

    /// The reason with this number.
    pub(crate) fn from_number(number: u8) -> Option<CloseReason> {
        Self::ALL.into_iter().find(|reason| *reason as u8 == number)
    }

    /// The word in the database and in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClientClosed => "client_closed",
            Self::UpstreamClosed => "upstream_closed",
            Self::ClientReset => "client_reset",
            Self::UpstreamReset => "upstream_reset",
            Self::IdleTimeout => "idle_timeout",
            Self::HalfClosedTimeout => "half_closed_timeout",
            Self::LifetimeTimeout => "lifetime_timeout",
            Self::PolicyChanged => "policy_changed",
            Self::Drained => "drained",
            Self::Overload => "overload",
            Self::Fault => "fault",
            Self::Killed => "killed",
            Self::Lost => "lost",
            Self::Completed => "completed",
        }
    }
}

/// The longest prefix of `text` of at most `bytes_max` bytes that ends at a character's border.
fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

/// An address in its canonical form, and how many of the bytes it uses.
fn octets(address: Option<IpAddr>) -> ([u8; 16], usize) {
    let mut octets = [0; 16];
    match address.map(|address| address.to_canonical()) {
        None => (octets, 0),
        Some(IpAddr::V4(address)) => {
            octets[..4].copy_from_slice(&address.octets());
            (octets, 4)
        }
        Some(IpAddr::V6(address)) => (address.octets(), 16),
    }
}

#[cfg(test)]
pub(crate) mod tests;
