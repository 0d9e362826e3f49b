//! Non-blocking TCP streams.
//!
//! Guarantees: every socket made here is non-blocking and closed on exec; a send never raises SIGPIPE.
//!
//! ```text
//!   listener.rs   listening sockets              exhausted.rs  the resource whose lack fails a socket call
//!   addresses.rs  the addresses of this machine
//! ```

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::net::{AddressFamily, SendFlags};

use crate::kernel::{self, Descriptor};
use crate::send_audit::Entry;
use crate::splice::Pipe;

mod addresses;
mod exhausted;
mod listener;

pub use addresses::local_addresses;
pub use exhausted::ResourceExhausted;
pub use listener::{AcceptError, AckMode, ListenOptions, Listener};

/// The state of a connection attempt.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Connect {
    /// The handshake is complete.
    Established,
    /// The handshake is incomplete; the socket becomes writable when it completes or fails.
    InProgress,
}

/// Which end sends first on a connection that we open.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SpeaksFirst {
    /// We do, as soon as it is established: the kernel then delays the last ACK of the handshake and sends it
    /// with our first bytes, which saves a packet. Without such bytes its timer sends the ACK 200 ms later.
    Us,
    /// Unknown: the server may send first, and must not wait for a delayed ACK.
    Unknown,
}

/// A TCP stream.
#[derive(Debug)]
pub struct Socket(Descriptor, Entry);

impl Socket {
    /// A new socket with a started connection attempt to `address`.
    ///
    /// # Errors
    /// Immediate errors of `socket` and `connect`: `EMFILE`, `ENETUNREACH`, `EADDRNOTAVAIL` when no local
    /// port is left, `EACCES`.
    pub fn connect(address: SocketAddr, speaks_first: SpeaksFirst) -> io::Result<Socket> {
        let socket = kernel::stream_socket(family(address))?;
        if speaks_first == SpeaksFirst::Us {
            // A hint: if it fails, the handshake costs one more packet.
            let _ = kernel::set_quickack(socket.as_fd(), false);
        }
        continue_connect(&socket, address)?;
        let entry = Entry::connected(&socket, address);
        Ok(Socket(socket, entry))
    }

    /// The present state of the attempt of [`Socket::connect`].
    ///
    /// # Errors
    /// Why the attempt failed: `ECONNREFUSED`, `ETIMEDOUT`, `EHOSTUNREACH`, `ENETUNREACH`.
    pub fn continue_connect(&self, address: SocketAddr) -> io::Result<Connect> {
        continue_connect(&self.0, address)
    }

    /// Reads received bytes, up to the size of `buffer`. Zero is the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` when no byte is available; `ConnectionReset` and the like when the connection has failed.
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        retry(|| kernel::receive(self.0.as_fd(), buffer))
    }

    /// Reads received bytes into the spare capacity of `buffer`, without growing it.
    ///
    /// # Errors
    /// As [`Socket::recv`].
    pub fn recv_into_spare(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        retry(|| kernel::receive_into_spare(self.0.as_fd(), buffer))
    }

    /// Sends from `bytes`; returns how many the kernel accepted.
    ///
    /// # Errors
    /// `WouldBlock` when the send buffer is full or the socket is not connected yet; `BrokenPipe` and
    /// `ConnectionReset` when the connection has failed.
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.send_with(bytes, SendFlags::empty())
    }

    /// As [`Socket::send`], when more bytes or the end of our direction follow at once: the kernel holds a
    /// last partial packet back for them (`MSG_MORE`), so that the FIN costs no packet of its own.
    ///
    /// # Errors
    /// As [`Socket::send`].
    pub fn send_before_more(&self, bytes: &[u8]) -> io::Result<usize> {
        self.send_with(bytes, SendFlags::MORE)
    }

    /// Sends up to `bytes_max` of the bytes in `pipe`, without copying; returns how many the kernel accepted.
    ///
    /// # Errors
    /// As [`Socket::send`].
    pub fn send_from(&self, pipe: &mut Pipe, bytes_max: usize) -> io::Result<usize> {
        let held = bytes_max.min(pipe.buffered() as usize);
        self.1.record_send(held, || pipe.drain_to(&self.0, held))
    }

    /// Ends our direction: the peer reads the end of the stream after the sent bytes.
    ///
    /// # Errors
    /// `ENOTCONN` when the connection has failed already.
    pub fn shutdown_write(&self) -> io::Result<()> {
        Ok(kernel::shutdown_write(self.0.as_fd())?)
    }

    /// Closes with RST instead of FIN, and drops unsent bytes. Only bytes that `MSG_MORE` held back
    /// ([`Socket::send_before_more`]) are sent before the RST.
    pub fn reset(self) {
        self.reset_on_close();
    }

    /// Turns the later close into a [`Socket::reset`].
    pub fn reset_on_close(&self) {
        // Setting TCP_NODELAY sends the partial packet. It fails only on a failed connection.
        let _ = self.set_nodelay();
        // If this fails, the close sends FIN instead; there is no other means.
        let _ = kernel::set_reset_on_close(self.0.as_fd());
    }

    /// Closes with FIN although received bytes may be unread. It drops them first: a close with unread bytes
    /// sends RST, and RST discards what the peer has not received yet. The kernel goes on sending its queue,
    /// and gives up when the peer has acknowledged none of it for `stall_max` (`TCP_USER_TIMEOUT`, whole
    /// milliseconds). A peer that goes on sending gets a reset all the same.
    pub fn close_after_flush(self, stall_max: Duration) {
        let stall_ms = u32::try_from(stall_max.as_millis()).unwrap_or(u32::MAX);
        // If this fails, the kernel's own bound for orphaned sockets holds, of some minutes.
        let _ = kernel::set_user_timeout(self.0.as_fd(), stall_ms);
        // The receive queue, and the bytes that arrived during the first drop.
        for _ in 0..2 {
            if matches!(kernel::drop_received(self.0.as_fd()), Ok(0) | Err(_)) {
                break;
            }
        }
    }

    /// Whether a read would not block: bytes, the end of the stream or an error are available.
    pub fn has_arrived(&self) -> bool {
        // If poll fails the state is unknown: `true`, and the caller's read returns the error.
        kernel::has_input(self.0.as_fd()).unwrap_or(true)
    }

    /// Bytes in the send queue: accepted by send calls and not acknowledged by the peer, whether sent or not
    /// (`SIOCOUTQ`). The end of our direction counts as one byte. Zero if the call fails.
    pub fn unacknowledged_bytes(&self) -> u64 {
        kernel::unacknowledged_bytes(self.0.as_fd()).unwrap_or(0)
    }

    /// The time since the last ACK, of new bytes or of none (`TCP_INFO`, in milliseconds): at most the time
    /// since the peer last acknowledged a byte. Zero if the call fails.
    pub fn since_acknowledged(&self) -> Duration {
        kernel::since_acknowledged(self.0.as_fd()).unwrap_or_default()
    }

    /// Sends small writes at once (`TCP_NODELAY`).
    ///
    /// # Errors
    /// `ENOTCONN` or `EINVAL` on a failed connection.
    pub fn set_nodelay(&self) -> io::Result<()> {
        Ok(kernel::set_nodelay(self.0.as_fd())?)
    }

    /// The local address.
    ///
    /// # Errors
    /// `ENOBUFS`.
    pub fn local(&self) -> io::Result<SocketAddr> {
        Ok(kernel::local_address(self.0.as_fd())?)
    }

    fn send_with(&self, bytes: &[u8], flags: SendFlags) -> io::Result<usize> {
        self.1.record_send(bytes.len(), || retry(|| kernel::send(self.0.as_fd(), bytes, flags)))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn continue_connect(socket: &Descriptor, address: SocketAddr) -> io::Result<Connect> {
    use rustix::io::Errno;
    match kernel::connect(socket.as_fd(), address) {
        Ok(()) | Err(Errno::ISCONN) => Ok(Connect::Established),
        // After EINTR the attempt continues, like a non-blocking connect.
        Err(Errno::INPROGRESS | Errno::ALREADY | Errno::INTR) => Ok(Connect::InProgress),
        Err(error) => Err(error.into()),
    }
}

fn family(address: SocketAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) const LISTEN: ListenOptions =
        ListenOptions { reuse_port: false, backlog: 16, first_ack: AckMode::Immediate };

    fn pair() -> (Socket, Socket) {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), LISTEN).unwrap();
        let address = listener.local().unwrap();
        let client = Socket::connect(address, SpeaksFirst::Unknown).unwrap();
        while client.continue_connect(address).unwrap() == Connect::InProgress {}
        let (server, peer) = listener.accept().unwrap();
        assert_eq!(peer, client.local().unwrap());
        (client, server)
    }

    #[test]
    fn bytes_arrive_and_the_end_reads_zero() {
        let (client, server) = pair();
        let mut buffer = [0; 16];
        assert_eq!(server.recv(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(client.send(b"hello").unwrap(), 5);
        client.shutdown_write().unwrap();
        assert_eq!(server.recv(&mut buffer).unwrap(), 5);
        assert_eq!(server.recv(&mut buffer).unwrap(), 0);
    }

    #[test]
    fn spare_capacity_is_filled_not_grown() {
        let (client, server) = pair();
        client.send(b"0123456789").unwrap();
        let mut buffer = Vec::with_capacity(4);
        let capacity = buffer.capacity();
        assert_eq!(server.recv_into_spare(&mut buffer).unwrap(), capacity.min(10));
        assert_eq!(buffer.capacity(), capacity);
    }

    #[test]
    fn reset_reaches_peer_and_send_raises_no_sigpipe() {
        let (client, server) = pair();
        client.reset();
        let error = server.recv(&mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(server.send(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn bytes_sent_with_more_precede_a_reset() {
        let (client, server) = pair();
        assert_eq!(client.send_before_more(b"last words").unwrap(), 10);
        client.reset();
        let mut buffer = [0; 16];
        assert_eq!(server.recv(&mut buffer).unwrap(), 10);
        assert_eq!(server.recv(&mut buffer).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn close_with_unread_bytes_delivers_the_queue() {
        let (client, server) = pair();
        server.send(b"never read").unwrap();
        let sent = vec![7; 1_000_000];
        let count = client.send(&sent).unwrap();
        client.shutdown_write().unwrap();
        while !client.has_arrived() {}
        client.close_after_flush(Duration::from_secs(60));
        let (mut received, mut buffer) = (0, vec![0; 100_000]);
        loop {
            match server.recv(&mut buffer) {
                Ok(0) => break,
                Ok(read) => received += read,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "behind {received} bytes"),
            }
        }
        assert_eq!(received, count);
    }

    #[test]
    fn unacknowledged_bytes_fall_to_zero() {
        let (client, server) = pair();
        assert_eq!(client.unacknowledged_bytes(), 0);
        let sent = vec![7; 1_000_000];
        // Until both buffers are full: the server does not read.
        while client.send(&sent).is_ok() {}
        let before = client.unacknowledged_bytes();
        assert!(before > 0);
        let mut buffer = vec![0; 100_000];
        while client.unacknowledged_bytes() > 0 {
            let _ = server.recv(&mut buffer);
        }
        assert!(client.since_acknowledged() < Duration::from_secs(60));
    }

    #[test]
    fn has_arrived_reports_bytes_and_end() {
        let (client, server) = pair();
        assert!(!server.has_arrived());
        client.send(b"x").unwrap();
        while !server.has_arrived() {}
        assert_eq!(server.recv(&mut [0; 2]).unwrap(), 1);
        assert!(!server.has_arrived());
        drop(client);
        while !server.has_arrived() {}
    }

    #[test]
    fn refusal_shows_by_the_second_check() {
        let address = {
            let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), LISTEN).unwrap();
            listener.local().unwrap()
        };
        let outcome =
            Socket::connect(address, SpeaksFirst::Us).and_then(|socket| socket.continue_connect(address));
        assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }

    #[cfg(feature = "crash")]
    #[test]
    fn each_socket_has_an_entry_and_counts_its_sends() {
        use crate::send_audit::{AuditEntry, Role, open, read};

        let path = std::env::temp_dir().join(format!("tollgate-witness-{}", std::process::id()));
        open(&path).unwrap();
        let options = ListenOptions::plain(1);
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), options).unwrap();
        let address = listener.local().unwrap();
        let client = Socket::connect(address, SpeaksFirst::Unknown).unwrap();
        let (server, peer) = listener.accept().unwrap();
        client.send(b"twelve bytes").unwrap();
        client.send_before_more(b"and eight").unwrap();
        let mut pipe = Pipe::new(4096).unwrap();
        pipe.fill_from(&server, 5).unwrap();
        assert_eq!(server.send_from(&mut pipe, 5).unwrap(), 5);
        client.shutdown_write().unwrap();
        assert!(client.send(b"lost").is_err(), "no byte is sent after the end of the direction");
        // Other tests of this process may have sockets too.
        let seen = read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let of = |role: Role, peer: SocketAddr| {
            let own: Vec<&AuditEntry> = seen.iter().filter(|it| (it.role, it.peer) == (role, peer)).collect();
            assert_eq!(own.len(), 1);
            (own[0].local, own[0].attempted, own[0].sent)
        };
        assert_eq!(of(Role::Connected, address), (peer, 21, 21));
        assert_eq!(of(Role::Accepted, peer), (address, 5, 5));
    }
}
