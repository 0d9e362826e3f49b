//! The identity of a flow, packed once, when the flow begins; the live table and the journal hold its bytes
//! unchanged.
//!
//! Guarantees: fixed size, no pointer, and text that is always valid UTF-8. Bytes from memory or a file are
//! checked before they become an identity.
//!
//! Numbers are little-endian:
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

use super::{Class, CloseReason, Flow, Legs, MalformedRecord, Protocol, Uncertain};
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
    pub(super) fn copy_from(&mut self, other: &Identity) {
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
    pub(super) fn unpack(&self) -> Result<Flow<'_>, MalformedRecord> {
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
