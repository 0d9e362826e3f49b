//! What must be true of a bill, given what the peers and the kernel saw.

use ledger::record::CloseReason;
use ledger::simulation::BilledFlow;
use sys::simulation::SentStream;

use super::client::{Client, Reply, Request, SOCKS5_REPLY_BYTES};
use super::destination::Destination;
use super::origin::Origin;
use super::peer::{Ending, Peer, Seen};
use super::plan::{Act, Change, Plan, USER};
use super::session::Session;
use super::world::Events;
use crate::observe::log::LoggedFlow;

/// What really happened.
pub(super) struct Facts<'a> {
    pub(super) plan: &'a Plan,
    pub(super) was_killed: bool,
    pub(super) done: &'a [Act],
    pub(super) clients: &'a [Client],
    pub(super) destinations: &'a [Destination],
    pub(super) sessions: &'a [Session],
    pub(super) origins: &'a [Origin],
    pub(super) sent: &'a [SentStream],
    pub(super) logged: &'a [LoggedFlow],
}

/// Checks a bill against the facts.
///
/// # Errors
/// The first contradiction.
pub(super) fn check(facts: &Facts<'_>, bill: &[BilledFlow]) -> Result<Events, String> {
    let mut events = Events {
        kills: facts.was_killed.into(),
        reloads: facts.done.iter().filter(|act| matches!(act, Act::Reload(_))).count() as u64,
        ..Events::default()
    };
    for client in facts.clients {
        let flows: Vec<&BilledFlow> =
            bill.iter().filter(|flow| flow.client == client.local.to_string()).collect();
        match flows[..] {
            [] => check_unbilled(facts, client)?,
            [flow] => {
                facts.check_flow(client, flow).map_err(|fault| format!("{fault}: {flow:?}, {client}"))?;
                events.count(flow);
            }
            _ => return Err(format!("a tunnel is billed twice: {flows:?}")),
        }
        events.denied += u64::from(client.was_denied());
    }
    for session in facts.sessions {
        let flows: Vec<&BilledFlow> =
            bill.iter().filter(|flow| flow.client == session.local.to_string()).collect();
        let context = || format!("{:?}, {flows:?}", session.plan);
        facts.check_session(session, &flows).map_err(|fault| format!("{fault}: {}", context()))?;
        flows.iter().for_each(|flow| events.count(flow));
    }
    if events.flows < bill.len() as u64 {
        return Err(format!("{} flows are billed, and {} were open", bill.len(), events.flows));
    }
    Ok(events)
}

/// Checks a client whose tunnel is not billed: it never moved a byte.
fn check_unbilled(facts: &Facts<'_>, client: &Client) -> Result<(), String> {
    let has_moved = client.peer.received > 0 && client.plan.request != Request::Unfinished;
    // A kill may come between the reply and the flow's beginning.
    let is_open = matches!(client.reply, Reply::Opened { .. })
        && client.plan.request != Request::Forward
        && !facts.was_killed
        && !facts.has_denial();
    if has_moved || is_open {
        return Err(format!("a tunnel is not billed: {client}"));
    }
    Ok(())
}

impl Facts<'_> {
    fn check_flow(&self, client: &Client, flow: &BilledFlow) -> Result<(), String> {
        let destination = self.destinations.iter().find(|it| it.plan.address == client.plan.target);
        let destination = destination.ok_or("a tunnel to nowhere is billed")?;
        if flow.user != USER || flow.host != client.plan.target.ip().to_string() {
            return Err("another user or host is billed".to_owned());
        }
        let up = self.sent_to(|stream| !stream.was_accepted && stream.peer == client.plan.target);
        let down = self.sent_to(|stream| stream.was_accepted && stream.peer == client.local);
        let down = down.saturating_sub(client.reply_bytes());
        check_bytes("up", flow.up, up, flow.uncertain.up, self.was_killed)?;
        check_bytes("down", flow.down, down, flow.uncertain.down, self.was_killed)?;
        let received: u64 = destination.peers.iter().map(|peer| peer.received).sum();
        if received > up || client.peer.received > down {
            return Err(format!("a peer received more than {up} up, {down} down"));
        }
        self.check_reason(client, destination, flow)?;
        if matches!(flow.reason, CloseReason::ClientClosed | CloseReason::UpstreamClosed) {
            self.check_complete(client, destination)?;
        }
        if self.was_killed { Ok(()) } else { self.check_log(flow) }
    }

    /// Bytes that the gateway's send calls took on the streams that `is_one` selects.
    fn sent_to(&self, is_one: impl Fn(&SentStream) -> bool) -> u64 {
        self.sent.iter().filter(|stream| is_one(stream)).map(|stream| stream.sent).sum()
    }

    fn check_session(&self, session: &Session, flows: &[&BilledFlow]) -> Result<(), String> {
        let target = session.plan.target;
        let up = self.sent_to(|stream| !stream.was_accepted && stream.peer == target);
        let down = self.sent_to(|stream| stream.was_accepted && stream.peer == session.local);
        let billed = |bytes: fn(&BilledFlow) -> u64| flows.iter().map(|flow| bytes(flow)).sum::<u64>();
        let uncertain = |bytes: fn(&BilledFlow) -> u32| flows.iter().map(|flow| bytes(flow)).sum::<u32>();
        check_bytes("up", billed(|it| it.up), up, uncertain(|it| it.uncertain.up), self.was_killed)?;
        let down_uncertain = uncertain(|it| it.uncertain.down);
        if session.has_responses_of_origin_only() {
            check_bytes("down", billed(|it| it.down), down, down_uncertain, self.was_killed)?;
        } else if billed(|it| it.down) > down {
            return Err(format!("{down} bytes down were sent, more are billed"));
        }
        // Where a connection ends a body, a client cannot tell a kill from its end.
        if session.was_cut && !self.was_killed {
            return Err("a response that was cut seemed complete".to_owned());
        }
        let requests: u64 = flows.iter().map(|flow| flow.requests).sum();
        if requests < session.completed as u64 || requests > session.plan.requests.len() as u64 {
            return Err(format!("{} responses are complete, {requests} requests billed", session.completed));
        }
        let origin = self.origins.iter().find(|origin| origin.address == target);
        self.check_requests(session, origin.ok_or("a session without an origin")?)?;
        for flow in flows {
            self.check_session_flow(flow)?;
        }
        Ok(())
    }

    /// Checks that no request was repeated that must not be (RFC 9110, section 9.2.2).
    fn check_requests(&self, session: &Session, origin: &Origin) -> Result<(), String> {
        for request in &session.plan.requests {
            let count = origin.received.iter().filter(|key| **key == request.key).count();
            if count > 1 && request.method == "POST" {
                return Err(format!("the origin got {count} times a POST"));
            }
        }
        Ok(())
    }

    fn check_session_flow(&self, flow: &BilledFlow) -> Result<(), String> {
        let is_explained = match flow.reason {
            CloseReason::Completed | CloseReason::ClientReset | CloseReason::UpstreamReset => true,
            CloseReason::ClientClosed | CloseReason::UpstreamClosed => true,
            CloseReason::LifetimeTimeout => self.has_lifetime(),
            CloseReason::PolicyChanged => self.has_denial(),
            CloseReason::Drained => self.done.contains(&Act::Stop),
            CloseReason::Overload => self.plan.fault_rate > 0,
            CloseReason::Killed => self.was_killed,
            CloseReason::IdleTimeout | CloseReason::HalfClosedTimeout => false,
            CloseReason::Fault | CloseReason::Lost | CloseReason::QuotaExhausted => false,
        };
        if !is_explained {
            return Err(format!("nothing explains {:?}", flow.reason));
        }
        if self.was_killed { Ok(()) } else { self.check_log(flow) }
    }

    fn has_lifetime(&self) -> bool {
        let is_shortened = |act: &&Act| **act == Act::Reload(Change::DeadlinesShortened);
        let change = self.done.iter().find(is_shortened).map(|_| Change::DeadlinesShortened);
        self.plan.settings.has_lifetime(change)
    }

    fn check_reason(
        &self,
        client: &Client,
        destination: &Destination,
        flow: &BilledFlow,
    ) -> Result<(), String> {
        let breaks =
            |peer: &Peer| matches!(peer.script().ending, Ending::Reset { .. } | Ending::Close { .. });
        let stalls = |peer: &Peer| matches!(peer.script().ending, Ending::Stall { .. });
        let peers = || std::iter::once(&client.peer).chain(&destination.peers);
        let is_explained = match flow.reason {
            CloseReason::ClientClosed | CloseReason::UpstreamClosed => true,
            CloseReason::ClientReset => breaks(&client.peer),
            CloseReason::UpstreamReset => destination.peers.iter().any(breaks),
            CloseReason::IdleTimeout | CloseReason::HalfClosedTimeout => peers().any(stalls),
            CloseReason::LifetimeTimeout => self.has_lifetime(),
            CloseReason::PolicyChanged => self.has_denial(),
            CloseReason::Drained => self.done.contains(&Act::Stop),
            CloseReason::Overload => self.plan.fault_rate > 0,
            CloseReason::Killed => self.was_killed,
            CloseReason::Fault | CloseReason::Lost | CloseReason::Completed => false,
            CloseReason::QuotaExhausted => false,
        };
        if is_explained { Ok(()) } else { Err(format!("nothing explains {:?}", flow.reason)) }
    }

    /// Whether a reload has taken the user's rights away.
    fn has_denial(&self) -> bool {
        self.done.iter().any(|act| matches!(act, Act::Reload(Change::UserRemoved | Change::AllDenied)))
    }

    /// Checks a tunnel that ended in order: both sides have everything.
    fn check_complete(&self, client: &Client, destination: &Destination) -> Result<(), String> {
        let (client, destination) = (&client.peer, destination.peers.last());
        let destination = destination.ok_or("a tunnel without a destination ended in order")?;
        // A kill cuts what the peers have not read. Without a resource to watch a closing connection, the
        // gateway resets it, with what its peer has not acknowledged.
        if self.was_killed || self.plan.fault_rate > 0 {
            return Ok(());
        }
        for (sender, receiver) in [(client, destination), (destination, client)] {
            let in_order = |peer: &Peer| peer.script().ending == Ending::InOrder;
            let is_complete = receiver.seen == Seen::End && receiver.received == sender.script().bytes;
            if in_order(sender) && in_order(receiver) && !is_complete {
                let (received, bytes) = (receiver.received, sender.script().bytes);
                return Err(format!("{received} of {bytes} bytes arrived, and then {:?}", receiver.seen));
            }
        }
        Ok(())
    }

    /// Checks that the lines of a tunnel or of a run's requests add up to the bill.
    fn check_log(&self, flow: &BilledFlow) -> Result<(), String> {
        let lines: Vec<&LoggedFlow> = self.logged.iter().filter(|line| line.id == flow.id).collect();
        let sum = |bytes: fn(&LoggedFlow) -> u64| lines.iter().map(|line| bytes(line)).sum::<u64>();
        let is_right = lines.len() as u64 == flow.requests.max(1)
            && lines.last().is_some_and(|line| line.reason == flow.reason)
            && lines.iter().rev().skip(1).all(|line| line.reason == CloseReason::Completed)
            && (sum(|line| line.up), sum(|line| line.down)) == (flow.up, flow.down);
        if is_right { Ok(()) } else { Err(format!("its lines in the log are {lines:?}")) }
    }
}

impl Client {
    /// Bytes of the gateway's own reply.
    fn reply_bytes(&self) -> u64 {
        match (self.reply, self.plan.request) {
            (Reply::Opened { bytes }, _) => bytes,
            // The client has not read it, and the flow began after it.
            (_, Request::Connect) => {
                let mut reply = Vec::new();
                proto::http_connect::write_established(&mut reply);
                reply.len() as u64
            }
            (_, Request::Socks5) => SOCKS5_REPLY_BYTES as u64,
            (_, Request::Forward | Request::Unfinished) => 0,
        }
    }
}

impl Session {
    /// Whether each byte that the gateway sent belongs to a response of the origin, as far as the client
    /// knows: it read everything, and found no response of the gateway's own.
    fn has_responses_of_origin_only(&self) -> bool {
        !self.was_refused && self.completed == self.plan.requests.len()
    }
}

impl std::fmt::Display for Client {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{:?}, {:?}, {}", self.plan, self.reply, self.peer.state())
    }
}

fn check_bytes(direction: &str, billed: u64, sent: u64, uncertain: u32, killed: bool) -> Result<(), String> {
    let is_right = match killed {
        true => billed <= sent && sent <= billed + u64::from(uncertain),
        false => billed == sent && uncertain == 0,
    };
    if is_right { Ok(()) } else { Err(format!("{sent} bytes {direction} were sent, {billed} are billed")) }
}

impl Events {
    fn count(&mut self, flow: &BilledFlow) {
        self.flows += 1;
        self.ended[flow.reason as usize - 1] += 1;
        self.uncertain += u64::from(flow.uncertain.up > 0 || flow.uncertain.down > 0);
        self.bytes += flow.up + flow.down;
    }
}
