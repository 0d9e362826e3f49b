//! The identity of a flow, packed once, when the flow begins; the live table and the journal hold its bytes
//! unchanged.
//!
//! Guarantees: fixed size, no pointer, and text that is always valid UTF-8. Bytes from memory or a file are
//! checked before they become an identity.
//!
//! Numbers are little-endian:
//!
//! | offset | bytes | field                                                                         |
//! |-------:|------:|-------------------------------------------------------------------------------|
//! |      0 |    16 | flow id                                                                       |
//! |     16 |     8 | opened, nanoseconds since the Unix epoch                                      |
//! |     24 |     4 | account of the user; 0: not known                                             |
//! |     28 |     4 | version of the policy that admitted the flow; 0: not known                    |
//! |     32 |     2 | named set by which the destination is metered; 0: none                        |
//! |     34 |     2 | port requested and dialled                                                    |
//! |     36 |     2 | port of the client                                                            |
//! |     38 |     1 | class                                                                         |
//! |     39 |     1 | protocol                                                                      |
//! |     40 |     1 | flags: 2 user cut, 4 rule cut, 8 host cut; the client's address is 16 IPv6,   |
//! |        |       | else IPv4; 32 an address was dialled, 64 it is IPv6                           |
//! |     41 |     1 | bytes of user                                                                 |
//! |     42 |     1 | bytes of rule                                                                 |
//! |     43 |     1 | bytes of host                                                                 |
//! |     44 |     . | address of the client, address dialled, user, rule, host, one after another   |
//!
//! The longest user, host and addresses leave 39 bytes for the rule.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use sys::clock::WallNanos;

use super::{Class, CloseReason, Flow, Legs, MalformedRecord, Protocol, Uncertain};
use crate::limits::{HOST_BYTES_MAX, IDENTITY_BYTES_MAX, RULE_BYTES_MAX, USER_BYTES_MAX};

/// Bytes of an identity before its addresses and texts.
const FIXED_BYTES: usize = 44;
const FLAGS_AT: usize = 40;

/// Bytes of a rule that fit in any case.
const RULE_BYTES_MIN: usize = 39;
const _: () = assert!(
    FIXED_BYTES + 16 + 16 + USER_BYTES_MAX + RULE_BYTES_MIN + HOST_BYTES_MAX <= IDENTITY_BYTES_MAX,
    "the longest identity fits"
);
const _: () = assert!(RULE_BYTES_MIN <= RULE_BYTES_MAX);

const USER_CUT: u8 = 2;
const RULE_CUT: u8 = 4;
const HOST_CUT: u8 = 8;
const CLIENT_IS_IPV6: u8 = 16;
const IS_DIALLED: u8 = 32;
const DIALLED_IS_IPV6: u8 = 64;

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
        let host = cut(flow.host, HOST_BYTES_MAX);
        let (client, dialled) = (Octets::new(flow.client.ip()), flow.address.map(Octets::new));
        let addresses = [Some(&client), dialled.as_ref()].into_iter().flatten();
        let address_bytes: usize = addresses.clone().map(|octets| octets.bytes().len()).sum();
        let rule_bytes_max = IDENTITY_BYTES_MAX - FIXED_BYTES - address_bytes - user.len() - host.len();
        let rule = cut(flow.rule, RULE_BYTES_MAX.min(rule_bytes_max));
        let flags = flag(user.len() < flow.user.len(), USER_CUT)
            | flag(rule.len() < flow.rule.len(), RULE_CUT)
            | flag(host.len() < flow.host.len(), HOST_CUT)
            | flag(client.is_ipv6(), CLIENT_IS_IPV6)
            | flag(dialled.is_some(), IS_DIALLED)
            | flag(dialled.as_ref().is_some_and(Octets::is_ipv6), DIALLED_IS_IPV6);
        let length = |text: &str| u8::try_from(text.len()).expect("every text is at most 253 bytes long");
        let mut identity = Identity { length: 0, bytes: [0; IDENTITY_BYTES_MAX] };
        identity.put(&flow.id.to_le_bytes());
        identity.put(&flow.opened.0.to_le_bytes());
        identity.put(&flow.account.to_le_bytes());
        identity.put(&flow.policy.to_le_bytes());
        identity.put(&flow.set.to_le_bytes());
        identity.put(&flow.port.to_le_bytes());
        identity.put(&flow.client.port().to_le_bytes());
        identity.put(&[flow.class as u8, flow.protocol as u8, flags]);
        identity.put(&[length(user), length(rule), length(host)]);
        addresses.for_each(|octets| identity.put(octets.bytes()));
        identity.put(user.as_bytes());
        identity.put(rule.as_bytes());
        identity.put(host.as_bytes());
        identity
    }

    /// Parses `bytes` as one identity without further bytes.
    pub fn parse(bytes: &[u8]) -> Result<Identity, MalformedRecord> {
        Identity::check(bytes)?;
        let mut identity = Identity { length: 0, bytes: [0; IDENTITY_BYTES_MAX] };
        identity.put(bytes);
        Ok(identity)
    }

    /// Checks `bytes` as [`Identity::parse`] does; returns the flow, without counts or an end.
    pub(crate) fn check(bytes: &[u8]) -> Result<Flow<'_>, MalformedRecord> {
        if bytes.len() < FIXED_BYTES || bytes.len() > IDENTITY_BYTES_MAX {
            return Err(MalformedRecord("an identity of an impossible length"));
        }
        unpack(bytes)
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
        u128::from_le_bytes(array(&self.bytes, 0))
    }

    /// Whether the user's, the rule's or the host's text was cut.
    pub fn is_cut(&self) -> bool {
        self.cuts() != 0
    }

    fn cuts(&self) -> u8 {
        self.bytes[FLAGS_AT] & (USER_CUT | RULE_CUT | HOST_CUT)
    }

    /// The same identity, of which `cuts` are flagged too: texts that an earlier version had cut.
    pub(super) fn with_cuts(mut self, cuts: u8) -> Identity {
        self.bytes[FLAGS_AT] |= cuts & (USER_CUT | RULE_CUT | HOST_CUT);
        self
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

    /// The flow of this identity, without counts or an end.
    pub(super) fn unpack(&self) -> Result<Flow<'_>, MalformedRecord> {
        unpack(self.bytes())
    }
}

/// The flow of an identity's bytes, of which there are at least the fixed ones.
fn unpack(bytes: &[u8]) -> Result<Flow<'_>, MalformedRecord> {
    let [class, protocol, flags, user_bytes, rule_bytes, host_bytes] = array(bytes, 38);
    if flags & (IS_DIALLED | DIALLED_IS_IPV6) == DIALLED_IS_IPV6 {
        return Err(MalformedRecord("an identity with impossible flags"));
    }
    let address_bytes = |is_ipv6: u8| if flags & is_ipv6 != 0 { 16 } else { 4 };
    let dialled_bytes = if flags & IS_DIALLED != 0 { address_bytes(DIALLED_IS_IPV6) } else { 0 };
    let mut cursor = Cursor(&bytes[FIXED_BYTES..]);
    let client = cursor.address(address_bytes(CLIENT_IS_IPV6))?;
    let client = client.ok_or(MalformedRecord("a flow without a client"))?;
    let address = cursor.address(dialled_bytes)?;
    let user = cursor.text(user_bytes, USER_BYTES_MAX)?;
    let rule = cursor.text(rule_bytes, RULE_BYTES_MAX)?;
    let host = cursor.text(host_bytes, HOST_BYTES_MAX)?;
    cursor.finish()?;
    Ok(Flow {
        id: u128::from_le_bytes(array(bytes, 0)),
        opened: WallNanos(u64::from_le_bytes(array(bytes, 16))),
        closed: WallNanos(0),
        account: u32::from_le_bytes(array(bytes, 24)),
        policy: u32::from_le_bytes(array(bytes, 28)),
        set: u16::from_le_bytes(array(bytes, 32)),
        user,
        host,
        port: u16::from_le_bytes(array(bytes, 34)),
        address,
        client: SocketAddr::new(client, u16::from_le_bytes(array(bytes, 36))),
        class: Class::from_number(class).ok_or(MalformedRecord("an unknown class"))?,
        protocol: Protocol::from_number(protocol).ok_or(MalformedRecord("an unknown protocol"))?,
        rule,
        reason: CloseReason::Fault,
        requests: 0,
        legs: Legs::default(),
        uncertain: Uncertain::default(),
    })
}

/// A fixed field of an identity.
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    *bytes[at..].first_chunk().expect("fixed fields lie within the identity")
}

impl fmt::Debug for Identity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Identity").field(&self.unpack()).finish()
    }
}

/// The unread bytes of an identity.
pub(super) struct Cursor<'a>(pub(super) &'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, bytes: u8) -> Result<&'a [u8], MalformedRecord> {
        let (taken, remaining) = self
            .0
            .split_at_checked(usize::from(bytes))
            .ok_or(MalformedRecord("an identity that ends too early"))?;
        self.0 = remaining;
        Ok(taken)
    }

    pub(super) fn address(&mut self, bytes: u8) -> Result<Option<IpAddr>, MalformedRecord> {
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

    pub(super) fn text(&mut self, bytes: u8, bytes_max: usize) -> Result<&'a str, MalformedRecord> {
        if usize::from(bytes) > bytes_max {
            return Err(MalformedRecord("a text beyond its bound"));
        }
        str::from_utf8(self.take(bytes)?).map_err(|_| MalformedRecord("a text that is not UTF-8"))
    }

    /// Refuses bytes that were not read.
    pub(super) fn finish(self) -> Result<(), MalformedRecord> {
        if self.0.is_empty() { Ok(()) } else { Err(MalformedRecord("an identity with bytes behind its end")) }
    }
}

/// The longest prefix of `text` of at most `bytes_max` bytes that ends at a character's border.
fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

fn flag(is_set: bool, bit: u8) -> u8 {
    if is_set { bit } else { 0 }
}

/// The bytes of an address in its canonical form: IPv4-mapped ones are IPv4.
enum Octets {
    V4([u8; 4]),
    V6([u8; 16]),
}

impl Octets {
    fn new(address: IpAddr) -> Octets {
        match address.to_canonical() {
            IpAddr::V4(address) => Octets::V4(address.octets()),
            IpAddr::V6(address) => Octets::V6(address.octets()),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Octets::V4(octets) => octets,
            Octets::V6(octets) => octets,
        }
    }

    fn is_ipv6(&self) -> bool {
        matches!(self, Octets::V6(_))
    }
}
