//! The system calls of a simulated thread.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use rustix::event::epoll::{Event, EventFlags};
use rustix::io::{Errno, Result};
use rustix::net::{AddressFamily, SendFlags};
use rustix::time::ClockId;

use super::endpoint::{Endpoint, Fin, Phase};
use super::interest::{Interest, InterestList, readiness};
use super::listening::Listening;
use super::network::NetworkEvent;
use super::{Descriptor, FIRST_PORT, Object, PipeBuffer, Simulation, State, UPTIME_AT_START, WALL_AT_START};

const NANOS_PER_MILLISECOND: u64 = 1_000_000;

/// Sockets.
impl Simulation {
    pub(crate) fn stream_socket(&self, family: AddressFamily) -> Result<Descriptor> {
        let object = self.call(|state| {
            if state.has_fault() {
                return Err(Errno::MFILE);
            }
            let unspecified = if family == AddressFamily::INET {
                IpAddr::V4(Ipv4Addr::UNSPECIFIED)
            } else {
                IpAddr::V6(Ipv6Addr::UNSPECIFIED)
            };
            let (sizes, is_of_process) = (state.queue_sizes(), state.source == state.own);
            let local = SocketAddr::new(unspecified, 0);
            state.streams.push(Endpoint::new(is_of_process, local, sizes, state.now));
            Ok(Object::Stream(state.streams.len() - 1))
        })?;
        Ok(self.descriptor(&mut self.0.state.borrow_mut(), object))
    }

    pub(crate) fn connect(&self, socket: BorrowedFd<'_>, address: SocketAddr) -> Result<()> {
        self.call(|state| {
            let number = state.stream(socket)?;
            match state.streams[number].phase {
                Phase::New => state.begin_connect(number, address),
                Phase::Connecting => Err(Errno::ALREADY),
                Phase::Established => Err(Errno::ISCONN),
                Phase::Failed => Err(state.streams[number].error.take().unwrap_or(Errno::CONNABORTED)),
            }
        })
    }

    pub(crate) fn receive(&self, socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize> {
        self.call(|state| {
            let number = state.stream(socket)?;
            let count = state.take_received(number, buffer.len())?;
            let received = state.streams[number].received.drain(..count);
            buffer.iter_mut().zip(received).for_each(|(to, from)| *to = from);
            state.reopen_window(number);
            Ok(count)
        })
    }

    pub(crate) fn receive_into_spare(&self, socket: BorrowedFd<'_>, buffer: &mut Vec<u8>) -> Result<usize> {
        self.call(|state| {
            let number = state.stream(socket)?;
            let count = state.take_received(number, buffer.capacity() - buffer.len())?;
            buffer.extend(state.streams[number].received.drain(..count));
            state.reopen_window(number);
            Ok(count)
        })
    }

    pub(crate) fn drop_received(&self, socket: BorrowedFd<'_>) -> Result<usize> {
        self.call(|state| {
            let number = state.stream(socket)?;
            let count = state.take_received(number, usize::MAX)?;
            state.streams[number].received.clear();
            state.reopen_window(number);
            Ok(count)
        })
    }

    pub(crate) fn send(&self, socket: BorrowedFd<'_>, bytes: &[u8], _flags: SendFlags) -> Result<usize> {
        self.call(|state| {
            let number = state.stream(socket)?;
            let count = state.sendable(number, bytes.len())?;
            state.queue(number, bytes[..count].iter().copied());
            Ok(count)
        })
    }

    pub(crate) fn shutdown_write(&self, socket: BorrowedFd<'_>) -> Result<()> {
        self.call(|state| {
            let number = state.stream(socket)?;
            if state.streams[number].phase != Phase::Established {
                return Err(Errno::NOTCONN);
            }
            state.queue_fin(number);
            Ok(())
        })
    }

    pub(crate) fn has_input(&self, descriptor: BorrowedFd<'_>) -> Result<bool> {
        self.call(|state| {
            let object = state.object(descriptor)?;
            let input = EventFlags::IN | EventFlags::ERR | EventFlags::HUP;
            Ok(readiness(state, object).intersects(input))
        })
    }

    pub(crate) fn unacknowledged_bytes(&self, socket: BorrowedFd<'_>) -> Result<u64> {
        self.call(|state| {
            let stream = &state.streams[state.stream(socket)?];
            Ok(stream.queue.len() as u64 + u64::from(stream.fin == Fin::Queued))
        })
    }

    pub(crate) fn since_acknowledged(&self, socket: BorrowedFd<'_>) -> Result<Duration> {
        self.call(|state| {
            let since = state.now - state.streams[state.stream(socket)?].acknowledged_at;
            Ok(Duration::from_millis(since / NANOS_PER_MILLISECOND))
        })
    }

    pub(crate) fn set_nodelay(&self, socket: BorrowedFd<'_>) -> Result<()> {
        self.call(|state| state.object(socket).map(drop))
    }

    pub(crate) fn set_quickack(&self, socket: BorrowedFd<'_>, _is_quick: bool) -> Result<()> {
        self.call(|state| state.object(socket).map(drop))
    }

    pub(crate) fn set_reset_on_close(&self, socket: BorrowedFd<'_>) -> Result<()> {
        self.call(|state| {
            let number = state.stream(socket)?;
            state.streams[number].resets_on_close = true;
            Ok(())
        })
    }

    pub(crate) fn set_user_timeout(&self, socket: BorrowedFd<'_>, milliseconds: u32) -> Result<()> {
        self.call(|state| {
            let number = state.stream(socket)?;
            state.streams[number].user_timeout = u64::from(milliseconds) * NANOS_PER_MILLISECOND;
            Ok(())
        })
    }

    pub(crate) fn local_address(&self, socket: BorrowedFd<'_>) -> Result<SocketAddr> {
        self.call(|state| match state.object(socket)? {
            Object::Stream(number) => Ok(state.streams[number].local),
            Object::Listener(number) => Ok(state.listeners[number].address),
            Object::Pipe(_) | Object::Epoll(_) | Object::Real(_) => Err(Errno::NOTSOCK),
        })
    }
}

/// Listening sockets.
impl Simulation {
    pub(crate) fn bind(&self, socket: BorrowedFd<'_>, address: SocketAddr, reuse_port: bool) -> Result<()> {
        self.call(|state| {
            let unbound = state.stream(socket)?;
            let is_used = |it: &Listening| it.descriptors > 0 && it.address == address && it.is_open;
            if !reuse_port && state.listeners.iter().any(is_used) {
                return Err(Errno::ADDRINUSE);
            }
            let port = if address.port() == 0 { state.take_port() } else { address.port() };
            let ip = if address.ip().is_unspecified() { state.source } else { address.ip() };
            let is_of_process = state.source == state.own;
            state.listeners.push(Listening::bound(SocketAddr::new(ip, port), is_of_process));
            let listener = Object::Listener(state.listeners.len() - 1);
            state.streams[unbound].is_closed = true;
            state.objects.insert(socket.as_raw_fd(), listener);
            Ok(())
        })
    }

    pub(crate) fn listen(&self, socket: BorrowedFd<'_>, backlog: i32) -> Result<()> {
        self.call(|state| {
            let listener = state.listener(socket)?;
            listener.is_open = true;
            listener.backlog = usize::try_from(backlog).unwrap_or(0);
            Ok(())
        })
    }

    pub(crate) fn accept(&self, listener: BorrowedFd<'_>) -> Result<(Descriptor, Option<SocketAddr>)> {
        let (number, peer) = self.call(|state| {
            if state.has_fault() {
                return Err(Errno::MFILE);
            }
            let number = state.listener(listener)?.accept_queue.pop_front().ok_or(Errno::AGAIN)?;
            Ok((number, state.streams[number].peer))
        })?;
        let state = &mut *self.0.state.borrow_mut();
        Ok((self.descriptor(state, Object::Stream(number)), peer))
    }

    pub(crate) fn drop_new_clients(&self, listener: BorrowedFd<'_>) -> Result<()> {
        self.call(|state| {
            state.listener(listener)?.drops_new_clients = true;
            Ok(())
        })
    }

    pub(crate) fn duplicate(&self, descriptor: BorrowedFd<'_>) -> Result<Descriptor> {
        let object = self.call(|state| {
            let object = state.object(descriptor)?;
            match object {
                Object::Listener(number) => state.listeners[number].descriptors += 1,
                Object::Stream(_) | Object::Pipe(_) | Object::Epoll(_) | Object::Real(_) => {
                    return Err(Errno::NOTSUP);
                }
            }
            Ok(object)
        })?;
        Ok(self.descriptor(&mut self.0.state.borrow_mut(), object))
    }
}

/// Pipes.
impl Simulation {
    pub(crate) fn pipe(&self) -> Result<(Descriptor, Descriptor)> {
        let object = self.call(|state| {
            if state.has_fault() {
                return Err(Errno::MFILE);
            }
            // An unprivileged user's pipe may get two pages in place of sixteen.
            let capacity = if state.choose(2) == 0 { 8 << 10 } else { 64 << 10 };
            state.pipes.push(PipeBuffer { bytes: VecDeque::new(), capacity });
            Ok(Object::Pipe(state.pipes.len() - 1))
        })?;
        let state = &mut *self.0.state.borrow_mut();
        Ok((self.descriptor(state, object), self.descriptor(state, object)))
    }

    pub(crate) fn set_pipe_capacity(&self, pipe: BorrowedFd<'_>, capacity: u32) -> Result<()> {
        self.call(|state| {
            let Object::Pipe(number) = state.object(pipe)? else { return Err(Errno::BADF) };
            // The user has no pages left.
            if state.choose(4) == 0 {
                return Err(Errno::PERM);
            }
            let pipe = &mut state.pipes[number];
            if pipe.bytes.len() > capacity as usize {
                return Err(Errno::BUSY);
            }
            pipe.capacity = capacity as usize;
            Ok(())
        })
    }

    pub(crate) fn splice(
        &self,
        source: BorrowedFd<'_>,
        sink: BorrowedFd<'_>,
        bytes_max: usize,
    ) -> Result<usize> {
        self.call(|state| match (state.object(source)?, state.object(sink)?) {
            (Object::Stream(stream), Object::Pipe(pipe)) => {
                let free = state.pipes[pipe].capacity - state.pipes[pipe].bytes.len();
                if free == 0 {
                    return Err(Errno::AGAIN);
                }
                let count = state.take_received(stream, free.min(bytes_max))?;
                let bytes = state.streams[stream].received.drain(..count);
                state.pipes[pipe].bytes.extend(bytes);
                state.reopen_window(stream);
                Ok(count)
            }
            (Object::Pipe(pipe), Object::Stream(stream)) => {
                let held = state.pipes[pipe].bytes.len().min(bytes_max);
                if held == 0 {
                    return Err(Errno::AGAIN);
                }
                let count = state.sendable(stream, held)?;
                let bytes: Vec<u8> = state.pipes[pipe].bytes.drain(..count).collect();
                state.queue(stream, bytes.into_iter());
                Ok(count)
            }
            _ => Err(Errno::INVAL),
        })
    }

    pub(crate) fn read_into_spare(&self, pipe: BorrowedFd<'_>, buffer: &mut Vec<u8>) -> Result<usize> {
        self.call(|state| {
            let Object::Pipe(number) = state.object(pipe)? else { return Err(Errno::INVAL) };
            let bytes = &mut state.pipes[number].bytes;
            let count = bytes.len().min(buffer.capacity() - buffer.len());
            buffer.extend(bytes.drain(..count));
            if count == 0 { Err(Errno::AGAIN) } else { Ok(count) }
        })
    }
}

/// epoll and clocks.
impl Simulation {
    pub(crate) fn epoll_create(&self) -> Result<Descriptor> {
        let object = self.call(|state| {
            state.epolls.push(InterestList::default());
            Ok(Object::Epoll(state.epolls.len() - 1))
        })?;
        Ok(self.descriptor(&mut self.0.state.borrow_mut(), object))
    }

    pub(crate) fn epoll_add(
        &self,
        epoll: BorrowedFd<'_>,
        source: BorrowedFd<'_>,
        token: u64,
        flags: EventFlags,
    ) -> Result<()> {
        self.call(|state| {
            if state.has_fault() {
                return Err(Errno::NOSPC);
            }
            let descriptor = source.as_raw_fd();
            let object = state.objects.get(&descriptor).copied().unwrap_or(Object::Real(descriptor));
            let entries = &mut state.interests(epoll)?.entries;
            if entries.iter().any(|entry| entry.descriptor == descriptor) {
                return Err(Errno::EXIST);
            }
            entries.push(Interest { descriptor, object, token, flags, has_changed: true });
            Ok(())
        })
    }

    pub(crate) fn epoll_modify(
        &self,
        epoll: BorrowedFd<'_>,
        source: BorrowedFd<'_>,
        token: u64,
        flags: EventFlags,
    ) -> Result<()> {
        self.call(|state| {
            let entries = &mut state.interests(epoll)?.entries;
            let watched = entries.iter_mut().find(|entry| entry.descriptor == source.as_raw_fd());
            let entry = watched.ok_or(Errno::NOENT)?;
            (entry.token, entry.flags, entry.has_changed) = (token, flags, true);
            Ok(())
        })
    }

    pub(crate) fn epoll_delete(&self, epoll: BorrowedFd<'_>, source: BorrowedFd<'_>) -> Result<()> {
        self.call(|state| {
            let entries = &mut state.interests(epoll)?.entries;
            let position = entries.iter().position(|entry| entry.descriptor == source.as_raw_fd());
            entries.remove(position.ok_or(Errno::NOENT)?);
            Ok(())
        })
    }

    /// Returns at once, with the ready sources in a chosen order.
    pub(crate) fn epoll_wait(
        &self,
        epoll: BorrowedFd<'_>,
        events: &mut Vec<Event>,
        timeout: Option<Duration>,
    ) -> Result<()> {
        events.clear();
        self.call(|state| {
            let Object::Epoll(number) = state.object(epoll)? else { return Err(Errno::INVAL) };
            let mut list = std::mem::take(&mut state.epolls[number]);
            let count = list.entries.len();
            let first = if count == 0 { 0 } else { state.choose(count as u64) as usize };
            for index in (first..count).chain(0..first) {
                let entry = &mut list.entries[index];
                if !entry.may_report() || events.len() == events.capacity() {
                    continue;
                }
                let flags = entry.readiness(state);
                if !flags.is_empty() {
                    events.push(entry.event(flags));
                }
                entry.has_changed = false;
            }
            state.epolls[number] = list;
            let timeout = if events.is_empty() { timeout } else { Some(Duration::ZERO) };
            state.sleeps_until = timeout.map(|span| {
                let span = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
                state.now.saturating_add(span)
            });
            Ok(())
        })
    }

    pub(crate) fn clock(&self, clock: ClockId) -> u64 {
        let now = self.0.state.borrow().now;
        match clock {
            ClockId::Realtime => WALL_AT_START + now,
            _ => UPTIME_AT_START + now,
        }
    }

    /// Closes a descriptor, as its program or the program's end does.
    pub(super) fn close(&self, descriptor: RawFd) {
        let state = &mut *self.0.state.borrow_mut();
        let Some(object) = state.objects.remove(&descriptor) else { return };
        state.epolls.iter_mut().for_each(|list| list.entries.retain(|it| it.descriptor != descriptor));
        match object {
            Object::Stream(number) => state.close_stream(number),
            Object::Listener(number) => state.close_listener(number),
            Object::Pipe(_) | Object::Epoll(_) | Object::Real(_) => {}
        }
    }
}

impl State {
    fn object(&self, descriptor: BorrowedFd<'_>) -> Result<Object> {
        self.objects.get(&descriptor.as_raw_fd()).copied().ok_or(Errno::BADF)
    }

    fn stream(&self, descriptor: BorrowedFd<'_>) -> Result<usize> {
        match self.object(descriptor)? {
            Object::Stream(number) => Ok(number),
            Object::Listener(_) | Object::Pipe(_) | Object::Epoll(_) | Object::Real(_) => Err(Errno::NOTCONN),
        }
    }

    fn listener(&mut self, descriptor: BorrowedFd<'_>) -> Result<&mut Listening> {
        match self.object(descriptor)? {
            Object::Listener(number) => Ok(&mut self.listeners[number]),
            Object::Stream(_) | Object::Pipe(_) | Object::Epoll(_) | Object::Real(_) => Err(Errno::INVAL),
        }
    }

    fn interests(&mut self, epoll: BorrowedFd<'_>) -> Result<&mut InterestList> {
        match self.object(epoll)? {
            Object::Epoll(number) => Ok(&mut self.epolls[number]),
            Object::Stream(_) | Object::Listener(_) | Object::Pipe(_) | Object::Real(_) => Err(Errno::INVAL),
        }
    }

    fn take_port(&mut self) -> u16 {
        let port = self.next_port;
        self.next_port = port.checked_add(1).unwrap_or(FIRST_PORT);
        port
    }

    fn begin_connect(&mut self, number: usize, address: SocketAddr) -> Result<()> {
        if self.has_fault() {
            return Err(Errno::ADDRNOTAVAIL);
        }
        let local = SocketAddr::new(self.source, self.take_port());
        let stream = &mut self.streams[number];
        (stream.local, stream.peer, stream.phase) = (local, Some(address), Phase::Connecting);
        let delay = self.latency();
        self.schedule(delay, NetworkEvent::Syn { client: number, to: address, number: 0 });
        Err(Errno::INPROGRESS)
    }

    /// How many received bytes a read takes, at most `most`.
    fn take_received(&mut self, number: usize, most: usize) -> Result<usize> {
        Ok(self.streams[number].readable()?.min(most))
    }

    /// After a read: the other end may send more.
    fn reopen_window(&mut self, number: usize) {
        if let Some(other) = self.streams[number].other {
            self.send_segment(other);
        }
    }

    /// How many of `length` bytes a send call takes: now and then fewer than there is space for, as where the
    /// kernel's memory is short.
    fn sendable(&mut self, number: usize, length: usize) -> Result<usize> {
        let free = self.streams[number].writable()?;
        let mut count = free.min(length);
        if count > 1 && self.choose(8) == 0 {
            count = 1 + self.choose(count as u64) as usize;
        }
        self.streams[number].lacks_space = count < length;
        Ok(count)
    }

    fn queue(&mut self, number: usize, bytes: impl Iterator<Item = u8>) {
        let stream = &mut self.streams[number];
        if stream.queue.is_empty() {
            stream.acknowledged_at = self.now;
        }
        let before = stream.queue.len();
        stream.queue.extend(bytes);
        stream.sent += (stream.queue.len() - before) as u64;
        self.send_segment(number);
    }

    fn queue_fin(&mut self, number: usize) {
        if self.streams[number].fin == Fin::No {
            self.streams[number].fin = Fin::Queued;
            self.send_segment(number);
        }
    }

    pub(super) fn close_stream(&mut self, number: usize) {
        let stream = &mut self.streams[number];
        stream.is_closed = true;
        let has_unread = !stream.received.is_empty();
        match stream.phase {
            Phase::New | Phase::Failed => {}
            Phase::Established if !stream.resets_on_close && !has_unread => {
                self.queue_fin(number);
                if self.streams[number].user_timeout > 0 {
                    self.schedule(0, NetworkEvent::UserTimeout { stream: number });
                }
            }
            Phase::Connecting | Phase::Established => {
                stream.phase = Phase::Failed;
                self.send_reset(number);
            }
        }
    }

    fn close_listener(&mut self, number: usize) {
        let listener = &mut self.listeners[number];
        listener.descriptors -= 1;
        if listener.descriptors > 0 {
            return;
        }
        listener.is_open = false;
        for queued in std::mem::take(&mut self.listeners[number].accept_queue) {
            (self.streams[queued].is_closed, self.streams[queued].phase) = (true, Phase::Failed);
            self.send_reset(queued);
        }
    }
}
