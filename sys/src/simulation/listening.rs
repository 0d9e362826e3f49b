//! A simulated listening socket.

use std::collections::VecDeque;
use std::net::SocketAddr;

/// A socket that is bound, and its accept queue.
#[derive(Debug)]
pub(super) struct Listening {
    pub(super) address: SocketAddr,
    pub(super) is_of_process: bool,
    /// Whether it listens, and has an open descriptor.
    pub(super) is_open: bool,
    pub(super) backlog: usize,
    /// Whether SYNs of new clients are dropped.
    pub(super) drops_new_clients: bool,
    /// Established connections, in the order of their last ACK.
    pub(super) accept_queue: VecDeque<usize>,
    /// Handshakes that have begun and are not in the queue.
    pub(super) handshakes: usize,
    pub(super) descriptors: usize,
}

impl Listening {
    /// A socket that is bound to `address`.
    pub(super) fn bound(address: SocketAddr, is_of_process: bool) -> Listening {
        Listening {
            address,
            is_of_process,
            is_open: false,
            backlog: 0,
            drops_new_clients: false,
            accept_queue: VecDeque::new(),
            handshakes: 0,
            descriptors: 1,
        }
    }

    /// Whether a SYN begins a handshake.
    pub(super) fn accepts_syn(&self) -> bool {
        !self.drops_new_clients && self.accept_queue.len() + self.handshakes < self.backlog.max(1)
    }
}
