//! Twenty thousand connections that end in every way there is, at once: nothing of them stays in the gateway,
//! and every byte of every flow is billed.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;

use super::gateway::{Gateway, Usage};
use super::tunnel::{Way, open};

const CONNECTIONS: usize = 20_000;
const CLIENTS: usize = 16;
const MESSAGE: [u8; 100] = [b'm'; 100];
/// The first byte that makes the server reset the connection, instead of echoing.
const RESET: u8 = b'r';
/// Far longer than a connection takes to end whose client is gone.
const REST: Duration = Duration::from_secs(2);

/// How a connection goes. Each one that opens a flow sends one message.
#[derive(Clone, Copy, Debug)]
enum Course {
    /// Closes before it says anything.
    Silent,
    /// Closes within the head of its request.
    Unfinished,
    /// Connects to the forward listener of another user and resets at once, known to nobody.
    Hasty,
    /// Half-closes, and reads the echo to its end.
    HalfClose(Way),
    /// Closes both directions, with the echo read.
    Close(Way),
    /// Resets: closes with bytes unread.
    Reset(Way),
    /// Is reset by the server.
    ServerReset(Way),
}

const COURSES: [Course; 16] = [
    Course::Silent,
    Course::Unfinished,
    Course::Hasty,
    Course::Hasty,
    Course::HalfClose(Way::Forward),
    Course::HalfClose(Way::Connect),
    Course::HalfClose(Way::Socks5),
    Course::HalfClose(Way::Forward),
    Course::Close(Way::Forward),
    Course::Close(Way::Connect),
    Course::Reset(Way::Forward),
    Course::Reset(Way::Connect),
    Course::Reset(Way::Socks5),
    Course::ServerReset(Way::Forward),
    Course::ServerReset(Way::Connect),
    Course::ServerReset(Way::Socks5),
];

#[test]
#[ignore = "opens 40,000 connections: cargo xtask services"]
fn nothing_stays_of_twenty_thousand_connections() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap();
    thread::spawn(move || serve(&listener));
    let gateway = start(server);
    // One of each, so that what is opened at first use is open.
    COURSES.iter().for_each(|course| go(*course, &gateway, server));
    thread::sleep(REST);
    let (descriptors, threads) = (gateway.descriptors(), gateway.threads());

    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while let number @ 0..CONNECTIONS = next.fetch_add(1, Ordering::Relaxed) {
                    go(COURSES[number % COURSES.len()], &gateway, server);
                }
            });
        }
    });
    gateway.settles("descriptors", descriptors, Gateway::descriptors);
    assert_eq!(gateway.threads(), threads);
    check_bills(gateway);
}

fn check_bills(gateway: Gateway) {
    let courses =
        || COURSES.into_iter().chain((0..CONNECTIONS).map(|number| COURSES[number % COURSES.len()]));
    let count = |wanted: fn(&Course) -> bool| courses().filter(wanted).count() as u64;
    let echoed = count(|course| matches!(course, Course::HalfClose(_) | Course::Close(_) | Course::Reset(_)));
    let server_reset = count(|course| matches!(course, Course::ServerReset(_)));
    let hasty = count(|course| matches!(course, Course::Hasty));
    let message = MESSAGE.len() as u64;
    let flows = echoed + server_reset;
    let stopped = gateway.stop();
    assert_eq!(stopped.usage("ci"), Usage { flows, up: flows * message, down: echoed * message });
    // A client that is gone before the destination is reached makes no flow.
    let usage = stopped.usage("hasty");
    println!("{flows} flows as billed; {} of {hasty} hasty connections became flows", usage.flows);
    assert!(usage.flows <= hasty && usage.up == 0 && usage.down == 0, "{usage:?}");
}

fn start(server: SocketAddr) -> Gateway {
    Gateway::start(&format!(
        r#"
[[listener]]
address = "127.0.0.1:0"
[[listener]]
address = "127.0.0.2:0"
kind = "forward"
to = "{server}"
user = "ci"
[[listener]]
address = "127.0.0.3:0"
kind = "forward"
to = "{server}"
user = "hasty"
[[user]]
name = "ci"
from = ["127.0.0.0/8"]
allow = ["{server}"]
[[user]]
name = "hasty"
allow = ["{server}"]
"#
    ))
}

/// Takes one connection on its course.
fn go(course: Course, gateway: &Gateway, server: SocketAddr) {
    let [mixed, forward, hasty] = gateway.listeners[..] else { panic!("three listeners are configured") };
    let by = |way| if matches!(way, Way::Forward) { forward } else { mixed };
    let tunnel = |way, first| {
        let mut stream = open(way, by(way), server);
        let mut message = MESSAGE;
        message[0] = first;
        stream.write_all(&message).unwrap();
        stream
    };
    match course {
        Course::Silent => drop(TcpStream::connect(mixed).unwrap()),
        Course::Unfinished => TcpStream::connect(mixed).unwrap().write_all(b"CONNECT a.example:4").unwrap(),
        Course::Hasty => reset(TcpStream::connect(hasty).unwrap()),
        Course::HalfClose(way) => {
            let mut stream = tunnel(way, MESSAGE[0]);
            stream.shutdown(Shutdown::Write).unwrap();
            let mut echo = Vec::new();
            stream.read_to_end(&mut echo).unwrap();
            assert_eq!(echo, MESSAGE);
        }
        Course::Close(way) => {
            let mut echo = MESSAGE;
            tunnel(way, MESSAGE[0]).read_exact(&mut echo).unwrap();
            assert_eq!(echo, MESSAGE);
        }
        Course::Reset(way) => {
            let stream = tunnel(way, MESSAGE[0]);
            let mut echo = MESSAGE;
            // Until all has arrived; none of it is taken.
            while stream.peek(&mut echo).unwrap() < MESSAGE.len() {}
            reset(stream);
        }
        Course::ServerReset(way) => {
            let outcome = tunnel(way, RESET).read(&mut [0]);
            let kind = outcome.map_err(|error| error.kind());
            assert_eq!(kind, Err(ErrorKind::ConnectionReset), "a reset is passed on as a reset");
        }
    }
}

/// Ends a connection by RST.
fn reset(stream: TcpStream) {
    set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
}

/// Echoes, or resets, each connection on a thread of its own.
fn serve(listener: &TcpListener) {
    for stream in listener.incoming() {
        thread::spawn(move || answer(stream.unwrap()));
    }
}

fn answer(mut stream: TcpStream) {
    let mut message = MESSAGE;
    // A client that went away at once sends nothing.
    if stream.read_exact(&mut message).is_err() {
        return;
    }
    if message[0] == RESET {
        return reset(stream);
    }
    stream.write_all(&message).unwrap();
    // Its end or its reset.
    let _ = stream.read(&mut [0]);
}
