//! The record of one flow: its identity, its counts, and its end.
//!
//! Guarantees: fixed size, no pointer, and text that is always valid UTF-8. Bytes from memory or a file are
//! checked before they become a record.

mod identity;
pub(crate) mod version_1;

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use sys::clock::WallNanos;
use thiserror::Error;

pub use identity::Identity;

/// Bytes that are not a valid identity, entry or slot, and why.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("{0}")]
pub struct MalformedRecord(pub(crate) &'static str);

/// A flow with its counts: at its end, or while it is open.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct Record {
    identity: Identity,
    /// When it was closed, or counted.
    at: WallNanos,
    /// Why it was closed.
    reason: CloseReason,
    requests: u64,
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
            requests: flow.requests,
            legs: flow.legs,
            uncertain: flow.uncertain,
        }
    }

    /// The record of a flow: its identity, and its counts as of `at`.
    pub fn from_parts(identity: Identity, at: WallNanos, reason: CloseReason, legs: Legs) -> Record {
        Record { identity, at, reason, requests: 0, legs, uncertain: Uncertain { up: 0, down: 0 } }
    }

    /// The same record, with its number of requests.
    pub fn with_requests(self, requests: u64) -> Record {
        Record { requests, ..self }
    }

    /// The same record, with bytes of which it is not known whether they were sent.
    pub fn with_uncertain(self, uncertain: Uncertain) -> Record {
        Record { uncertain, ..self }
    }

    /// Copies `other`, and touches only the bytes that one of the two uses.
    pub fn copy_from(&mut self, other: &Record) {
        let Record { identity, at, reason, requests, legs, uncertain } = other;
        self.identity.copy_from(identity);
        (self.at, self.reason, self.requests) = (*at, *reason, *requests);
        (self.legs, self.uncertain) = (*legs, *uncertain);
    }

    /// The unpacked record. Addresses are canonical: IPv4-mapped ones become IPv4.
    pub fn flow(&self) -> Flow<'_> {
        let start = self.identity.unpack().expect("an identity is checked when it is made");
        let Record { at, reason, requests, legs, uncertain, .. } = *self;
        Flow { closed: at, reason, requests, legs, uncertain, ..start }
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
    /// The account that is billed: the user's, whatever its name; 0 if that is not known.
    pub account: u32,
    /// The version of the policy that admitted the flow; 0 if that is not known.
    pub policy: u32,
    /// The number of the named set by which the destination is metered; 0 if there is none.
    pub set: u16,
    /// The user's name, at most [`USER_BYTES_MAX`](crate::limits::USER_BYTES_MAX) bytes.
    pub user: &'a str,
    /// The host as requested, name or address, at most [`HOST_BYTES_MAX`](crate::limits::HOST_BYTES_MAX)
    /// bytes.
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
    /// The rule that decided on the request, at most [`RULE_BYTES_MAX`](crate::limits::RULE_BYTES_MAX) bytes.
    pub rule: &'a str,
    /// Why the flow ended.
    pub reason: CloseReason,
    /// Requests that were made in it, as far as the protocol has any; others count none.
    pub requests: u64,
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
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
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
    /// Plain HTTP requests (RFC 9112 section 3.2.2).
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
    /// The last response was complete. Its connections may have continued.
    Completed = 14,
    /// A quota of the user or of a team ended.
    QuotaExhausted = 15,
}

impl CloseReason {
    /// Every reason, in the order of their numbers.
    pub const ALL: [CloseReason; 15] = [
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
        Self::QuotaExhausted,
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
            Self::QuotaExhausted => "quota_exhausted",
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
