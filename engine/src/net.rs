//! TCP streams as futures of one reactor's tasks.
//!
//! Promises: each operation tries the system call first; a socket is registered with the reactor at most
//! once, when it would block for the first time, and may then be handed over to a state machine without
//! another system call. Leaves to others: deadlines (`timer`), buffers.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll};

use sys::socket::{Connect, FirstWord, Socket};

use crate::reactor::{Interest, Reactor, Registration, Watch};

/// A TCP stream that a task reads and writes.
pub struct TcpStream {
    socket: Socket,
    watch: Watch,
}

impl TcpStream {
    /// A stream over a connected socket.
    pub fn new(reactor: &Rc<Reactor>, socket: Socket) -> TcpStream {
        TcpStream { socket, watch: Watch::new(reactor) }
    }

    /// Connects to `address`, of which `first_word` says how its conversation begins.
    ///
    /// # Errors
    /// Why the attempt failed: `ECONNREFUSED`, `ETIMEDOUT`, `EHOSTUNREACH`, `ENETUNREACH`, `EADDRNOTAVAIL`
    /// when no local port is left, `EMFILE`.
    pub async fn connect(
        reactor: &Rc<Reactor>,
        address: SocketAddr,
        first_word: FirstWord,
    ) -> io::Result<TcpStream> {
        let (socket, state) = Socket::connect(address, first_word)?;
        let stream = TcpStream::new(reactor, socket);
        if state == Connect::InProgress {
            // The first look comes at once: to a peer on this host the handshake is complete by now,
            // and then no event is needed.
            poll_fn(|context| {
                stream.poll_io(context, Interest::ReadWrite, |socket| {
                    match socket.continue_connect(address)? {
                        Connect::Established => Ok(()),
                        Connect::InProgress => Err(io::ErrorKind::WouldBlock.into()),
                    }
                })
            })
            .await?;
        }
        Ok(stream)
    }

    /// Reads into the room that `buffer` has left; returns how many bytes arrived, zero at the stream's end.
    ///
    /// # Errors
    /// The stream's own: `ConnectionReset` and the like.
    pub async fn read(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        assert!(buffer.len() < buffer.capacity(), "without room a read could not be told from the end");
        poll_fn(|context| self.poll_io(context, Interest::Read, |socket| socket.recv_into_spare(buffer)))
            .await
    }

    /// As [`TcpStream::read`], of what has arrived already: `None` if that is nothing.
    ///
    /// # Errors
    /// As [`TcpStream::read`].
    pub fn read_now(&self, buffer: &mut Vec<u8>) -> io::Result<Option<usize>> {
        match self.socket.recv_into_spare(buffer) {
            Ok(read) => Ok(Some(read)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// The stream's own: `BrokenPipe`, `ConnectionReset`.
    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let send = |socket: &Socket| socket.send(bytes);
            let sent = poll_fn(|context| self.poll_io(context, Interest::ReadWrite, send)).await?;
            bytes = &bytes[sent..];
        }
        Ok(())
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
    pub fn into_parts(self) -> (Socket, Option<Registration>) {
        (self.socket, self.watch.into_registration())
    }

    fn poll_io<T>(
        &self,
        context: &Context<'_>,
        interest: Interest,
        mut operation: impl FnMut(&Socket) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        match operation(&self.socket) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                // A source that became ready between the call and the registration reports that at once.
                match self.watch.wait(&self.socket, interest, context.waker()) {
                    Ok(()) => Poll::Pending,
                    Err(error) => Poll::Ready(Err(error)),
                }
            }
            result => Poll::Ready(result),
        }
    }
}
