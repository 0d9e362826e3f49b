//! TCP streams as futures of one reactor's tasks.
//!
//! Guarantees: each operation tries the system call first, unless it is known to block. A read that returns
//! fewer bytes than requested has emptied the socket, and only an event reports more. A socket is registered
//! at most once, when it first would block. The registration can move to a state machine and back without
//! another system call.
//!
//! Not handled here: deadlines (`deadline`) and buffers.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use sys::epoll::{Readiness, StreamEnd};
use sys::socket::{Connect, Socket, SpeaksFirst};

use crate::reactor::{Interest, Reactor, Registration, TaskRegistration, WakeTarget};

/// A disassembled stream: its socket, and its registration if it ever would have blocked.
pub type Parts = (Socket, Option<Registration>);

/// A TCP stream that a task reads and writes.
pub struct TcpStream {
    socket: Socket,
    registration: TaskRegistration,
    /// The operations that are worth a try, as far as calls and events have shown.
    ready: Cell<Readiness>,
}

impl TcpStream {
    /// A stream over a connected socket.
    pub fn new(reactor: &Rc<Reactor>, socket: Socket) -> TcpStream {
        let ready = Readiness { readable: true, writable: true, end: StreamEnd::Open };
        TcpStream { socket, registration: TaskRegistration::new(reactor, None), ready: Cell::new(ready) }
    }

    /// Reassembles a stream that [`TcpStream::into_parts`] took apart when nothing was left to read.
    /// `readiness` is what its registration has reported to a token since. From now on the registration keeps
    /// its readiness for the stream, also before a task first waits for it.
    pub fn from_parts(
        reactor: &Rc<Reactor>,
        (socket, registration): (Socket, Registration),
        readiness: Readiness,
    ) -> TcpStream {
        reactor.set_wake_target(registration.key(), WakeTarget::Task(Waker::noop().clone()));
        let ready = Cell::new(Readiness { writable: true, ..readiness });
        TcpStream { socket, registration: TaskRegistration::new(reactor, Some(registration)), ready }
    }

    /// Starts a connection attempt to `address`; `speaks_first` says which side sends the first bytes. Until
    /// it is [`established`](TcpStream::established), no other operation is allowed on the stream.
    ///
    /// # Errors
    /// A resource is exhausted: `EMFILE`, `ENFILE`, `ENOBUFS`, `ENOMEM`, or `EADDRNOTAVAIL` when no local
    /// port is left. Else as [`established`](TcpStream::established).
    pub fn connect(
        reactor: &Rc<Reactor>,
        address: SocketAddr,
        speaks_first: SpeaksFirst,
    ) -> io::Result<TcpStream> {
        Ok(TcpStream::new(reactor, Socket::connect(address, speaks_first)?))
    }

    /// Awaits the end of the attempt to `address` that [`TcpStream::connect`] started.
    ///
    /// # Errors
    /// Why the attempt failed: `ECONNREFUSED`, `ETIMEDOUT`, `EHOSTUNREACH`, `ENETUNREACH`.
    pub async fn established(&self, address: SocketAddr) -> io::Result<()> {
        // Check before waiting: the handshake with a peer on this host is complete by now, and needs no
        // event.
        poll_fn(|context| match self.socket.continue_connect(address) {
            Ok(Connect::Established) => Poll::Ready(Ok(())),
            Ok(Connect::InProgress) => self.wait(context, Interest::ReadWrite),
            Err(error) => Poll::Ready(Err(error)),
        })
        .await?;
        // The peer may speak first; then an event or the registration reports it.
        self.ready.set(Readiness { readable: false, writable: true, end: StreamEnd::Open });
        Ok(())
    }

    /// Reads into the spare capacity of `buffer`; returns the number of bytes, zero at the end of the stream.
    ///
    /// # Errors
    /// The stream's own: `ConnectionReset` and the like.
    pub async fn read(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        assert!(
            buffer.len() < buffer.capacity(),
            "a read into a full buffer would look like the end of the stream"
        );
        poll_fn(|context| self.poll_read(context, buffer)).await
    }

    /// Waits until a read is worth a try.
    pub fn poll_readable(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        if self.readiness().readable { Poll::Ready(Ok(())) } else { self.wait(context, Interest::Read) }
    }

    /// As [`TcpStream::read`], for callers that poll.
    pub fn poll_read(&self, context: &Context<'_>, buffer: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        let capacity = buffer.capacity() - buffer.len();
        self.poll_recv(context, capacity, |socket| socket.recv_into_spare(buffer))
    }

    /// As [`TcpStream::poll_read`], into a slice.
    pub fn poll_read_slice(&self, context: &Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll_recv(context, buffer.len(), |socket| socket.recv(buffer))
    }

    fn poll_recv(
        &self,
        context: &Context<'_>,
        capacity: usize,
        recv: impl FnOnce(&Socket) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        match self.try_recv(capacity, recv) {
            Ok(Some(count)) => Poll::Ready(Ok(count)),
            Ok(None) => self.wait(context, Interest::Read),
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// Reads by `recv`, which has space for `capacity` bytes. `None` where it would block or is known to.
    fn try_recv(
        &self,
        capacity: usize,
        recv: impl FnOnce(&Socket) -> io::Result<usize>,
    ) -> io::Result<Option<usize>> {
        let ready = self.readiness();
        if !ready.readable {
            return Ok(None);
        }
        let received = recv(&self.socket);
        let would_block = matches!(&received, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        let is_empty = matches!(received, Ok(count) if count < capacity) && ready.end == StreamEnd::Open;
        self.ready.set(Readiness { readable: !would_block && !is_empty, ..ready });
        if would_block { Ok(None) } else { received.map(Some) }
    }

    /// As [`TcpStream::read`], of bytes that are known to have arrived: `None` if there are none.
    ///
    /// # Errors
    /// As [`TcpStream::read`].
    pub fn read_now(&self, buffer: &mut Vec<u8>) -> io::Result<Option<usize>> {
        let capacity = buffer.capacity() - buffer.len();
        self.try_recv(capacity, |socket| socket.recv_into_spare(buffer))
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// The stream's own: `BrokenPipe`, `ConnectionReset`.
    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let send = |socket: &Socket| socket.send(bytes);
            let sent = poll_fn(|context| self.poll_write(context, bytes.len(), send)).await?;
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    /// Writes by `send`, which gets the socket and tries to send `length` bytes.
    ///
    /// # Errors
    /// As [`TcpStream::write_all`].
    pub fn poll_write(
        &self,
        context: &Context<'_>,
        length: usize,
        send: impl FnOnce(&Socket) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let ready = self.readiness();
        if !ready.writable {
            return self.wait(context, Interest::ReadWrite);
        }
        let sent = send(&self.socket);
        let would_block = matches!(&sent, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        // The kernel accepts fewer bytes only when its send buffer is full.
        let is_full = matches!(sent, Ok(count) if count < length);
        self.ready.set(Readiness { writable: !would_block && !is_full, ..ready });
        if would_block { self.wait(context, Interest::ReadWrite) } else { Poll::Ready(sent) }
    }

    /// Wakes the task when bytes, the end of the stream or an error arrive, even if no read is pending.
    ///
    /// # Errors
    /// `ENOSPC` or `ENOMEM` of the registration.
    pub fn watch(&self, context: &Context<'_>) -> io::Result<()> {
        self.registration.wait(&self.socket, Interest::Read, context.waker())
    }

    /// The operations that are worth a try, as far as events have reported. A stream without a registration
    /// gets no events.
    pub fn readiness(&self) -> Readiness {
        let mut ready = self.ready.get();
        ready.add(self.registration.take_readiness());
        self.ready.set(ready);
        ready
    }

    /// Waits for the next event. A source that became ready between the call and its registration reports at
    /// once.
    fn wait<T>(&self, context: &Context<'_>, interest: Interest) -> Poll<io::Result<T>> {
        match self.registration.wait(&self.socket, interest, context.waker()) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// The socket.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Closes with RST in place of FIN, and discards unsent bytes.
    pub fn reset(self) {
        self.socket.reset();
    }

    /// Disassembles the stream: its socket, and its registration if it ever would have blocked.
    pub fn into_parts(self) -> Parts {
        (self.socket, self.registration.into_registration())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::task::Waker;

    use sys::socket::{ListenOptions, Listener};

    use crate::inbox::Notifier;
    use crate::reactor::RawToken;

    /// A reactor, one of its streams, and the peer's socket.
    fn pair() -> (Rc<Reactor>, TcpStream, Socket) {
        let reactor = Reactor::new(Arc::new(Notifier::new().unwrap()), Arc::default()).unwrap();
        let options = ListenOptions::plain(1);
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), options).unwrap();
        let peer = Socket::connect(listener.local().unwrap(), SpeaksFirst::Unknown).unwrap();
        let (socket, _) = listener.accept().unwrap();
        let stream = TcpStream::new(&reactor, socket);
        (reactor, stream, peer)
    }

    fn read(stream: &TcpStream) -> Poll<Vec<u8>> {
        let mut buffer = Vec::with_capacity(100);
        let polled = stream.poll_read(&Context::from_waker(Waker::noop()), &mut buffer);
        polled.map(|count| {
            count.unwrap();
            buffer
        })
    }

    /// One pass, which waits for an event; returns the number of events for tokens.
    fn poll_once(reactor: &Reactor) -> usize {
        let mut events = Vec::new();
        reactor.poll(&mut events, || true).unwrap();
        events.len()
    }

    #[test]
    fn short_read_blocks_until_next_event() {
        let (reactor, stream, peer) = pair();
        peer.send(b"first").unwrap();
        assert_eq!(read(&stream), Poll::Ready(b"first".to_vec()));
        // No event has reported these bytes, whether they have arrived or not.
        peer.send(b"second").unwrap();
        assert_eq!(read(&stream), Poll::Pending);
        assert_eq!(poll_once(&reactor), 0);
        assert_eq!(read(&stream), Poll::Ready(b"second".to_vec()));
    }

    /// Regression: events between the reassembly and the first wait went to the token that had the
    /// registration before, and later to another owner of that token. The stream never got them.
    #[test]
    fn reassembled_stream_gets_readiness_before_wait() {
        let (reactor, stream, peer) = pair();
        assert_eq!(read(&stream), Poll::Pending);
        let (socket, registration) = stream.into_parts();
        let registration = registration.expect("it has waited");
        reactor.set_wake_target(registration.key(), WakeTarget::Token(RawToken(7)));
        peer.send(b"first").unwrap();
        assert_eq!(poll_once(&reactor), 1, "the token gets the event");
        let readiness = Readiness { readable: true, ..Readiness::default() };
        let stream = TcpStream::from_parts(&reactor, (socket, registration), readiness);
        assert_eq!(read(&stream), Poll::Ready(b"first".to_vec()));
        peer.send(b"second").unwrap();
        assert_eq!(poll_once(&reactor), 0, "the token gets no more events");
        assert_eq!(read(&stream), Poll::Ready(b"second".to_vec()));
    }
}
