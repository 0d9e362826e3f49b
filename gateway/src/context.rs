//! What the tasks of one reactor thread share.
//!
//! Promises: nothing here is seen by another thread, so nothing is locked; borrows last no longer than a
//! statement and never across an await. Leaves to others: what is shared between threads (`snapshot`,
//! `account`).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use engine::reactor::Reactor;
use sys::clock::WallNanos;

use crate::auth::Authenticator;
use crate::client::Client;
use crate::date::HttpDate;
use crate::flow::closing::ClosingConnections;
use crate::flow::meter::Meter;
use crate::handshake::Identified;
use crate::handshake::slots::Handshakes;
use crate::idle::IdleConnections;
use crate::limits::{
    ANSWER_BYTES, ANSWERS_CACHED_MAX, GREETING_BYTES_FIRST, GREETINGS_CACHED_MAX, HANDSHAKES_CACHED_MAX,
};
use crate::relay::Relays;
use crate::resolve::ResolveCache;
use crate::shares::SharePool;
use crate::snapshot::SnapshotHandle;
use crate::stats::WorkerStats;

/// See the file's header.
pub(crate) struct WorkerContext {
    pub(crate) reactor: Rc<Reactor>,
    pub(crate) authenticator: Authenticator,
    pub(crate) names: ResolveCache,
    /// Attempts of dials beyond the first of each.
    pub(crate) extra_attempts: SharePool,
    pub(crate) relays: RefCell<Relays>,
    pub(crate) meter: RefCell<Meter>,
    pub(crate) stats: Arc<WorkerStats>,
    pub(crate) flow_ids: FlowIds,
    pub(crate) read_buffers: ReadBufferPool,
    pub(crate) write_buffers: WriteBufferPool,
    pub(crate) client_boxes: ClientBoxPool,
    /// What bodies are read into on their way.
    pub(crate) scratch: RefCell<Box<[u8]>>,
    pub(crate) snapshot: RefCell<Rc<SnapshotHandle>>,
    pub(crate) phase: Cell<Phase>,
    pub(crate) date: HttpDate,
    /// Our name in `Via`: nobody else's, and another one after a restart, so that it tells no outsider much.
    pub(crate) via: String,
    pub(crate) handshakes: RefCell<Handshakes>,
    /// Connections whose clients have become known, and which wait for a task.
    pub(crate) identified: RefCell<VecDeque<Identified>>,
    /// Tunnels whose relay has not begun.
    pub(crate) opening: OpeningTunnels,
    /// Connections of known clients that are read on behind their last answer, so that the close is no reset
    /// that takes the answer away. Nothing else bounds these: their requests gave back all that they held.
    pub(crate) lingering: SharePool,
    pub(crate) closing: Rc<ClosingConnections>,
    pub(crate) idle: RefCell<IdleConnections>,
}

/// How far a thread is from its end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Phase {
    Serving,
    /// Nothing new begins, and what is open may end.
    Draining,
    /// What is open is cut off.
    Stopping,
}

impl WorkerContext {
    /// What new connections run by.
    pub(crate) fn snapshot(&self) -> Rc<SnapshotHandle> {
        Rc::clone(&self.snapshot.borrow())
    }
}

/// Counts the tunnels between the moment when their client is known and their relay.
#[derive(Default)]
pub(crate) struct OpeningTunnels(Cell<usize>);

impl OpeningTunnels {
    /// Counts one, until the result is dropped.
    pub(crate) fn enter(&self) -> impl Drop + use<'_> {
        self.0.set(self.0.get() + 1);
        OpeningTunnel(self)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.get()
    }
}

struct OpeningTunnel<'a>(&'a OpeningTunnels);

impl Drop for OpeningTunnel<'_> {
    fn drop(&mut self) {
        self.0.0.set(self.0.0.get() - 1);
    }
}

/// Makes flow ids: unique without coordination, and in the order of time.
///
/// 48 bits of milliseconds since 1970, 32 of the process, 16 of the thread, 32 of a counter.
pub(crate) struct FlowIds {
    process: u32,
    thread: u16,
    count: Cell<u32>,
}

impl FlowIds {
    /// The ids of thread number `thread` of the process that drew the random number `process`.
    pub(crate) fn new(process: u32, thread: u16) -> FlowIds {
        FlowIds { process, thread, count: Cell::new(0) }
    }

    /// The id of something that happened at `now`.
    pub(crate) fn next(&self, now: WallNanos) -> u128 {
        const NANOS_PER_MS: u64 = 1_000_000;
        let ms = now.0 / NANOS_PER_MS;
        let count = self.count.get();
        self.count.set(count.wrapping_add(1));
        u128::from(ms) << 80
            | u128::from(self.process) << 48
            | u128::from(self.thread) << 32
            | u128::from(count)
    }
}

/// Greeting buffers, kept when their connections are done with them.
#[derive(Default)]
pub(crate) struct ReadBufferPool(RefCell<Vec<Vec<u8>>>);

impl ReadBufferPool {
    /// An empty buffer.
    pub(crate) fn take(&self) -> Vec<u8> {
        self.0.borrow_mut().pop().unwrap_or_else(|| Vec::with_capacity(GREETING_BYTES_FIRST))
    }

    /// Keeps a buffer for the next connection, its contents overwritten: they may have held a password.
    pub(crate) fn put(&self, mut buffer: Vec<u8>) {
        let mut kept = self.0.borrow_mut();
        // One that has grown for an unusual client is not worth keeping.
        if kept.len() >= GREETINGS_CACHED_MAX || !(1..=GREETING_BYTES_FIRST).contains(&buffer.capacity()) {
            zeroize::Zeroize::zeroize(&mut buffer);
            return;
        }
        // What stays in reach is no dead store to the compiler, so that all bytes may be wiped at once, in
        // place of one volatile write for each.
        buffer.clear();
        buffer.resize(buffer.capacity(), 0);
        std::hint::black_box(&mut buffer).clear();
        kept.push(buffer);
    }
}

/// Empty rooms for answers, kept for the next one.
#[derive(Default)]
pub(crate) struct WriteBufferPool(RefCell<Vec<Vec<u8>>>);

impl WriteBufferPool {
    /// An empty room of [`ANSWER_BYTES`].
    pub(crate) fn take(&self) -> Vec<u8> {
        self.0.borrow_mut().pop().unwrap_or_else(|| Vec::with_capacity(ANSWER_BYTES))
    }

    /// Keeps a room for the next answer.
    pub(crate) fn put(&self, mut room: Vec<u8>) {
        let mut kept = self.0.borrow_mut();
        if kept.len() < ANSWERS_CACHED_MAX {
            room.clear();
            kept.push(room);
        }
    }
}

/// Memory for a client on its way from its handshake to its relay; filled on that way.
pub(crate) type ClientBox = Box<Option<Client>>;

/// Empty rooms for clients, kept for the next one.
#[derive(Default)]
pub(crate) struct ClientBoxPool(RefCell<Vec<ClientBox>>);

impl ClientBoxPool {
    /// Puts `client` into a room.
    pub(crate) fn fill(&self, client: Client) -> ClientBox {
        let mut room = self.0.borrow_mut().pop().unwrap_or_default();
        *room = Some(client);
        room
    }

    /// Takes the client out, and keeps the room.
    ///
    /// # Panics
    /// If there is none.
    pub(crate) fn empty(&self, mut room: ClientBox) -> Client {
        let client = room.take().expect("a room is emptied once");
        let mut kept = self.0.borrow_mut();
        if kept.len() < HANDSHAKES_CACHED_MAX {
            kept.push(room);
        }
        client
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_and_do_not_go_back() {
        let (first, second) = (FlowIds::new(7, 0), FlowIds::new(7, 1));
        let mut last = 0;
        for _ in 0..1000 {
            let now = WallNanos(1_800_000_000_000_000_000);
            let (id, other) = (first.next(now), second.next(now));
            assert_ne!(id, other);
            assert!(id > last);
            last = id;
        }
        assert_eq!(last >> 48 & 0xffff_ffff, 7);
    }

    #[test]
    fn a_kept_buffer_forgets_what_it_held() {
        let greetings = ReadBufferPool::default();
        let mut buffer = greetings.take();
        buffer.extend_from_slice(b"secret");
        greetings.put(buffer);
        let buffer = greetings.take();
        assert!(buffer.is_empty() && buffer.capacity() == GREETING_BYTES_FIRST);
        greetings.put(Vec::with_capacity(10 * GREETING_BYTES_FIRST));
        assert_eq!(greetings.take().capacity(), GREETING_BYTES_FIRST);
    }
}
