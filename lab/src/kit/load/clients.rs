//! Many clients at a time. In a closed loop `concurrency` of them, each starting its next attempt when one is
//! done, until all attempts are started; in an open loop each attempt when it is due (`arrivals.rs`), however
//! many run by then.
//!
//! Guarantees: each attempt ends as a success or as a failure of a named kind; a closed loop has an epoll
//! thread for each CPU, so that no relay is limited by what one client thread can do.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use serde_json::{Value, json};

use super::arrivals::Arrivals;
use super::{WAIT_MAX, latencies, nanoseconds};
use crate::kit::machine;

const EVENTS_MAX: usize = 256;

/// A dropped SYN is sent again after a second: such an attempt is slow, whatever else happened.
const SLOW: Duration = Duration::from_secs(1);

/// How often clients are checked for waits that last too long.
const SWEEP: Duration = Duration::from_secs(1);

/// The reason of a failed attempt.
pub(super) type Failure = String;

/// The state of an attempt after a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The socket has to become ready first.
    Wait,
    /// A response has arrived, and the attempt goes on with the next `request`.
    SendNext,
    /// The attempt has succeeded, and its connection is of no more use.
    Done,
    /// The attempt has succeeded, and the next one may use its connection.
    DoneKeptAlive,
}

/// The client's side of one connection; each new connection begins with a copy of the first state.
pub(super) trait Client: Clone {
    /// The bytes to send.
    fn request(&self) -> &[u8];

    /// Reads as far as the socket allows, once the request was sent.
    fn read(&mut self, socket: &OwnedFd) -> Result<Step, Failure>;
}

/// Makes `attempts`, `concurrency` of them at a time, on as many threads as CPUs. Returns how many were
/// `completed`, `failed` by kind and `slow`, the number of `connections`, the time, and latency quantiles
/// from an attempt's start (the connect call where it needs one) to the response's first byte and to its end.
///
/// # Errors
/// The load itself could not run; a failed attempt is counted instead.
pub(super) fn run(
    to: SocketAddr,
    attempts: u32,
    concurrency: u32,
    client: impl Client + Sync,
) -> Result<Value> {
    let concurrency = concurrency.min(attempts);
    let threads = (machine::allowed_cpus().len() as u32).clamp(1, concurrency.max(1));
    // The first attempt of each concurrent client is reserved for it, however late its thread starts.
    let (left, started) = (AtomicU32::new(attempts - concurrency), Instant::now());
    let run_thread = |thread: u32| {
        let mut client_loop = ClientLoop::new(to, &left, client.clone())?;
        // The first threads have one client more if the division leaves a remainder.
        for slot in 0..(concurrency - thread).div_ceil(threads) as usize {
            client_loop.slots.push(None);
            client_loop.attempt(slot);
        }
        client_loop.run(None)?;
        anyhow::Ok(client_loop.counters)
    };
    let results: Vec<Result<Counters>> = thread::scope(|scope| {
        let run_thread = &run_thread;
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(move || run_thread(thread))).collect();
        running.into_iter().map(|thread| thread.join().expect("a client thread does not panic")).collect()
    });
    let elapsed = started.elapsed();
    let mut all = Counters::default();
    results.into_iter().try_for_each(|counters| counters.map(|counters| all.add(&counters)))?;
    Ok(all.to_json(elapsed))
}

/// Makes an attempt at each arrival, on a connection of its own and on one thread, and returns what `run`
/// does.
///
/// # Errors
/// As `run`.
pub(super) fn run_open(to: SocketAddr, arrivals: Arrivals, client: impl Client) -> Result<Value> {
    let (left, started) = (AtomicU32::new(0), Instant::now());
    let mut client_loop = ClientLoop::new(to, &left, client)?;
    client_loop.run(Some(arrivals))?;
    Ok(client_loop.counters.to_json(started.elapsed()))
}

struct Connection<C> {
    socket: OwnedFd,
    started: Instant,
    client: C,
    request_sent: bool,
    /// When the first byte of the response arrived.
    first_byte_at: Option<Instant>,
    /// Tells this connection's events from those of an earlier one with the same index.
    number: u32,
}

impl<C: Client> Connection<C> {
    /// Proceeds as far as the socket allows. `flags` are those of its edge; an attempt on a kept connection
    /// begins with `OUT` alone.
    fn advance(&mut self, flags: EventFlags) -> Result<Step, Failure> {
        if !self.request_sent {
            let request = self.client.request();
            match rustix::net::send(&self.socket, request, SendFlags::NOSIGNAL) {
                Ok(sent) if sent == request.len() => self.request_sent = true,
                Ok(_) => return Err("the request was sent only in part".to_owned()),
                Err(Errno::AGAIN) => return Ok(Step::Wait),
                Err(error) => return Err(format!("request: {error}")),
            }
        }
        // `OUT` says nothing about a response, whose arrival is an edge of its own.
        if (flags - EventFlags::OUT).is_empty() {
            return Ok(Step::Wait);
        }
        self.first_byte_at.get_or_insert_with(Instant::now);
        match self.client.read(&self.socket)? {
            Step::SendNext => {
                self.request_sent = false;
                // This response ended the handshake.
                self.first_byte_at = None;
                self.advance(EventFlags::OUT)
            }
            step => Ok(step),
        }
    }
}

/// The results of attempts.
struct Counters {
    connections: u32,
    completed: u32,
    slow: u32,
    failures: BTreeMap<Failure, u32>,
    latencies: hdrhistogram::Histogram<u64>,
    first_bytes: hdrhistogram::Histogram<u64>,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            connections: 0,
            completed: 0,
            slow: 0,
            failures: BTreeMap::new(),
            latencies: latencies(),
            first_bytes: latencies(),
        }
    }
}

impl Counters {
    fn add(&mut self, other: &Self) {
        self.connections += other.connections;
        self.completed += other.completed;
        self.slow += other.slow;
        for (failure, count) in &other.failures {
            *self.failures.entry(failure.clone()).or_default() += count;
        }
        const SAME: &str = "all histograms have the same bounds";
        self.latencies.add(&other.latencies).expect(SAME);
        self.first_bytes.add(&other.first_bytes).expect(SAME);
    }

    fn to_json(&self, elapsed: Duration) -> Value {
        json!({
            "completed": self.completed,
            "failed": self.failures.values().sum::<u32>(),
            "failures": self.failures,
            "slow": self.slow,
            "connections": self.connections,
            "elapsed_ns": nanoseconds(elapsed),
            "first_byte_p50_ns": self.first_bytes.value_at_quantile(0.50),
            "first_byte_p99_ns": self.first_bytes.value_at_quantile(0.99),
            "first_byte_p99.9_ns": self.first_bytes.value_at_quantile(0.999),
            "p50_ns": self.latencies.value_at_quantile(0.50),
            "p99_ns": self.latencies.value_at_quantile(0.99),
            "max_ns": self.latencies.max(),
        })
    }
}

/// One thread's share of the clients.
struct ClientLoop<'a, C> {
    epoll: OwnedFd,
    to: SocketAddr,
    /// The state with which each connection begins.
    client: C,
    slots: Vec<Option<Connection<C>>>,
    /// Attempts of all threads that no client has claimed.
    unclaimed: &'a AtomicU32,
    open: u32,
    counters: Counters,
}

impl<'a, C: Client> ClientLoop<'a, C> {
    fn new(to: SocketAddr, unclaimed: &'a AtomicU32, client: C) -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, to, client, slots: Vec::new(), unclaimed, open: 0, counters: Counters::default() })
    }

    fn run(&mut self, mut arrivals: Option<Arrivals>) -> Result<()> {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
        let started = Instant::now();
        let mut swept_at = started;
        loop {
            let to_next = arrivals.as_mut().and_then(|arrivals| arrivals.until_next(started.elapsed()));
            if to_next.is_none() && self.open == 0 {
                return Ok(());
            }
            if to_next == Some(Duration::ZERO) {
                self.begin_arrival();
            }
            let wait = Timespec::try_from(to_next.unwrap_or(SWEEP).min(SWEEP))
                .context("the sweep interval does not fit a timespec")?;
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&wait)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("waiting for events"),
            }
            for event in events.drain(..) {
                self.dispatch(event);
            }
            if swept_at.elapsed() >= SWEEP {
                swept_at = Instant::now();
                self.expire_overdue();
            }
        }
    }

    /// Begins an attempt that is due, at a free index.
    fn begin_arrival(&mut self) {
        let slot = self.slots.iter().position(Option::is_none).unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.attempt(slot);
    }

    /// Claims an attempt, if any is left.
    fn claim(&self) -> bool {
        let decremented = |left: u32| left.checked_sub(1);
        self.unclaimed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, decremented).is_ok()
    }

    /// Begins the next attempt at this index, if there is one.
    fn begin(&mut self, slot: usize) {
        if self.claim() {
            self.attempt(slot);
        }
    }

    /// Begins an attempt at this index, on a new connection, and the next one if that fails at once.
    fn attempt(&mut self, slot: usize) {
        loop {
            self.counters.connections += 1;
            let started = Instant::now();
            match self.connect(slot) {
                Ok(socket) => {
                    let (client, number) = (self.client.clone(), self.counters.connections);
                    let connection = Connection {
                        socket,
                        started,
                        client,
                        request_sent: false,
                        first_byte_at: None,
                        number,
                    };
                    self.slots[slot] = Some(connection);
                    self.open += 1;
                    return;
                }
                Err(error) => self.fail(format!("connect: {error}")),
            }
            if !self.claim() {
                return;
            }
        }
    }

    fn connect(&self, slot: usize) -> rustix::io::Result<OwnedFd> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        match rustix::net::connect(&socket, &self.to) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error),
        }
        let data = EventData::new_u64(u64::from(self.counters.connections) << 32 | slot as u64);
        epoll::add(&self.epoll, &socket, data, EventFlags::IN | EventFlags::OUT | EventFlags::ET)?;
        Ok(socket)
    }

    fn dispatch(&mut self, event: Event) {
        let data = event.data.u64();
        let slot = (data & u64::from(u32::MAX)) as usize;
        let Some(connection) = &self.slots[slot] else { return };
        if u64::from(connection.number) != data >> 32 {
            return;
        }
        self.advance(slot, event.flags);
    }

    fn advance(&mut self, slot: usize, flags: EventFlags) {
        let Some(connection) = &mut self.slots[slot] else { return };
        match connection.advance(flags) {
            Ok(Step::Wait | Step::SendNext) => {}
            Ok(Step::Done) => self.complete(slot, false),
            Ok(Step::DoneKeptAlive) => self.complete(slot, true),
            Err(failure) => self.abandon(slot, failure),
        }
    }

    fn complete(&mut self, slot: usize, is_kept: bool) {
        let Some(connection) = &mut self.slots[slot] else { return };
        let latency = connection.started.elapsed();
        self.counters.latencies.saturating_record(nanoseconds(latency));
        if let Some(first_byte_at) = connection.first_byte_at.take() {
            self.counters
                .first_bytes
                .saturating_record(nanoseconds(first_byte_at.duration_since(connection.started)));
        }
        self.counters.completed += 1;
        self.counters.slow += u32::from(latency > SLOW);
        if is_kept && self.claim() {
            let Some(connection) = &mut self.slots[slot] else { return };
            (connection.started, connection.request_sent) = (Instant::now(), false);
            // A socket that was writable all the time yields no further edge. Writing alone cannot complete
            // an attempt, so this code runs again only after another edge.
            return self.advance(slot, EventFlags::OUT);
        }
        self.slots[slot] = None;
        self.open -= 1;
        self.begin(slot);
    }

    fn abandon(&mut self, slot: usize, failure: Failure) {
        self.slots[slot] = None;
        self.open -= 1;
        self.fail(failure);
        self.begin(slot);
    }

    fn fail(&mut self, failure: Failure) {
        *self.counters.failures.entry(failure).or_default() += 1;
    }

    fn expire_overdue(&mut self) {
        let is_late = |connection: &Option<Connection<C>>| {
            connection.as_ref().is_some_and(|s| s.started.elapsed() > WAIT_MAX)
        };
        let late: Vec<usize> = (0..self.slots.len()).filter(|&slot| is_late(&self.slots[slot])).collect();
        late.into_iter().for_each(|slot| self.abandon(slot, "no reply in time".to_owned()));
    }
}
