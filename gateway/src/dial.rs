//! Dialling: the first of a target's checked addresses that answers (Happy Eyeballs, RFC 8305).
//!
//! Promises: only addresses that were given are dialled; the families take turns, an attempt that is slow
//! gets company after [`ATTEMPT_DELAY`], one that fails is followed at once; who loses is closed; who only
//! rests makes room for who dials; a connection that leads back to the gateway is refused. Leaves to others:
//! resolving (`resolve`), which addresses may be dialled (`policy`), and where a connection leads (`own`).

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use engine::net::TcpStream;
use engine::timer::within;
use sys::clock::Nanos;
use sys::socket::{FirstWord, Shortage};

use crate::limits::{ADDRESSES_MAX, SHED_AT_SHORTAGE_MAX};
use crate::local::Local;
use crate::own;

/// How long an attempt stays alone: the "Connection Attempt Delay" that RFC 8305 section 5 recommends.
pub(crate) const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Why no address was reached.
#[derive(Debug)]
pub(crate) enum DialError {
    /// The destination answered that nobody listens.
    Refused,
    /// Nobody answered in time.
    Timeout,
    /// There is no way to the destination.
    Unreachable,
    /// The connection stands and leads back to this gateway.
    OwnAddress,
    /// No local port is left to dial with.
    NoPort,
    /// No descriptor or memory is left to dial with.
    Exhausted(Shortage),
    /// Something else.
    Failed(io::Error),
}

impl From<io::Error> for DialError {
    fn from(error: io::Error) -> DialError {
        if let Some(shortage) = Shortage::of(&error) {
            return DialError::Exhausted(shortage);
        }
        match error.kind() {
            io::ErrorKind::ConnectionRefused => DialError::Refused,
            io::ErrorKind::TimedOut => DialError::Timeout,
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => DialError::Unreachable,
            // EADDRNOTAVAIL of a connect means that no local port is left.
            io::ErrorKind::AddrNotAvailable => DialError::NoPort,
            _ => DialError::Failed(error),
        }
    }
}

/// A dial that reached no address.
#[derive(Debug)]
pub(crate) struct Undialled {
    /// Why the last attempt failed, or [`DialError::Timeout`].
    pub(crate) error: DialError,
    /// The addresses to which an attempt was begun, in that order.
    pub(crate) tried: Vec<SocketAddr>,
}

/// Connects to the first that answers before `deadline`: `first`, or one of the `others`.
///
/// # Errors
/// See [`Undialled`].
pub(crate) async fn dial(
    local: &Local,
    first: SocketAddr,
    others: Vec<SocketAddr>,
    first_word: FirstWord,
    deadline: Nanos,
) -> Result<(TcpStream, SocketAddr), Undialled> {
    assert!(others.len() < ADDRESSES_MAX, "the resolver bounds its answers");
    if !others.is_empty() {
        let (ordered, mut tried) = (alternate(first, &others), 0);
        let raced = race(local, &ordered, &mut tried, first_word, deadline).await;
        return raced.map_err(|error| Undialled { error, tried: ordered[..tried].to_vec() });
    }
    // By far the commonest case needs no race and no allocation.
    let failed = |error: DialError| Undialled { error, tried: vec![first] };
    let stream = connect(local, first, first_word).map_err(|error| failed(error.into()))?;
    match within(&local.reactor, deadline, stream.established(first)).await {
        Ok(Ok(())) => own::refuse(local, first).map(|()| (stream, first)).map_err(failed),
        Ok(Err(error)) => Err(failed(error.into())),
        Err(_) => Err(failed(DialError::Timeout)),
    }
}

/// Begins to connect to `address`. Where what a socket takes is used up, those who only wait for a next
/// request make room, one after the other.
fn connect(local: &Local, address: SocketAddr, first_word: FirstWord) -> io::Result<TcpStream> {
    let mut sheds = 0..SHED_AT_SHORTAGE_MAX;
    loop {
        let begun = TcpStream::connect(&local.reactor, address, first_word);
        let is_short = begun.as_ref().is_err_and(|error| Shortage::of(error).is_some());
        if !is_short || sheds.next().is_none() || !local.resting.borrow_mut().shed() {
            return begun;
        }
    }
}

type Attempt = Pin<Box<dyn Future<Output = (io::Result<TcpStream>, SocketAddr)>>>;

/// Counts in `tried` how many of the `addresses`, from the first on, it began to connect to.
async fn race(
    local: &Local,
    addresses: &[SocketAddr],
    tried: &mut usize,
    first_word: FirstWord,
    deadline: Nanos,
) -> Result<(TcpStream, SocketAddr), DialError> {
    let mut untried = addresses.iter().copied();
    let mut attempts: Vec<Attempt> = Vec::new();
    let mut failure = DialError::Timeout;
    let reactor = &local.reactor;
    loop {
        if let Some(address) = untried.next() {
            attempts.push(attempt(local, address, first_word));
            *tried += 1;
        }
        if attempts.is_empty() {
            return Err(failure);
        }
        let company = if untried.len() > 0 { reactor.now() + ATTEMPT_DELAY } else { Nanos::NEVER };
        match within(reactor, company.min(deadline), first_finished(&mut attempts)).await {
            Ok((Ok(stream), address)) => match own::refuse(local, address) {
                Ok(()) => return Ok((stream, address)),
                Err(error) => failure = error,
            },
            Ok((Err(error), _)) => failure = error.into(),
            Err(_) if reactor.now() >= deadline => return Err(DialError::Timeout),
            Err(_) => {}
        }
    }
}

fn attempt(local: &Local, address: SocketAddr, first_word: FirstWord) -> Attempt {
    let begun = connect(local, address, first_word);
    let attempt = async move {
        let stream = begun?;
        stream.established(address).await?;
        Ok(stream)
    };
    Box::pin(async move { (attempt.await, address) })
}

/// Awaits the first attempt to finish, and takes it out.
async fn first_finished(attempts: &mut Vec<Attempt>) -> (io::Result<TcpStream>, SocketAddr) {
    poll_fn(|context| {
        for index in 0..attempts.len() {
            if let Poll::Ready(outcome) = attempts[index].as_mut().poll(context) {
                drop(attempts.swap_remove(index));
                return Poll::Ready(outcome);
            }
        }
        Poll::Pending
    })
    .await
}

/// The addresses with the families taking turns, the first address's family first (RFC 8305 section 4).
pub(crate) fn alternate(first: SocketAddr, others: &[SocketAddr]) -> Vec<SocketAddr> {
    let mut other_family = others.iter().filter(|address| address.is_ipv6() != first.is_ipv6());
    let mut its_family = others.iter().filter(|address| address.is_ipv6() == first.is_ipv6());
    let mut ordered = vec![first];
    while ordered.len() <= others.len() {
        ordered.extend(other_family.next());
        ordered.extend(its_family.next());
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_take_turns() {
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
    fn used_up_resources_are_told_from_a_bad_destination() {
        let exhausted = |code| matches!(io::Error::from_raw_os_error(code).into(), DialError::Exhausted(_));
        // EMFILE, ENFILE, ENOBUFS, ENOMEM; EADDRNOTAVAIL is a lack of ports, and ECONNREFUSED none.
        assert!([24, 23, 105, 12].into_iter().all(exhausted));
        assert!(matches!(io::Error::from_raw_os_error(99).into(), DialError::NoPort));
        assert!(!exhausted(111));
        assert!(matches!(io::Error::from_raw_os_error(111).into(), DialError::Refused));
    }
}
