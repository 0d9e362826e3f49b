//! Listening TCP sockets.
//!
//! Guarantees: an accepted socket is non-blocking, closed on exec, and inherits the listener's options. Each
//! error of accept says whether a further call makes sense.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use super::{ResourceExhausted, Socket, family};
use crate::kernel::{self, Descriptor};
use crate::send_audit::Entry;

/// The options of a listening socket.
#[derive(Clone, Copy, Debug)]
pub struct ListenOptions {
    /// Several sockets may listen on the same address, and the kernel spreads connections over them
    /// (`SO_REUSEPORT`).
    pub reuse_port: bool,
    /// The length of the accept queue; the kernel lowers it to `net.core.somaxconn`.
    pub backlog: u32,
    /// When the first bytes of a client are acknowledged.
    pub first_ack: AckMode,
}

impl ListenOptions {
    /// One socket without `SO_REUSEPORT`, and the kernel's usual acknowledgements.
    pub fn plain(backlog: u32) -> ListenOptions {
        ListenOptions { reuse_port: false, backlog, first_ack: AckMode::Immediate }
    }
}

/// When the first bytes of a client are acknowledged. For later ones the kernel decides.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AckMode {
    /// At once, by a packet of its own.
    Immediate,
    /// With our first response, or after 40 ms (`TCP_ATO_MIN`): for a listener that responds at once. A
    /// client that sends its first message in several small writes, with Nagle's algorithm on, delays the
    /// second write until this ACK.
    Delayed,
}

/// Why accept(2) returned no connection. The listener stays usable after each of them.
#[derive(Debug)]
pub enum AcceptError {
    /// No connection is pending.
    Empty,
    /// The next connection has failed or is forbidden (`ECONNABORTED`, `EPERM` of a firewall, and network
    /// errors that Linux passes through accept); the one after it may be fine.
    ThisConnection(io::Error),
    /// A resource is exhausted: the connection stays queued, and the next call would fail as well.
    Exhausted(ResourceExhausted),
}

/// A listening TCP socket.
#[derive(Debug)]
pub struct Listener(Descriptor);

impl Listener {
    /// Listens on `address`. Accepted sockets inherit `TCP_NODELAY` and the mode of their first ACK from it,
    /// without a system call for each of them.
    ///
    /// # Errors
    /// `EADDRINUSE`, `EACCES` for a port below 1024, `EADDRNOTAVAIL`.
    pub fn bind(address: SocketAddr, options: ListenOptions) -> io::Result<Listener> {
        let socket = Listener::bind_only(address, options)?;
        kernel::listen(socket.as_fd(), i32::try_from(options.backlog).unwrap_or(i32::MAX))?;
        let listener = Listener(socket);
        // After listen(2), which resets the option.
        listener.set_ack_mode(options.first_ack);
        Ok(listener)
    }

    /// Checks whether [`Listener::bind`] would succeed, as far as a bind without listening shows.
    ///
    /// # Errors
    /// Those of [`Listener::bind`].
    pub fn probe(address: SocketAddr, options: ListenOptions) -> io::Result<()> {
        Listener::bind_only(address, options).map(drop)
    }

    fn bind_only(address: SocketAddr, options: ListenOptions) -> io::Result<Descriptor> {
        let socket = kernel::stream_socket(family(address))?;
        kernel::bind(socket.as_fd(), address, options.reuse_port)?;
        Ok(socket)
    }

    /// Sets when the first bytes of future connections are acknowledged.
    pub fn set_ack_mode(&self, first_ack: AckMode) {
        // A hint: if it fails, a connection costs one more packet, or a delay of 40 ms.
        let _ = kernel::set_quickack(self.0.as_fd(), first_ack == AckMode::Immediate);
    }

    /// Accepts the next pending connection.
    ///
    /// # Errors
    /// [`AcceptError`] says whether a further call makes sense.
    pub fn accept(&self) -> Result<(Socket, SocketAddr), AcceptError> {
        use rustix::io::Errno;
        loop {
            let error = match kernel::accept(self.0.as_fd()) {
                Ok((socket, Some(peer))) => {
                    let entry = Entry::accepted(&socket, peer);
                    return Ok((Socket(socket, entry), peer));
                }
                Ok((_, None)) => AcceptError::ThisConnection(io::ErrorKind::AddrNotAvailable.into()),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => AcceptError::Empty,
                Err(errno) => match ResourceExhausted::from_errno(errno) {
                    // The kernel allocates the descriptor before it checks the queue, so EMFILE alone does
                    // not mean that a connection is pending.
                    Some(_) if !self.has_pending() => AcceptError::Empty,
                    Some(exhausted) => AcceptError::Exhausted(exhausted),
                    None => AcceptError::ThisConnection(errno.into()),
                },
            };
            return Err(error);
        }
    }

    /// Whether a connection or an error is pending in the accept queue.
    fn has_pending(&self) -> bool {
        // poll needs no descriptor. If it fails all the same, the state is unknown: `true`.
        kernel::has_input(self.0.as_fd()).unwrap_or(true)
    }

    /// Drops the SYN of every new client (BPF filter), while pending connections can be accepted and begun
    /// handshakes complete. It is the step before closing a listener without resetting a connection. A later
    /// client retransmits its SYN after a second, and then meets the listener of that time, if any.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn stop_queueing(&self) -> io::Result<()> {
        Ok(kernel::drop_new_clients(self.0.as_fd())?)
    }

    /// A second descriptor of the same listening socket.
    ///
    /// # Errors
    /// `EMFILE`.
    pub fn try_clone(&self) -> io::Result<Listener> {
        Ok(Listener(kernel::duplicate(self.0.as_fd())?))
    }

    /// The address of the listener, with the port that the kernel chose if port 0 was requested.
    ///
    /// # Errors
    /// `ENOBUFS`.
    pub fn local(&self) -> io::Result<SocketAddr> {
        Ok(kernel::local_address(self.0.as_fd())?)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::LISTEN;
    use super::super::{Connect, SpeaksFirst};
    use super::*;

    #[test]
    fn stop_queueing_keeps_pending_drops_later_syns() {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), LISTEN).unwrap();
        let address = listener.local().unwrap();
        let pending = Socket::connect(address, SpeaksFirst::Unknown).unwrap();
        listener.stop_queueing().unwrap();
        let late = Socket::connect(address, SpeaksFirst::Unknown).unwrap();
        assert_eq!(late.continue_connect(address).unwrap(), Connect::InProgress);
        let (_accepted, peer) = listener.accept().unwrap();
        assert_eq!(peer, pending.local().unwrap());
        assert!(matches!(listener.accept(), Err(AcceptError::Empty)));
        assert_eq!(late.continue_connect(address).unwrap(), Connect::InProgress, "the SYN is dropped");
    }

    #[test]
    fn accepted_socket_inherits_the_ack_mode() {
        for (first_ack, is_quick) in [(AckMode::Immediate, true), (AckMode::Delayed, false)] {
            let options = ListenOptions { first_ack, ..LISTEN };
            let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), options).unwrap();
            let address = listener.local().unwrap();
            let accepted_is_quick = || {
                let _client = Socket::connect(address, SpeaksFirst::Unknown).unwrap();
                rustix::net::sockopt::tcp_quickack(&listener.accept().unwrap().0.0).unwrap()
            };
            assert_eq!(accepted_is_quick(), is_quick);
            listener.set_ack_mode(AckMode::Immediate);
            assert!(accepted_is_quick(), "the mode can be changed later");
        }
    }

    #[test]
    fn port_is_shared_only_if_both_set_reuse_port() {
        let shared = ListenOptions { reuse_port: true, ..LISTEN };
        let first = Listener::bind("127.0.0.1:0".parse().unwrap(), shared).unwrap();
        let address = first.local().unwrap();
        assert!(Listener::bind(address, shared).is_ok());
        assert_eq!(Listener::bind(address, LISTEN).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
