//! The meter: the open flows of one thread, their records, and their way to the ledger and the log.
//!
//! Promises: a flow that was opened is closed exactly once, and its record reaches the ledger however full
//! the ring is: it waits in its slot and is handed over later; nothing here waits. Leaves to others: counting
//! (`relay` adds to the record what calls returned), and durability (crate `ledger`).

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use engine::reactor::{Reactor, Waiter};
use engine::slab::{Key, Slab};
use ledger::Inlet;
use ledger::record::{CloseReason, Legs, Protocol, Record};
use sys::clock::{self, Nanos, WallNanos};

use crate::account::{Account, Seat};
use crate::limits::{FLOWS_PER_THREAD_MAX, RECORDS_WAITING_MAX};
use crate::log::{Event, EventKind, LogInlet};
use crate::stats::WorkerStats;
use crate::wake::Subject;

/// How long a record that found the ring full waits before it tries again.
const RETRY: Duration = Duration::from_millis(5);

/// What is known of a flow when it opens.
pub(crate) struct Opening {
    /// The record, but for its end and its bytes.
    pub record: Record,
    /// When it was admitted.
    pub at: WallNanos,
    /// How the client asked.
    pub protocol: Protocol,
    /// The flow's places in its user's account and in everybody's.
    pub seats: [Seat; 2],
    /// The listener that took the connection.
    pub listener: SocketAddr,
    /// How long the lookup of the name took, in microseconds, if there was one.
    pub dns_us: Option<u32>,
    /// How long it took to reach the destination, in microseconds.
    pub connect_us: Option<u32>,
}

/// A flow that is open, or has ended and waits for the ledger.
struct OpenFlow {
    record: Record,
    protocol: Protocol,
    legs: Legs,
    /// None once the flow has ended: an ended flow takes no place, however long its record waits.
    seats: Option<[Seat; 2]>,
    opened: Nanos,
    listener: SocketAddr,
}

/// See the file's header.
pub(crate) struct Meter {
    reactor: Rc<Reactor>,
    flows: Slab<OpenFlow>,
    /// Flows that have ended and whose records found the ring full, oldest first.
    waiting: VecDeque<Key>,
    inlet: Inlet,
    log: LogInlet,
    stats: Arc<WorkerStats>,
}

impl Meter {
    /// A meter without flows.
    pub(crate) fn new(reactor: &Rc<Reactor>, inlet: Inlet, log: LogInlet, stats: &Arc<WorkerStats>) -> Meter {
        Meter {
            reactor: Rc::clone(reactor),
            flows: Slab::new(),
            waiting: VecDeque::new(),
            inlet,
            log,
            stats: Arc::clone(stats),
        }
    }

    /// Whether another flow may be opened.
    pub(crate) fn has_room(&self) -> bool {
        self.flows.len() < FLOWS_PER_THREAD_MAX && self.waiting.len() < RECORDS_WAITING_MAX
    }

    /// Opens a flow: its decision is logged, from now on bytes may be counted.
    pub(crate) fn open(&mut self, opening: Opening) -> Key {
        let Opening { record, at, protocol, seats, listener, dns_us, connect_us } = opening;
        self.stats.opened(protocol);
        self.log.push(&Event {
            kind: EventKind::Decision,
            at,
            record,
            protocol: Some(protocol),
            listener,
            allowed: true,
            reason: "allowed",
            dns_us,
            connect_us,
        });
        let (seats, opened, legs) = (Some(seats), self.reactor.now(), Legs::default());
        self.flows.insert(OpenFlow { record, protocol, legs, seats, opened, listener })
    }

    /// Logs a decision against a connection, which thereby never becomes a flow.
    pub(crate) fn deny(&mut self, event: Event) {
        self.log.push(&event);
    }

    /// The counts of an open flow.
    pub(crate) fn legs_mut(&mut self, flow: Key) -> Option<&mut Legs> {
        self.flows.get_mut(flow).map(|flow| &mut flow.legs)
    }

    /// When a flow was opened; [`Nanos::NEVER`] if there is no such flow.
    pub(crate) fn opened(&self, flow: Key) -> Nanos {
        self.flows.get(flow).map_or(Nanos::NEVER, |flow| flow.opened)
    }

    /// The account of an open flow.
    pub(crate) fn account(&self, flow: Key) -> Option<&Arc<Account>> {
        let [user, _] = self.flows.get(flow)?.seats.as_ref()?;
        Some(user.account())
    }

    /// Closes a flow: it gives its places back, its end is logged, and its record goes to the ledger.
    pub(crate) fn close(&mut self, key: Key, reason: CloseReason) {
        let Some(flow) = self.flows.get_mut(key) else { return };
        assert!(flow.seats.take().is_some(), "a flow ends once");
        let at = clock::wall();
        flow.record.close(at, reason, flow.legs);
        self.stats.closed(reason);
        self.log.push(&Event {
            kind: EventKind::Close,
            at,
            record: flow.record,
            protocol: Some(flow.protocol),
            listener: flow.listener,
            allowed: true,
            reason: reason.as_str(),
            dns_us: None,
            connect_us: None,
        });
        // Those who wait go first, so that records arrive in the order of their ends.
        if self.waiting.is_empty() && self.inlet.push(&flow.record).is_ok() {
            self.flows.remove(key);
        } else {
            self.stats.ledger_full.add(1);
            self.wait(key);
        }
    }

    /// Hands over records that found the ring full before.
    pub(crate) fn retry(&mut self) {
        while let Some(&key) = self.waiting.front() {
            let flow = self.flows.get(key).expect("a flow that waits keeps its slot");
            if self.inlet.push(&flow.record).is_err() {
                self.arm_retry();
                break;
            }
            self.flows.remove(key);
            self.waiting.pop_front();
        }
        self.stats.ledger_waiting.set(self.waiting.len() as u64);
    }

    /// Whether every flow has ended and every record was handed over.
    pub(crate) fn is_settled(&self) -> bool {
        self.flows.is_empty()
    }

    fn wait(&mut self, key: Key) {
        if self.waiting.is_empty() {
            self.arm_retry();
        }
        self.waiting.push_back(key);
        self.stats.ledger_waiting.set(self.waiting.len() as u64);
    }

    fn arm_retry(&self) {
        self.reactor.arm(self.reactor.now() + RETRY, Waiter::Tag(Subject::LedgerRetry.tag()));
    }
}
