//! Commands of the control side to a reactor thread.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use engine::accept::ListenerHandle;

use crate::snapshot::Snapshot;

/// What the control side can have a reactor thread do.
pub(crate) enum Command {
    /// Serve new requests by this snapshot, open the `added` listeners, and retire the `removed` ones.
    Reconfigure {
        snapshot: Arc<Snapshot>,
        added: Vec<(SocketAddr, ListenerHandle)>,
        removed: Vec<SocketAddr>,
        /// Dropped once the thread serves by the snapshot.
        adopted: SyncSender<Infallible>,
    },
    /// Accept nothing new, and end when the open connections have ended.
    Drain,
    /// Cut all connections, and end.
    Stop,
}
