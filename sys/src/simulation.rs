//! A simulated kernel: a network, pipes, epoll and the clocks, in the memory of one thread.
//!
//! Guarantees: while a thread is in a simulation, the calls of `kernel` that it makes never reach the kernel,
//! never wait, and depend on earlier calls and on the chosen numbers alone. Time stands still until
//! [`Simulation::advance`]. Streams behave as Linux' TCP sockets do: buffers are bounded, edges are reported
//! once, a close with unread bytes resets, and a reset drops what was not delivered.
//!
//! Not handled here: urgent bytes, Nagle's algorithm, retransmission. The owner of the simulation decides
//! when its programs run: a wait for events returns at once, and [`Simulation::sleeps_until`] tells for how
//! long the kernel would have slept.
//!
//! ```text
//!   calls.rs      the system calls of the simulated thread
//!   endpoint.rs   one end of a TCP connection     listening.rs  a listening socket
//!   network.rs    what is on its way between them  interest.rs  an epoll instance
//! ```

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, Result};

mod calls;
mod endpoint;
mod interest;
mod listening;
mod network;

use endpoint::Endpoint;
use interest::InterestList;
use listening::Listening;
use network::ScheduledEvent;

thread_local! {
    static CURRENT: RefCell<Option<Simulation>> = const { RefCell::new(None) };
}

/// The simulation of the calling thread, if it is in one.
#[inline]
pub(crate) fn current() -> Option<Simulation> {
    // A thread that ends has no simulation any more.
    CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
}

/// A simulated kernel. Clones are the same one.
#[derive(Clone)]
pub struct Simulation(Rc<Shared>);

struct Shared {
    state: RefCell<State>,
    kill: Cell<Option<Kill>>,
    /// From which each descriptor of the simulation is duplicated: its number identifies it.
    template: OwnedFd,
}

/// Keeps the calling thread in a simulation until it is dropped.
pub struct Entered(Simulation);

/// The moment of a kill, relative to the call in which it comes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KillMoment {
    /// The call has no effect.
    BeforeCall,
    /// The call has its effect, and never returns.
    AfterCall,
}

/// A planned kill of the simulated process.
struct Kill {
    /// The call in which it comes, counted from one.
    call: u64,
    moment: KillMoment,
    then: Box<dyn FnOnce()>,
}

/// How an address answers on which no simulated socket listens.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Route {
    /// By a reset: ECONNREFUSED.
    Refused,
    /// Not at all: the attempt ends after two minutes, with ETIMEDOUT.
    Silent,
    /// By an ICMP message: EHOSTUNREACH.
    Unreachable,
}

/// What the process's send calls took on one of its streams.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SentStream {
    /// The process's address.
    pub local: SocketAddr,
    /// The peer's address.
    pub peer: SocketAddr,
    /// Whether the process accepted the connection; else it opened it.
    pub was_accepted: bool,
    /// Bytes that send calls took.
    pub sent: u64,
}

/// What a descriptor refers to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Object {
    Stream(usize),
    Listener(usize),
    /// Either end.
    Pipe(usize),
    Epoll(usize),
    /// A descriptor of the kernel, such as an eventfd.
    Real(RawFd),
}

/// A pipe's bytes and its capacity.
struct PipeBuffer {
    bytes: VecDeque<u8>,
    capacity: usize,
}

/// Everything that the simulation knows. Numbers index the vectors, which only grow.
struct State {
    /// Nanoseconds since the simulation began.
    now: u64,
    choose: Box<dyn FnMut(u64) -> u64>,
    objects: BTreeMap<RawFd, Object>,
    streams: Vec<Endpoint>,
    listeners: Vec<Listening>,
    pipes: Vec<PipeBuffer>,
    epolls: Vec<InterestList>,
    routes: BTreeMap<SocketAddr, Route>,
    events: BinaryHeap<ScheduledEvent>,
    /// ScheduledEvents scheduled so far.
    scheduled: u64,
    /// The process's own address.
    own: IpAddr,
    /// The address from which the running program connects: the process's own, or a peer's.
    source: IpAddr,
    next_port: u16,
    /// Calls of the process so far.
    calls: u64,
    is_killed: bool,
    /// Calls in a thousand that fail for lack of a resource.
    fault_rate: u64,
    /// The longest time between two endpoints, in nanoseconds.
    latency_max: u64,
    /// The end of the last wait for events; `None` without a timeout.
    sleeps_until: Option<u64>,
}

/// The wall clock when a simulation begins: 2026-01-01T00:00:00Z.
const WALL_AT_START: u64 = 1_767_225_600 * 1_000_000_000;

/// The monotonic clock when a simulation begins: a machine that is up for an hour.
const UPTIME_AT_START: u64 = 3_600 * 1_000_000_000;

/// The first port of connections: that of Linux' default range.
const FIRST_PORT: u16 = 32_768;

/// The longest time between two endpoints, unless it is set.
const LATENCY_MAX: Duration = Duration::from_millis(1);

impl Simulation {
    /// Puts the calling thread into a new simulation, as a process at the address `own`. `choose` returns a
    /// number below its argument, which is never zero: it decides each delay, each split and each order.
    ///
    /// # Panics
    /// If the thread is in a simulation already, or the process has no free descriptor.
    pub fn enter(own: IpAddr, choose: impl FnMut(u64) -> u64 + 'static) -> Entered {
        let template = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let template = template.expect("a simulation needs a descriptor");
        let state = State {
            now: 0,
            choose: Box::new(choose),
            objects: BTreeMap::new(),
            streams: Vec::new(),
            listeners: Vec::new(),
            pipes: Vec::new(),
            epolls: Vec::new(),
            routes: BTreeMap::new(),
            events: BinaryHeap::new(),
            scheduled: 0,
            own,
            source: own,
            next_port: FIRST_PORT,
            calls: 0,
            is_killed: false,
            fault_rate: 0,
            latency_max: LATENCY_MAX.as_nanos() as u64,
            sleeps_until: None,
        };
        let simulation =
            Simulation(Rc::new(Shared { state: RefCell::new(state), kill: Cell::new(None), template }));
        CURRENT.with_borrow_mut(|current| {
            assert!(current.is_none(), "a thread is in one simulation at a time");
            *current = Some(simulation.clone());
        });
        Entered(simulation)
    }

    /// The time since the simulation began.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.0.state.borrow().now)
    }

    /// Runs `program` as a peer at `address`: its calls are not the process's.
    pub fn as_peer<T>(&self, address: IpAddr, program: impl FnOnce() -> T) -> T {
        let own = std::mem::replace(&mut self.0.state.borrow_mut().source, address);
        let result = program();
        self.0.state.borrow_mut().source = own;
        result
    }

    /// When the next bytes, connections or timeouts arrive.
    pub fn next_event(&self) -> Option<Duration> {
        self.0.state.borrow().events.peek().map(|event| Duration::from_nanos(event.at))
    }

    /// When the process's last wait for events would have ended without one; `None` for never.
    pub fn sleeps_until(&self) -> Option<Duration> {
        self.0.state.borrow().sleeps_until.map(Duration::from_nanos)
    }

    /// Whether the next wait for events may report one.
    pub fn has_events(&self) -> bool {
        let state = &*self.0.state.borrow();
        state.epolls.iter().any(|list| list.has_events(state))
    }

    /// Moves the clocks to `until`, and delivers what arrives by then. A time in the past has no effect.
    pub fn advance(&self, until: Duration) {
        let until = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        let state = &mut *self.0.state.borrow_mut();
        while state.events.peek().is_some_and(|event| event.at <= until) {
            let event = state.events.pop().expect("it was peeked at");
            state.now = state.now.max(event.at);
            state.deliver(event.event);
        }
        state.now = state.now.max(until);
    }

    /// Sets how `address` answers while no simulated socket listens on it. The default is a reset.
    pub fn set_route(&self, address: SocketAddr, route: Route) {
        self.0.state.borrow_mut().routes.insert(address, route);
    }

    /// Sets the longest time between two endpoints.
    pub fn set_latency_max(&self, latency: Duration) {
        self.0.state.borrow_mut().latency_max = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
    }

    /// Makes `per_thousand` of the process's calls fail that need a resource.
    pub fn set_fault_rate(&self, per_thousand: u64) {
        self.0.state.borrow_mut().fault_rate = per_thousand;
    }

    /// Plans the kill of the process in its call number `call`, counted from one, and then calls `then`. Each
    /// later call fails; the sockets stay open until they are dropped.
    pub fn kill_at(&self, call: u64, moment: KillMoment, then: impl FnOnce() + 'static) {
        self.0.kill.set(Some(Kill { call, moment, then: Box::new(then) }));
    }

    /// Whether the process was killed.
    pub fn is_killed(&self) -> bool {
        self.0.state.borrow().is_killed
    }

    /// Closes what a killed process had open, as the kernel does.
    pub fn end_process(&self) {
        let state = &mut *self.0.state.borrow_mut();
        let is_open =
            |number: &usize| state.streams[*number].is_of_process && !state.streams[*number].is_closed;
        let open: Vec<usize> = (0..state.streams.len()).filter(is_open).collect();
        open.into_iter().for_each(|number| state.close_stream(number));
    }

    /// Calls of the process so far.
    pub fn calls(&self) -> u64 {
        self.0.state.borrow().calls
    }

    /// What the process sent on each of its streams, closed ones included, in the order of their beginning.
    pub fn sent_streams(&self) -> Vec<SentStream> {
        let state = &*self.0.state.borrow();
        state.streams.iter().filter_map(Endpoint::sent_stream).collect()
    }

    /// The state of each open stream of the process, for a message about a fault.
    pub fn open_streams(&self) -> Vec<String> {
        let state = &*self.0.state.borrow();
        let open = state.streams.iter().filter(|stream| stream.is_of_process && !stream.is_closed);
        open.map(ToString::to_string).collect()
    }

    /// Descriptors of the process that are open: streams, listeners, pipes and epoll instances.
    pub fn open_descriptors(&self) -> usize {
        let state = &*self.0.state.borrow();
        let is_own = |object: &&Object| match **object {
            Object::Stream(number) => state.streams[number].is_of_process,
            Object::Listener(number) => state.listeners[number].address.ip() == state.own,
            Object::Pipe(_) | Object::Epoll(_) => true,
            Object::Real(_) => false,
        };
        state.objects.values().filter(is_own).count()
    }

    /// Whether a connection to the address ends at the process's machine.
    pub(crate) fn is_local(&self, address: IpAddr) -> bool {
        address.is_loopback() || address == self.0.state.borrow().own
    }

    /// Carries out a call. A kill may come before it or after it.
    fn call<T>(&self, call: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        let state = &mut *self.0.state.borrow_mut();
        if state.source != state.own {
            return call(state);
        }
        if state.is_killed {
            return Err(Errno::IO);
        }
        state.calls += 1;
        let Some(kill) = self.0.kill.take() else { return call(state) };
        if kill.call > state.calls {
            self.0.kill.set(Some(kill));
            return call(state);
        }
        if kill.moment == KillMoment::AfterCall {
            // The process never sees the result; a descriptor that it made is closed with the process.
            drop(call(state));
        }
        state.is_killed = true;
        (kill.then)();
        Err(Errno::IO)
    }

    /// A new descriptor for `object`.
    fn descriptor(&self, state: &mut State, object: Object) -> Descriptor {
        let number = rustix::io::fcntl_dupfd_cloexec(&self.0.template, 0);
        let number = number.expect("a simulation needs a descriptor for each of its sockets");
        let descriptor = Descriptor(number);
        state.objects.insert(descriptor.number(), object);
        descriptor
    }
}

impl State {
    /// A number below `bound`, which is not zero.
    fn choose(&mut self, bound: u64) -> u64 {
        let chosen = (self.choose)(bound);
        assert!(chosen < bound, "the chosen number is below its bound");
        chosen
    }

    /// Whether a call that needs a resource fails.
    fn has_fault(&mut self) -> bool {
        let rate = self.fault_rate;
        rate > 0 && self.source == self.own && self.choose(1000) < rate
    }

    /// Notes that `object` may have become ready.
    fn wake(&mut self, object: Object) {
        self.epolls.iter_mut().for_each(|list| list.wake(object));
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.with_borrow_mut(|current| *current = None);
    }
}

impl std::ops::Deref for Entered {
    type Target = Simulation;

    fn deref(&self) -> &Simulation {
        &self.0
    }
}

/// A descriptor of the kernel, or of a simulation, which learns of its close.
#[derive(Debug)]
pub(crate) struct Descriptor(OwnedFd);

impl Descriptor {
    fn number(&self) -> RawFd {
        use std::os::fd::AsRawFd;
        self.0.as_raw_fd()
    }
}

impl From<OwnedFd> for Descriptor {
    fn from(descriptor: OwnedFd) -> Descriptor {
        Descriptor(descriptor)
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if let Some(simulation) = current() {
            simulation.close(self.number());
        }
    }
}

#[cfg(test)]
mod tests;
