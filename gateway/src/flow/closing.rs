//! Closing connections: their flows have ended, the kernel has all bytes for a peer, and the peer has not
//! acknowledged all of them.
//!
//! Guarantees: such a connection counts among its user's, and holds a permit of the budget, until its peer
//! has acknowledged every byte and the FIN (RFC 9293, section 3.6). It is reset if the peer acknowledges
//! nothing for a minute, a minute after the flow if the user was removed, or to free a descriptor once it has
//! stalled, the user's with the most connections first. At the thread's end the kernel closes it alone. Peers
//! that were sent fewer than [`QUEUED_BYTES_MIN`] bytes are left to the kernel at once.
//!
//! epoll reports the peer's acknowledgement of the FIN if the peer has shut its own direction down before, as
//! most have. Otherwise a timer checks.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use engine::net::Parts;
use engine::reactor::{Interest, Reactor, Registration, WakeTarget};
use engine::slab::{Key, Slab};
use engine::timer::wheel::TimerId;
use sys::clock::Nanos;
use sys::epoll::{Readiness, StreamEnd};
use sys::socket::Socket;

use crate::account::{Account, ConnectionPermit};
use crate::budget::{FlowPermit, SessionPermit};
use crate::flow::progress::{Progress, SocketQueues};
use crate::limits::{EVICTION_CANDIDATES_MAX, QUEUED_BYTES_MIN};
use crate::token::Token;

/// The closing connections of one thread.
pub(crate) struct ClosingConnections {
    reactor: Rc<Reactor>,
    sockets: RefCell<Slab<ClosingSocket>>,
    /// How long a peer may acknowledge nothing.
    stall_max: Duration,
}

/// The part of `stall_max` after which a connection has stalled. A check, which sees acknowledgements, comes
/// twice in it.
const STALLED_DIVISOR: u32 = 4;

/// The permits of a flow or a session, held while its connections close.
#[derive(Debug)]
pub(crate) struct HeldPermits {
    user_permit: UserPermit,
    /// Held until the peers have acknowledged all bytes.
    _flow_permit: FlowPermit,
}

/// The permit of the user.
#[derive(Debug)]
enum UserPermit {
    Flow(ConnectionPermit),
    Session(SessionPermit),
}

struct ClosingSocket {
    socket: Socket,
    registration: Registration,
    permits: Rc<HeldPermits>,
    progress: Progress,
    closing_since: Nanos,
    timer: TimerId,
}

/// How a connection leaves the table.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum CloseMode {
    /// Every byte was acknowledged, or the kernel closes it alone.
    InOrder,
    /// Queued bytes are dropped.
    Reset,
}

/// Whether the peer has unacknowledged bytes of the `sent` ones. Asks the kernel only if `sent` are many.
pub(crate) fn has_unacknowledged(socket: &Socket, sent: u64) -> bool {
    // The FIN counts as one byte.
    sent >= QUEUED_BYTES_MIN && socket.unacknowledged_bytes() > 1
}

/// The bytes sent to a peer since it was last seen to have acknowledged all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SentBytes(u64);

impl SentBytes {
    /// Adds sent bytes.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.0 += bytes;
    }

    /// Whether they are so many that the kernel is asked for unacknowledged ones.
    pub(crate) fn are_many(self) -> bool {
        self.0 >= QUEUED_BYTES_MIN
    }

    /// Whether the peer has unacknowledged bytes on `socket`. Asks the kernel once for each
    /// [`QUEUED_BYTES_MIN`], however small the messages are.
    pub(crate) fn is_queued(&mut self, socket: &Socket) -> bool {
        let is_queued = has_unacknowledged(socket, self.0);
        if self.are_many() && !is_queued {
            self.0 = 0;
        }
        is_queued
    }
}

impl HeldPermits {
    /// The permits of a flow.
    pub(crate) fn of_flow(permit: ConnectionPermit, flow_permit: FlowPermit) -> HeldPermits {
        HeldPermits { user_permit: UserPermit::Flow(permit), _flow_permit: flow_permit }
    }

    /// The permits of a session without a flow; `None` if all flow permits are taken.
    pub(crate) fn of_session(mut permit: SessionPermit) -> Option<HeldPermits> {
        let flow_permit = permit.acquire_flow()?;
        Some(HeldPermits { user_permit: UserPermit::Session(permit), _flow_permit: flow_permit })
    }

    fn account(&self) -> &Account {
        match &self.user_permit {
            UserPermit::Flow(permit) => permit.account(),
            UserPermit::Session(permit) => permit.account(),
        }
    }

    /// The number of the user's connections.
    fn weight(&self) -> u32 {
        self.account().connections().saturating_add(self.account().sessions())
    }
}

impl ClosingConnections {
    /// An empty table on the thread of `reactor`.
    pub(crate) fn new(reactor: &Rc<Reactor>, stall_max: Duration) -> ClosingConnections {
        ClosingConnections { reactor: Rc::clone(reactor), sockets: RefCell::default(), stall_max }
    }

    /// The number of closing connections.
    pub(crate) fn len(&self) -> usize {
        self.sockets.borrow().len()
    }

    /// Closes a connection in order, as its peer acknowledges; `permits` are returned with the last
    /// connection that holds them. A connection that cannot be registered is reset.
    pub(crate) fn add(&self, parts: Parts, permits: &Rc<HeldPermits>) {
        // Fails if the peer is gone, which an event reports.
        let _ = parts.0.shutdown_write();
        let mut sockets = self.sockets.borrow_mut();
        let index = sockets.next_index();
        let Ok((socket, registration)) = self.watch(parts, index) else { return };
        let now = self.reactor.now();
        let progress = Progress::begin(now);
        let timer = self.arm(progress.next_check(now, self.stall_max), index);
        let permits = Rc::clone(permits);
        let key = sockets.insert(ClosingSocket {
            socket,
            registration,
            permits,
            progress,
            closing_since: now,
            timer,
        });
        assert_eq!(key.index(), index, "the slab gives the slot that it announced");
    }

    /// Notes that the connection in slot `index` is ready.
    pub(crate) fn ready(&self, index: u32, readiness: Readiness) {
        let key = match self.sockets.borrow_mut().at(index) {
            Some((key, closing)) => {
                (readiness.end == StreamEnd::Broken || closing.is_acknowledged()).then_some(key)
            }
            None => None,
        };
        key.into_iter().for_each(|key| self.remove(key, CloseMode::InOrder));
    }

    /// Checks the connection in slot `index`, whose timer fired.
    pub(crate) fn due(&self, index: u32) {
        let now = self.reactor.now();
        let (key, close_mode) = {
            let mut sockets = self.sockets.borrow_mut();
            let Some((key, closing)) = sockets.at(index) else { return };
            match closing.check(now, self.stall_max) {
                Ok(check_at) => {
                    closing.timer = self.arm(check_at, index);
                    return;
                }
                Err(close_mode) => (key, close_mode),
            }
        };
        self.remove(key, close_mode);
    }

    /// Of the connections whose peers have acknowledged nothing for a quarter of the span, resets one of the
    /// user with the most connections; false if there is none. Others are left: their peers may be reading,
    /// and a connection that lacks a descriptor must not take bytes from them.
    pub(crate) fn evict_stalled(&self) -> bool {
        let heaviest = {
            let (sockets, now) = (self.sockets.borrow(), self.reactor.now());
            let stalled_since_max = now.before(self.stall_max / STALLED_DIVISOR);
            let closing = sockets.keys().filter_map(|key| Some((key, sockets.get(key)?)));
            let stalled = closing.filter(|(_, one)| one.progress.stalled_since() <= stalled_since_max);
            let weights = stalled.map(|(key, one)| (key, one.permits.weight()));
            weights.take(EVICTION_CANDIDATES_MAX).min_by_key(|(_, weight)| Reverse(*weight))
        };
        heaviest.inspect(|(key, _)| self.remove(*key, CloseMode::Reset)).is_some()
    }

    /// Leaves all connections to the kernel.
    pub(crate) fn clear(&self) {
        let keys: Vec<Key> = self.sockets.borrow().keys().collect();
        keys.into_iter().for_each(|key| self.remove(key, CloseMode::InOrder));
    }

    fn watch(&self, (socket, registration): Parts, index: u32) -> io::Result<(Socket, Registration)> {
        let wake_target = WakeTarget::Token(Token::Closing(index).to_raw());
        let registration = match registration {
            Some(registration) => {
                self.reactor.set_wake_target(registration.key(), wake_target);
                registration
            }
            None => match Registration::new(&self.reactor, &socket, Interest::Read, wake_target) {
                Ok(registration) => registration,
                Err(error) => {
                    socket.reset();
                    return Err(error);
                }
            },
        };
        Ok((socket, registration))
    }

    fn arm(&self, deadline: Nanos, index: u32) -> TimerId {
        self.reactor.arm(deadline, WakeTarget::Token(Token::ClosingTimer(index).to_raw()))
    }

    fn remove(&self, key: Key, close_mode: CloseMode) {
        let Some(closing) = self.sockets.borrow_mut().remove(key) else { return };
        self.reactor.cancel(closing.timer);
        self.reactor.forget(closing.registration.key());
        match close_mode {
            CloseMode::InOrder => closing.socket.close_after_flush(self.stall_max),
            CloseMode::Reset => closing.socket.reset(),
        }
    }
}

impl ClosingSocket {
    /// Whether the peer has acknowledged all bytes and the FIN.
    fn is_acknowledged(&self) -> bool {
        self.socket.unacknowledged_bytes() == 0
    }

    /// When to check next, or how the connection leaves.
    fn check(&mut self, now: Nanos, stall_max: Duration) -> Result<Nanos, CloseMode> {
        if self.is_acknowledged() {
            return Err(CloseMode::InOrder);
        }
        if self.permits.account().is_revoked() && now.since(self.closing_since) >= stall_max {
            return Err(CloseMode::Reset);
        }
        self.progress.check(now, stall_max, SocketQueues::read_one(&self.socket)).ok_or(CloseMode::Reset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use engine::inbox::Notifier;
    use engine::reactor::ReactorEvent;
    use sys::socket::{ListenOptions, Listener, SpeaksFirst};

    use crate::budget::Budget;

    /// A closing connection: the gateway's side in the table, and the peer.
    struct Closed {
        reactor: Rc<Reactor>,
        closing: ClosingConnections,
        account: Arc<Account>,
        peer: Socket,
        queued: u64,
    }

    impl Closed {
        /// Sends until the kernel accepts no more, and closes. The peer reads nothing yet.
        fn after_filling(stall_max: Duration) -> Closed {
            let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), ListenOptions::plain(1)).unwrap();
            let peer = Socket::connect(listener.local().unwrap(), SpeaksFirst::Unknown).unwrap();
            let socket = listener.accept().unwrap().0;
            let mut sent = 0;
            while let Ok(count) = socket.send(&[7; 65_536]) {
                sent += count as u64;
            }
            assert!(has_unacknowledged(&socket, sent), "{sent} bytes were sent");
            let reactor = Reactor::new(Arc::new(Notifier::new().unwrap()), Arc::default()).unwrap();
            let closing = ClosingConnections::new(&reactor, stall_max);
            let account = Arc::new(Account::new("ann", 1));
            let budget = Budget::new(Vec::new());
            budget.set_connections_max(1);
            let permits =
                HeldPermits::of_flow(account.try_acquire().unwrap(), budget.acquire_flow().unwrap());
            closing.add((socket, None), &Rc::new(permits));
            assert!(account.try_acquire().is_none(), "the connection counts");
            Closed { reactor, closing, account, peer, queued: sent }
        }

        /// Runs the thread until the table is empty; calls `meanwhile` in each pass.
        fn run(&self, mut meanwhile: impl FnMut()) {
            let mut wakes = Vec::new();
            while self.closing.len() > 0 {
                meanwhile();
                let next_pass = self.reactor.now() + Duration::from_millis(10);
                let timer = self.reactor.arm(next_pass, WakeTarget::Token(Token::SuppressedTimer.to_raw()));
                self.reactor.poll(&mut wakes, || true).unwrap();
                self.reactor.cancel(timer);
                for wake in wakes.drain(..) {
                    match wake {
                        ReactorEvent::Ready(token, readiness) => match Token::from_raw(token) {
                            Token::Closing(index) => self.closing.ready(index, readiness),
                            other => panic!("{other:?}"),
                        },
                        ReactorEvent::TimerDue(token) => match Token::from_raw(token) {
                            Token::ClosingTimer(index) => self.closing.due(index),
                            Token::SuppressedTimer => {}
                            other => panic!("{other:?}"),
                        },
                    }
                }
            }
            assert!(self.account.try_acquire().is_some(), "the permit is returned");
        }

        /// Reads what has arrived, to the end or a reset.
        fn take(&self, taken: &mut u64) -> std::io::Result<()> {
            let mut buffer = vec![0; 100_000];
            loop {
                match self.peer.recv(&mut buffer) {
                    Ok(0) => return Ok(()),
                    Ok(count) => *taken += count as u64,
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
                    Err(error) => return Err(error),
                }
            }
        }
    }

    #[test]
    fn permit_is_held_until_all_is_acknowledged() {
        let closed = Closed::after_filling(Duration::from_secs(8));
        let mut taken = 0;
        closed.run(|| closed.take(&mut taken).unwrap());
        closed.take(&mut taken).unwrap();
        assert_eq!(taken, closed.queued);
    }

    #[test]
    fn half_closed_peer_frees_the_permit_by_an_event() {
        let closed = Closed::after_filling(Duration::from_secs(3600));
        closed.peer.shutdown_write().unwrap();
        let mut taken = 0;
        closed.run(|| closed.take(&mut taken).unwrap());
        assert_eq!(taken, closed.queued);
    }

    #[test]
    fn peer_that_acknowledges_nothing_is_reset() {
        let closed = Closed::after_filling(Duration::from_millis(100));
        closed.run(|| {});
        let mut taken = 0;
        while closed.take(&mut taken).is_ok() {}
        assert!(taken < closed.queued);
    }

    #[test]
    fn stalled_connection_is_evicted() {
        let closed = Closed::after_filling(Duration::from_secs(8));
        let mut is_evicted = false;
        closed.run(|| is_evicted |= closed.closing.evict_stalled());
        assert!(is_evicted, "it was reset before");
    }

    #[test]
    fn connection_that_has_not_stalled_is_not_evicted() {
        let closed = Closed::after_filling(Duration::from_secs(3600));
        assert!(!closed.closing.evict_stalled());
        closed.closing.clear();
        closed.run(|| {});
        let mut taken = 0;
        while taken < closed.queued {
            closed.take(&mut taken).unwrap();
        }
    }

    #[test]
    fn revoked_users_connection_is_reset_after_a_stall() {
        let closed = Closed::after_filling(Duration::from_millis(100));
        closed.account.revoke();
        let (mut wakes, mut taken, mut buffer) = (Vec::new(), 0, vec![0; 20_000]);
        while closed.closing.len() > 0 {
            // Eight checks fall into the span, and a hundred would not suffice for all.
            taken += closed.peer.recv(&mut buffer).unwrap_or(0) as u64;
            closed.reactor.poll(&mut wakes, || true).unwrap();
            wakes.drain(..).for_each(|_| closed.closing.due(0));
        }
        assert_eq!(closed.account.connections(), 0);
        while closed.take(&mut taken).is_ok() {}
        assert!(taken < closed.queued);
    }
}
