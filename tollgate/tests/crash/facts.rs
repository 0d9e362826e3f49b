//! The facts of a flow: what the send audit recorded of the gateway's calls, and what both ends counted.
//!
//! Guarantees: the audit has each end of each flow once, and no other socket. `oracle` judges the facts.

use std::collections::HashMap;
use std::path::Path;

use sys::send_audit::{self, AuditEntry, Role};

use crate::flow::{Endpoint, Flow, number_of_client, number_of_destination};
use crate::oracle::{Direction, Facts, Fate};

/// The gateway's sends, by direction (whether toward the client) and flow number.
pub(crate) struct Sent(HashMap<(bool, u32), AuditEntry>);

impl Sent {
    /// Reads the send audit of a dead gateway.
    ///
    /// # Errors
    /// The audit has a socket that is no end of a flow, or one end twice.
    pub(crate) fn read(audit_path: &Path) -> Result<Sent, String> {
        let mut sent: HashMap<(bool, u32), AuditEntry> = HashMap::new();
        for entry in send_audit::read(audit_path).map_err(|error| format!("the send audit: {error}"))? {
            let ip = entry.peer.ip();
            let key = match entry.role {
                Role::Accepted => number_of_client(ip).map(|number| (true, number)),
                Role::Connected => number_of_destination(ip).map(|number| (false, number)),
            };
            // Only the harness connects to this gateway.
            let key = key.ok_or_else(|| format!("the send audit has an unknown peer: {entry:?}"))?;
            if let Some(other) = sent.insert(key, entry) {
                return Err(format!("the send audit has two sockets for one end: {entry:?} {other:?}"));
            }
        }
        Ok(Sent(sent))
    }

    /// The facts of `flow`, whose gateway ended with `generation` as `fate` specifies.
    pub(crate) fn facts(&self, flow: &Flow, generation: usize, fate: Fate) -> Facts {
        // Bytes that the gateway's calls sent, and attempted to send, toward the client or the destination:
        // payload only.
        let seen = |to_client: bool| {
            let before = if to_client { flow.response_bytes() } else { 0 };
            let counts =
                self.0.get(&(to_client, flow.number)).map_or((0, 0), |seen| (seen.sent, seen.attempted));
            (counts.0.saturating_sub(before), counts.1.saturating_sub(before))
        };
        let ((up, up_attempted), (down, down_attempted)) = (seen(false), seen(true));
        let origin = |read: fn(&Endpoint) -> u64| flow.origin.as_ref().map_or(0, read);
        Facts {
            number: flow.number,
            client: flow.address,
            generation,
            fate,
            is_final: false,
            recorded: 0,
            traffic: flow.traffic.name,
            up: Direction {
                offered: flow.client.offered(),
                audited: up,
                attempted: up_attempted,
                arrived: origin(|end| end.received),
                is_whole: flow.origin.as_ref().is_some_and(|end| end.is_whole),
            },
            down: Direction {
                offered: origin(Endpoint::offered),
                audited: down,
                attempted: down_attempted,
                arrived: flow.client.received,
                is_whole: flow.client.is_whole,
            },
        }
    }
}
