//! Tests that run for every accept strategy, and tests of single ones.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use sys::clock::Nanos;
use sys::socket::Socket;

use super::*;
use crate::inbox::Notifier;
use crate::reactor::{RawToken, Reactor, ReactorEvent};
use crate::stats::ReactorStats;

const THREADS: usize = 3;
const LISTENER_ID: u32 = 5;

/// More passes than it takes until a listener counts as quiet.
const PASSES_UNTIL_QUIET: usize = 1_000;

/// The parts of a worker, before it runs.
struct WorkerParts {
    notifier: Arc<Notifier>,
    stats: Arc<ReactorStats>,
    worker_handle: WorkerHandle,
    listener_handle: ListenerHandle,
    is_over: Arc<AtomicBool>,
}

/// A reactor with one acceptor, and the sockets that it accepted.
struct Worker {
    reactor: Rc<Reactor>,
    worker_handle: Rc<WorkerHandle>,
    acceptor: Option<Acceptor>,
    liveness: ListenerLiveness,
    taken: Vec<(Socket, SocketAddr)>,
    /// Connections that it serves besides.
    other_connections: usize,
    /// Whether the worker has to end; checked before a sleep.
    is_over: Arc<AtomicBool>,
}

impl Worker {
    fn new(WorkerParts { notifier, stats, worker_handle, listener_handle, is_over }: WorkerParts) -> Worker {
        let reactor = Reactor::new(notifier, stats).unwrap();
        let (worker_handle, liveness) = (Rc::new(worker_handle), listener_handle.liveness());
        let acceptor = Acceptor::new(&reactor, &worker_handle, listener_handle, RawToken(7)).unwrap();
        Worker {
            reactor,
            worker_handle,
            acceptor: Some(acceptor),
            liveness,
            taken: Vec::new(),
            other_connections: 0,
            is_over,
        }
    }

    /// Runs one pass, without sleep unless `may_sleep`; true if there was an event or a connection.
    fn run_pass(&mut self, capacity: usize, may_sleep: bool) -> bool {
        let (wakes, before) = (self.wakes(may_sleep), self.taken.len());
        for wake in &wakes {
            assert!(matches!(
                wake,
                ReactorEvent::Ready(RawToken(7), _) | ReactorEvent::TimerDue(RawToken(7))
            ));
            let Some(acceptor) = &mut self.acceptor else { continue };
            let taken = &mut self.taken;
            let accepted = acceptor.accept(|socket, peer| {
                taken.push((socket, peer));
                taken.len() < capacity
            });
            accepted.unwrap();
        }
        if let Some(acceptor) = &mut self.acceptor {
            acceptor.unlock_accept_mutex();
        }
        while let Some(HandedOffConnection { socket, peer, listener_id }) = self.worker_handle.take() {
            assert_eq!(listener_id, LISTENER_ID);
            self.taken.push((socket, peer));
        }
        self.reactor.stats().connections.set((self.other_connections + self.taken.len()) as u64);
        !wakes.is_empty() || self.taken.len() > before
    }

    /// The events of one pass, after a sleep if `may_sleep`.
    fn wakes(&mut self, may_sleep: bool) -> Vec<ReactorEvent> {
        let mut wakes = Vec::new();
        if let Some(acceptor) = &mut self.acceptor {
            acceptor.try_lock_accept_mutex();
        }
        let has_work =
            || !self.worker_handle.is_empty() || self.acceptor.as_ref().is_some_and(Acceptor::has_pending);
        self.reactor.poll(&mut wakes, || may_sleep && !self.is_over() && !has_work()).unwrap();
        wakes
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Makes the mean length of a pass `length`.
    fn pretend_pass_length(&self, length: Duration) {
        let (stats, now) = (self.reactor.stats(), self.reactor.now());
        stats.begin_pass(now);
        (0..64).for_each(|_| stats.end_pass(now + length, false));
    }

    /// Makes the thread look asleep, so that the test's own duration is no lag.
    fn pretend_sleep(&self) {
        self.reactor.stats().end_pass(self.reactor.now(), true);
    }

    /// Whether it gets the accept mutex; unlocks it again.
    fn gets_mutex(&mut self) -> bool {
        let acceptor = self.acceptor.as_mut().unwrap();
        acceptor.try_lock_accept_mutex();
        let (watched, _) = self.reactor.load();
        acceptor.pause();
        acceptor.resume();
        watched > 0
    }

    /// One step of retiring; true once no connection of the listener can reach this thread any more.
    fn retire(&mut self) -> bool {
        if let Some(acceptor) = &mut self.acceptor {
            let taken = &mut self.taken;
            if acceptor.retire(|socket, peer| taken.push((socket, peer))) {
                self.acceptor = None;
            }
        }
        let are_closed = self.liveness.all_closed();
        while let Some(HandedOffConnection { socket, peer, .. }) = self.worker_handle.take() {
            self.taken.push((socket, peer));
        }
        are_closed
    }
}

/// Whether another thread has ended the sleep that `notifier` had announced.
fn is_signalled(notifier: &Notifier) -> bool {
    let mut signal = File::from(notifier.as_fd().try_clone_to_owned().unwrap());
    signal.read(&mut [0; 8]).is_ok()
}

fn build_parts(strategy: &'static dyn Strategy, threads: usize) -> (SocketAddr, Vec<WorkerParts>) {
    let listener_handles =
        listen(strategy, "127.0.0.1:0".parse().unwrap(), ListenOptions::plain(128), threads, LISTENER_ID)
            .unwrap();
    let address = listener_handles[0].local().unwrap();
    for listener_handle in &listener_handles {
        assert_eq!(listener_handle.local().unwrap(), address, "{}", strategy.name());
    }
    let pairs: Vec<_> =
        (0..threads).map(|_| (Arc::new(Notifier::new().unwrap()), Arc::<ReactorStats>::default())).collect();
    let worker_handles =
        worker_group(pairs.iter().map(|(notifier, stats)| (Arc::clone(notifier), Arc::clone(stats))));
    let is_over = Arc::new(AtomicBool::new(false));
    let parts = pairs.into_iter().zip(worker_handles).zip(listener_handles);
    let parts = parts.map(|(((notifier, stats), worker_handle), listener_handle)| {
        let is_over = Arc::clone(&is_over);
        WorkerParts { notifier, stats, worker_handle, listener_handle, is_over }
    });
    (address, parts.collect())
}

/// Runs each worker by `run` on a thread of its own until `clients` returns. The workers register with the
/// socket's wait queue in their order.
fn serve<T>(parts: Vec<WorkerParts>, run: impl Fn(usize, Worker) + Sync, clients: impl FnOnce() -> T) -> T {
    let end = end_signal(&parts);
    thread::scope(|scope| {
        for (number, part) in parts.into_iter().enumerate() {
            let (run, notifier) = (&run, Arc::clone(&part.notifier));
            scope.spawn(move || run(number, Worker::new(part)));
            while !notifier.is_announced() {
                thread::yield_now();
            }
        }
        let outcome = clients();
        end();
        outcome
    })
}

/// Returns a function that makes all workers end.
fn end_signal(parts: &[WorkerParts]) -> impl Fn() + use<> {
    let is_over = Arc::clone(&parts[0].is_over);
    let notifiers: Vec<_> = parts.iter().map(|part| Arc::clone(&part.notifier)).collect();
    move || {
        is_over.store(true, Ordering::Relaxed);
        notifiers.iter().for_each(|notifier| notifier.wake());
    }
}

fn workers(strategy: &'static dyn Strategy, threads: usize) -> (SocketAddr, Vec<Worker>) {
    let (address, parts) = build_parts(strategy, threads);
    (address, parts.into_iter().map(Worker::new).collect())
}

fn each_strategy(test: impl Fn(&'static dyn Strategy)) {
    for &strategy in STRATEGIES {
        assert_eq!(super::strategy(strategy.name()).unwrap().name(), strategy.name());
        test(strategy);
    }
}

fn connect(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    (0..count).map(|_| TcpStream::connect(address).unwrap()).collect()
}

/// Waits until the peer closes: `Ok(0)`, unless it has sent bytes or a reset.
fn end_of_stream(client: &mut TcpStream) -> Result<usize, io::ErrorKind> {
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    client.read(&mut [0]).map_err(|error| error.kind())
}

/// Simulates a security policy of the kernel that forbids accept: the listener is always readable, and every
/// accept fails.
fn shut_down(part: &WorkerParts) {
    let socket = TcpStream::from(part.listener_handle.listener.as_fd().try_clone_to_owned().unwrap());
    socket.shutdown(Shutdown::Both).unwrap();
}

/// Runs passes of all workers until none finds anything.
fn run_until_quiet(workers: &mut [Worker]) {
    while workers
        .iter_mut()
        .map(|worker| worker.run_pass(usize::MAX, false))
        .fold(false, |one, other| one | other)
    {}
}

#[test]
fn each_connection_reaches_exactly_one_thread() {
    each_strategy(|strategy| {
        let (address, mut workers) = workers(strategy, THREADS);
        let clients = connect(address, 100);
        run_until_quiet(&mut workers);
        let taken: Vec<_> =
            workers.iter().flat_map(|worker| worker.taken.iter().map(|(_, peer)| *peer)).collect();
        let expected: HashSet<_> = clients.iter().map(|client| client.local_addr().unwrap()).collect();
        assert_eq!(taken.len(), expected.len(), "{}", strategy.name());
        assert_eq!(taken.into_iter().collect::<HashSet<_>>(), expected, "{}", strategy.name());
    });
}

/// Threads sleep and wake each other, clients connect all the while, and the listener is retired meanwhile:
/// each accepted connection is served once, by one thread.
#[test]
fn sleeping_threads_lose_no_connection_on_retire() {
    each_strategy(|strategy| {
        let (address, parts) = build_parts(strategy, THREADS);
        let (retire, served) = (end_signal(&parts), AtomicUsize::new(0));
        let run = |_, mut worker: Worker| {
            while !worker.is_over() {
                worker.run_pass(usize::MAX, true);
                served.fetch_add(worker.taken.drain(..).count(), Ordering::Relaxed);
            }
            while !worker.retire() {
                let may_sleep = || worker.worker_handle.is_empty() && !worker.liveness.all_closed();
                worker.reactor.poll(&mut Vec::new(), may_sleep).unwrap();
            }
            served.fetch_add(worker.taken.drain(..).count(), Ordering::Relaxed);
        };
        let connected = serve(parts, run, || {
            let mut connected = 0;
            while connected < 600 {
                if connected == 400 {
                    retire();
                }
                // From now on a late client gets no reply at all, or is refused once the socket is closed.
                let Ok(mut client) = TcpStream::connect_timeout(&address, Duration::from_millis(500)) else {
                    break;
                };
                assert_eq!(end_of_stream(&mut client), Ok(0), "{}: accepted and dropped", strategy.name());
                connected += 1;
            }
            connected
        });
        assert!(connected >= 400, "{}: {connected}", strategy.name());
        assert_eq!(served.into_inner(), connected, "{}", strategy.name());
    });
}

#[test]
fn paused_thread_is_not_woken_until_it_resumes() {
    each_strategy(|strategy| {
        let (address, mut workers) = workers(strategy, 1);
        let worker = &mut workers[0];
        let _clients = connect(address, 3);
        while worker.run_pass(2, false) {}
        assert_eq!(
            worker.taken.len(),
            2,
            "{}: no event while paused, with one connection queued",
            strategy.name()
        );
        worker.acceptor.as_mut().unwrap().resume();
        worker.acceptor.as_mut().unwrap().pause();
        assert!(!worker.run_pass(9, false), "{}: no event while paused by its owner", strategy.name());
        worker.acceptor.as_mut().unwrap().resume();
        while worker.run_pass(9, false) {}
        assert_eq!(worker.taken.len(), 3, "{}", strategy.name());
    });
}

#[test]
fn lagging_thread_accepts_fewer_at_a_time() {
    each_strategy(|strategy| {
        let (address, mut workers) = workers(strategy, 1);
        let worker = &mut workers[0];
        let max = strategy.accepts_per_wake_max() as usize;
        let _clients = connect(address, 2 * max);
        worker.run_pass(usize::MAX, false);
        assert_eq!(worker.taken.len(), max, "{}", strategy.name());
        worker.pretend_pass_length(Duration::from_secs(1));
        worker.run_pass(usize::MAX, false);
        let taken = worker.taken.len() - max;
        assert_eq!(taken, (max / 8).max(1), "{}: and at least one", strategy.name());
    });
}

#[test]
fn retire_accepts_every_queued_connection() {
    each_strategy(|strategy| {
        let (address, mut workers) = workers(strategy, THREADS);
        let clients = connect(address, 50);
        // Some were accepted before, and may be in another thread's queue.
        workers[0].run_pass(usize::MAX, false);
        let mut open = THREADS;
        while open > 0 {
            open = workers.iter_mut().filter_map(|worker| (!worker.retire()).then_some(())).count();
            thread::sleep(Duration::from_millis(5));
            workers.iter().for_each(|it| it.reactor.poll(&mut Vec::new(), || false).unwrap());
        }
        for worker in &workers {
            assert_eq!(worker.reactor.load(), (0, 0), "{}: no registration is left", strategy.name());
        }
        let taken: usize = workers.iter().map(|worker| worker.taken.len()).sum();
        assert_eq!(taken, clients.len(), "{}", strategy.name());
        assert!(TcpStream::connect(address).is_err(), "{}: the port is free again", strategy.name());
    });
}

#[test]
fn late_client_reaches_the_next_listener() {
    each_strategy(|strategy| {
        let (address, mut workers) = workers(strategy, 1);
        let worker = &mut workers[0];
        assert!(!worker.retire(), "{}", strategy.name());
        // Its first SYN is dropped. At the retransmission, a second later, the next listener is open.
        let client = thread::spawn(move || TcpStream::connect(address).unwrap().peer_addr().unwrap());
        while !worker.retire() {
            worker.reactor.poll(&mut Vec::new(), || true).unwrap();
        }
        assert!(worker.taken.is_empty(), "no client can connect any more");
        let next = listen(strategy, address, ListenOptions::plain(128), 1, LISTENER_ID).unwrap();
        assert_eq!(client.join().unwrap(), address, "{}", strategy.name());
        drop(next);
    });
}

#[test]
fn address_in_use_is_refused() {
    each_strategy(|strategy| {
        let (address, _workers) = workers(strategy, THREADS);
        let error = listen(strategy, address, ListenOptions::plain(128), THREADS, LISTENER_ID)
            .err()
            .expect("the address is in use");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{}", strategy.name());
    });
}

/// The two strategies that compare loads. In the others balance is the kernel's, or luck. A lag of the test
/// machine counts as up to `LAG_CONNECTIONS_MAX` connections.
#[test]
fn lasting_connections_are_balanced() {
    for name in ["handoff", "mutex"] {
        let (address, mut workers) = workers(super::strategy(name).unwrap(), THREADS);
        let mut clients = Vec::new();
        for _ in 0..100 {
            clients.extend(connect(address, 3));
            run_until_quiet(&mut workers);
            // Nor is it lag that no other thread runs a pass meanwhile.
            workers.iter().for_each(Worker::pretend_sleep);
        }
        let counts: Vec<usize> = workers.iter().map(|worker| worker.taken.len()).collect();
        let (mean, max) = (100, *counts.iter().max().unwrap());
        let margin = 5 + worker_group::LAG_CONNECTIONS_MAX as usize;
        let bound = if name == "handoff" { mean + margin } else { mean + mean / 8 + margin };
        assert!(max <= bound, "{name}: {counts:?}");
    }
}

/// Without the new registration the kernel would always wake the thread that registered first.
#[test]
fn thread_that_hands_off_is_woken_last() {
    const CLIENTS: usize = 50;
    let (address, parts) = build_parts(&handoff::Handoff, 2);
    let stats: Vec<_> = parts.iter().map(|part| Arc::clone(&part.stats)).collect();
    let run = |number, mut worker: Worker| {
        // The first one that watches is busy.
        worker.other_connections = if number == 0 { 1_000 } else { 0 };
        worker.run_pass(usize::MAX, false);
        while !worker.is_over() {
            worker.run_pass(usize::MAX, true);
        }
    };
    let accepts = || stats.iter().map(|stats| stats.accepts.value()).sum::<u64>();
    serve(parts, run, || {
        for number in 1..=CLIENTS {
            let _client = connect(address, 1);
            while accepts() < number as u64 {
                thread::sleep(Duration::from_millis(1));
            }
        }
    });
    let of_busy = stats[0].accepts.value() as usize;
    assert!(of_busy < CLIENTS / 2, "{of_busy} of {CLIENTS}");
}

#[test]
fn mutex_is_free_after_unlock_pause_and_drop() {
    let (address, mut workers) = workers(&mutex::Mutex, 2);
    let [first, second] = &mut workers[..] else { unreachable!() };
    let try_lock = |worker: &mut Worker| {
        worker.acceptor.as_mut().unwrap().try_lock_accept_mutex();
        let (watched, _) = worker.reactor.load();
        watched > 0
    };
    assert!(try_lock(first) && !try_lock(second), "one thread watches");
    assert!(try_lock(first) && !try_lock(second), "it keeps the mutex until it has accepted");
    first.acceptor.as_mut().unwrap().unlock_accept_mutex();
    assert!(try_lock(second) && !try_lock(first));
    second.acceptor.as_mut().unwrap().pause();
    assert!(try_lock(first), "a paused thread holds no mutex");
    first.acceptor = None;
    second.acceptor.as_mut().unwrap().resume();
    assert!(try_lock(second), "nor does a dropped acceptor");
    let _client = connect(address, 1);
    while second.taken.is_empty() {
        second.run_pass(usize::MAX, true);
    }
}

#[test]
fn quick_holder_keeps_mutex_of_quiet_listener() {
    let (address, mut workers) = workers(&mutex::Mutex, 2);
    let [first, second] = &mut workers[..] else { unreachable!() };
    // Whether the second thread gets the mutex that the first one held for a pass.
    let mut releases = |first: &mut Worker| {
        first.run_pass(usize::MAX, false);
        second.gets_mutex()
    };
    assert!((0..PASSES_UNTIL_QUIET).any(|_| !releases(first)), "no client connects");
    let _client = connect(address, 1);
    assert!(releases(first), "a client has connected");
    assert!((0..PASSES_UNTIL_QUIET).any(|_| !releases(first)), "the listener is quiet again");
    first.pretend_pass_length(Duration::from_millis(20));
    assert!(releases(first), "a connection would wait for the end of a long pass");
}

#[test]
fn lagging_thread_yields_the_mutex() {
    let (_, mut workers) = workers(&mutex::Mutex, 2);
    workers[0].pretend_pass_length(Duration::from_micros(200));
    assert!(workers[0].gets_mutex());
    workers[0].pretend_pass_length(Duration::from_millis(3));
    assert!(!workers[0].gets_mutex(), "the other one sleeps");
    workers[1].reactor.stats().connections.set(100);
    assert!(workers[0].gets_mutex(), "the other one has a far higher load");
    workers[1].reactor.stats().connections.set(0);
    workers[1].pretend_pass_length(Duration::from_millis(3));
    workers[1].pretend_sleep();
    assert!(workers[0].gets_mutex(), "the other one would lag too, once awake");
}

#[test]
fn no_yield_to_a_thread_in_a_long_pass() {
    let (_, mut workers) = workers(&mutex::Mutex, 2);
    let [first, second] = &mut workers[..] else { unreachable!() };
    first.reactor.stats().connections.set(100);
    assert!(!first.gets_mutex(), "the other one is awake and may lock it");
    second.reactor.stats().begin_pass(Nanos(second.reactor.now().0 - 9_000_000));
    assert!(first.gets_mutex());
}

#[test]
fn yielding_threads_do_not_wait_for_each_other() {
    let (_, parts) = build_parts(&mutex::Mutex, 3);
    let idle = Arc::clone(&parts[2].notifier);
    let mut workers: Vec<Worker> = parts.into_iter().map(Worker::new).collect();
    workers[..2].iter().for_each(|busy| busy.reactor.stats().connections.set(100));
    idle.announce();
    workers[0].acceptor.as_mut().unwrap().try_lock_accept_mutex();
    assert!(is_signalled(&idle), "the other awake thread would yield too");
}

#[test]
fn yielding_thread_wakes_another_if_mutex_is_free() {
    let (_, parts) = build_parts(&mutex::Mutex, 3);
    let [first, idle] = [0, 2].map(|number: usize| Arc::clone(&parts[number].notifier));
    let mut workers: Vec<Worker> = parts.into_iter().map(Worker::new).collect();
    // The second one has a far higher load than the others, and the third one the lowest.
    workers[0].reactor.stats().connections.set(1);
    workers[1].reactor.stats().connections.set(100);
    idle.announce();
    let mut try_lock = |worker: usize| workers[worker].acceptor.as_mut().unwrap().try_lock_accept_mutex();
    try_lock(0);
    try_lock(1);
    assert!(!is_signalled(&idle), "a useless wake: the first one accepts");
    workers[0].acceptor.as_mut().unwrap().unlock_accept_mutex();
    workers[1].acceptor.as_mut().unwrap().try_lock_accept_mutex();
    assert!(!is_signalled(&idle), "the first one is awake and may lock it");
    first.announce();
    workers[1].acceptor.as_mut().unwrap().try_lock_accept_mutex();
    assert!(is_signalled(&idle));
}

#[test]
fn mutex_freed_before_a_sleep_is_pending() {
    let (_, mut workers) = workers(&mutex::Mutex, 2);
    let [first, second] = &mut workers[..] else { unreachable!() };
    let (first, stats) = (first.acceptor.as_mut().unwrap(), second.reactor.stats());
    let second = second.acceptor.as_mut().unwrap();
    first.try_lock_accept_mutex();
    second.try_lock_accept_mutex();
    assert!(!first.has_pending() && !second.has_pending(), "the first one holds it");
    first.unlock_accept_mutex();
    assert!(second.has_pending(), "the mutex is free, and no thread would be notified");
    stats.connections.set(100);
    second.try_lock_accept_mutex();
    assert!(!second.has_pending(), "a yielding thread may sleep: the first one is awake");
    first.pause();
    assert!(second.has_pending(), "the first one is full, and there is no other thread");
    first.resume();
    stats.connections.set(0);
    second.try_lock_accept_mutex();
    first.try_lock_accept_mutex();
    second.pause();
    assert!(!second.has_pending(), "a paused thread does not compete");
}

#[test]
fn pause_wakes_all_unless_another_holds_mutex() {
    let (_, parts) = build_parts(&mutex::Mutex, 3);
    let others = [1, 2].map(|number: usize| Arc::clone(&parts[number].notifier));
    let mut workers: Vec<Worker> = parts.into_iter().map(Worker::new).collect();
    // It has found the mutex locked, and is not asleep yet.
    let awake = &workers[1].reactor;
    awake.stats().begin_pass(awake.now());
    others.iter().for_each(|other| other.announce());
    let [first, second, _] = &mut workers[..] else { unreachable!() };
    let [first, second] = [first, second].map(|worker| worker.acceptor.as_mut().unwrap());
    second.try_lock_accept_mutex();
    first.try_lock_accept_mutex();
    first.pause();
    assert!(others.iter().all(|other| !is_signalled(other)), "another thread holds the mutex");
    second.unlock_accept_mutex();
    first.resume();
    first.try_lock_accept_mutex();
    first.pause();
    assert!(others.iter().all(|other| is_signalled(other)), "it held the mutex");
    others.iter().for_each(|other| other.announce());
    first.resume();
    first.pause();
    assert!(others.iter().all(|other| is_signalled(other)), "they may have yielded to this thread");
}

/// The connection that caused the backoff is still reported to no other thread.
#[test]
fn pause_in_backoff_passes_exclusive_wake_on() {
    for strategy in [&exclusive::Exclusive as &dyn Strategy, &handoff::Handoff] {
        let (_, parts) = build_parts(strategy, 2);
        shut_down(&parts[0]);
        let mut workers: Vec<Worker> = parts.into_iter().map(Worker::new).collect();
        let [first, second] = &mut workers[..] else { unreachable!() };
        first.run_pass(usize::MAX, false);
        let has_pending = |worker: &Worker| worker.acceptor.as_ref().unwrap().has_pending();
        assert!(!has_pending(second), "{}: the first one will retry", strategy.name());
        first.acceptor.as_mut().unwrap().pause();
        assert!(has_pending(second), "{}", strategy.name());
    }
}

#[test]
fn unlock_with_pending_connections_wakes_another() {
    let is_woken = |clients: usize, pass_length: Duration, another_awake: bool| {
        let (address, parts) = build_parts(&mutex::Mutex, 3);
        let notifiers = [1, 2].map(|number: usize| Arc::clone(&parts[number].notifier));
        let mut workers: Vec<Worker> = parts.into_iter().map(Worker::new).collect();
        let [first, second, third] = &mut workers[..] else { unreachable!() };
        let _clients = connect(address, clients);
        first.pretend_pass_length(pass_length);
        // With this load the first one does not yield.
        second.reactor.stats().connections.set(100);
        third.reactor.stats().connections.set(100);
        notifiers[0].announce();
        if !another_awake {
            notifiers[1].announce();
        }
        // It slept until now: the test's own duration is no pass.
        first.pretend_sleep();
        first.run_pass(usize::MAX, false);
        notifiers.iter().any(|notifier| is_signalled(notifier))
    };
    let short = Duration::from_micros(50);
    let long = Duration::from_millis(20);
    assert!(!is_woken(1, short, false), "no connection is left");
    assert!(is_woken(100, short, false), "more are queued than one thread accepts");
    assert!(is_woken(1, long, false), "a connection would wait for the end of a long pass");
    assert!(!is_woken(100, long, true), "one thread is awake and will accept");
}

#[test]
fn full_handoff_queue_keeps_connections_local() {
    const CLIENTS: usize = 300;
    let (address, mut workers) = workers(&handoff::Handoff, 2);
    let mut clients = Vec::new();
    // The second thread runs no pass and seems idle; the first one has a high load.
    for _ in 0..CLIENTS {
        clients.extend(connect(address, 1));
        workers[0].run_pass(usize::MAX, false);
        workers[0].reactor.stats().connections.set(1_000);
    }
    let handed_off = workers[0].reactor.stats().handed_off.value() as usize;
    assert!(handed_off < CLIENTS, "the queue has no space for all");
    assert_eq!(workers[0].taken.len() + handed_off, CLIENTS);
    workers[1].run_pass(usize::MAX, false);
    assert_eq!(workers[1].taken.len(), handed_off);
}

#[test]
fn no_yield_to_a_full_thread() {
    let (address, mut workers) = workers(&mutex::Mutex, 2);
    let [first, second] = &mut workers[..] else { unreachable!() };
    first.reactor.stats().connections.set(100);
    assert!(!first.gets_mutex(), "the other one has a far lower load");
    second.acceptor.as_mut().unwrap().pause();
    assert!(first.gets_mutex(), "but it is full");
    let _client = connect(address, 1);
    while first.taken.is_empty() {
        first.run_pass(usize::MAX, true);
    }
    second.acceptor.as_mut().unwrap().resume();
    first.reactor.stats().connections.set(100);
    assert!(!first.gets_mutex(), "it has capacity again");
}

#[test]
fn no_handoff_to_a_full_thread() {
    let (address, mut workers) = workers(&handoff::Handoff, 2);
    let [first, second] = &mut workers[..] else { unreachable!() };
    first.other_connections = 100;
    first.run_pass(usize::MAX, false);
    second.acceptor.as_mut().unwrap().pause();
    let _clients = connect(address, 3);
    while first.taken.len() < 3 {
        first.run_pass(usize::MAX, true);
    }
    assert_eq!(first.reactor.stats().handed_off.value(), 0);
}

/// They would stay in its queue until the end of that pass, and no other thread can take them.
#[test]
fn no_handoff_to_a_thread_in_a_long_pass() {
    let (_, mut workers) = workers(&handoff::Handoff, 2);
    let [first, second] = &mut workers[..] else { unreachable!() };
    let now = first.reactor.now();
    let serving_thread = || handoff::Handoff.serving_thread(&first.worker_handle, now);
    first.reactor.stats().connections.set(100);
    assert_eq!(serving_thread(), 1);
    second.reactor.stats().begin_pass(Nanos(now.0 - 9_000_000));
    assert_eq!(serving_thread(), 1, "its pass ends in a moment");
    second.reactor.stats().begin_pass(Nanos(now.0 - 11_000_000));
    assert_eq!(serving_thread(), 0);
    first.pretend_pass_length(Duration::from_millis(30));
    assert_eq!(serving_thread(), 1, "they would wait as long here");
}

#[test]
fn stuck_mutex_holder_delays_at_most_one_retry() {
    let (address, mut workers) = workers(&mutex::Mutex, 2);
    let [stuck, other] = &mut workers[..] else { unreachable!() };
    stuck.acceptor.as_mut().unwrap().try_lock_accept_mutex();
    let _clients = connect(address, 16);
    while other.taken.is_empty() {
        other.run_pass(usize::MAX, true);
    }
    assert_eq!(other.taken.len(), 4, "as many as it accepts at a time");
    // It accepts again well before the next retry, also after a pause.
    let accepts_again = |other: &mut Worker| {
        other.acceptor.as_mut().unwrap().try_lock_accept_mutex();
        other.pretend_sleep();
        thread::sleep(Duration::from_millis(20));
        other.run_pass(usize::MAX, false);
        other.taken.len()
    };
    assert_eq!(accepts_again(other), 8);
    let acceptor = other.acceptor.as_mut().unwrap();
    acceptor.pause();
    acceptor.resume();
    assert_eq!(accepts_again(other), 12);
    assert!(!other.gets_mutex(), "the stuck thread still holds the mutex");
}

#[test]
fn yielding_thread_wakes_another_before_its_sleep() {
    let (_, parts) = build_parts(&mutex::Mutex, 2);
    let other = Arc::clone(&parts[1].notifier);
    let mut workers: Vec<Worker> = parts.into_iter().map(Worker::new).collect();
    workers[0].reactor.stats().connections.set(100);
    let acceptor = workers[0].acceptor.as_mut().unwrap();
    acceptor.try_lock_accept_mutex();
    assert!(!is_signalled(&other), "it was awake then");
    other.announce();
    assert!(!acceptor.has_pending());
    assert!(is_signalled(&other));
}

/// The kernel wakes one sleeping thread. If that one cannot accept the connection, no other thread knows of
/// it.
#[test]
fn pause_after_a_wake_passes_exclusive_wake_on() {
    each_strategy(|strategy| {
        // There each thread has its own clients.
        if strategy.name() == "reuse_port" {
            return;
        }
        let (address, parts) = build_parts(strategy, THREADS);
        let run = |number, mut worker: Worker| {
            while !worker.is_over() {
                // All but the last one have no capacity when they are woken.
                if number < THREADS - 1 {
                    worker.wakes(true);
                    worker.acceptor.as_mut().unwrap().pause();
                } else {
                    worker.run_pass(usize::MAX, true);
                    worker.taken.clear();
                }
            }
        };
        let end = serve(parts, run, || {
            thread::sleep(Duration::from_millis(5));
            end_of_stream(&mut TcpStream::connect(address).unwrap())
        });
        assert_eq!(end, Ok(0), "{}: its socket was accepted and dropped", strategy.name());
    });
}

#[test]
fn failing_listener_backs_off_and_can_be_retired() {
    each_strategy(|strategy| {
        let (_, mut parts) = build_parts(strategy, 1);
        let part = parts.pop().unwrap();
        shut_down(&part);
        let mut worker = Worker::new(part);
        let wakes = (0..1_000).filter(|_| worker.run_pass(usize::MAX, false)).count();
        assert!(wakes < 500, "{}: {wakes} wakes in a thousand passes without sleep", strategy.name());
        while !worker.retire() {
            worker.reactor.poll(&mut Vec::new(), || true).unwrap();
        }
    });
}
