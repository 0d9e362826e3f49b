//! The bare relay: threads with an epoll each that relay connections and do nothing else, as the floor under
//! every relay of short connections.
//!
//! Guarantees: a connection stays on the thread that accepted it; there is no policy, no deadline, no log and
//! no count. The calls are the fewest that such a relay can make: a socket is registered once a read of it
//! would block, the end of a stream rides on its last bytes, and a connect to a near destination needs no
//! event.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::thread;

use anyhow::Result;
use engine::slab::{Key, Slab};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, acceptfrom_with, connect, recv,
    send, shutdown, socket_with,
};
use sys::epoll::{Epoll, Events, Readiness, StreamEnd, Trigger};

use super::Route;

/// Events of one wait.
const EVENTS_MAX: usize = 256;

/// Connections that are accepted before the open ones run.
const ACCEPTS_MAX: usize = 32;

/// Bytes of one read.
const READ_BYTES: usize = 64 * 1024;

/// The arguments of the hidden command.
#[derive(clap::Args, Debug)]
pub(crate) struct BareRelay {
    /// Threads
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Where to listen and where to connect, as LISTEN=UPSTREAM
    #[arg(required = true)]
    routes: Vec<Route>,
}

/// The name of the hidden command.
pub(crate) const COMMAND: &str = "bare-relay";

/// Relays until the process is ended.
///
/// # Errors
/// An address is in use, or a call of epoll fails.
pub(crate) fn relay(settings: &BareRelay) -> Result<()> {
    let mut listeners = Vec::new();
    for route in &settings.routes {
        listeners.push((route.listener()?, route.upstream));
    }
    run(&listeners, settings.threads)
}

fn run(listeners: &[(TcpListener, SocketAddr)], threads: usize) -> Result<()> {
    for (listener, _) in listeners {
        listener.set_nonblocking(true)?;
    }
    thread::scope(|scope| {
        let threads: Vec<_> =
            (0..threads).map(|_| scope.spawn(|| Relays::new(listeners).and_then(Relays::run))).collect();
        threads.into_iter().try_for_each(|thread| Ok(thread.join().expect("a thread panicked")?))
    })
}

/// The source of an event.
#[derive(Clone, Copy)]
enum Source {
    Listener(usize),
    Client(u32),
    Upstream(u32),
}

impl Source {
    fn to_token(self) -> u64 {
        match self {
            Source::Listener(index) => (index as u64) << 2,
            Source::Client(index) => u64::from(index) << 2 | 1,
            Source::Upstream(index) => u64::from(index) << 2 | 2,
        }
    }

    fn from_token(token: u64) -> Source {
        let index = token >> 2;
        match token & 3 {
            0 => Source::Listener(index as usize),
            1 => Source::Client(index as u32),
            _ => Source::Upstream(index as u32),
        }
    }
}

/// The connections of one thread.
struct Relays<'l> {
    epoll: Epoll,
    listeners: &'l [(TcpListener, SocketAddr)],
    slab: Slab<Relay>,
    buffer: Vec<u8>,
}

/// One connection and its destination.
struct Relay {
    client: Peer,
    upstream: Peer,
    is_connected: bool,
    up: Direction,
    down: Direction,
}

/// A socket, and how its epoll reports it.
struct Peer {
    socket: OwnedFd,
    trigger: Option<Trigger>,
}

/// One direction of a connection.
struct Direction {
    /// Read, and not accepted by the sink yet.
    pending: Vec<u8>,
    /// A read may find bytes or the end.
    is_readable: bool,
    /// The source has ended behind the bytes that can be read.
    is_last: bool,
    /// The end was forwarded.
    is_over: bool,
}

impl Relays<'_> {
    fn new(listeners: &[(TcpListener, SocketAddr)]) -> io::Result<Relays<'_>> {
        let epoll = Epoll::new()?;
        for (index, (listener, _)) in listeners.iter().enumerate() {
            epoll.add(listener, Source::Listener(index).to_token(), Trigger::LevelReadExclusive)?;
        }
        Ok(Relays { epoll, listeners, slab: Slab::new(), buffer: vec![0; READ_BYTES] })
    }

    fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS_MAX);
        loop {
            self.epoll.wait(&mut events, None)?;
            for event in events.iter() {
                match Source::from_token(event.token) {
                    Source::Listener(index) => self.accept(index),
                    Source::Client(index) => {
                        self.ready(index, |relay| relay.up.note(event.readiness));
                    }
                    Source::Upstream(index) => {
                        self.ready(index, |relay| {
                            relay.is_connected |= event.readiness.writable;
                            relay.down.note(event.readiness);
                        });
                    }
                }
            }
        }
    }

    fn accept(&mut self, index: usize) {
        let (listener, upstream) = &self.listeners[index];
        for _ in 0..ACCEPTS_MAX {
            let accepted = acceptfrom_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC);
            let Ok((client, _)) = accepted else { return };
            // A connection without a destination is closed.
            let Ok(relay) = Relay::open(client, *upstream) else { continue };
            let key = self.slab.insert(relay);
            self.pump(key);
        }
    }

    fn ready(&mut self, index: u32, note: impl FnOnce(&mut Relay)) {
        // An earlier event of the same wait may have ended the connection, whose slot has another one now:
        // that one is run in vain.
        if let Some((key, relay)) = self.slab.at(index) {
            note(relay);
            self.pump(key);
        }
    }

    /// Moves what can be moved, then closes the connection or watches its sockets.
    fn pump(&mut self, key: Key) {
        let Some(relay) = self.slab.get_mut(key) else { return };
        let is_open = relay.pump(&mut self.buffer).is_ok()
            && !(relay.up.is_over && relay.down.is_over)
            && relay.watch(&self.epoll, key.index()).is_ok();
        if !is_open {
            self.slab.remove(key);
        }
    }
}

impl Relay {
    fn open(client: OwnedFd, upstream: SocketAddr) -> rustix::io::Result<Relay> {
        let family = if upstream.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        match connect(&socket, &upstream) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error),
        }
        // To a near destination it is complete, and no event is needed.
        let is_connected = matches!(connect(&socket, &upstream), Ok(()) | Err(Errno::ISCONN));
        Ok(Relay {
            client: Peer { socket: client, trigger: None },
            upstream: Peer { socket, trigger: None },
            is_connected,
            up: Direction::new(true),
            // The client speaks first.
            down: Direction::new(false),
        })
    }

    fn pump(&mut self, buffer: &mut [u8]) -> rustix::io::Result<()> {
        if self.is_connected {
            self.up.pump(&self.client.socket, &self.upstream.socket, buffer)?;
        }
        self.down.pump(&self.upstream.socket, &self.client.socket, buffer)
    }

    fn watch(&mut self, epoll: &Epoll, index: u32) -> io::Result<()> {
        let (up_waits, down_waits) = (!self.up.pending.is_empty(), !self.down.pending.is_empty());
        self.client.watch(epoll, Source::Client(index), down_waits)?;
        self.upstream.watch(epoll, Source::Upstream(index), !self.is_connected || up_waits)
    }
}

impl Peer {
    /// Registers the socket, also for writing once it was needed.
    fn watch(&mut self, epoll: &Epoll, source: Source, awaits_writable: bool) -> io::Result<()> {
        let trigger = if awaits_writable { Trigger::EdgeReadWrite } else { Trigger::EdgeRead };
        match self.trigger {
            None => epoll.add(self.socket.as_fd(), source.to_token(), trigger)?,
            Some(Trigger::EdgeRead) if awaits_writable => {
                epoll.modify(self.socket.as_fd(), source.to_token(), trigger)?;
            }
            Some(_) => return Ok(()),
        }
        self.trigger = Some(trigger);
        Ok(())
    }
}

impl Direction {
    fn new(is_readable: bool) -> Direction {
        Direction { pending: Vec::new(), is_readable, is_last: false, is_over: false }
    }

    fn note(&mut self, readiness: Readiness) {
        self.is_readable |= readiness.readable;
        self.is_last |= readiness.end == StreamEnd::Ended;
    }

    /// Moves bytes until the source has none or the sink takes none.
    fn pump(&mut self, source: &OwnedFd, sink: &OwnedFd, buffer: &mut [u8]) -> rustix::io::Result<()> {
        while !self.is_over {
            if !self.pending.is_empty() {
                let sent = sent(send(sink, &self.pending, SendFlags::NOSIGNAL))?;
                self.pending.drain(..sent);
                if !self.pending.is_empty() {
                    return Ok(());
                }
                continue;
            }
            if !self.is_readable {
                return Ok(());
            }
            let count = match recv(source, &mut *buffer, RecvFlags::empty()) {
                Ok((count, _)) => count,
                Err(Errno::AGAIN) => {
                    self.is_readable = false;
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            let is_short = count < buffer.len();
            let ends = count == 0 || is_short && self.is_last;
            self.is_readable = !is_short || ends;
            if count > 0 {
                let more = if ends { SendFlags::MORE } else { SendFlags::empty() };
                let sent = sent(send(sink, &buffer[..count], SendFlags::NOSIGNAL | more))?;
                self.pending.extend_from_slice(&buffer[sent..count]);
            }
            if ends && self.pending.is_empty() {
                shutdown(sink, Shutdown::Write)?;
                self.is_over = true;
            }
        }
        Ok(())
    }
}

/// The bytes that a send took; none if it would block.
fn sent(result: rustix::io::Result<usize>) -> rustix::io::Result<usize> {
    match result {
        Err(Errno::AGAIN) => Ok(0),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::super::tests::{assert_echoes, echo_behind};
    use super::*;

    fn started() -> Route {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback listens");
        let route = echo_behind(&listener);
        thread::spawn(move || run(&[(listener, route.upstream)], 2));
        route
    }

    #[test]
    fn bytes_and_ends_are_relayed_both_ways() {
        let route = started();
        for bytes in [0, 1, READ_BYTES, 2_000_000, 3] {
            assert_echoes(route, bytes);
        }
    }

    #[test]
    fn many_connections_are_relayed_at_once() {
        let route = started();
        let clients: Vec<_> =
            (0..50).map(|at| thread::spawn(move || assert_echoes(route, at * 4_000))).collect();
        clients.into_iter().for_each(|client| client.join().expect("its bytes came back"));
    }

    #[test]
    fn connection_without_a_destination_is_closed() {
        let unused = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("it is bound");
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback listens");
        let listen = listener.local_addr().expect("it is bound");
        thread::spawn(move || run(&[(listener, unused)], 1));
        let mut client = TcpStream::connect(listen).expect("the relay listens");
        let _ = client.write_all(b"request");
        let mut answer = Vec::new();
        // The end, or a reset behind unread bytes.
        assert_eq!(client.read_to_end(&mut answer).unwrap_or(0), 0);
    }
}
