//! The record of one flow: 512 bytes that a data-plane thread fills and the ledger makes durable.
//!
//! Promises: fixed size and layout, no pointer and no padding, text that is always valid UTF-8.
//! Leaves to others: what the counts mean (the gateway's meter), where the record goes (the sink).
//!
//! | offset | bytes | field                                                                     |
//! |-------:|------:|---------------------------------------------------------------------------|
//! |      0 |    16 | flow id, u128                                                             |
//! |     16 |     8 | opened, nanoseconds since the Unix epoch, u64                             |
//! |     24 |     8 | closed, likewise                                                          |
//! |     32 |     8 | `client_rx`: payload bytes received from the client, u64                  |
//! |     40 |     8 | `upstream_tx`: bytes the kernel took toward the upstream, billed as `up`  |
//! |     48 |     8 | `upstream_rx`: payload bytes received from the upstream                   |
//! |     56 |     8 | `client_tx`: bytes the kernel took toward the client, billed as `down`    |
//! |     64 |    16 | address dialled, IPv6 or IPv4-mapped; zero if flag 1 is not set           |
//! |     80 |    16 | address of the client, likewise                                           |
//! |     96 |     2 | port asked for and dialled, u16                                           |
//! |     98 |     2 | port of the client, u16                                                   |
//! |    100 |     1 | class                                                                     |
//! |    101 |     1 | protocol                                                                  |
//! |    102 |     1 | close reason                                                              |
//! |    103 |     1 | flags: 1 dialled, 2 user cut, 4 rule cut, 8 host cut                      |
//! |    104 |     1 | bytes of user                                                             |
//! |    105 |     1 | bytes of rule                                                             |
//! |    106 |     1 | bytes of host                                                             |
//! |    107 |    21 | zero                                                                      |
//! |    128 |    64 | user, UTF-8, then zeros                                                   |
//! |    192 |    64 | rule, likewise                                                            |
//! |    256 |   253 | host as requested, likewise                                               |
//! |    509 |     3 | zero                                                                      |
//!
//! Numbers lie in the machine's byte order: a record does not leave the process in this form.

use std::fmt;
use std::mem::offset_of;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use sys::clock::WallNanos;

use crate::limits::{HOST_BYTES_MAX, RULE_BYTES_MAX, USER_BYTES_MAX};

/// The size of a record, in bytes.
pub const RECORD_BYTES: usize = 512;

/// One flow, packed. See the file's header.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Record {
    flow: u128,
    opened_ns: u64,
    closed_ns: u64,
    client_rx: u64,
    upstream_tx: u64,
    upstream_rx: u64,
    client_tx: u64,
    address: [u8; 16],
    client_address: [u8; 16],
    port: u16,
    client_port: u16,
    class: Class,
    protocol: Protocol,
    reason: CloseReason,
    flags: u8,
    user_bytes: u8,
    rule_bytes: u8,
    host_bytes: u8,
    zero: [u8; 21],
    user: [u8; USER_BYTES_MAX],
    rule: [u8; RULE_BYTES_MAX],
    host: [u8; HOST_BYTES_MAX],
    zero_end: [u8; 3],
}

const _: () = assert!(size_of::<Record>() == RECORD_BYTES);
const _: () = assert!(offset_of!(Record, opened_ns) == 16 && offset_of!(Record, closed_ns) == 24);
const _: () = assert!(offset_of!(Record, client_rx) == 32 && offset_of!(Record, upstream_tx) == 40);
const _: () = assert!(offset_of!(Record, upstream_rx) == 48 && offset_of!(Record, client_tx) == 56);
const _: () = assert!(offset_of!(Record, address) == 64 && offset_of!(Record, client_address) == 80);
const _: () = assert!(offset_of!(Record, port) == 96 && offset_of!(Record, client_port) == 98);
const _: () = assert!(offset_of!(Record, class) == 100 && offset_of!(Record, protocol) == 101);
const _: () = assert!(offset_of!(Record, reason) == 102 && offset_of!(Record, flags) == 103);
const _: () = assert!(offset_of!(Record, user_bytes) == 104 && offset_of!(Record, rule_bytes) == 105);
const _: () = assert!(offset_of!(Record, host_bytes) == 106 && offset_of!(Record, zero) == 107);
const _: () = assert!(offset_of!(Record, user) == 128 && offset_of!(Record, rule) == 192);
const _: () = assert!(offset_of!(Record, host) == 256 && offset_of!(Record, zero_end) == 509);

const DIALLED: u8 = 1;
const USER_CUT: u8 = 2;
const RULE_CUT: u8 = 4;
const HOST_CUT: u8 = 8;

impl Record {
    /// Packs `flow`. Text beyond its bound is cut on a character's border, and flagged.
    pub fn new(flow: &Flow<'_>) -> Self {
        let (user, user_bytes, user_cut) = packed(flow.user);
        let (rule, rule_bytes, rule_cut) = packed(flow.rule);
        let (host, host_bytes, host_cut) = packed(flow.host);
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let mut record = Self {
            flow: flow.id,
            opened_ns: flow.opened.0,
            closed_ns: 0,
            client_rx: 0,
            upstream_tx: 0,
            upstream_rx: 0,
            client_tx: 0,
            address: flow.address.map_or([0; 16], octets),
            client_address: octets(flow.client.ip()),
            port: flow.port,
            client_port: flow.client.port(),
            class: flow.class,
            protocol: flow.protocol,
            reason: flow.reason,
            flags: flag(flow.address.is_some(), DIALLED)
                | flag(user_cut, USER_CUT)
                | flag(rule_cut, RULE_CUT)
                | flag(host_cut, HOST_CUT),
            user_bytes,
            rule_bytes,
            host_bytes,
            zero: [0; 21],
            user,
            rule,
            host,
            zero_end: [0; 3],
        };
        record.close(flow.closed, flow.reason, flow.legs);
        record
    }

    /// Sets what only the flow's end tells, so that a record packed early need not be packed again.
    pub fn close(&mut self, closed: WallNanos, reason: CloseReason, legs: Legs) {
        self.closed_ns = closed.0;
        self.reason = reason;
        self.client_rx = legs.client_rx;
        self.upstream_tx = legs.upstream_tx;
        self.upstream_rx = legs.upstream_rx;
        self.client_tx = legs.client_tx;
    }

    /// What the record says. Addresses come back in canonical form: IPv4-mapped ones as IPv4.
    pub fn flow(&self) -> Flow<'_> {
        Flow {
            id: self.flow,
            opened: WallNanos(self.opened_ns),
            closed: WallNanos(self.closed_ns),
            user: unpacked(&self.user, self.user_bytes),
            host: unpacked(&self.host, self.host_bytes),
            port: self.port,
            address: (self.flags & DIALLED != 0).then(|| address(self.address)),
            client: SocketAddr::new(address(self.client_address), self.client_port),
            class: self.class,
            protocol: self.protocol,
            rule: unpacked(&self.rule, self.rule_bytes),
            reason: self.reason,
            legs: Legs {
                client_rx: self.client_rx,
                upstream_tx: self.upstream_tx,
                upstream_rx: self.upstream_rx,
                client_tx: self.client_tx,
            },
        }
    }

    /// Whether the user's, the rule's or the host's text was cut.
    pub fn is_cut(&self) -> bool {
        self.flags & (USER_CUT | RULE_CUT | HOST_CUT) != 0
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Record").field(&self.flow()).finish()
    }
}

/// One flow, in the open: what is packed into a [`Record`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Flow<'a> {
    /// Unique for ever; ids that grow with time keep the database compact.
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
    /// The address that was dialled; `None` if it never came to that.
    pub address: Option<IpAddr>,
    /// The client's end of its connection.
    pub client: SocketAddr,
    /// How the destination is billed.
    pub class: Class,
    /// How the client asked.
    pub protocol: Protocol,
    /// The rule that decided, at most [`RULE_BYTES_MAX`] bytes.
    pub rule: &'a str,
    /// Why the flow ended.
    pub reason: CloseReason,
    /// What was counted.
    pub legs: Legs,
}

/// Payload bytes of one flow, by leg: what was received from, and taken by the kernel toward, each end.
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

/// How a destination is billed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Class {
    /// The outside: what a company pays for.
    External = 1,
    /// A company's own services: metered, not billed by default.
    Internal = 2,
}

impl Class {
    /// The word in the database and in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::External => "external",
            Self::Internal => "internal",
        }
    }
}

/// How the client asked for the flow.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Protocol {
    /// HTTP CONNECT (RFC 9110 section 9.3.6).
    HttpConnect = 1,
    /// SOCKS version 5 (RFC 1928).
    Socks5 = 2,
    /// A listener with a fixed destination.
    Forward = 3,
}

impl Protocol {
    /// The word in the database and in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::HttpConnect => "http_connect",
            Self::Socks5 => "socks5",
            Self::Forward => "forward",
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
    /// Nothing moved for too long.
    IdleTimeout = 5,
    /// One direction had ended, and the other took too long to.
    HalfClosedTimeout = 6,
    /// The flow reached the longest life that is permitted.
    LifetimeTimeout = 7,
    /// A new configuration no longer permits the flow.
    PolicyChanged = 8,
    /// The gateway stopped, and the flow had not ended by itself in time.
    Drained = 9,
    /// The gateway ran out of something of its own.
    Overload = 10,
    /// A fault in the gateway.
    Fault = 11,
}

impl CloseReason {
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
        }
    }
}

/// The text in a field of `N` bytes, its length there, and whether it was cut.
fn packed<const N: usize>(text: &str) -> ([u8; N], u8, bool) {
    let kept = &text[..text.floor_char_boundary(N)];
    let mut field = [0; N];
    field[..kept.len()].copy_from_slice(kept.as_bytes());
    let bytes = u8::try_from(kept.len()).expect("every field is at most 253 bytes long");
    (field, bytes, kept.len() < text.len())
}

fn unpacked(field: &[u8], bytes: u8) -> &str {
    str::from_utf8(&field[..usize::from(bytes)]).expect("fields are filled from a str, cut on a border")
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn address(octets: [u8; 16]) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(octets)).to_canonical()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FLOW: Flow<'_> = Flow {
        id: u128::MAX - 7,
        opened: WallNanos(1),
        closed: WallNanos(u64::MAX),
        user: "ci",
        host: "example.com",
        port: 443,
        address: None,
        client: SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 50_000),
        class: Class::External,
        protocol: Protocol::Socks5,
        rule: "user:ci/allow[0] example.com:443",
        reason: CloseReason::ClientReset,
        legs: Legs { client_rx: 1, upstream_tx: 2, upstream_rx: 3, client_tx: u64::MAX },
    };

    #[test]
    fn says_what_it_was_told() {
        for address in [None, Some("192.0.2.1"), Some("2001:db8::1"), Some("::"), Some("0.0.0.0")] {
            let address = address.map(|text| text.parse().unwrap());
            let flow = Flow { address, ..FLOW };
            let record = Record::new(&flow);
            assert_eq!(record.flow(), flow);
            assert!(!record.is_cut());
        }
    }

    #[test]
    fn closing_replaces_the_end_and_nothing_else() {
        let mut record = Record::new(&FLOW);
        let legs = Legs { client_rx: 9, upstream_tx: 8, upstream_rx: 7, client_tx: 6 };
        record.close(WallNanos(77), CloseReason::Drained, legs);
        let expected = Flow { closed: WallNanos(77), reason: CloseReason::Drained, legs, ..FLOW };
        assert_eq!(record.flow(), expected);
    }

    #[test]
    fn mapped_addresses_come_back_as_ipv4() {
        let flow = Flow { address: Some("::ffff:192.0.2.1".parse().unwrap()), ..FLOW };
        assert_eq!(Record::new(&flow).flow().address, Some("192.0.2.1".parse().unwrap()));
    }

    #[test]
    fn text_is_cut_on_a_border_and_flagged() {
        let check = |host: &str, expected_bytes: usize| {
            let record = Record::new(&Flow { host, ..FLOW });
            assert_eq!(record.flow().host, &host[..expected_bytes]);
            assert_eq!(record.is_cut(), expected_bytes < host.len());
        };
        check("", 0);
        check("a\0b", 3);
        check(&"x".repeat(253), 253);
        check(&"x".repeat(255), 253);
        check(&format!("{}é", "x".repeat(252)), 252);
        check(&format!("{}𝄞", "x".repeat(250)), 250);
        check(&format!("{}𝄞", "x".repeat(249)), 253);
        let long = Flow { user: &"u".repeat(65), rule: &"r".repeat(64), ..FLOW };
        let record = Record::new(&long);
        assert_eq!(record.flow(), Flow { user: &long.user[..64], ..long });
        assert!(record.is_cut());
    }

    proptest! {
        #[test]
        fn any_text_survives_up_to_its_bound(user: String, host: String, rule: String) {
            let record = Record::new(&Flow { user: &user, host: &host, rule: &rule, ..FLOW });
            let flow = record.flow();
            for (kept, given, bound) in [
                (flow.user, &user, USER_BYTES_MAX),
                (flow.host, &host, HOST_BYTES_MAX),
                (flow.rule, &rule, RULE_BYTES_MAX),
            ] {
                prop_assert!(given.starts_with(kept));
                prop_assert!(kept.len() == given.len() || kept.len() > bound - 4);
            }
        }
    }
}
