//! TCP streams as futures of one reactor's tasks.
//!
//! Promises: each operation tries the system call first, unless it is known that it would block: a read that
//! got less than it asked for has emptied the socket, and only an event says that there is more; a socket is
//! registered with the reactor at most once, when it would block for the first time, and may then be handed
//! over to a state machine, and taken back, without another system call. Leaves to others: deadlines
//! (`timer`), buffers.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use sys::epoll::{Readiness, StreamEnd};
use sys::socket::{Connect, Socket, SpeaksFirst};

use crate::reactor::{Interest, Reactor, Registration, TaskRegistration, WakeTarget};

/// A stream taken apart: its socket, and its registration if it ever would have blocked.
pub type Parts = (Socket, Option<Registration>);

/// A TCP stream that a task reads and writes.
pub struct TcpStream {
    socket: Socket,
    registration: TaskRegistration,
    /// What is worth a try, as far as calls and events have told.
    ready: Cell<Readiness>,
}

impl TcpStream {
    /// A stream over a connected socket.
    pub fn new(reactor: &Rc<Reactor>, socket: Socket) -> TcpStream {
        let ready = Readiness { readable: true, writable: true, end: StreamEnd::Open };
        TcpStream { socket, registration: TaskRegistration::new(reactor, None), ready: Cell::new(ready) }
    }

    /// The stream that [`TcpStream::into_parts`] took apart when there was nothing to read. `told` is what
    /// its registration, which belonged to a tag since, has reported. From now on what it reports is kept for
    /// the stream, also before a task first waits for it.
    pub fn from_parts(
        reactor: &Rc<Reactor>,
        (socket, registration): (Socket, Registration),
        readiness: Readiness,
    ) -> TcpStream {
        reactor.hand_over(registration.key(), WakeTarget::Task(Waker::noop().clone()));
        let ready = Cell::new(Readiness { writable: true, ..readiness });
        TcpStream { socket, registration: TaskRegistration::new(reactor, Some(registration)), ready }
    }

    /// Begins to connect to `address`, of which `first_word` says how its conversation begins. Before it is
    /// [`established`](TcpStream::established), nothing else may be asked of the stream.
    ///
    /// # Errors
    /// What a socket takes is used up: `EMFILE`, `ENFILE`, `ENOBUFS`, `ENOMEM`, or `EADDRNOTAVAIL` when no
    /// local port is left. Else as of [`established`](TcpStream::established).
    pub fn connect(
        reactor: &Rc<Reactor>,
        address: SocketAddr,
        speaks_first: SpeaksFirst,
    ) -> io::Result<TcpStream> {
        Ok(TcpStream::new(reactor, Socket::connect(address, speaks_first)?))
    }

    /// Awaits that the connection to `address` stands which [`TcpStream::connect`] began.
    ///
    /// # Errors
    /// Why the attempt failed: `ECONNREFUSED`, `ETIMEDOUT`, `EHOSTUNREACH`, `ENETUNREACH`.
    pub async fn established(&self, address: SocketAddr) -> io::Result<()> {
        // The first look comes at once: to a peer on this host the handshake is complete by now, and then no
        // event is needed.
        poll_fn(|context| match self.socket.continue_connect(address) {
            Ok(Connect::Established) => Poll::Ready(Ok(())),
            Ok(Connect::InProgress) => self.wait(context, Interest::ReadWrite),
            Err(error) => Poll::Ready(Err(error)),
        })
        .await?;
        // Whoever is dialled may speak first, and then an event tells, or the registration does.
        self.ready.set(Readiness { readable: false, writable: true, end: StreamEnd::Open });
        Ok(())
    }

    /// Reads into the room that `buffer` has left; returns how many bytes arrived, zero at the stream's end.
    ///
    /// # Errors
    /// The stream's own: `ConnectionReset` and the like.
    pub async fn read(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        assert!(buffer.len() < buffer.capacity(), "without room a read could not be told from the end");
        poll_fn(|context| self.poll_read(context, buffer)).await
    }

    /// Waits until a read is worth a try.
    pub fn poll_readable(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        if self.readiness().readable { Poll::Ready(Ok(())) } else { self.wait(context, Interest::Read) }
    }

    /// As [`TcpStream::read`], for who polls by himself.
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

    /// Reads by `recv`, which has `room`; `None` where it would block, or is known to.
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

    /// As [`TcpStream::read`], of what is known to have arrived already: `None` if that is nothing.
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

    /// Writes by `send`, which is given the socket and tries to send `length` bytes.
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
        // The kernel takes less than all only when its buffer is full.
        let is_full = matches!(sent, Ok(count) if count < length);
        self.ready.set(Readiness { writable: !would_block && !is_full, ..ready });
        if would_block { self.wait(context, Interest::ReadWrite) } else { Poll::Ready(sent) }
    }

    /// Has the task polled when bytes, the stream's end or an error arrive, even if nobody reads them now.
    ///
    /// # Errors
    /// `ENOSPC` or `ENOMEM` of the registration.
    pub fn watch(&self, context: &Context<'_>) -> io::Result<()> {
        self.registration.wait(&self.socket, Interest::Read, context.waker())
    }

    /// What is worth a try, as far as events have told: a stream that nobody has waited for is told of
    /// nothing.
    pub fn readiness(&self) -> Readiness {
        let mut ready = self.ready.get();
        ready.add(self.registration.take_readiness());
        self.ready.set(ready);
        ready
    }

    /// Waits for the next event. A source that became ready between a call and its registration reports that
    /// at once.
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

    /// Closes with RST in place of FIN, and drops what was not sent.
    pub fn reset(self) {
        self.socket.reset();
    }

    /// Takes the stream apart: the socket, and its registration if it ever would have blocked.
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

    /// A reactor, one of its streams, and the other end.
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

    /// One turn of the loop, which waits for an event and hands out what concerns a tag.
    fn poll_once(reactor: &Reactor) -> usize {
        let mut events = Vec::new();
        reactor.turn(&mut events, || true).unwrap();
        events.len()
    }

    #[test]
    fn short_read_blocks_until_next_event() {
        let (reactor, stream, peer) = pair();
        peer.send(b"first").unwrap();
        assert_eq!(read(&stream), Poll::Ready(b"first".to_vec()));
        // Nobody has told of these, whether they have arrived or not.
        peer.send(b"second").unwrap();
        assert_eq!(read(&stream), Poll::Pending);
        assert_eq!(poll_once(&reactor), 0);
        assert_eq!(read(&stream), Poll::Ready(b"second".to_vec()));
    }

    /// What a stream was told of between being taken back and the first wait went to the tag that had had its
    /// registration, and to whoever used the tag next: the stream never learned of it.
    #[test]
    fn reassembled_stream_gets_readiness_before_wait() {
        let (reactor, stream, peer) = pair();
        assert_eq!(read(&stream), Poll::Pending);
        let (socket, registration) = stream.into_parts();
        let registration = registration.expect("it has waited");
        reactor.hand_over(registration.key(), WakeTarget::Tag(RawToken(7)));
        peer.send(b"first").unwrap();
        assert_eq!(poll_once(&reactor), 1, "the tag is told");
        let readiness = Readiness { readable: true, ..Readiness::default() };
        let stream = TcpStream::from_parts(&reactor, (socket, registration), readiness);
        assert_eq!(read(&stream), Poll::Ready(b"first".to_vec()));
        peer.send(b"second").unwrap();
        assert_eq!(poll_once(&reactor), 0, "the tag is told no more");
        assert_eq!(read(&stream), Poll::Ready(b"second".to_vec()));
    }
}
