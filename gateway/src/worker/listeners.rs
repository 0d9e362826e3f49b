//! The listeners of a reactor thread, and the accepted connections that wait for a handshake.
//!
//! Guarantees: a connection is served by the configuration of the listener that accepted it, also after a
//! hand-off, and also if the listener was retired meanwhile; a reload loses no accepted connection.
//!
//! ```text
//!   open ----> serving ----> retired ----> closed ----> removed
//!                            drains its    receives     when no other thread can
//!                            queue         hand-offs    hand off a connection of it
//! ```

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;

use engine::accept::{Acceptor, HandedOffConnection, ListenerHandle, ListenerLiveness, WorkerHandle};
use engine::reactor::Reactor;
use sys::socket::{AckMode, ResourceExhausted, Socket};

use crate::config::{Config, Ingress};
use crate::connection::Accepted;
use crate::snapshot::SnapshotHandle;
use crate::token::Token;

/// This thread's part of a listening address.
struct Listener {
    /// The listener's id, the same on all threads.
    number: u32,
    /// The address as configured (port 0 stays 0), by which a reload finds the listener.
    configured: SocketAddr,
    info: ListenerInfo,
    /// `None` once this thread's part is closed.
    acceptor: Option<Acceptor>,
    /// Whether other threads' parts are open.
    liveness: ListenerLiveness,
    /// The configuration that serves its pending connections, once it is retired.
    retired: Option<Rc<SnapshotHandle>>,
}

impl Listener {
    /// Whether no thread can accept or hand off a connection of it. The thread that closes the last part
    /// wakes the others.
    fn is_fully_closed(&self) -> bool {
        self.acceptor.is_none() && self.liveness.all_closed()
    }
}

/// What an accepted connection keeps of its listener.
#[derive(Clone, Copy)]
struct ListenerInfo {
    /// The bound address, with the port that the kernel chose.
    bound: SocketAddr,
    /// The listener's position in the configuration.
    position: usize,
}

impl ListenerInfo {
    fn accepted(self, socket: Socket, peer: SocketAddr, snapshot: &Rc<SnapshotHandle>) -> Accepted {
        let (listener, address) = (self.position, self.bound);
        Accepted { socket, peer: canonical(peer), snapshot: Rc::clone(snapshot), listener, address }
    }
}

/// All listeners of one reactor thread.
pub(crate) struct Listeners {
    reactor: Rc<Reactor>,
    worker: Rc<WorkerHandle>,
    listeners: Vec<Listener>,
    /// Connections that were accepted without a free handshake slot: all of retired listeners, and one of
    /// others.
    pending: VecDeque<Accepted>,
    /// Hand-offs of listeners that this thread has yet to open: at most those between two threads' handling
    /// of the same command.
    early: Vec<HandedOffConnection>,
}

impl Listeners {
    /// No listener yet, on the thread of `reactor`.
    pub(crate) fn new(reactor: &Rc<Reactor>, worker: WorkerHandle) -> Listeners {
        let (reactor, worker) = (Rc::clone(reactor), Rc::new(worker));
        Listeners { reactor, worker, listeners: Vec::new(), pending: VecDeque::new(), early: Vec::new() }
    }

    /// Opens a listener of `snapshot`.
    pub(crate) fn open(
        &mut self,
        configured: SocketAddr,
        handle: ListenerHandle,
        snapshot: &Rc<SnapshotHandle>,
    ) {
        let (number, liveness) = (handle.listener_id(), handle.liveness());
        let bound = handle.local().unwrap_or(configured);
        let token = Token::Listener(number).to_raw();
        // On failure the kernel lacks memory for one more registration. Other threads may still accept, and
        // hand connections off.
        let acceptor = Acceptor::new(&self.reactor, &self.worker, handle, token).ok();
        let info = ListenerInfo { bound, position: position(&snapshot.config, configured) };
        self.listeners.push(Listener { number, configured, info, acceptor, liveness, retired: None });
        for connection in std::mem::take(&mut self.early) {
            self.take_handed_off(connection, snapshot);
        }
    }

    /// Serves new connections of the listeners that are not retired by `snapshot`.
    pub(crate) fn adopt(&mut self, snapshot: &SnapshotHandle) {
        for listener in self.listeners.iter_mut().filter(|listener| listener.retired.is_none()) {
            listener.info.position = position(&snapshot.config, listener.configured);
            if let Some(acceptor) = &listener.acceptor {
                acceptor.set_ack_mode(ack_mode(&snapshot.config.listeners[listener.info.position].ingress));
            }
        }
    }

    /// Accepts connections of listener `number`, while `accepted` returns that it has capacity for another.
    /// Without capacity for the first one it pauses until [`Listeners::resume`]. A retired listener accepts
    /// without capacity: its connections become pending here.
    ///
    /// # Errors
    /// The exhausted resource; the listener retries after a backoff.
    pub(crate) fn accept(
        &mut self,
        number: u32,
        has_capacity: bool,
        snapshot: &Rc<SnapshotHandle>,
        mut accepted: impl FnMut(Accepted) -> bool,
    ) -> Result<(), ResourceExhausted> {
        let Some(index) = self.listeners.iter().position(|listener| listener.number == number) else {
            return Ok(());
        };
        let listener = &mut self.listeners[index];
        if listener.retired.is_some() {
            self.drain(index);
            return Ok(());
        }
        let (Some(acceptor), info) = (&mut listener.acceptor, listener.info) else { return Ok(()) };
        if !has_capacity {
            acceptor.pause();
            return Ok(());
        }
        acceptor.accept(|socket, peer| accepted(info.accepted(socket, peer, snapshot)))
    }

    /// Resumes paused listeners.
    pub(crate) fn resume(&mut self) {
        self.acceptors_mut().for_each(Acceptor::resume);
    }

    /// Tries to lock the accept mutexes, where the strategy has them. To be called before each sleep.
    pub(crate) fn lock_accept_mutexes(&mut self) {
        self.acceptors_mut().for_each(Acceptor::try_lock_accept_mutex);
    }

    /// Unlocks the accept mutexes. To be called after the events of a sleep are handled.
    pub(crate) fn unlock_accept_mutexes(&mut self) {
        self.acceptors_mut().for_each(Acceptor::unlock_accept_mutex);
    }

    /// The next pending connection, hand-offs included.
    pub(crate) fn next_pending(&mut self, snapshot: &Rc<SnapshotHandle>) -> Option<Accepted> {
        while self.pending.is_empty() {
            let connection = self.worker.take()?;
            self.take_handed_off(connection, snapshot);
        }
        self.pending.pop_front()
    }

    /// Queues an accepted connection.
    pub(crate) fn enqueue(&mut self, accepted: Accepted) {
        self.pending.push_back(accepted);
    }

    /// The number of pending connections, without hand-offs that were not received yet.
    pub(crate) fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// Whether no connection is pending, no accept is due, and no closed listener is to be removed.
    pub(crate) fn is_idle(&self) -> bool {
        let has_work = |listener: &Listener| {
            listener.is_fully_closed() || listener.acceptor.as_ref().is_some_and(Acceptor::has_pending)
        };
        self.pending.is_empty() && self.worker.is_empty() && !self.listeners.iter().any(has_work)
    }

    /// Whether no further connection can arrive.
    pub(crate) fn is_empty(&self) -> bool {
        self.listeners.is_empty() && self.pending.is_empty()
    }

    /// Retires the listeners for which `is_removed` holds: they accept nothing new, and `snapshot` serves
    /// their pending connections.
    pub(crate) fn retire(&mut self, snapshot: &Rc<SnapshotHandle>, is_removed: impl Fn(SocketAddr) -> bool) {
        for index in 0..self.listeners.len() {
            let listener = &mut self.listeners[index];
            if listener.retired.is_none() && is_removed(listener.configured) {
                listener.retired = Some(Rc::clone(snapshot));
                self.drain(index);
            }
        }
    }

    /// Removes closed listeners of which no connection can arrive.
    pub(crate) fn remove_closed(&mut self, snapshot: &Rc<SnapshotHandle>) {
        let closed: Vec<u32> = self
            .listeners
            .iter()
            .filter(|listener| listener.is_fully_closed())
            .map(|listener| listener.number)
            .collect();
        if closed.is_empty() {
            return;
        }
        // No thread adds to their hand-offs; those are received while their listener is known.
        while let Some(connection) = self.worker.take() {
            self.take_handed_off(connection, snapshot);
        }
        self.listeners.retain(|listener| !closed.contains(&listener.number));
    }

    /// Closes all listeners and pending connections.
    pub(crate) fn clear(&mut self) {
        self.listeners.clear();
        self.pending.clear();
        self.early.clear();
    }

    /// Accepts the queue of a retired listener, and closes it when the queue is empty.
    fn drain(&mut self, index: usize) {
        let Listener { info, acceptor, retired, .. } = &mut self.listeners[index];
        let (Some(open_acceptor), Some(snapshot)) = (acceptor.as_mut(), retired) else { return };
        let pending = &mut self.pending;
        if open_acceptor.retire(|socket, peer| pending.push_back(info.accepted(socket, peer, snapshot))) {
            *acceptor = None;
        }
    }

    fn take_handed_off(&mut self, connection: HandedOffConnection, snapshot: &Rc<SnapshotHandle>) {
        match self.listeners.iter().find(|listener| listener.number == connection.listener_id) {
            Some(listener) => {
                let snapshot = listener.retired.as_ref().unwrap_or(snapshot);
                self.pending.push_back(listener.info.accepted(connection.socket, connection.peer, snapshot));
            }
            None => self.early.push(connection),
        }
    }

    fn acceptors_mut(&mut self) -> impl Iterator<Item = &mut Acceptor> {
        self.listeners.iter_mut().filter_map(|listener| listener.acceptor.as_mut())
    }
}

/// When the first bytes of a listener's clients are acknowledged: with the gateway's own reply, if it sends
/// one. How soon a `forward` destination replies is unknown.
pub(crate) fn ack_mode(ingress: &Ingress) -> AckMode {
    match ingress {
        Ingress::Forward { .. } => AckMode::Immediate,
        Ingress::Mixed | Ingress::Http | Ingress::Socks5 => AckMode::Delayed,
    }
}

/// The position in `config` of the listener with that configured address.
fn position(config: &Config, configured: SocketAddr) -> usize {
    let position = config.listeners.iter().position(|listener| listener.address == configured);
    position.expect("a listener that is not removed is in the configuration")
}

/// A peer's address; an IPv4-mapped IPv6 address, which a dual-stack socket reports, becomes IPv4.
fn canonical(peer: SocketAddr) -> SocketAddr {
    SocketAddr::new(peer.ip().to_canonical(), peer.port())
}

#[cfg(test)]
mod tests;
