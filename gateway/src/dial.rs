//! Dialling: the first of a target's judged addresses that accepts (Happy Eyeballs, RFC 8305).
//!
//! Guarantees: the families alternate; a second attempt starts after [`ATTEMPT_DELAY`] or a failure, and the
//! losers are closed; a connection that leads back to the gateway is refused. At most [`ATTEMPTS_MAX`]
//! attempts run at a time: the next one replaces the oldest. All but the first take a permit of the thread,
//! of which no user holds more than a share; without one, an attempt has an equal part of the remaining time,
//! and is then replaced. If descriptors are exhausted, a connection without a flow is evicted.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use engine::deadline::within;
use engine::net::TcpStream;
use sys::clock::Nanos;
use sys::socket::{ResourceExhausted, SpeaksFirst};

use crate::account::AccountId;
use crate::context::WorkerContext;
use crate::limits::{ADDRESSES_MAX, EVICTIONS_PER_ATTEMPT_MAX};
use crate::own_address;
use crate::shares::SharePermit;

/// How long one attempt runs alone: the "Connection Attempt Delay" of RFC 8305, section 5.
pub(crate) const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Concurrent attempts of one dial, a descriptor each. RFC 8305 has no bound; the attempt that a fourth
/// replaces has had three delays, more than a round trip on earth.
pub(crate) const ATTEMPTS_MAX: usize = 3;

/// Why no address was reached.
#[derive(Debug)]
pub(crate) enum DialError {
    /// ECONNREFUSED: no socket listens.
    Refused,
    /// The deadline passed.
    Timeout,
    /// EHOSTUNREACH or ENETUNREACH.
    Unreachable,
    /// The connection is established, and leads back to this gateway.
    OwnAddress,
    /// EADDRNOTAVAIL: no local port is free.
    NoPort,
    /// No descriptor or memory for a socket.
    Exhausted(ResourceExhausted),
    /// Another error.
    Failed(io::Error),
}

impl From<io::Error> for DialError {
    fn from(error: io::Error) -> DialError {
        if let Some(exhausted) = ResourceExhausted::from_error(&error) {
            return DialError::Exhausted(exhausted);
        }
        match error.kind() {
            io::ErrorKind::ConnectionRefused => DialError::Refused,
            io::ErrorKind::TimedOut => DialError::Timeout,
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => DialError::Unreachable,
            // connect(2) returns EADDRNOTAVAIL when no local port is free.
            io::ErrorKind::AddrNotAvailable => DialError::NoPort,
            _ => DialError::Failed(error),
        }
    }
}

/// A dial that reached no address.
#[derive(Debug)]
pub(crate) struct DialFailure {
    /// The error of the last attempt, or [`DialError::Timeout`].
    pub(crate) error: DialError,
    /// The addresses that were attempted, in order.
    pub(crate) tried: Vec<SocketAddr>,
}

/// Connects for `user` to `first` or one of `others`, whichever accepts first before `deadline`.
///
/// # Errors
/// See [`DialFailure`].
pub(crate) async fn dial(
    context: &WorkerContext,
    user: AccountId,
    first: SocketAddr,
    others: Vec<SocketAddr>,
    speaks_first: SpeaksFirst,
    deadline: Nanos,
) -> Result<(TcpStream, SocketAddr), DialFailure> {
    assert!(others.len() < ADDRESSES_MAX, "the resolver bounds its answers");
    if others.is_empty() {
        let dialled = dial_one(context, first, speaks_first, deadline).await;
        let failed = |error| DialFailure { error, tried: vec![first] };
        return dialled.map(|stream| (stream, first)).map_err(failed);
    }
    let mut race = Race::new(context, user, alternate(first, &others), speaks_first, deadline);
    race.run().await.map_err(|error| DialFailure { error, tried: race.tried().to_vec() })
}

/// Connects to one address: the most common case, without race and allocation.
///
/// # Errors
/// The connection's error, or [`DialError::Timeout`].
pub(crate) async fn dial_one(
    context: &WorkerContext,
    address: SocketAddr,
    speaks_first: SpeaksFirst,
    deadline: Nanos,
) -> Result<TcpStream, DialError> {
    let stream = connect(context, address, speaks_first)?;
    match within(&context.reactor, deadline, stream.established(address)).await {
        Ok(Ok(())) => refuse_own(context, address).map(|()| stream),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(DialError::Timeout),
    }
}

/// Refuses a connection to `address`, which is established, if it leads back to the gateway. For the ports of
/// wildcard listeners this queries the kernel's routes: some microseconds, and a descriptor for as long.
///
/// # Errors
/// [`DialError::OwnAddress`], or the error of the query.
fn refuse_own(context: &WorkerContext, address: SocketAddr) -> Result<(), DialError> {
    match own_address::leads_back(&context.snapshot.borrow().config.policy, address)? {
        true => Err(DialError::OwnAddress),
        false => Ok(()),
    }
}

/// Starts a connection to `address`. While a resource of sockets is exhausted, evicts connections of this
/// thread without a flow, one after the other.
fn connect(context: &WorkerContext, address: SocketAddr, speaks_first: SpeaksFirst) -> io::Result<TcpStream> {
    let mut evictions = 0..EVICTIONS_PER_ATTEMPT_MAX;
    loop {
        let result = TcpStream::connect(&context.reactor, address, speaks_first);
        let Some(exhausted) = result.as_ref().err().and_then(ResourceExhausted::from_error) else {
            return result;
        };
        context.reactor.stats().record_exhausted(exhausted, context.reactor.now());
        if evictions.next().is_none() || !context.evictor.free_descriptor() {
            return result;
        }
    }
}

type Attempt = Pin<Box<dyn Future<Output = (io::Result<TcpStream>, SocketAddr)>>>;

/// Concurrent attempts to reach one of several addresses.
struct Race<'l> {
    context: &'l WorkerContext,
    user: AccountId,
    addresses: Vec<SocketAddr>,
    /// The number of addresses attempted, from the first on.
    tried: usize,
    speaks_first: SpeaksFirst,
    deadline: Nanos,
    /// In the order of their start.
    attempts: Vec<Attempt>,
    /// One for each attempt but the first.
    extra_permits: Vec<SharePermit>,
    /// Until then the latest attempt keeps its part of the time, if no other may run beside it.
    single_until: Nanos,
}

impl<'l> Race<'l> {
    fn new(
        context: &'l WorkerContext,
        user: AccountId,
        addresses: Vec<SocketAddr>,
        speaks_first: SpeaksFirst,
        deadline: Nanos,
    ) -> Race<'l> {
        Race {
            context,
            user,
            addresses,
            tried: 0,
            speaks_first,
            deadline,
            attempts: Vec::new(),
            extra_permits: Vec::new(),
            single_until: context.reactor.now(),
        }
    }

    fn tried(&self) -> &[SocketAddr] {
        &self.addresses[..self.tried]
    }

    fn untried(&self) -> usize {
        self.addresses.len() - self.tried
    }

    async fn run(&mut self) -> Result<(TcpStream, SocketAddr), DialError> {
        let reactor = &self.context.reactor;
        self.start_next();
        loop {
            let next_attempt_at =
                if self.untried() > 0 { reactor.now() + ATTEMPT_DELAY } else { Nanos::NEVER };
            let finished = first_finished(&mut self.attempts);
            let failure = match within(reactor, next_attempt_at.min(self.deadline), finished).await {
                Ok((Ok(stream), address)) => match refuse_own(self.context, address) {
                    Ok(()) => return Ok((stream, address)),
                    Err(error) => Some(error),
                },
                Ok((Err(error), _)) => Some(error.into()),
                Err(_) if reactor.now() >= self.deadline => return Err(DialError::Timeout),
                Err(_) => None,
            };
            self.extra_permits.truncate(self.attempts.len().saturating_sub(1));
            match failure {
                Some(failure) if self.attempts.is_empty() && self.untried() == 0 => return Err(failure),
                // A failure starts the next attempt at once.
                _ if self.untried() > 0 && self.allow_another() => self.start_next(),
                _ => {}
            }
        }
    }

    /// Makes sure that another attempt may start: beside the running ones, or in place of the oldest.
    fn allow_another(&mut self) -> bool {
        let stats = &self.context.stats;
        if self.attempts.is_empty() {
            return true;
        }
        if self.attempts.len() < ATTEMPTS_MAX {
            match self.context.extra_attempts.take(self.user) {
                Some(permit) => {
                    self.extra_permits.push(permit);
                    return true;
                }
                None => stats.dial_extras_refused.add(1),
            }
            if self.context.reactor.now() < self.single_until {
                return false;
            }
        }
        drop(self.attempts.remove(0));
        stats.dial_attempts_replaced.add(1);
        true
    }

    fn start_next(&mut self) {
        let now = self.context.reactor.now();
        let parts = u32::try_from(self.untried()).expect("addresses are few");
        self.single_until = now + self.deadline.since(now) / parts;
        self.attempts.push(attempt(self.context, self.addresses[self.tried], self.speaks_first));
        self.tried += 1;
    }
}

fn attempt(context: &WorkerContext, address: SocketAddr, speaks_first: SpeaksFirst) -> Attempt {
    let result = connect(context, address, speaks_first);
    let attempt = async move {
        let stream = result?;
        stream.established(address).await?;
        Ok(stream)
    };
    Box::pin(async move { (attempt.await, address) })
}

/// Awaits the first attempt that finishes, and removes it.
async fn first_finished(attempts: &mut Vec<Attempt>) -> (io::Result<TcpStream>, SocketAddr) {
    poll_fn(|context| {
        for index in 0..attempts.len() {
            if let Poll::Ready(outcome) = attempts[index].as_mut().poll(context) {
                drop(attempts.remove(index));
                return Poll::Ready(outcome);
            }
        }
        Poll::Pending
    })
    .await
}

/// The addresses with alternating families, beginning with that of `first` (RFC 8305, section 4).
pub(crate) fn alternate(first: SocketAddr, others: &[SocketAddr]) -> Vec<SocketAddr> {
    let mut other_family = others.iter().filter(|address| address.is_ipv6() != first.is_ipv6());
    let mut same_family = others.iter().filter(|address| address.is_ipv6() == first.is_ipv6());
    let mut ordered = vec![first];
    while ordered.len() <= others.len() {
        ordered.extend(other_family.next());
        ordered.extend(same_family.next());
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_alternate() {
        let check = |addresses: &[&str], expected: &[&str]| {
            let parse =
                |list: &[&str]| -> Vec<SocketAddr> { list.iter().map(|a| a.parse().unwrap()).collect() };
            let addresses = parse(addresses);
            assert_eq!(alternate(addresses[0], &addresses[1..]), parse(expected));
        };
        check(&["1.1.1.1:1"], &["1.1.1.1:1"]);
        check(&["[::1]:1", "[::2]:1", "1.1.1.1:1"], &["[::1]:1", "1.1.1.1:1", "[::2]:1"]);
        check(&["1.1.1.1:1", "1.1.1.2:1", "[::1]:1"], &["1.1.1.1:1", "[::1]:1", "1.1.1.2:1"]);
    }

    #[test]
    fn exhaustion_differs_from_a_bad_destination() {
        let exhausted = |code| matches!(io::Error::from_raw_os_error(code).into(), DialError::Exhausted(_));
        // EMFILE, ENFILE, ENOBUFS, ENOMEM; EADDRNOTAVAIL is a lack of ports, and ECONNREFUSED neither.
        assert!([24, 23, 105, 12].into_iter().all(exhausted));
        assert!(matches!(io::Error::from_raw_os_error(99).into(), DialError::NoPort));
        assert!(!exhausted(111));
        assert!(matches!(io::Error::from_raw_os_error(111).into(), DialError::Refused));
    }
}
