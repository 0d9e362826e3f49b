//! One suite for every accept strategy.

use std::collections::HashSet;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use super::*;
use crate::inbox::Parking;
use crate::reactor::Wake;
use crate::stats::ReactorStats;

const THREADS: usize = 3;

/// A reactor with one acceptor, and the sockets that it took.
struct Worker {
    reactor: Rc<Reactor>,
    acceptor: Acceptor,
    taken: Vec<(Socket, SocketAddr)>,
}

impl Worker {
    fn new(strategy: &'static dyn Strategy, listener: Listener) -> Worker {
        let parking = Arc::new(Parking::new().unwrap());
        let reactor = Reactor::new(parking, Arc::new(ReactorStats::default())).unwrap();
        let acceptor = Acceptor::new(&reactor, listener, strategy, Tag(7)).unwrap();
        Worker { reactor, acceptor, taken: Vec::new() }
    }

    /// One turn without sleep; true if it was woken.
    fn turn(&mut self, places: usize) -> bool {
        let mut wakes = Vec::new();
        self.reactor.turn(&mut wakes, || false).unwrap();
        for wake in &wakes {
            assert!(matches!(wake, Wake::Ready(Tag(7), _) | Wake::Due(Tag(7))));
            let taken = &mut self.taken;
            self.acceptor.accept(|socket, peer| {
                taken.push((socket, peer));
                taken.len() < places
            });
        }
        !wakes.is_empty()
    }
}

fn workers(strategy: &'static dyn Strategy) -> (SocketAddr, Vec<Worker>) {
    let listeners = strategy.listen("127.0.0.1:0".parse().unwrap(), 128, THREADS).unwrap();
    assert_eq!(listeners.len(), THREADS);
    let address = listeners[0].local().unwrap();
    for listener in &listeners {
        assert_eq!(listener.local().unwrap(), address, "{}", strategy.name());
    }
    (address, listeners.into_iter().map(|listener| Worker::new(strategy, listener)).collect())
}

fn each_strategy(test: impl Fn(&'static dyn Strategy)) {
    for &strategy in STRATEGIES {
        assert_eq!(super::strategy(strategy.name()).unwrap().name(), strategy.name());
        test(strategy);
    }
}

#[test]
fn each_connection_reaches_exactly_one_thread() {
    each_strategy(|strategy| {
        let (address, mut workers) = workers(strategy);
        let clients: Vec<_> = (0..100).map(|_| TcpStream::connect(address).unwrap()).collect();
        while workers.iter_mut().any(|worker| worker.turn(usize::MAX)) {}
        let taken: Vec<_> =
            workers.iter().flat_map(|worker| worker.taken.iter().map(|(_, peer)| *peer)).collect();
        let expected: HashSet<_> = clients.iter().map(|client| client.local_addr().unwrap()).collect();
        assert_eq!(taken.len(), expected.len(), "{}", strategy.name());
        assert_eq!(taken.into_iter().collect::<HashSet<_>>(), expected, "{}", strategy.name());
    });
}

#[test]
fn a_thread_without_place_is_not_woken_until_it_resumes() {
    each_strategy(|strategy| {
        let listener = strategy.listen("127.0.0.1:0".parse().unwrap(), 128, 1).unwrap().remove(0);
        let address = listener.local().unwrap();
        let mut worker = Worker::new(strategy, listener);
        let _clients: Vec<_> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
        while worker.turn(2) {}
        assert_eq!(worker.taken.len(), 2, "{}: it falls silent with one still queued", strategy.name());
        worker.acceptor.resume();
        worker.acceptor.hold();
        assert!(!worker.turn(9), "{}: held by its owner it is as silent", strategy.name());
        worker.acceptor.resume();
        while worker.turn(9) {}
        assert_eq!(worker.taken.len(), 3, "{}", strategy.name());
    });
}

#[test]
fn retiring_hands_over_everybody_who_waited() {
    each_strategy(|strategy| {
        let (address, workers) = workers(strategy);
        let clients: Vec<_> = (0..50).map(|_| TcpStream::connect(address).unwrap()).collect();
        let mut taken = Vec::new();
        for mut worker in workers {
            while !worker.acceptor.retire(|socket, _| taken.push(socket)) {
                worker.reactor.turn(&mut Vec::new(), || true).unwrap();
            }
            assert_eq!(worker.reactor.load(), (0, 0), "{}: nothing stays registered", strategy.name());
        }
        assert_eq!(taken.len(), clients.len(), "{}", strategy.name());
        assert!(TcpStream::connect(address).is_err(), "{}: the port is free again", strategy.name());
    });
}

#[test]
fn who_comes_while_a_listener_retires_waits_for_what_comes_next() {
    each_strategy(|strategy| {
        let mut listener = strategy.listen("127.0.0.1:0".parse().unwrap(), 128, 1).unwrap();
        let mut worker = Worker::new(strategy, listener.remove(0));
        let address = worker.acceptor.listener.local().unwrap();
        assert!(!worker.acceptor.retire(|_, _| panic!("nobody waits")), "{}", strategy.name());
        // Its first packet is dropped. By the second, a second later, somebody else listens there.
        let client = std::thread::spawn(move || TcpStream::connect(address).unwrap().peer_addr().unwrap());
        while !worker.acceptor.retire(|_, _| panic!("nobody can come any more")) {
            worker.reactor.turn(&mut Vec::new(), || true).unwrap();
        }
        drop(worker);
        let next = strategy.listen(address, 128, 1).unwrap();
        assert_eq!(client.join().unwrap(), address, "{}", strategy.name());
        drop(next);
    });
}

#[test]
fn an_address_that_somebody_has_is_refused() {
    each_strategy(|strategy| {
        let first = strategy.listen("127.0.0.1:0".parse().unwrap(), 128, THREADS).unwrap();
        let address = first[0].local().unwrap();
        let error = strategy.listen(address, 128, THREADS).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{}", strategy.name());
    });
}
