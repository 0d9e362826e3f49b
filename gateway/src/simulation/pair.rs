//! A client and a destination with the gateway between them, for tests that are written by hand: each step is
//! the test's own, and time passes only when it says so.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use ledger::simulation::{BilledFlow, Random};
use sys::simulation::{Entered, Simulation};
use sys::socket::{ListenOptions, Listener, Socket, SpeaksFirst};

use super::plan::GATEWAY;
use super::process::{Process, load};
use crate::observe::log::LoggedFlow;
use crate::observe::stats::WorkerStats;

/// The client's address.
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 1, 0, 1));

/// The destination's address.
const DESTINATION: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(93, 184, 216, 1)), 443);

/// The listener's address.
pub(crate) const LISTENER: SocketAddr = SocketAddr::new(GATEWAY, 3128);

const STEP: Duration = Duration::from_micros(1);

/// Passes at one moment: more of them are a loop.
const PASSES_MAX: u32 = 100_000;

/// The gateway, and a network on which a packet takes at most a millisecond.
pub(crate) struct Pair {
    pub(crate) simulation: Entered,
    process: Process,
    destination: Listener,
}

impl Pair {
    /// A gateway whose user may reach the destination from the client's network, with these `settings`
    /// beside.
    pub(crate) fn new(settings: &str) -> Pair {
        Pair::with_user(settings, "")
    }

    /// The same, with `user_settings` of the user.
    pub(crate) fn with_user(settings: &str, user_settings: &str) -> Pair {
        let mut choices = Random::from_seed(1);
        let simulation = Simulation::enter(GATEWAY, move |bound| choices.below(bound));
        let process = Process::start(load(&configuration(settings, user_settings)));
        let listen = || Listener::bind(DESTINATION, ListenOptions::plain(8)).unwrap();
        let destination = simulation.as_peer(DESTINATION.ip(), listen);
        let mut pair = Pair { simulation, process, destination };
        pair.settle();
        pair
    }

    /// Replaces the settings, as a reload does.
    pub(crate) fn reload(&mut self, settings: &str) {
        self.reload_user(settings, "");
    }

    /// Replaces the settings, also those of the user.
    pub(crate) fn reload_user(&mut self, settings: &str, user_settings: &str) {
        self.process.reload(load(&configuration(settings, user_settings)));
        self.settle();
    }

    /// Reloads a configuration in which the user is missing.
    pub(crate) fn remove_user(&mut self) {
        self.process.reload(load(&format!("[[listener]]\naddress = \"{LISTENER}\"\n")));
        self.settle();
    }

    /// Begins to drain.
    pub(crate) fn drain(&mut self) {
        self.process.drain();
        self.settle();
    }

    /// A client's connection to the gateway.
    pub(crate) fn connect(&mut self) -> Socket {
        self.connect_to(LISTENER)
    }

    /// A client's connection to a listener of the gateway.
    pub(crate) fn connect_to(&mut self, listener: SocketAddr) -> Socket {
        let connect = || Socket::connect(listener, SpeaksFirst::Unknown).unwrap();
        let socket = self.simulation.as_peer(CLIENT, connect);
        self.settle();
        socket
    }

    /// The next connection that the gateway opened to the destination.
    pub(crate) fn accept(&mut self) -> Socket {
        self.try_accept().expect("the gateway has opened a connection")
    }

    /// As [`Pair::accept`], if there is one.
    pub(crate) fn try_accept(&mut self) -> Option<Socket> {
        self.settle();
        self.simulation.as_peer(DESTINATION.ip(), || self.destination.accept().ok()).map(|(socket, _)| socket)
    }

    /// An open tunnel: the client's socket, and the destination's.
    pub(crate) fn open_tunnel(&mut self) -> (Socket, Socket) {
        let client = self.connect();
        self.send(
            &client,
            format!("CONNECT {DESTINATION} HTTP/1.1\r\nHost: {DESTINATION}\r\n\r\n").as_bytes(),
        );
        let reply = self.receive(&client);
        assert!(reply.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&reply));
        (client, self.accept())
    }

    /// Sends all of `bytes` from a peer, as fast as they are taken. They need not all be received.
    ///
    /// # Panics
    /// If they are not taken: the peer beyond reads too little.
    pub(crate) fn send(&mut self, peer: &Socket, bytes: &[u8]) {
        let sent = self.send_some(peer, bytes);
        assert_eq!(sent, bytes.len(), "the other side does not read");
    }

    /// Sends as much of `bytes` as is taken without a pause; returns how much that is.
    ///
    /// # Panics
    /// If the connection has failed.
    pub(crate) fn send_some(&mut self, peer: &Socket, bytes: &[u8]) -> usize {
        self.try_send_some(peer, bytes).unwrap_or_else(|error| panic!("the peer cannot send: {error}"))
    }

    /// The same.
    ///
    /// # Errors
    /// The connection has failed.
    pub(crate) fn try_send_some(&mut self, peer: &Socket, bytes: &[u8]) -> io::Result<usize> {
        let mut sent = 0;
        while sent < bytes.len() {
            match self.as_peer(|| peer.send(&bytes[sent..])) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let before = peer_queue(self, peer);
                    self.settle();
                    if peer_queue(self, peer) == before {
                        break;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        self.settle();
        Ok(sent)
    }

    /// Receives at a peer what has arrived.
    ///
    /// # Panics
    /// If the connection has failed.
    pub(crate) fn receive(&mut self, peer: &Socket) -> Vec<u8> {
        let mut received = Vec::new();
        while let Some(outcome) = self.receive_once(peer) {
            match outcome.expect("the connection works") {
                bytes if bytes.is_empty() => break,
                bytes => received.extend(bytes),
            }
        }
        received
    }

    /// Receives at a peer what has arrived, also before a reset.
    pub(crate) fn receive_rest(&mut self, peer: &Socket) -> Vec<u8> {
        let mut received = Vec::new();
        while let Some(Ok(bytes)) = self.receive_once(peer) {
            if bytes.is_empty() {
                break;
            }
            received.extend(bytes);
        }
        received
    }

    /// Receives at a peer what arrives before its reset.
    ///
    /// # Panics
    /// If the connection is not reset.
    pub(crate) fn receive_until_reset(&mut self, peer: &Socket) -> Vec<u8> {
        let mut received = Vec::new();
        loop {
            match self.receive_once(peer).expect("the connection is reset") {
                Ok(bytes) => received.extend(bytes),
                Err(_) => return received,
            }
        }
    }

    /// Whether the peer has received the end of its stream, after what was received before.
    pub(crate) fn has_ended(&mut self, peer: &Socket) -> bool {
        self.receive_once(peer).is_some_and(|received| received.is_ok_and(|bytes| bytes.is_empty()))
    }

    /// Whether the peer's connection was reset, after what was received before.
    pub(crate) fn was_reset(&mut self, peer: &Socket) -> bool {
        self.receive_once(peer).is_some_and(|received| received.is_err())
    }

    /// Whether the peer's stream has ended, or its connection was reset.
    pub(crate) fn is_closed(&mut self, peer: &Socket) -> bool {
        self.receive_once(peer).is_some_and(|received| received.map_or(true, |bytes| bytes.is_empty()))
    }

    /// Ends a peer's direction.
    pub(crate) fn end(&mut self, peer: &Socket) {
        self.as_peer(|| peer.shutdown_write()).unwrap();
        self.settle();
    }

    /// Lets `time` pass.
    pub(crate) fn pass_time(&mut self, time: Duration) {
        let until = self.simulation.elapsed() + time;
        loop {
            self.settle();
            let now = self.simulation.elapsed();
            // A gateway that has ended sleeps no more: its last wait is in the past.
            let wakes = self.simulation.sleeps_until().filter(|wakes| *wakes > now && *wakes < until);
            let event = self.simulation.next_event().filter(|event| *event < until);
            let next = wakes.into_iter().chain(event).min().unwrap_or(until);
            self.simulation.advance(next);
            if next == until {
                return self.settle();
            }
        }
    }

    /// Runs the gateway and the network until both have nothing to do for 100 ms.
    pub(crate) fn settle(&mut self) {
        const SHORT: Duration = Duration::from_millis(100);
        for _ in 0..PASSES_MAX {
            if !self.process.pass().expect("the gateway runs") {
                return;
            }
            let now = self.simulation.elapsed();
            let wakes = self.simulation.sleeps_until().filter(|wakes| *wakes <= now);
            let event = self.simulation.next_event().filter(|event| *event <= now + SHORT);
            if self.simulation.has_events() || wakes.is_some() {
                self.simulation.advance(now + STEP);
            } else if let Some(event) = event {
                self.simulation.advance(event);
            } else {
                return;
            }
        }
        panic!("the gateway loops");
    }

    /// Whether the gateway has ended.
    pub(crate) fn is_over(&mut self) -> bool {
        !self.process.pass().expect("the gateway runs")
    }

    /// The tunnels and requests whose end was logged since the last call.
    pub(crate) fn logged(&mut self) -> Vec<LoggedFlow> {
        self.process.logged()
    }

    /// The counters of the gateway's thread.
    pub(crate) fn stats(&self) -> &WorkerStats {
        self.process.stats()
    }

    /// Kills the gateway; returns the bill of the next start.
    pub(crate) fn kill(self) -> Vec<BilledFlow> {
        let Pair { process, simulation: _entered, .. } = self;
        let words = process.table().words();
        process.end(Some(words)).expect("the ledger works").bill
    }

    /// Stops the gateway; returns the bill.
    pub(crate) fn stop(mut self) -> Vec<BilledFlow> {
        self.process.stop();
        self.settle();
        assert!(self.is_over(), "a stopped thread ends at once");
        let Pair { process, simulation: _entered, .. } = self;
        process.end(None).expect("the ledger works").bill
    }

    fn receive_once(&mut self, peer: &Socket) -> Option<std::io::Result<Vec<u8>>> {
        self.settle();
        let mut buffer = vec![0; 1 << 16];
        match self.as_peer(|| peer.recv(&mut buffer)) {
            Ok(count) => {
                buffer.truncate(count);
                Some(Ok(buffer))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) => Some(Err(error)),
        }
    }

    fn as_peer<T>(&self, act: impl FnOnce() -> T) -> T {
        self.simulation.as_peer(CLIENT, act)
    }
}

fn peer_queue(pair: &Pair, peer: &Socket) -> u64 {
    pair.as_peer(|| peer.unacknowledged_bytes())
}

fn configuration(settings: &str, user_settings: &str) -> String {
    format!(
        r#"
        {settings}
        [[listener]]
        address = "{LISTENER}"
        [[user]]
        name = "ci"
        from = ["10.1.0.0/16"]
        allow = ["93.184.216.0/24:443"]
        {user_settings}
        "#
    )
}
