//! The system calls of Linux, by rustix where it has them.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::event::{self, PollFd, PollFlags, Timespec};
use rustix::io::{Errno, Result};
use rustix::net::{
    self, AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrAny, SocketFlags, SocketType, sockopt,
};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with};
use rustix::time::{ClockId, clock_gettime};

use super::Descriptor;

const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);
const MOVE: SpliceFlags = SpliceFlags::MOVE.union(SpliceFlags::NONBLOCK);
const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// More than any receive queue holds: `net.ipv4.tcp_rmem` is an int.
const RECEIVED_BYTES_MAX: usize = i32::MAX as usize;

#[inline]
pub(super) fn stream_socket(family: AddressFamily) -> Result<Descriptor> {
    net::socket_with(family, SocketType::STREAM, FLAGS, None).map(Descriptor::from)
}

#[inline]
pub(super) fn connect(socket: BorrowedFd<'_>, address: SocketAddr) -> Result<()> {
    net::connect(socket, &address)
}

#[inline]
pub(super) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize> {
    net::recv(socket, buffer, RecvFlags::empty()).map(|(count, _)| count)
}

#[inline]
pub(super) fn receive_into_spare(socket: BorrowedFd<'_>, buffer: &mut Vec<u8>) -> Result<usize> {
    net::recv(socket, spare_capacity(buffer), RecvFlags::empty()).map(|(count, _)| count)
}

pub(super) fn drop_received(socket: BorrowedFd<'_>) -> Result<usize> {
    // SAFETY: with MSG_TRUNC a TCP socket drops the bytes and writes none (tcp(7)), so the null buffer is not
    // accessed.
    let dropped = unsafe {
        let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
        libc::recv(socket.as_raw_fd(), std::ptr::null_mut(), RECEIVED_BYTES_MAX, flags)
    };
    usize::try_from(dropped).map_err(|_| last_error())
}

#[inline]
pub(super) fn send(socket: BorrowedFd<'_>, bytes: &[u8], flags: SendFlags) -> Result<usize> {
    net::send(socket, bytes, flags | SendFlags::NOSIGNAL)
}

#[inline]
pub(super) fn shutdown_write(socket: BorrowedFd<'_>) -> Result<()> {
    net::shutdown(socket, Shutdown::Write)
}

pub(super) fn has_input(descriptor: BorrowedFd<'_>) -> Result<bool> {
    let mut polled = [PollFd::new(&descriptor, PollFlags::IN)];
    event::poll(&mut polled, Some(&Timespec::default())).map(|ready| ready > 0)
}

pub(super) fn unacknowledged_bytes(socket: BorrowedFd<'_>) -> Result<u64> {
    let mut count: libc::c_int = 0;
    // SAFETY: the request (TIOCOUTQ is the same number as SIOCOUTQ) stores an int at its argument, which
    // lives until the call returns.
    let outcome = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut count) };
    if outcome == 0 { Ok(u64::try_from(count).unwrap_or(0)) } else { Err(last_error()) }
}

pub(super) fn since_acknowledged(socket: BorrowedFd<'_>) -> Result<Duration> {
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the struct consists of integers, each of which may be zero.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most `length` bytes, the size of the struct, which lives until the call
    // returns; a kernel with a shorter struct writes less.
    let outcome = unsafe {
        let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
        libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut info).cast(), &raw mut length)
    };
    if outcome == 0 { Ok(Duration::from_millis(info.tcpi_last_ack_recv.into())) } else { Err(last_error()) }
}

pub(super) fn set_nodelay(socket: BorrowedFd<'_>) -> Result<()> {
    sockopt::set_tcp_nodelay(socket, true)
}

pub(super) fn set_quickack(socket: BorrowedFd<'_>, is_quick: bool) -> Result<()> {
    sockopt::set_tcp_quickack(socket, is_quick)
}

pub(super) fn set_reset_on_close(socket: BorrowedFd<'_>) -> Result<()> {
    sockopt::set_socket_linger(socket, Some(Duration::ZERO))
}

pub(super) fn set_user_timeout(socket: BorrowedFd<'_>, milliseconds: u32) -> Result<()> {
    sockopt::set_tcp_user_timeout(socket, milliseconds)
}

pub(super) fn local_address(socket: BorrowedFd<'_>) -> Result<SocketAddr> {
    to_std(net::getsockname(socket)?)
}

pub(super) fn bind(socket: BorrowedFd<'_>, address: SocketAddr, reuse_port: bool) -> Result<()> {
    sockopt::set_socket_reuseaddr(socket, true)?;
    if reuse_port {
        sockopt::set_socket_reuseport(socket, true)?;
    }
    if address.is_ipv6() {
        // `[::]` and `0.0.0.0` are two listeners in the configuration, so they must not clash here.
        sockopt::set_ipv6_v6only(socket, true)?;
    }
    sockopt::set_tcp_nodelay(socket, true)?;
    net::bind(socket, &address)
}

pub(super) fn listen(socket: BorrowedFd<'_>, backlog: i32) -> Result<()> {
    net::listen(socket, backlog)
}

#[inline]
pub(super) fn accept(listener: BorrowedFd<'_>) -> Result<(Descriptor, Option<SocketAddr>)> {
    let (socket, peer) = net::acceptfrom_with(listener, FLAGS)?;
    Ok((Descriptor::from(socket), peer.and_then(|peer| to_std(peer).ok())))
}

pub(super) fn drop_new_clients(listener: BorrowedFd<'_>) -> Result<()> {
    // A classic BPF program over the TCP header: load the byte of the flags; if SYN is set keep 0 bytes of
    // the packet, which drops it, otherwise all. (A backlog of zero would still queue one.)
    const FLAGS_OFFSET: u32 = 13;
    const SYN: u32 = 0x02;
    let instruction = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        instruction(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, 0, FLAGS_OFFSET),
        instruction(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 0, 1, SYN),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
    ];
    let program = libc::sock_fprog { len: program.len() as libc::c_ushort, filter: program.as_mut_ptr() };
    // SAFETY: the option's value is a `sock_fprog` of that size. Its `len` is the number of instructions
    // behind its pointer; they live until the call returns, and the kernel copies them.
    let outcome = unsafe {
        libc::setsockopt(
            listener.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if outcome == 0 { Ok(()) } else { Err(last_error()) }
}

pub(super) fn duplicate(descriptor: BorrowedFd<'_>) -> Result<Descriptor> {
    rustix::io::fcntl_dupfd_cloexec(descriptor, 0).map(Descriptor::from)
}

pub(super) fn pipe() -> Result<(Descriptor, Descriptor)> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    Ok((Descriptor::from(reader), Descriptor::from(writer)))
}

pub(super) fn set_pipe_capacity(pipe: BorrowedFd<'_>, capacity: u32) -> Result<()> {
    fcntl_setpipe_size(pipe, capacity as usize).map(drop)
}

#[inline]
pub(super) fn splice(source: BorrowedFd<'_>, sink: BorrowedFd<'_>, bytes_max: usize) -> Result<usize> {
    rustix::pipe::splice(source, None, sink, None, bytes_max, MOVE)
}

pub(super) fn read_into_spare(pipe: BorrowedFd<'_>, buffer: &mut Vec<u8>) -> Result<usize> {
    rustix::io::read(pipe, spare_capacity(buffer))
}

pub(super) fn epoll_create() -> Result<Descriptor> {
    epoll::create(epoll::CreateFlags::CLOEXEC).map(Descriptor::from)
}

#[inline]
pub(super) fn epoll_add(
    epoll: BorrowedFd<'_>,
    source: BorrowedFd<'_>,
    token: u64,
    flags: EventFlags,
) -> Result<()> {
    epoll::add(epoll, source, EventData::new_u64(token), flags)
}

#[inline]
pub(super) fn epoll_modify(
    epoll: BorrowedFd<'_>,
    source: BorrowedFd<'_>,
    token: u64,
    flags: EventFlags,
) -> Result<()> {
    epoll::modify(epoll, source, EventData::new_u64(token), flags)
}

#[inline]
pub(super) fn epoll_delete(epoll: BorrowedFd<'_>, source: BorrowedFd<'_>) -> Result<()> {
    epoll::delete(epoll, source)
}

#[inline]
pub(super) fn epoll_wait(
    epoll: BorrowedFd<'_>,
    events: &mut Vec<Event>,
    timeout: Option<Duration>,
) -> Result<()> {
    events.clear();
    let timeout = timeout.map(|span| Timespec {
        tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(span.subsec_nanos()),
    });
    epoll::wait(epoll, spare_capacity(events), timeout.as_ref()).map(drop)
}

#[inline]
pub(super) fn clock(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    // Negative only before 1970 or before boot. Clamped: a broken clock then gives a wrong record and not
    // a panic on the data plane.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(NANOS_PER_SECOND).saturating_add(nanos)
}

fn to_std(address: SocketAddrAny) -> Result<SocketAddr> {
    SocketAddr::try_from(address)
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}
