//! What is known of a client's connection, apart from its socket and its bytes.

use std::net::SocketAddr;
use std::rc::Rc;

use sys::socket::Socket;

use crate::flow::closing::SentBytes;
use crate::snapshot::SnapshotHandle;

/// A connection that a listener has accepted.
pub(crate) struct Accepted {
    pub(crate) socket: Socket,
    pub(crate) peer: SocketAddr,
    /// The configuration that serves the connection: its listener's, also after a hand-off or a reload.
    pub(crate) snapshot: Rc<SnapshotHandle>,
    /// The listener's position in that configuration.
    pub(crate) listener: usize,
    /// The listener's address, with the port that the kernel chose.
    pub(crate) address: SocketAddr,
}

/// What a connection keeps over all its requests.
pub(crate) struct ConnectionInfo {
    pub(crate) peer: SocketAddr,
    /// The configuration that serves the current request.
    pub(crate) snapshot: Rc<SnapshotHandle>,
    /// The listener's position in that configuration; none once the client is known to speak HTTP.
    pub(crate) listener: Option<usize>,
    /// The listener's address.
    pub(crate) address: SocketAddr,
    /// Bytes sent to the client, denials included.
    pub(crate) sent: SentBytes,
    /// The latest requests, in a row, that did not prove their user.
    pub(crate) auth_failures: u8,
}

impl ConnectionInfo {
    /// The information of a new connection, and its socket.
    pub(crate) fn of(accepted: Accepted) -> (ConnectionInfo, Socket) {
        let Accepted { socket, peer, snapshot, listener, address } = accepted;
        let (listener, sent, auth_failures) = (Some(listener), SentBytes::default(), 0);
        (ConnectionInfo { peer, snapshot, listener, address, sent, auth_failures }, socket)
    }
}
