//! What the tasks of one reactor thread share: services and buffers, but no queue of connections.
//!
//! Guarantees: no other thread has access, so nothing is locked; a borrow lasts for one statement and never
//! across an await.

mod flow_ids;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use engine::reactor::Reactor;

pub(crate) use self::flow_ids::FlowIds;

use crate::authenticator::Authenticator;
use crate::buffers::{ReadBufferPool, WriteBufferPool};
use crate::date::HttpDate;
use crate::dns::ResolveCache;
use crate::flow::closing::ClosingConnections;
use crate::flow::meter::Meter;
use crate::idle::Evictor;
use crate::observe::stats::WorkerStats;
use crate::shares::SharePool;
use crate::snapshot::SnapshotHandle;

/// The services of a reactor thread, for its tasks.
pub(crate) struct WorkerContext {
    pub(crate) reactor: Rc<Reactor>,
    pub(crate) authenticator: Authenticator,
    pub(crate) names: ResolveCache,
    /// Permits for connection attempts beyond the first of each dial.
    pub(crate) extra_attempts: SharePool,
    pub(crate) meter: Rc<RefCell<Meter>>,
    pub(crate) stats: Arc<WorkerStats>,
    pub(crate) flow_ids: FlowIds,
    pub(crate) read_buffers: ReadBufferPool,
    pub(crate) write_buffers: WriteBufferPool,
    /// One buffer for the bodies of all exchanges: it holds bytes for the length of one poll.
    pub(crate) scratch: RefCell<Box<[u8]>>,
    /// The configuration of new requests.
    pub(crate) snapshot: RefCell<Rc<SnapshotHandle>>,
    pub(crate) phase: Cell<Phase>,
    pub(crate) date: HttpDate,
    /// The gateway's name in `Via`, by which it recognises a loop. Random for each process, so that it tells
    /// an outsider little.
    pub(crate) via: String,
    /// Tunnels between identification and relay.
    pub(crate) opening: OpeningTunnels,
    /// Permits of identified clients that linger behind a last response: their requests have returned all
    /// other permits.
    pub(crate) lingering: SharePool,
    pub(crate) closing: Rc<ClosingConnections>,
    pub(crate) evictor: Evictor,
}

/// How far a thread is from its end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Phase {
    Serving,
    /// No new request is accepted; open flows may end.
    Draining,
    /// Open flows are cut.
    Stopping,
}

impl WorkerContext {
    /// The configuration of new requests.
    pub(crate) fn snapshot(&self) -> Rc<SnapshotHandle> {
        Rc::clone(&self.snapshot.borrow())
    }
}

/// Counts the tunnels between identification and relay.
#[derive(Default)]
pub(crate) struct OpeningTunnels(Cell<usize>);

impl OpeningTunnels {
    /// Counts one, until the guard is dropped.
    pub(crate) fn enter(&self) -> impl Drop + use<'_> {
        self.0.set(self.0.get() + 1);
        OpeningTunnel(self)
    }

    /// The count.
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
