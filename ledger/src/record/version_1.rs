//! Identities of version 1, of live tables and segments that an earlier program wrote.
//!
//! | offset | bytes | field                                                                       |
//! |-------:|------:|-----------------------------------------------------------------------------|
//! |      0 |    16 | flow id                                                                     |
//! |     16 |     8 | opened, nanoseconds since the Unix epoch                                    |
//! |     24 |     2 | port requested and dialled                                                  |
//! |     26 |     2 | port of the client                                                          |
//! |     28 |     1 | class                                                                       |
//! |     29 |     1 | protocol                                                                    |
//! |     30 |     1 | flags: 2 user cut, 4 rule cut, 8 host cut                                   |
//! |     31 |     1 | bytes of the client's address: 4 or 16                                      |
//! |     32 |     1 | bytes of the dialled address: 0 if none was dialled, 4 or 16                |
//! |     33 |     1 | bytes of user                                                               |
//! |     34 |     1 | bytes of rule                                                               |
//! |     35 |     1 | bytes of host                                                               |
//! |     36 |     . | address of the client, address dialled, user, rule, host, one after another |

use std::net::SocketAddr;

use sys::clock::WallNanos;

use super::identity::{Cursor, Identity};
use super::{Class, CloseReason, Flow, Legs, MalformedRecord, Protocol, Uncertain};
use crate::limits::{HOST_BYTES_MAX, USER_BYTES_MAX};

/// Bytes of an identity before its addresses and texts.
const FIXED_BYTES: usize = 36;

/// Bytes of an identity at most.
pub(crate) const BYTES_MAX: usize = 440;

/// Bytes of a rule at most. Beside the longest user and host some of them are cut.
const RULE_BYTES_MAX: usize = 48;

/// Parses `bytes` as one identity of version 1 without further bytes.
pub(crate) fn parse(bytes: &[u8]) -> Result<Identity, MalformedRecord> {
    let (flow, flags) = unpack(bytes)?;
    Ok(Identity::new(&flow).with_cuts(flags))
}

/// Checks `bytes` as [`parse`] does; returns the flow, without counts or an end.
pub(crate) fn check(bytes: &[u8]) -> Result<Flow<'_>, MalformedRecord> {
    Ok(unpack(bytes)?.0)
}

/// The flow of an identity, without counts or an end, and the identity's flags.
fn unpack(bytes: &[u8]) -> Result<(Flow<'_>, u8), MalformedRecord> {
    if bytes.len() < FIXED_BYTES || bytes.len() > BYTES_MAX {
        return Err(MalformedRecord("an identity of an impossible length"));
    }
    let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let [class, protocol, flags, client_bytes, address_bytes, user_bytes, rule_bytes, host_bytes] =
        *bytes[28..].first_chunk().expect("within the fixed part");
    let mut cursor = Cursor(&bytes[FIXED_BYTES..]);
    let client = cursor.address(client_bytes)?.ok_or(MalformedRecord("a flow without a client"))?;
    let flow = Flow {
        id: u128::from_le_bytes(*bytes.first_chunk().expect("within the fixed part")),
        opened: WallNanos(u64::from_le_bytes(*bytes[16..].first_chunk().expect("within the fixed part"))),
        closed: WallNanos(0),
        account: 0,
        policy: 0,
        set: 0,
        address: cursor.address(address_bytes)?,
        user: cursor.text(user_bytes, USER_BYTES_MAX)?,
        rule: cursor.text(rule_bytes, RULE_BYTES_MAX)?,
        host: cursor.text(host_bytes, HOST_BYTES_MAX)?,
        port: u16_at(24),
        client: SocketAddr::new(client, u16_at(26)),
        class: Class::from_number(class).ok_or(MalformedRecord("an unknown class"))?,
        protocol: Protocol::from_number(protocol).ok_or(MalformedRecord("an unknown protocol"))?,
        reason: CloseReason::Fault,
        requests: 0,
        legs: Legs::default(),
        uncertain: Uncertain::default(),
    };
    cursor.finish()?;
    Ok((flow, flags))
}
