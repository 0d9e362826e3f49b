//! Nine thousand idle tunnels: the memory of each in the gateway, and that all of it is released.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use super::{CONNECT, SOCKS5};
use crate::harness::{EVERY_CPU, Gateway, eventually};
use crate::peers::{Ingress, read_exactly};

const TUNNELS: usize = 9_000;
/// The rings have a fixed size, whatever the number of tunnels; this is more than they hold.
const WARM_UP_TUNNELS: usize = 6_000;
const TUNNEL_BYTES_MAX: u64 = 1024;
/// Far longer than the ledger and the log take for their queues.
const SETTLE_TIME: Duration = Duration::from_secs(2);

#[test]
#[ignore = "opens 36,000 sockets: cargo xtask services"]
fn nine_thousand_idle_tunnels_cost_a_kibibyte_each() {
    // Both ends of both connections: this process holds as many as the gateway.
    sys::limits::raise_descriptors().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut gateway = start(&listener);
    let cold_bytes = gateway.resident_bytes();
    // One after another, so that every slot of the rings to ledger and log was used.
    (0..WARM_UP_TUNNELS).for_each(|_| drop(open_all(&gateway, &listener, 1)));
    thread::sleep(SETTLE_TIME);
    let before = Resources::measure(&gateway);

    let (clients, upstreams) = open_all(&gateway, &listener, TUNNELS);
    thread::sleep(SETTLE_TIME);
    let idle = Resources::measure(&gateway);
    let each = idle.memory_bytes.saturating_sub(before.memory_bytes) / TUNNELS as u64;
    println!("{each} bytes for each of {TUNNELS} idle tunnels; {cold_bytes} cold, {before:?}, {idle:?}");
    assert_eq!(idle.descriptors, before.descriptors + 2 * TUNNELS);
    assert_eq!(idle.threads, before.threads);
    assert!(each <= TUNNEL_BYTES_MAX, "{each} bytes for each tunnel");

    drop(clients);
    for mut upstream in upstreams {
        assert_eq!(upstream.read(&mut [0]).unwrap(), 0, "the client's FIN was forwarded");
    }
    eventually("descriptors are closed again", || gateway.descriptors() == before.descriptors);
    gateway.stop();
    let flows = (WARM_UP_TUNNELS + TUNNELS) as u64;
    assert_eq!(gateway.usage_of("me"), (flows, flows, flows));
}

#[derive(Debug)]
struct Resources {
    memory_bytes: u64,
    descriptors: usize,
    threads: usize,
}

impl Resources {
    fn measure(gateway: &Gateway) -> Resources {
        let (memory_bytes, descriptors) = (gateway.resident_bytes(), gateway.descriptors());
        Resources { memory_bytes, descriptors, threads: gateway.threads() }
    }
}

fn start(listener: &TcpListener) -> Gateway {
    let limits = "[limits]\nconnections = 20_000\nconnections_per_user = 20_000\n";
    Gateway::forwarding(listener.local_addr().unwrap(), &format!("{EVERY_CPU}{limits}"))
}

/// Opens tunnels by all kinds of ingress, one after another; a byte passes each in both directions.
fn open_all(gateway: &Gateway, listener: &TcpListener, tunnels: usize) -> (Vec<TcpStream>, Vec<TcpStream>) {
    let server = listener.local_addr().unwrap();
    let pair = |number: usize| {
        let ingress = [Ingress::Forward, CONNECT, SOCKS5][number % 3];
        let mut client = ingress.open(gateway, server);
        let (mut upstream, _) = listener.accept().unwrap();
        pass_byte(&mut client, &mut upstream);
        pass_byte(&mut upstream, &mut client);
        (client, upstream)
    };
    (0..tunnels).map(pair).unzip()
}

fn pass_byte(from: &mut TcpStream, to: &mut TcpStream) {
    from.write_all(b"b").unwrap();
    assert_eq!(read_exactly(to, 1), b"b");
}
