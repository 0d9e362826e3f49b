//! A crowd of clients. In a closed loop so many at once, each beginning anew when it is done, until all of
//! the work has been begun; in an open one, each when it is due (`arrivals.rs`), however many there are by
//! then. Promises: each attempt ends as a success or as a failure of a named kind; one epoll thread. Leaves
//! to others: what a client says and what it expects (`Client`).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
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

const EVENTS_MAX: usize = 256;

/// A dropped SYN is sent again after a second: such an attempt is slow, whatever else happened.
const SLOW: Duration = Duration::from_secs(1);

/// How often waits are looked over for clients that wait for too long.
const SWEEP: Duration = Duration::from_secs(1);

/// Why an attempt failed.
pub(super) type Failure = String;

/// What a client has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The socket has to do something first.
    Wait,
    /// The answer has come, and the attempt goes on with what `request` says now.
    Ask,
    /// The attempt has succeeded, and its connection is of no more use.
    Done,
    /// The attempt has succeeded, and the next one may use its connection.
    DoneAndKept,
}

/// One connection's side of the talk; each new connection begins with a copy of the first.
pub(super) trait Client: Clone {
    /// What the attempt has to say.
    fn request(&self) -> &[u8];

    /// Reads as far as the socket allows, once the request was sent.
    fn read(&mut self, socket: &OwnedFd) -> Result<Step, Failure>;
}

/// Makes `attempts`, `concurrency` of them at a time; answers how many were `completed`, `failed` by kind and
/// `slow`, over how many `connections`, the time, and latency quantiles from an attempt's begin, which is the
/// call to connect where it needs one, to the answer's first byte and to its end.
///
/// # Errors
/// The load itself could not run; an attempt that fails is counted instead.
pub(super) fn run(to: SocketAddr, attempts: u32, concurrency: u32, client: impl Client) -> Result<Value> {
    let mut crowd = Crowd::new(to, attempts, client)?;
    for _ in 0..concurrency.min(attempts) {
        crowd.seats.push(None);
        crowd.begin(crowd.seats.len() - 1)?;
    }
    crowd.run(None)?;
    Ok(crowd.answer())
}

/// Makes an attempt at each arrival, on a connection of its own, and answers as `run` does.
///
/// # Errors
/// As `run`.
pub(super) fn run_open(to: SocketAddr, arrivals: Arrivals, client: impl Client) -> Result<Value> {
    let mut crowd = Crowd::new(to, 0, client)?;
    crowd.run(Some(arrivals))?;
    Ok(crowd.answer())
}

struct Seat<C> {
    socket: OwnedFd,
    started: Instant,
    client: C,
    asked: bool,
    /// When the first byte of the answer was there.
    answered: Option<Instant>,
    /// Tells this connection's events from those of an earlier one in the same place.
    number: u32,
}

impl<C: Client> Seat<C> {
    /// Goes as far as the socket allows. `flags` are those of its edge; an attempt on a kept connection
    /// begins with no more than room to write.
    fn advance(&mut self, flags: EventFlags) -> Result<Step, Failure> {
        if !self.asked {
            let request = self.client.request();
            match rustix::net::send(&self.socket, request, SendFlags::NOSIGNAL) {
                Ok(sent) if sent == request.len() => self.asked = true,
                Ok(_) => return Err("the request was cut".to_owned()),
                Err(Errno::AGAIN) => return Ok(Step::Wait),
                Err(error) => return Err(format!("request: {error}")),
            }
        }
        // Room to write says nothing about an answer; its arrival is an edge of its own.
        if (flags - EventFlags::OUT).is_empty() {
            return Ok(Step::Wait);
        }
        self.answered.get_or_insert_with(Instant::now);
        match self.client.read(&self.socket)? {
            Step::Ask => {
                self.asked = false;
                // What was answered is the handshake.
                self.answered = None;
                self.advance(EventFlags::OUT)
            }
            step => Ok(step),
        }
    }
}

struct Crowd<C> {
    epoll: OwnedFd,
    to: SocketAddr,
    /// What each connection begins with.
    client: C,
    seats: Vec<Option<Seat<C>>>,
    left_to_begin: u32,
    connections: u32,
    open: u32,
    completed: u32,
    slow: u32,
    failures: BTreeMap<Failure, u32>,
    latencies: hdrhistogram::Histogram<u64>,
    first_bytes: hdrhistogram::Histogram<u64>,
    started: Instant,
}

impl<C: Client> Crowd<C> {
    fn new(to: SocketAddr, attempts: u32, client: C) -> Result<Self> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            to,
            client,
            seats: Vec::new(),
            left_to_begin: attempts,
            connections: 0,
            open: 0,
            completed: 0,
            slow: 0,
            failures: BTreeMap::new(),
            latencies: latencies(),
            first_bytes: latencies(),
            started: Instant::now(),
        })
    }

    fn run(&mut self, mut arrivals: Option<Arrivals>) -> Result<()> {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
        let mut swept = Instant::now();
        loop {
            let to_next = arrivals.as_mut().and_then(|arrivals| arrivals.until_next(self.started.elapsed()));
            if to_next.is_none() && self.open == 0 {
                return Ok(());
            }
            if to_next == Some(Duration::ZERO) {
                self.welcome()?;
            }
            let wait = Timespec::try_from(to_next.unwrap_or(SWEEP).min(SWEEP)).context("a second fits")?;
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&wait)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("waiting for events"),
            }
            for event in events.drain(..) {
                self.turn(event)?;
            }
            if swept.elapsed() >= SWEEP {
                swept = Instant::now();
                self.give_up_on_the_late()?;
            }
        }
    }

    /// Begins an attempt that is due, in a place that is free.
    fn welcome(&mut self) -> Result<()> {
        let place = self.seats.iter().position(Option::is_none).unwrap_or_else(|| {
            self.seats.push(None);
            self.seats.len() - 1
        });
        self.left_to_begin = 1;
        self.begin(place)
    }

    /// Begins the next attempt in this place, on a new connection, and the one after it if that fails at
    /// once.
    fn begin(&mut self, place: usize) -> Result<()> {
        while self.left_to_begin > 0 {
            self.left_to_begin -= 1;
            self.connections = self.connections.wrapping_add(1);
            let started = Instant::now();
            match self.connect(place) {
                Ok(socket) => {
                    let (client, number) = (self.client.clone(), self.connections);
                    let seat = Seat { socket, started, client, asked: false, answered: None, number };
                    self.seats[place] = Some(seat);
                    self.open += 1;
                    return Ok(());
                }
                Err(error) => self.fail(format!("connect: {error}")),
            }
        }
        Ok(())
    }

    fn connect(&self, place: usize) -> rustix::io::Result<OwnedFd> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        match rustix::net::connect(&socket, &self.to) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error),
        }
        let data = EventData::new_u64(u64::from(self.connections) << 32 | place as u64);
        epoll::add(&self.epoll, &socket, data, EventFlags::IN | EventFlags::OUT | EventFlags::ET)?;
        Ok(socket)
    }

    fn turn(&mut self, event: Event) -> Result<()> {
        let data = event.data.u64();
        let place = (data & u64::from(u32::MAX)) as usize;
        let Some(seat) = &self.seats[place] else { return Ok(()) };
        if u64::from(seat.number) != data >> 32 {
            return Ok(());
        }
        self.advance(place, event.flags)
    }

    fn advance(&mut self, place: usize, flags: EventFlags) -> Result<()> {
        let Some(seat) = &mut self.seats[place] else { return Ok(()) };
        match seat.advance(flags) {
            Ok(Step::Wait | Step::Ask) => Ok(()),
            Ok(Step::Done) => self.complete(place, false),
            Ok(Step::DoneAndKept) => self.complete(place, true),
            Err(failure) => self.abandon(place, failure),
        }
    }

    fn complete(&mut self, place: usize, is_kept: bool) -> Result<()> {
        let Some(seat) = &mut self.seats[place] else { return Ok(()) };
        let latency = seat.started.elapsed();
        self.latencies.saturating_record(nanoseconds(latency));
        if let Some(answered) = seat.answered.take() {
            self.first_bytes.saturating_record(nanoseconds(answered.duration_since(seat.started)));
        }
        self.completed += 1;
        self.slow += u32::from(latency > SLOW);
        if is_kept && self.left_to_begin > 0 {
            self.left_to_begin -= 1;
            (seat.started, seat.asked) = (Instant::now(), false);
            // There is no further edge for room that has been there all the time. With no more than that an
            // attempt cannot be done, so this comes back here only by another edge.
            return self.advance(place, EventFlags::OUT);
        }
        self.seats[place] = None;
        self.open -= 1;
        self.begin(place)
    }

    fn abandon(&mut self, place: usize, failure: Failure) -> Result<()> {
        self.seats[place] = None;
        self.open -= 1;
        self.fail(failure);
        self.begin(place)
    }

    fn fail(&mut self, failure: Failure) {
        *self.failures.entry(failure).or_default() += 1;
    }

    fn give_up_on_the_late(&mut self) -> Result<()> {
        let is_late = |seat: &Option<Seat<C>>| seat.as_ref().is_some_and(|s| s.started.elapsed() > WAIT_MAX);
        let late: Vec<usize> = (0..self.seats.len()).filter(|&place| is_late(&self.seats[place])).collect();
        late.into_iter().try_for_each(|place| self.abandon(place, "no reply in time".to_owned()))
    }

    fn answer(&self) -> Value {
        json!({
            "completed": self.completed,
            "failed": self.failures.values().sum::<u32>(),
            "failures": self.failures,
            "slow": self.slow,
            "connections": self.connections,
            "elapsed_ns": nanoseconds(self.started.elapsed()),
            "first_byte_p50_ns": self.first_bytes.value_at_quantile(0.50),
            "first_byte_p99_ns": self.first_bytes.value_at_quantile(0.99),
            "first_byte_p99.9_ns": self.first_bytes.value_at_quantile(0.999),
            "p50_ns": self.latencies.value_at_quantile(0.50),
            "p99_ns": self.latencies.value_at_quantile(0.99),
            "max_ns": self.latencies.max(),
        })
    }
}
