//! Twenty thousand connections that end in every possible way: none leaves a resource in the gateway, and
//! every byte of every flow is billed.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::{CONNECT, SOCKS5};
use crate::harness::{EVERY_CPU, Gateway, eventually, forward};
use crate::peers::{Destination, Ingress, read_all, reset};

const CONNECTIONS: usize = 20_000;
const CLIENTS: usize = 16;
const MESSAGE: [u8; 100] = [b'm'; 100];
/// The first byte that makes the server reset the connection, instead of echoing.
const RESET: u8 = b'r';
/// Far longer than a connection takes to end after its client.
const SETTLE_TIME: Duration = Duration::from_secs(2);

/// The scenario of a connection. Each one that opens a flow sends one message.
#[derive(Clone, Copy, Debug)]
enum Scenario {
    /// Closes before it sends anything.
    Silent,
    /// Closes within the head of its request.
    Unfinished,
    /// Connects to the forward listener of another user and resets at once.
    Hasty,
    /// Half-closes, and reads the echo until its end.
    HalfClose(Ingress),
    /// Closes both directions, after reading the echo.
    Close(Ingress),
    /// Resets: closes with bytes unread.
    Reset(Ingress),
    /// Is reset by the server.
    ServerReset(Ingress),
}

const SCENARIOS: [Scenario; 16] = [
    Scenario::Silent,
    Scenario::Unfinished,
    Scenario::Hasty,
    Scenario::Hasty,
    Scenario::HalfClose(Ingress::Forward),
    Scenario::HalfClose(CONNECT),
    Scenario::HalfClose(SOCKS5),
    Scenario::HalfClose(Ingress::Forward),
    Scenario::Close(Ingress::Forward),
    Scenario::Close(CONNECT),
    Scenario::Reset(Ingress::Forward),
    Scenario::Reset(CONNECT),
    Scenario::Reset(SOCKS5),
    Scenario::ServerReset(Ingress::Forward),
    Scenario::ServerReset(CONNECT),
    Scenario::ServerReset(SOCKS5),
];

#[test]
#[ignore = "opens 40,000 connections: cargo xtask services"]
fn twenty_thousand_connections_leave_nothing() {
    let server = Destination::start(serve_client).address;
    let gateway = start(server);
    // Each one once, so that resources of the first use are held.
    SCENARIOS.iter().for_each(|scenario| run_scenario(*scenario, &gateway, server));
    thread::sleep(SETTLE_TIME);
    let (descriptors, threads) = (gateway.descriptors(), gateway.threads());

    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while let number @ 0..CONNECTIONS = next.fetch_add(1, Ordering::Relaxed) {
                    run_scenario(SCENARIOS[number % SCENARIOS.len()], &gateway, server);
                }
            });
        }
    });
    eventually("descriptors are closed again", || gateway.descriptors() == descriptors);
    assert_eq!(gateway.threads(), threads);
    check_bills(gateway);
}

fn check_bills(mut gateway: Gateway) {
    let scenarios =
        || SCENARIOS.into_iter().chain((0..CONNECTIONS).map(|number| SCENARIOS[number % SCENARIOS.len()]));
    let count = |wanted: fn(&Scenario) -> bool| scenarios().filter(wanted).count() as u64;
    let echoed = count(|scenario| {
        matches!(scenario, Scenario::HalfClose(_) | Scenario::Close(_) | Scenario::Reset(_))
    });
    let server_reset = count(|scenario| matches!(scenario, Scenario::ServerReset(_)));
    let hasty = count(|scenario| matches!(scenario, Scenario::Hasty));
    let message = MESSAGE.len() as u64;
    let flows = echoed + server_reset;
    gateway.stop();
    assert_eq!(gateway.usage_of("me"), (flows, flows * message, echoed * message));
    // A client that is gone before the destination is reached makes no flow.
    let (became, up, down) = gateway.usage_of("hasty");
    println!("{flows} flows as billed; {became} of {hasty} hasty connections became flows");
    assert!(became <= hasty && up == 0 && down == 0, "{became} {up} {down}");
}

fn start(server: SocketAddr) -> Gateway {
    let hasty = format!("[[user]]\nname = \"hasty\"\nallow = [\"{server}\"]\n");
    let listener = forward("127.0.0.3:0", server, "hasty");
    Gateway::forwarding(server, &format!("{EVERY_CPU}{listener}{hasty}"))
}

/// Runs one connection.
fn run_scenario(scenario: Scenario, gateway: &Gateway, server: SocketAddr) {
    let tunnel = |ingress: Ingress, first| {
        let mut stream = ingress.open(gateway, server);
        let mut message = MESSAGE;
        message[0] = first;
        stream.write_all(&message).unwrap();
        stream
    };
    match scenario {
        Scenario::Silent => drop(gateway.connect()),
        Scenario::Unfinished => gateway.connect().write_all(b"CONNECT a.example:4").unwrap(),
        Scenario::Hasty => reset(TcpStream::connect(gateway.listeners[2]).unwrap()),
        Scenario::HalfClose(ingress) => {
            let mut stream = tunnel(ingress, MESSAGE[0]);
            stream.shutdown(Shutdown::Write).unwrap();
            assert_eq!(read_all(&mut stream), MESSAGE);
        }
        Scenario::Close(ingress) => {
            let mut echo = MESSAGE;
            tunnel(ingress, MESSAGE[0]).read_exact(&mut echo).unwrap();
            assert_eq!(echo, MESSAGE);
        }
        Scenario::Reset(ingress) => {
            let stream = tunnel(ingress, MESSAGE[0]);
            let mut echo = MESSAGE;
            // Until all has arrived; none of it is read.
            while stream.peek(&mut echo).unwrap() < MESSAGE.len() {}
            reset(stream);
        }
        Scenario::ServerReset(ingress) => {
            let outcome = tunnel(ingress, RESET).read(&mut [0]);
            let kind = outcome.map_err(|error| error.kind());
            assert_eq!(kind, Err(ErrorKind::ConnectionReset), "a reset is forwarded as a reset");
        }
    }
}

/// Echoes a message, or resets the connection.
fn serve_client(mut stream: TcpStream) {
    // No timeout: a connection that the gateway should have ended is not ended from here.
    stream.set_read_timeout(None).unwrap();
    let mut message = MESSAGE;
    // A client that reset at once sends nothing.
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
