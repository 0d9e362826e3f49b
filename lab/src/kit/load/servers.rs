//! The servers behind the relay: `reply`, `echo` and `origin` on one epoll thread each, `source` and `sink`
//! on a thread per stream.
//!
//! Guarantees: the totals include every byte that a call accepted before the peer can see the stream's end.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags};
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};

use super::{CHUNK_BYTES, Persistence, REPLY_BYTES, REQUEST_BYTES, Role, WAIT_MAX, http};

/// More than the clients have outstanding, so that no SYN is dropped here.
const BACKLOG: i32 = 4_096;

/// Connections accepted in one pass before the established ones are served.
const ACCEPTS_PER_WAKE_MAX: usize = 64;

const EVENTS_MAX: usize = 256;

/// Marks the listener among the event data; connections use their index.
const LISTENER: u64 = u64::MAX;

/// The lengths of streams sent and received by this process; read by `totals` after the peer saw the end.
static SENT_BYTES: AtomicU64 = AtomicU64::new(0);
static RECEIVED_BYTES: AtomicU64 = AtomicU64::new(0);

/// Connections on which requests may have arrived.
static ORIGIN_CONNECTIONS: AtomicU64 = AtomicU64::new(0);

/// Starts a server on a free port of 127.0.0.1, on threads of its own, until the process ends.
///
/// # Errors
/// The server could not listen.
pub(crate) fn start(role: Role) -> Result<SocketAddr> {
    let listener = listen()?;
    let address = listener.local_addr()?;
    let name = thread::Builder::new().name(role.to_string());
    match role {
        Role::Reply | Role::Echo | Role::Origin => {
            let mut loop_ = EventLoop::new(listener, role)?;
            name.spawn(move || loop_.run())?;
        }
        Role::Source => drop(name.spawn(move || each_on_a_thread(&listener, source))?),
        Role::Sink => drop(name.spawn(move || each_on_a_thread(&listener, sink))?),
    }
    Ok(address)
}

/// The bytes that this process's streams have sent and received, and the connections of its origins.
pub(crate) fn totals() -> Value {
    json!({
        "sent_bytes": SENT_BYTES.load(Ordering::Relaxed),
        "received_bytes": RECEIVED_BYTES.load(Ordering::Relaxed),
        "origin_connections": ORIGIN_CONNECTIONS.load(Ordering::Relaxed),
    })
}

fn listen() -> Result<TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM.cloexec(), None)?;
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())?;
    socket.listen(BACKLOG).context("listening on loopback")?;
    Ok(socket.into())
}

/// A connection of `reply`, `echo` or `origin`.
struct Connection {
    socket: OwnedFd,
    received_bytes: usize,
    /// Of `origin`: the received part of a request.
    request: Vec<u8>,
}

struct EventLoop {
    epoll: OwnedFd,
    listener: TcpListener,
    role: Role,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
}

impl EventLoop {
    fn new(listener: TcpListener, role: Role) -> Result<Self> {
        listener.set_nonblocking(true)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        Ok(Self { epoll, listener, role, connections: Vec::new(), free: Vec::new() })
    }

    fn run(&mut self) {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
        loop {
            match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => panic!("waiting on an epoll that this thread owns: {error}"),
            }
            for event in events.drain(..) {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    index => self.serve(index as usize),
                }
            }
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS_PER_WAKE_MAX {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            match rustix::net::accept_with(&self.listener, flags) {
                Ok(socket) => self.register(socket),
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                // Without descriptors or memory the connection stays in the queue, and its client waits or
                // fails.
                Err(_) => return thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    fn register(&mut self, socket: OwnedFd) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        let registered = epoll::add(&self.epoll, &socket, EventData::new_u64(index as u64), EventFlags::IN);
        if registered.is_err() {
            self.free.push(index);
            return;
        }
        if self.role == Role::Origin {
            ORIGIN_CONNECTIONS.fetch_add(1, Ordering::Relaxed);
        }
        self.connections[index] = Some(Connection { socket, received_bytes: 0, request: Vec::new() });
    }

    fn serve(&mut self, index: usize) {
        let Some(connection) = &mut self.connections[index] else { return };
        let keep = match self.role {
            Role::Echo => echo(&connection.socket),
            Role::Origin => respond(connection),
            Role::Reply | Role::Source | Role::Sink => reply(connection),
        };
        if !keep {
            self.connections[index] = None;
            self.free.push(index);
        }
    }
}

/// Returns whether the connection is to be kept.
fn reply(connection: &mut Connection) -> bool {
    let mut buffer = [0; 4_096];
    match rustix::net::recv(&connection.socket, &mut buffer[..], RecvFlags::empty()) {
        Ok((0, _)) => return false,
        Ok((received, _)) => connection.received_bytes += received,
        Err(Errno::AGAIN | Errno::INTR) => return true,
        Err(_) => return false,
    }
    if connection.received_bytes < REQUEST_BYTES {
        return true;
    }
    // A fresh connection's send buffer accepts the whole reply; if not, the client counts a short one.
    let _ = rustix::net::send(&connection.socket, &[b'r'; REPLY_BYTES], SendFlags::NOSIGNAL);
    false
}

/// Returns whether the connection is to be kept. A peer that does not read its echo is dropped.
fn echo(socket: &OwnedFd) -> bool {
    let mut buffer = [0; 16 * 1_024];
    match rustix::net::recv(socket, &mut buffer[..], RecvFlags::empty()) {
        Ok((0, _)) => false,
        Ok((received, _)) => {
            rustix::net::send(socket, &buffer[..received], SendFlags::NOSIGNAL) == Ok(received)
        }
        Err(Errno::AGAIN | Errno::INTR) => true,
        Err(_) => false,
    }
}

/// Returns whether the connection is to be kept. A peer that sends a wrong request, or does not read its
/// response, is dropped.
fn respond(connection: &mut Connection) -> bool {
    let Connection { socket, request, .. } = connection;
    request.reserve(http::HEAD_BYTES_MAX);
    match rustix::net::recv(&*socket, spare_capacity(request), RecvFlags::empty()) {
        Ok((0, _)) => return false,
        Ok(_) => {}
        Err(Errno::AGAIN | Errno::INTR) => return true,
        Err(_) => return false,
    }
    let (response, persistence) = match http::read_request(request) {
        Ok(None) => return true,
        Ok(Some(persistence)) => (http::response(persistence), persistence),
        Err(_) => (http::BAD_REQUEST, Persistence::Close),
    };
    request.clear();
    let is_sent = rustix::net::send(&*socket, response, SendFlags::NOSIGNAL) == Ok(response.len());
    is_sent && persistence == Persistence::KeepAlive
}

fn each_on_a_thread(listener: &TcpListener, serve: fn(TcpStream) -> std::io::Result<()>) {
    for stream in listener.incoming().flatten() {
        // The client sees the failure of a stream as well, and counts it.
        thread::spawn(move || serve(stream));
    }
}

/// Reads the time in milliseconds as 8 bytes, which count as received, streams for that long, and waits for
/// the client's end.
fn source(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(WAIT_MAX))?;
    stream.set_write_timeout(Some(WAIT_MAX))?;
    let mut order = [0; 8];
    stream.read_exact(&mut order)?;
    RECEIVED_BYTES.fetch_add(order.len() as u64, Ordering::Relaxed);
    let time = Duration::from_millis(u64::from_be_bytes(order));
    let chunk = vec![b's'; CHUNK_BYTES];
    let started = Instant::now();
    while started.elapsed() < time {
        let sent = stream.write(&chunk)?;
        SENT_BYTES.fetch_add(sent as u64, Ordering::Relaxed);
    }
    stream.shutdown(Shutdown::Write)?;
    stream.read(&mut order).map(drop)
}

/// Discards a stream, then sends its length as 8 bytes. What a failed stream brought counts, too.
fn sink(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(WAIT_MAX))?;
    let mut received = 0;
    super::stream::discard(&stream, |bytes| {
        received += bytes;
        RECEIVED_BYTES.fetch_add(bytes, Ordering::Relaxed);
    })?;
    stream.write_all(&received.to_be_bytes())
}
