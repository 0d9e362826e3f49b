//! One suite for every accept strategy.

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
use crate::reactor::{RawToken, Reactor, Wake};
use crate::stats::ReactorStats;

const THREADS: usize = 3;
const LISTENER_ID: u32 = 5;

/// More turns than an address is quiet after.
const PASSES_UNTIL_QUIET: usize = 1_000;

/// What a thread is made of, before it runs.
struct WorkerParts {
    notifier: Arc<Notifier>,
    stats: Arc<ReactorStats>,
    worker_handle: WorkerHandle,
    listener_handle: ListenerHandle,
    is_over: Arc<AtomicBool>,
}

/// A reactor with one acceptor, and the sockets that it took.
struct Worker {
    reactor: Rc<Reactor>,
    worker_handle: Rc<WorkerHandle>,
    acceptor: Option<Acceptor>,
    liveness: ListenerLiveness,
    taken: Vec<(Socket, SocketAddr)>,
    /// Connections that it serves besides.
    other_connections: usize,
    /// Whether what it runs for is over; seen before a sleep.
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

    /// One turn, without sleep unless it `may_sleep`; true if it was woken or took a connection.
    fn run_pass(&mut self, capacity: usize, may_sleep: bool) -> bool {
        let (wakes, before) = (self.wakes(may_sleep), self.taken.len());
        for wake in &wakes {
            assert!(matches!(wake, Wake::Ready(RawToken(7), _) | Wake::Due(RawToken(7))));
            let Some(acceptor) = &mut self.acceptor else { continue };
            let taken = &mut self.taken;
            let accepted = acceptor.accept(|socket, peer| {
                taken.push((socket, peer));
                taken.len() < capacity
            });
            accepted.unwrap();
        }
        if let Some(acceptor) = &mut self.acceptor {
            acceptor.give_turn_up();
        }
        while let Some(HandedOffConnection { socket, peer, door: listener_id }) = self.worker_handle.take() {
            assert_eq!(listener_id, LISTENER_ID);
            self.taken.push((socket, peer));
        }
        self.reactor.stats().connections.set((self.other_connections + self.taken.len()) as u64);
        !wakes.is_empty() || self.taken.len() > before
    }

    /// What the kernel and the timers tell, after a sleep if it `may_sleep`.
    fn wakes(&mut self, may_sleep: bool) -> Vec<Wake> {
        let mut wakes = Vec::new();
        if let Some(acceptor) = &mut self.acceptor {
            acceptor.take_turn();
        }
        let has_work =
            || !self.worker_handle.is_empty() || self.acceptor.as_ref().is_some_and(Acceptor::is_called);
        self.reactor.turn(&mut wakes, || may_sleep && !self.is_over() && !has_work()).unwrap();
        wakes
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// As if its turns had taken so long.
    fn pretend_pass_length(&self, length: Duration) {
        let (stats, now) = (self.reactor.stats(), self.reactor.now());
        stats.begin_pass(now);
        (0..64).for_each(|_| stats.end_pass(now + length, false));
    }

    /// As if it slept now: what the test itself takes is no lag.
    fn pretend_sleep(&self) {
        self.reactor.stats().end_pass(self.reactor.now(), true);
    }

    /// Whether it gets the turn; it does not keep it.
    fn gets_mutex(&mut self) -> bool {
        let acceptor = self.acceptor.as_mut().unwrap();
        acceptor.take_turn();
        let (watched, _) = self.reactor.load();
        acceptor.hold();
        acceptor.resume();
        watched > 0
    }

    /// A step of retiring; true once nothing of the address can reach this thread any more.
    fn retire(&mut self) -> bool {
        if let Some(acceptor) = &mut self.acceptor {
            let taken = &mut self.taken;
            if acceptor.retire(|socket, peer| taken.push((socket, peer))) {
                self.acceptor = None;
            }
        }
        let are_closed = self.liveness.are_closed();
        while let Some(HandedOffConnection { socket, peer, .. }) = self.worker_handle.take() {
            self.taken.push((socket, peer));
        }
        are_closed
    }
}

/// Whether somebody has ended the sleep that this thread had announced.
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

/// Runs each worker by `run` on a thread of its own until `clients` end; in this order they stand in the
/// socket's queue.
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

/// Tells all workers that what they run for is over.
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

/// Waits until the other side closes: `Ok(0)`, unless it has sent something or resets.
fn end_of_stream(client: &mut TcpStream) -> Result<usize, io::ErrorKind> {
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    client.read(&mut [0]).map_err(|error| error.kind())
}

/// As where a policy of the kernel's forbids it: the listener reports for ever what nobody can take.
fn shut_down(part: &WorkerParts) {
    let socket = TcpStream::from(part.listener_handle.listener.as_fd().try_clone_to_owned().unwrap());
    socket.shutdown(Shutdown::Both).unwrap();
}

/// Turns of all, until none of them finds anything.
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

/// Threads that sleep and wake each other, clients that come all the while, and a listener that is retired in
/// the midst of it: whoever was let in is served, by one thread, once.
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
                let may_sleep = || worker.worker_handle.is_empty() && !worker.liveness.are_closed();
                worker.reactor.turn(&mut Vec::new(), may_sleep).unwrap();
            }
            served.fetch_add(worker.taken.drain(..).count(), Ordering::Relaxed);
        };
        let connected = serve(parts, run, || {
            let mut connected = 0;
            while connected < 600 {
                if connected == 400 {
                    retire();
                }
                // Behind that, whoever comes too late gets no answer at all, or is refused once all is
                // closed.
                let Ok(mut client) = TcpStream::connect_timeout(&address, Duration::from_millis(500)) else {
                    break;
                };
                assert_eq!(end_of_stream(&mut client), Ok(0), "{}: taken and dropped", strategy.name());
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
        assert_eq!(worker.taken.len(), 2, "{}: it falls silent with one still queued", strategy.name());
        worker.acceptor.as_mut().unwrap().resume();
        worker.acceptor.as_mut().unwrap().hold();
        assert!(!worker.run_pass(9, false), "{}: held by its owner it is as silent", strategy.name());
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
        let most = strategy.accepts_per_wake_max() as usize;
        let _clients = connect(address, 2 * most);
        worker.run_pass(usize::MAX, false);
        assert_eq!(worker.taken.len(), most, "{}", strategy.name());
        worker.pretend_pass_length(Duration::from_secs(1));
        worker.run_pass(usize::MAX, false);
        let taken = worker.taken.len() - most;
        assert_eq!(taken, (most / 8).max(1), "{}: and not none", strategy.name());
    });
}

#[test]
fn retire_accepts_every_queued_connection() {
    each_strategy(|strategy| {
        let (address, mut workers) = workers(strategy, THREADS);
        let clients = connect(address, 50);
        // Some were accepted before, and may wait in another thread's mailbox.
        workers[0].run_pass(usize::MAX, false);
        let mut open = THREADS;
        while open > 0 {
            open = workers.iter_mut().filter_map(|worker| (!worker.retire()).then_some(())).count();
            thread::sleep(Duration::from_millis(5));
            workers.iter().for_each(|it| it.reactor.turn(&mut Vec::new(), || false).unwrap());
        }
        for worker in &workers {
            assert_eq!(worker.reactor.load(), (0, 0), "{}: nothing stays registered", strategy.name());
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
        // Its first packet is dropped. By the second, a second later, somebody else listens there.
        let client = thread::spawn(move || TcpStream::connect(address).unwrap().peer_addr().unwrap());
        while !worker.retire() {
            worker.reactor.turn(&mut Vec::new(), || true).unwrap();
        }
        assert!(worker.taken.is_empty(), "nobody can come any more");
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
            .expect("it is taken");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{}", strategy.name());
    });
}

/// The two that look at one another's load. The others' balance is the kernel's, or luck. A lag of the
/// machine that runs the test counts as so many connections.
#[test]
fn lasting_connections_are_balanced() {
    for name in ["handoff", "mutex"] {
        let (address, mut workers) = workers(super::strategy(name).unwrap(), THREADS);
        let mut clients = Vec::new();
        for _ in 0..100 {
            clients.extend(connect(address, 3));
            run_until_quiet(&mut workers);
            // That no other thread turns meanwhile is no lag either.
            workers.iter().for_each(Worker::pretend_sleep);
        }
        let counts: Vec<usize> = workers.iter().map(|worker| worker.taken.len()).collect();
        let (mean, most) = (100, *counts.iter().max().unwrap());
        let margin = 5 + worker_group::LAG_CONNECTIONS_MAX as usize;
        let bound = if name == "handoff" { mean + margin } else { mean + mean / 8 + margin };
        assert!(most <= bound, "{name}: {counts:?}");
    }
}

/// Without it the kernel would wake the same thread each time: the first that watched.
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
        worker.acceptor.as_mut().unwrap().take_turn();
        let (watched, _) = worker.reactor.load();
        watched > 0
    };
    assert!(try_lock(first) && !try_lock(second), "one watches");
    assert!(try_lock(first) && !try_lock(second), "and goes on until it has accepted");
    first.acceptor.as_mut().unwrap().give_turn_up();
    assert!(try_lock(second) && !try_lock(first));
    second.acceptor.as_mut().unwrap().hold();
    assert!(try_lock(first), "who has no place keeps nobody waiting");
    first.acceptor = None;
    second.acceptor.as_mut().unwrap().resume();
    assert!(try_lock(second), "nor who is gone");
    let _client = connect(address, 1);
    while second.taken.is_empty() {
        second.run_pass(usize::MAX, true);
    }
}

#[test]
fn quick_holder_keeps_mutex_of_quiet_listener() {
    let (address, mut workers) = workers(&mutex::Mutex, 2);
    let [first, second] = &mut workers[..] else { unreachable!() };
    // Whether the second one gets the turn that the first one had for a turn of the loop.
    let mut releases = |first: &mut Worker| {
        first.run_pass(usize::MAX, false);
        second.gets_mutex()
    };
    assert!((0..PASSES_UNTIL_QUIET).any(|_| !releases(first)), "nobody comes");
    let _client = connect(address, 1);
    assert!(releases(first), "somebody has come");
    assert!((0..PASSES_UNTIL_QUIET).any(|_| !releases(first)), "it is quiet again");
    first.pretend_pass_length(Duration::from_millis(20));
    assert!(releases(first), "who comes now would wait for the end of a long turn");
}

#[test]
fn lagging_thread_yields_the_mutex() {
    let (_, mut workers) = workers(&mutex::Mutex, 2);
    workers[0].pretend_pass_length(Duration::from_micros(200));
    assert!(workers[0].gets_mutex());
    workers[0].pretend_pass_length(Duration::from_millis(3));
    assert!(!workers[0].gets_mutex(), "the other one sleeps");
    workers[1].reactor.stats().connections.set(100);
    assert!(workers[0].gets_mutex(), "the other one has far more to do");
    workers[1].reactor.stats().connections.set(0);
    workers[1].pretend_pass_length(Duration::from_millis(3));
    workers[1].pretend_sleep();
    assert!(workers[0].gets_mutex(), "the other one would lag too, once it is awake");
}

#[test]
fn no_yield_to_a_thread_in_a_long_pass() {
    let (_, mut workers) = workers(&mutex::Mutex, 2);
    let [first, second] = &mut workers[..] else { unreachable!() };
    first.reactor.stats().connections.set(100);
    assert!(!first.gets_mutex(), "the other one comes round");
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
    workers[0].acceptor.as_mut().unwrap().take_turn();
    assert!(is_signalled(&idle), "the other one that is awake would stand back too");
}

#[test]
fn yielding_thread_wakes_another_if_mutex_is_free() {
    let (_, parts) = build_parts(&mutex::Mutex, 3);
    let [first, idle] = [0, 2].map(|number: usize| Arc::clone(&parts[number].notifier));
    let mut workers: Vec<Worker> = parts.into_iter().map(Worker::new).collect();
    // The second one has far more to do than the others, and the third one least.
    workers[0].reactor.stats().connections.set(1);
    workers[1].reactor.stats().connections.set(100);
    idle.announce();
    let mut try_lock = |worker: usize| workers[worker].acceptor.as_mut().unwrap().take_turn();
    try_lock(0);
    try_lock(1);
    assert!(!is_signalled(&idle), "it would wake for nothing: the first one accepts");
    workers[0].acceptor.as_mut().unwrap().give_turn_up();
    workers[1].acceptor.as_mut().unwrap().take_turn();
    assert!(!is_signalled(&idle), "the first one is awake, and comes round");
    first.announce();
    workers[1].acceptor.as_mut().unwrap().take_turn();
    assert!(is_signalled(&idle));
}

#[test]
fn mutex_freed_before_a_sleep_is_pending() {
    let (_, mut workers) = workers(&mutex::Mutex, 2);
    let [first, second] = &mut workers[..] else { unreachable!() };
    let (first, stats) = (first.acceptor.as_mut().unwrap(), second.reactor.stats());
    let second = second.acceptor.as_mut().unwrap();
    first.take_turn();
    second.take_turn();
    assert!(!first.is_called() && !second.is_called(), "the first one has it");
    first.give_turn_up();
    assert!(second.is_called(), "nobody has it, and nobody would say so");
    stats.connections.set(100);
    second.take_turn();
    assert!(!second.is_called(), "who stands back sleeps: the first one comes round");
    first.hold();
    assert!(second.is_called(), "it has no place any more, and there is nobody else");
    first.resume();
    stats.connections.set(0);
    second.take_turn();
    first.take_turn();
    second.hold();
    assert!(!second.is_called(), "nor who has no place");
}

#[test]
fn pause_wakes_all_unless_another_holds_mutex() {
    let (_, parts) = build_parts(&mutex::Mutex, 3);
    let others = [1, 2].map(|number: usize| Arc::clone(&parts[number].notifier));
    let mut workers: Vec<Worker> = parts.into_iter().map(Worker::new).collect();
    // It has looked for the turn and found it taken, and is not asleep yet.
    let awake = &workers[1].reactor;
    awake.stats().begin_pass(awake.now());
    others.iter().for_each(|other| other.announce());
    let [first, second, _] = &mut workers[..] else { unreachable!() };
    let [first, second] = [first, second].map(|worker| worker.acceptor.as_mut().unwrap());
    second.take_turn();
    first.take_turn();
    first.hold();
    assert!(others.iter().all(|other| !is_signalled(other)), "another has the turn");
    second.give_turn_up();
    first.resume();
    first.take_turn();
    first.hold();
    assert!(others.iter().all(|other| is_signalled(other)), "it had the turn");
    others.iter().for_each(|other| other.announce());
    first.resume();
    first.hold();
    assert!(others.iter().all(|other| is_signalled(other)), "they may have left it to this one");
}

/// What made it rest is still reported to nobody else.
#[test]
fn pause_in_backoff_passes_exclusive_wake_on() {
    for strategy in [&exclusive::Exclusive as &dyn Strategy, &handoff::Handoff] {
        let (_, parts) = build_parts(strategy, 2);
        shut_down(&parts[0]);
        let mut workers: Vec<Worker> = parts.into_iter().map(Worker::new).collect();
        let [first, second] = &mut workers[..] else { unreachable!() };
        first.run_pass(usize::MAX, false);
        let has_pending = |worker: &Worker| worker.acceptor.as_ref().unwrap().is_called();
        assert!(!has_pending(second), "{}: the first one comes back", strategy.name());
        first.acceptor.as_mut().unwrap().hold();
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
        // With so many it is not the first one that stands back.
        second.reactor.stats().connections.set(100);
        third.reactor.stats().connections.set(100);
        notifiers[0].announce();
        if !another_awake {
            notifiers[1].announce();
        }
        // It slept until now: what the test itself takes is no turn.
        first.pretend_sleep();
        first.run_pass(usize::MAX, false);
        notifiers.iter().any(|notifier| is_signalled(notifier))
    };
    let short = Duration::from_micros(50);
    let long = Duration::from_millis(20);
    assert!(!is_woken(1, short, false), "there is nothing for it");
    assert!(is_woken(100, short, false), "more wait than one takes");
    assert!(is_woken(1, long, false), "who comes now would wait for the end of a long turn");
    assert!(!is_woken(100, long, true), "it comes round by itself");
}

#[test]
fn full_handoff_queue_keeps_connections_local() {
    const CLIENTS: usize = 300;
    let (address, mut workers) = workers(&handoff::Handoff, 2);
    let mut clients = Vec::new();
    // The second thread never comes round, and seems to have nothing to do; the first one is crowded.
    for _ in 0..CLIENTS {
        clients.extend(connect(address, 1));
        workers[0].run_pass(usize::MAX, false);
        workers[0].reactor.stats().connections.set(1_000);
    }
    let handed_over = workers[0].reactor.stats().handed_over.value() as usize;
    assert!(handed_over < CLIENTS, "a mailbox has not room for all");
    assert_eq!(workers[0].taken.len() + handed_over, CLIENTS);
    workers[1].run_pass(usize::MAX, false);
    assert_eq!(workers[1].taken.len(), handed_over);
}

#[test]
fn no_yield_to_a_full_thread() {
    let (address, mut workers) = workers(&mutex::Mutex, 2);
    let [first, second] = &mut workers[..] else { unreachable!() };
    first.reactor.stats().connections.set(100);
    assert!(!first.gets_mutex(), "the other one has far less to do");
    second.acceptor.as_mut().unwrap().hold();
    assert!(first.gets_mutex(), "and no place");
    let _client = connect(address, 1);
    while first.taken.is_empty() {
        first.run_pass(usize::MAX, true);
    }
    second.acceptor.as_mut().unwrap().resume();
    first.reactor.stats().connections.set(100);
    assert!(!first.gets_mutex(), "it has place again");
}

#[test]
fn no_handoff_to_a_full_thread() {
    let (address, mut workers) = workers(&handoff::Handoff, 2);
    let [first, second] = &mut workers[..] else { unreachable!() };
    first.other_connections = 100;
    first.run_pass(usize::MAX, false);
    second.acceptor.as_mut().unwrap().hold();
    let _clients = connect(address, 3);
    while first.taken.len() < 3 {
        first.run_pass(usize::MAX, true);
    }
    assert_eq!(first.reactor.stats().handed_over.value(), 0);
}

/// Its mailbox would hold them until the end of that turn, and nobody else can take them out.
#[test]
fn no_handoff_to_a_thread_in_a_long_pass() {
    let (_, mut workers) = workers(&handoff::Handoff, 2);
    let [first, second] = &mut workers[..] else { unreachable!() };
    let now = first.reactor.now();
    let serving_thread = || handoff::Handoff.serving_thread(&first.worker_handle, now);
    first.reactor.stats().connections.set(100);
    assert_eq!(serving_thread(), 1);
    second.reactor.stats().begin_pass(Nanos(now.0 - 9_000_000));
    assert_eq!(serving_thread(), 1, "it comes round in a moment");
    second.reactor.stats().begin_pass(Nanos(now.0 - 11_000_000));
    assert_eq!(serving_thread(), 0);
    first.pretend_pass_length(Duration::from_millis(30));
    assert_eq!(serving_thread(), 1, "here they would wait as long");
}

#[test]
fn stuck_mutex_holder_delays_at_most_one_retry() {
    let (address, mut workers) = workers(&mutex::Mutex, 2);
    let [stuck, other] = &mut workers[..] else { unreachable!() };
    stuck.acceptor.as_mut().unwrap().take_turn();
    let _clients = connect(address, 16);
    while other.taken.is_empty() {
        other.run_pass(usize::MAX, true);
    }
    assert_eq!(other.taken.len(), 4, "as many as it takes at a time");
    // Well before another retry it looks again, also if it had no place meanwhile.
    let accepts_again = |other: &mut Worker| {
        other.acceptor.as_mut().unwrap().take_turn();
        other.pretend_sleep();
        thread::sleep(Duration::from_millis(20));
        other.run_pass(usize::MAX, false);
        other.taken.len()
    };
    assert_eq!(accepts_again(other), 8);
    let acceptor = other.acceptor.as_mut().unwrap();
    acceptor.hold();
    acceptor.resume();
    assert_eq!(accepts_again(other), 12);
    assert!(!other.gets_mutex(), "which the stuck one still has");
}

#[test]
fn yielding_thread_wakes_another_before_its_sleep() {
    let (_, parts) = build_parts(&mutex::Mutex, 2);
    let other = Arc::clone(&parts[1].notifier);
    let mut workers: Vec<Worker> = parts.into_iter().map(Worker::new).collect();
    workers[0].reactor.stats().connections.set(100);
    let acceptor = workers[0].acceptor.as_mut().unwrap();
    acceptor.take_turn();
    assert!(!is_signalled(&other), "it was awake then");
    other.announce();
    assert!(!acceptor.is_called());
    assert!(is_signalled(&other));
}

/// The kernel tells one of those who sleep, and if that one cannot take the connection nobody else knows.
#[test]
fn pause_after_a_wake_passes_exclusive_wake_on() {
    each_strategy(|strategy| {
        // There each thread has clients of its own.
        if strategy.name() == "reuse_port" {
            return;
        }
        let (address, parts) = build_parts(strategy, THREADS);
        let run = |number, mut worker: Worker| {
            while !worker.is_over() {
                // All but the last one have no place when they are woken.
                if number < THREADS - 1 {
                    worker.wakes(true);
                    worker.acceptor.as_mut().unwrap().hold();
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
        assert_eq!(end, Ok(0), "{}: its socket was taken and dropped", strategy.name());
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
        assert!(wakes < 500, "{}: {wakes} wakes in a thousand turns without sleep", strategy.name());
        while !worker.retire() {
            worker.reactor.turn(&mut Vec::new(), || true).unwrap();
        }
    });
}
