//! Nine thousand idle tunnels: what each of them costs the gateway, and that nothing of it stays.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use super::gateway::{Gateway, Usage};
use super::tunnel::{Way, open};

const TUNNELS: usize = 9_000;
/// The rings have a size of their own, whatever the number of tunnels; this is more than they hold.
const WARM_UP_TUNNELS: usize = 6_000;
const TUNNEL_BYTES_MAX: u64 = 1024;
/// Far longer than the ledger and the log take for what they were handed.
const REST: Duration = Duration::from_secs(2);

#[test]
#[ignore = "opens 36,000 sockets: cargo xtask services"]
fn nine_thousand_idle_tunnels_cost_a_kibibyte_each() {
    // Both ends of both connections: this process holds as many as the gateway.
    sys::limits::raise_descriptors().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let gateway = start(&listener);
    let cold_bytes = gateway.memory_bytes();
    // One after the other, so that the slots of the rings to ledger and log have been used.
    (0..WARM_UP_TUNNELS).for_each(|_| drop(open_all(&gateway, &listener, 1)));
    thread::sleep(REST);
    let before = Figures::of(&gateway);

    let (clients, upstreams) = open_all(&gateway, &listener, TUNNELS);
    thread::sleep(REST);
    let idle = Figures::of(&gateway);
    let each = idle.memory_bytes.saturating_sub(before.memory_bytes) / TUNNELS as u64;
    println!("{each} bytes for each of {TUNNELS} idle tunnels; {cold_bytes} cold, {before:?}, {idle:?}");
    assert_eq!(idle.descriptors, before.descriptors + 2 * TUNNELS);
    assert_eq!(idle.threads, before.threads);
    assert!(each <= TUNNEL_BYTES_MAX, "{each} bytes for each tunnel");

    drop(clients);
    for mut upstream in upstreams {
        assert_eq!(upstream.read(&mut [0]).unwrap(), 0, "the client's end was passed on");
    }
    gateway.settles("descriptors", before.descriptors, Gateway::descriptors);
    let flows = (WARM_UP_TUNNELS + TUNNELS) as u64;
    assert_eq!(gateway.stop().usage("ci"), Usage { flows, up: flows, down: flows });
}

#[derive(Debug)]
struct Figures {
    memory_bytes: u64,
    descriptors: usize,
    threads: usize,
}

impl Figures {
    fn of(gateway: &Gateway) -> Figures {
        let (memory_bytes, descriptors) = (gateway.memory_bytes(), gateway.descriptors());
        Figures { memory_bytes, descriptors, threads: gateway.threads() }
    }
}

fn start(listener: &TcpListener) -> Gateway {
    let server = listener.local_addr().unwrap();
    Gateway::start(&format!(
        r#"
[[listener]]
address = "127.0.0.1:0"
[[listener]]
address = "127.0.0.2:0"
kind = "forward"
to = "{server}"
user = "ci"
[[user]]
name = "ci"
from = ["127.0.0.0/8"]
allow = ["{server}"]
connections = 20_000
[limits]
connections = 20_000
"#
    ))
}

/// Opens tunnels by all kinds of ingress, one after the other; a byte goes through each and comes back.
fn open_all(gateway: &Gateway, listener: &TcpListener, tunnels: usize) -> (Vec<TcpStream>, Vec<TcpStream>) {
    let (mixed, forward) = (gateway.listeners[0], gateway.listeners[1]);
    let server = listener.local_addr().unwrap();
    let pair = |number: usize| {
        let (way, by) = match number % 3 {
            0 => (Way::Forward, forward),
            1 => (Way::Connect, mixed),
            _ => (Way::Socks5, mixed),
        };
        let mut client = open(way, by, server);
        let (mut upstream, _) = listener.accept().unwrap();
        pass_byte(&mut client, &mut upstream);
        pass_byte(&mut upstream, &mut client);
        (client, upstream)
    };
    (0..tunnels).map(pair).unzip()
}

fn pass_byte(from: &mut TcpStream, to: &mut TcpStream) {
    from.write_all(b"b").unwrap();
    let mut read = [0];
    to.read_exact(&mut read).unwrap();
    assert_eq!(read, *b"b");
}
