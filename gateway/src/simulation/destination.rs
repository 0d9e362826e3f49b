//! A destination: it accepts connections of the gateway, each of which is one side of a tunnel.

use std::net::SocketAddr;

use sys::socket::{ListenOptions, Listener};

use super::peer::{Peer, Script};

/// What a destination does.
#[derive(Clone, Copy, Debug)]
pub(super) struct DestinationPlan {
    pub(super) address: SocketAddr,
    pub(super) script: Script,
    /// The key of the stream that the client sends.
    pub(super) expects: u64,
}

/// A destination, and the connection that it accepted.
pub(super) struct Destination {
    pub(super) plan: DestinationPlan,
    listener: Listener,
    /// A tunnel has one; a dial that the gateway gives up leaves a connection that ends at once.
    pub(super) peers: Vec<Peer>,
}

impl Destination {
    /// Listens.
    pub(super) fn listen(plan: DestinationPlan) -> Destination {
        let listener =
            Listener::bind(plan.address, ListenOptions::plain(8)).expect("each address is used once");
        Destination { plan, listener, peers: Vec::new() }
    }

    /// Accepts a connection, if one is queued.
    pub(super) fn accept(&mut self) -> bool {
        let Ok((socket, _)) = self.listener.accept() else { return false };
        let mut peer = Peer::new(socket, self.plan.script, Vec::new());
        peer.allow_stream();
        peer.expect_stream(self.plan.expects);
        self.peers.push(peer);
        true
    }
}
