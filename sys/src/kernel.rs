//! The system calls of sockets, pipes, epoll and clocks.
//!
//! Guarantees: each call is made here and nowhere else, so that a simulation can answer in the kernel's
//! place. Without the feature `simulation` a call costs what the kernel's costs. With it, a thread that is in
//! a simulation (`simulation`) gets that one's results, and all others the kernel's.
//!
//! Not handled here: the meaning of results (`socket`, `epoll`, `splice`, `clock`).

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::epoll::{Event, EventFlags};
use rustix::io::Result;
use rustix::net::{AddressFamily, SendFlags};
use rustix::time::ClockId;

#[cfg_attr(
    not(feature = "simulation"),
    expect(clippy::useless_conversion, reason = "a descriptor is a type of its own with the feature")
)]
mod linux;

#[cfg(not(feature = "simulation"))]
pub(crate) use std::os::fd::OwnedFd as Descriptor;

#[cfg(feature = "simulation")]
pub(crate) use crate::simulation::Descriptor;

/// Declares each call once: the simulation's method of that name, or the function of `linux`.
macro_rules! system_calls {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(
            $(#[$doc])*
            #[inline]
            pub(crate) fn $name($($argument: $kind),*) -> $result {
                #[cfg(feature = "simulation")]
                if let Some(simulation) = crate::simulation::current() {
                    return simulation.$name($($argument),*);
                }
                linux::$name($($argument),*)
            }
        )*
    };
}

system_calls! {
    /// A new TCP socket, non-blocking and closed on exec.
    fn stream_socket(family: AddressFamily) -> Result<Descriptor>;
    /// Starts or continues a connection attempt.
    fn connect(socket: BorrowedFd<'_>, address: SocketAddr) -> Result<()>;
    /// Reads received bytes.
    fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize>;
    /// Reads received bytes into the spare capacity of a vector.
    fn receive_into_spare(socket: BorrowedFd<'_>, buffer: &mut Vec<u8>) -> Result<usize>;
    /// Drops received bytes, without limit.
    fn drop_received(socket: BorrowedFd<'_>) -> Result<usize>;
    /// Sends bytes; a closed connection raises no signal.
    fn send(socket: BorrowedFd<'_>, bytes: &[u8], flags: SendFlags) -> Result<usize>;
    /// Ends the sending direction.
    fn shutdown_write(socket: BorrowedFd<'_>) -> Result<()>;
    /// Whether poll(2) reports input, without waiting.
    fn has_input(descriptor: BorrowedFd<'_>) -> Result<bool>;
    /// Bytes in the send queue; an unacknowledged FIN counts as one.
    fn unacknowledged_bytes(socket: BorrowedFd<'_>) -> Result<u64>;
    /// The time since the last ACK, in whole milliseconds.
    fn since_acknowledged(socket: BorrowedFd<'_>) -> Result<Duration>;
    /// Disables Nagle's algorithm.
    fn set_nodelay(socket: BorrowedFd<'_>) -> Result<()>;
    /// Sends ACKs at once, or with the next bytes.
    fn set_quickack(socket: BorrowedFd<'_>, is_quick: bool) -> Result<()>;
    /// Has the close send RST (`SO_LINGER` of zero).
    fn set_reset_on_close(socket: BorrowedFd<'_>) -> Result<()>;
    /// Bounds how long sent bytes may stay unacknowledged, in milliseconds.
    fn set_user_timeout(socket: BorrowedFd<'_>, milliseconds: u32) -> Result<()>;
    /// The local address.
    fn local_address(socket: BorrowedFd<'_>) -> Result<SocketAddr>;
    /// Binds a socket for listening: with `SO_REUSEADDR`, `TCP_NODELAY`, IPv6 alone, and `SO_REUSEPORT` if
    /// `reuse_port`.
    fn bind(socket: BorrowedFd<'_>, address: SocketAddr, reuse_port: bool) -> Result<()>;
    /// Starts to listen.
    fn listen(socket: BorrowedFd<'_>, backlog: i32) -> Result<()>;
    /// Accepts a connection. Its peer's address is missing if it is no internet address.
    fn accept(listener: BorrowedFd<'_>) -> Result<(Descriptor, Option<SocketAddr>)>;
    /// Has the kernel drop each SYN of a new client.
    fn drop_new_clients(listener: BorrowedFd<'_>) -> Result<()>;
    /// Another descriptor of the same socket.
    fn duplicate(descriptor: BorrowedFd<'_>) -> Result<Descriptor>;
    /// The reading and the writing end of a new pipe.
    fn pipe() -> Result<(Descriptor, Descriptor)>;
    /// Changes the capacity of a pipe, in bytes.
    fn set_pipe_capacity(pipe: BorrowedFd<'_>, capacity: u32) -> Result<()>;
    /// Moves bytes between a pipe and another descriptor.
    fn splice(source: BorrowedFd<'_>, sink: BorrowedFd<'_>, bytes_max: usize) -> Result<usize>;
    /// Reads from a pipe into the spare capacity of a vector.
    fn read_into_spare(pipe: BorrowedFd<'_>, buffer: &mut Vec<u8>) -> Result<usize>;
    /// A new epoll instance.
    fn epoll_create() -> Result<Descriptor>;
    /// Adds a source.
    fn epoll_add(epoll: BorrowedFd<'_>, source: BorrowedFd<'_>, token: u64, flags: EventFlags) -> Result<()>;
    /// Changes the flags of a source.
    fn epoll_modify(
        epoll: BorrowedFd<'_>, source: BorrowedFd<'_>, token: u64, flags: EventFlags
    ) -> Result<()>;
    /// Removes a source.
    fn epoll_delete(epoll: BorrowedFd<'_>, source: BorrowedFd<'_>) -> Result<()>;
    /// Waits for events, which replace those of `events`.
    fn epoll_wait(epoll: BorrowedFd<'_>, events: &mut Vec<Event>, timeout: Option<Duration>) -> Result<()>;
    /// A clock's time in nanoseconds.
    fn clock(clock: ClockId) -> u64;
}
