//! Short connections in a closed loop: so many clients at once, each connecting anew, asking once, reading
//! the reply to its end. Promises: each attempt ends as a success or as a failure of a named kind; one epoll
//! thread and some eight system calls a connection. Leaves to others: the relay's cost.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use serde_json::{Value, json};

use super::{REPLY_BYTES, REQUEST_BYTES, WAIT_MAX, latencies, nanoseconds};

const EVENTS_MAX: usize = 256;

/// A dropped SYN is sent again after a second: such a connection is slow, whatever else happened.
const SLOW: Duration = Duration::from_secs(1);

/// How often waits are looked over for clients that wait for too long.
const SWEEP: Duration = Duration::from_secs(1);

/// Makes `connections`, `concurrency` of them at a time; answers how many were `completed`, `failed` by
/// kind and `slow`, the time, and latency quantiles from the call to connect to the end of the reply.
///
/// # Errors
/// The load itself could not run; a connection that fails is counted instead.
pub(crate) fn run(to: SocketAddr, connections: u32, concurrency: u32) -> Result<Value> {
    let mut crowd = Crowd::new(to, connections)?;
    for _ in 0..concurrency.min(connections) {
        crowd.clients.push(None);
        crowd.begin(crowd.clients.len() - 1)?;
    }
    crowd.run()?;
    Ok(crowd.answer())
}

struct Client {
    socket: OwnedFd,
    started: Instant,
    asked: bool,
    received_bytes: usize,
    /// Tells this connection's events from those of an earlier one in the same place.
    number: u32,
}

struct Crowd {
    epoll: OwnedFd,
    to: SocketAddr,
    clients: Vec<Option<Client>>,
    left_to_begin: u32,
    begun: u32,
    open: u32,
    completed: u32,
    slow: u32,
    failures: BTreeMap<String, u32>,
    latencies: hdrhistogram::Histogram<u64>,
    started: Instant,
}

/// Why an attempt failed.
type Failure = String;

impl Crowd {
    fn new(to: SocketAddr, connections: u32) -> Result<Self> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            to,
            clients: Vec::new(),
            left_to_begin: connections,
            begun: 0,
            open: 0,
            completed: 0,
            slow: 0,
            failures: BTreeMap::new(),
            latencies: latencies(),
            started: Instant::now(),
        })
    }

    fn run(&mut self) -> Result<()> {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
        let mut swept = Instant::now();
        let sweep = Timespec::try_from(SWEEP).context("a second fits")?;
        while self.open > 0 {
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&sweep)) {
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
        Ok(())
    }

    /// Begins the next connection in this place, and the one after it if that fails at once.
    fn begin(&mut self, place: usize) -> Result<()> {
        while self.left_to_begin > 0 {
            self.left_to_begin -= 1;
            self.begun = self.begun.wrapping_add(1);
            let started = Instant::now();
            match self.connect(place) {
                Ok(socket) => {
                    let number = self.begun;
                    self.clients[place] =
                        Some(Client { socket, started, asked: false, received_bytes: 0, number });
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
        let data = EventData::new_u64(u64::from(self.begun) << 32 | place as u64);
        epoll::add(&self.epoll, &socket, data, EventFlags::IN | EventFlags::OUT | EventFlags::ET)?;
        Ok(socket)
    }

    fn turn(&mut self, event: Event) -> Result<()> {
        let data = event.data.u64();
        let place = (data & u64::from(u32::MAX)) as usize;
        let Some(client) = &mut self.clients[place] else { return Ok(()) };
        if u64::from(client.number) != data >> 32 {
            return Ok(());
        }
        match client.advance(event.flags) {
            Ok(false) => Ok(()),
            Ok(true) => self.complete(place),
            Err(failure) => self.abandon(place, failure),
        }
    }

    fn complete(&mut self, place: usize) -> Result<()> {
        let Some(client) = self.clients[place].take() else { return Ok(()) };
        let latency = client.started.elapsed();
        self.latencies.saturating_record(nanoseconds(latency));
        self.completed += 1;
        self.slow += u32::from(latency > SLOW);
        self.open -= 1;
        drop(client);
        self.begin(place)
    }

    fn abandon(&mut self, place: usize, failure: Failure) -> Result<()> {
        self.clients[place] = None;
        self.open -= 1;
        self.fail(failure);
        self.begin(place)
    }

    fn fail(&mut self, failure: Failure) {
        *self.failures.entry(failure).or_default() += 1;
    }

    fn give_up_on_the_late(&mut self) -> Result<()> {
        let is_late =
            |client: &Option<Client>| client.as_ref().is_some_and(|c| c.started.elapsed() > WAIT_MAX);
        let late: Vec<usize> =
            (0..self.clients.len()).filter(|&place| is_late(&self.clients[place])).collect();
        late.into_iter().try_for_each(|place| self.abandon(place, "no reply in time".to_owned()))
    }

    fn answer(&self) -> Value {
        json!({
            "completed": self.completed,
            "failed": self.failures.values().sum::<u32>(),
            "failures": self.failures,
            "slow": self.slow,
            "elapsed_ns": nanoseconds(self.started.elapsed()),
            "p50_ns": self.latencies.value_at_quantile(0.50),
            "p99_ns": self.latencies.value_at_quantile(0.99),
            "max_ns": self.latencies.max(),
        })
    }
}

impl Client {
    /// Goes as far as the socket allows; returns whether the whole reply has come.
    fn advance(&mut self, flags: EventFlags) -> Result<bool, Failure> {
        if !self.asked {
            match rustix::net::send(&self.socket, &[b'q'; REQUEST_BYTES], SendFlags::NOSIGNAL) {
                Ok(REQUEST_BYTES) => self.asked = true,
                Ok(_) => return Err("the request was cut".to_owned()),
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(format!("request: {error}")),
            }
        }
        // Room to write says nothing about a reply; its arrival is an edge of its own.
        if (flags - EventFlags::OUT).is_empty() { Ok(false) } else { self.read() }
    }

    fn read(&mut self) -> Result<bool, Failure> {
        let mut buffer = [0; 4_096];
        loop {
            match rustix::net::recv(&self.socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((0, _)) if self.received_bytes == REPLY_BYTES => return Ok(true),
                Ok((0, _)) => return Err(format!("the reply had {} bytes", self.received_bytes)),
                Ok((received, _)) => self.received_bytes += received,
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(format!("reply: {error}")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Role, serve};
    use super::*;

    #[test]
    fn every_connection_is_accounted_for() {
        let server = serve::start(Role::Reply).expect("loopback listens");
        let answer = run(server, 100, 10).expect("the load runs");
        assert_eq!((answer["completed"].as_u64(), answer["failed"].as_u64()), (Some(100), Some(0)));
    }

    #[test]
    fn refusals_are_failures_with_a_name() {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let answer = run(closed.expect("loopback binds"), 5, 2).expect("the load runs");
        assert_eq!((answer["completed"].as_u64(), answer["failed"].as_u64()), (Some(0), Some(5)));
        let kinds = answer["failures"].as_object().expect("failures are told by kind");
        assert!(kinds.keys().all(|kind| kind.contains("refused")), "{kinds:?}");
    }

    #[test]
    fn a_wrong_reply_is_a_failure() {
        use std::io::{Read, Write};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback binds");
        let server = listener.local_addr().expect("a bound socket has an address");
        let server_thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept()?;
            stream.read_exact(&mut [0; REQUEST_BYTES])?;
            stream.write_all(b"no")
        });
        let answer = run(server, 1, 1).expect("the load runs");
        server_thread.join().expect("the server does not panic").expect("loopback serves");
        assert_eq!(answer["failures"], json!({ "the reply had 2 bytes": 1 }));
    }
}
