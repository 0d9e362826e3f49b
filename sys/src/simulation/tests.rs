//! The simulated kernel against what Linux does.

use std::io::ErrorKind;
use std::time::Duration;

use super::*;
use crate::clock;
use crate::epoll::{Epoll, Events, StreamEnd, Trigger};
use crate::socket::{Connect, ListenOptions, Listener, Socket, SpeaksFirst};
use crate::splice::Pipe;

const OWN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 1));

fn enter() -> Entered {
    Simulation::enter(OWN, |bound| bound - 1)
}

/// Delivers everything that is on its way.
fn settle(simulation: &Simulation) {
    while let Some(next) = simulation.next_event() {
        simulation.advance(next);
    }
}

/// A connection from a peer: its end, and the process's.
fn pair(simulation: &Simulation) -> (Socket, Socket) {
    let listener = Listener::bind(SocketAddr::new(OWN, 3128), ListenOptions::plain(4)).unwrap();
    let address = listener.local().unwrap();
    let client = simulation.as_peer(PEER, || Socket::connect(address, SpeaksFirst::Unknown).unwrap());
    assert_eq!(client.continue_connect(address).unwrap(), Connect::InProgress);
    settle(simulation);
    assert_eq!(client.continue_connect(address).unwrap(), Connect::Established);
    let (server, peer) = listener.accept().unwrap();
    assert_eq!(peer, client.local().unwrap());
    (client, server)
}

#[test]
fn bytes_arrive_in_order_and_then_the_end() {
    let simulation = enter();
    let (client, server) = pair(&simulation);
    let mut buffer = [0; 64];
    assert_eq!(server.recv(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
    client.send(b"first ").unwrap();
    client.send(b"second").unwrap();
    client.shutdown_write().unwrap();
    settle(&simulation);
    assert_eq!(server.recv(&mut buffer).unwrap(), 12);
    assert_eq!(&buffer[..12], b"first second");
    assert_eq!(server.recv(&mut buffer).unwrap(), 0);
    assert_eq!(client.send(b"late").unwrap_err().kind(), ErrorKind::BrokenPipe);
}

#[test]
fn a_full_receiver_stops_its_sender() {
    let simulation = enter();
    let (client, server) = pair(&simulation);
    let block = vec![7; 1 << 20];
    let mut sent = 0;
    loop {
        match client.send(&block) {
            Ok(count) => sent += count,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                if simulation.next_event().is_none() {
                    break;
                }
                settle(&simulation);
            }
        }
    }
    assert!(sent > 0 && client.unacknowledged_bytes() > 0);
    let (mut received, mut buffer) = (0, vec![0; 1 << 20]);
    while let Ok(count) = server.recv(&mut buffer) {
        received += count;
        settle(&simulation);
    }
    assert_eq!((received, client.unacknowledged_bytes()), (sent, 0));
}

#[test]
fn close_with_unread_bytes_resets_the_peer() {
    let simulation = enter();
    let (client, server) = pair(&simulation);
    client.send(b"unread").unwrap();
    settle(&simulation);
    drop(server);
    settle(&simulation);
    assert_eq!(client.recv(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(client.recv(&mut [0; 8]).unwrap(), 0);
    assert_eq!(client.send(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
}

#[test]
fn edges_are_reported_once_for_each_arrival() {
    let simulation = enter();
    let (client, server) = pair(&simulation);
    let (epoll, mut events) = (Epoll::new().unwrap(), Events::with_capacity(4));
    epoll.add(&server, 5, Trigger::EdgeRead).unwrap();
    let mut wait = || {
        epoll.wait(&mut events, None).unwrap();
        events.iter().map(|event| (event.token, event.readiness.end)).collect::<Vec<_>>()
    };
    assert_eq!(wait(), []);
    assert_eq!(simulation.sleeps_until(), None);
    client.send(b"x").unwrap();
    settle(&simulation);
    assert!(simulation.has_events());
    assert_eq!(wait(), [(5, StreamEnd::Open)]);
    assert_eq!(wait(), [], "nothing arrived since");
    client.shutdown_write().unwrap();
    settle(&simulation);
    assert_eq!(wait(), [(5, StreamEnd::Ended)]);
    client.reset();
    settle(&simulation);
    assert_eq!(wait(), [(5, StreamEnd::Broken)]);
}

#[test]
fn addresses_without_a_listener_answer_by_their_route() {
    let simulation = enter();
    let outcome = |port, route| {
        let address = SocketAddr::new(PEER, port);
        simulation.set_route(address, route);
        let socket = Socket::connect(address, SpeaksFirst::Unknown).unwrap();
        let began = clock::monotonic();
        settle(&simulation);
        let error = socket.continue_connect(address).unwrap_err().kind();
        (error, clock::monotonic().since(began) > Duration::from_secs(60))
    };
    assert_eq!(outcome(1, Route::Refused), (ErrorKind::ConnectionRefused, false));
    assert_eq!(outcome(2, Route::Unreachable), (ErrorKind::HostUnreachable, false));
    assert_eq!(outcome(3, Route::Silent), (ErrorKind::TimedOut, true));
}

#[test]
fn pipes_move_bytes_between_streams() {
    let simulation = enter();
    let (client, server) = pair(&simulation);
    client.send(b"through").unwrap();
    settle(&simulation);
    let mut pipe = Pipe::new(4096).unwrap();
    assert_eq!(pipe.fill_from(&server, 100).unwrap(), 7);
    assert_eq!(server.send_from(&mut pipe, 100).unwrap(), 7);
    settle(&simulation);
    let mut buffer = [0; 16];
    assert_eq!(client.recv(&mut buffer).unwrap(), 7);
    assert_eq!(&buffer[..7], b"through");
}

#[test]
fn a_kill_before_or_after_a_call_ends_the_process() {
    for (moment, event) in [(KillMoment::BeforeCall, 0), (KillMoment::AfterCall, 4)] {
        let simulation = enter();
        let (client, server) = pair(&simulation);
        let is_told = Rc::new(Cell::new(false));
        let told = Rc::clone(&is_told);
        simulation.kill_at(simulation.calls() + 1, moment, move || told.set(true));
        assert!(!simulation.is_killed());
        assert!(server.send(b"last").is_err());
        assert!(simulation.is_killed() && is_told.get());
        assert!(server.send(b"never").is_err());
        drop(server);
        settle(&simulation);
        simulation.as_peer(PEER, || {
            let mut buffer = [0; 16];
            let count = client.recv(&mut buffer).unwrap();
            assert_eq!(count, event);
        });
        let sent = simulation.sent_streams();
        assert_eq!((sent.len(), sent[0].sent, sent[0].was_accepted), (1, event as u64, true));
    }
}

#[test]
fn descriptors_are_counted_until_they_are_closed() {
    let simulation = enter();
    let (client, server) = pair(&simulation);
    assert_eq!(simulation.open_descriptors(), 1, "the listener is closed, the client is a peer's");
    drop((client, server));
    assert_eq!(simulation.open_descriptors(), 0);
}
