//! Tunnels: bytes arrive as sent, in both directions and to the last one; half-closes are forwarded; and the
//! bill is what the peers counted.

use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Mutex, mpsc};
use std::thread;

use rustix::net::SendFlags;

use crate::harness::{Gateway, STRATEGIES, eventually, kernel_sockets};
use crate::peers::{
    Destination, Ingress, ask_socks, check_echo, connect_request, echo, pattern, read_all, read_exactly,
    read_reply, read_response, reset, socks_request, tunnel,
};

const UP: usize = 7_654_321;
const DOWN: usize = 5_432_109;

const INGRESSES: [Ingress; 6] = [
    Ingress::Forward,
    Ingress::Connect("127.0.0.1"),
    Ingress::Connect("localhost"),
    Ingress::Socks5("127.0.0.1"),
    Ingress::Socks5("LocalHost"),
    Ingress::Socks5("::ffff:127.0.0.1"),
];

/// Sends the pattern of one seed and half-closes; meanwhile expects that of another, until its end.
fn exchange(mut stream: TcpStream, send: (u64, usize), expect: (u64, usize)) {
    let mut sender = stream.try_clone().unwrap();
    let sending = thread::spawn(move || {
        sender.write_all(&pattern(send.0, send.1)).unwrap();
        sender.shutdown(Shutdown::Write).unwrap();
    });
    let received = read_all(&mut stream);
    assert_eq!(received.len(), expect.1);
    assert!(received == pattern(expect.0, expect.1), "the bytes arrive as sent, in order");
    sending.join().unwrap();
}

/// A destination that exchanges patterns and reports each completion; a failure there fails the test.
fn exchanging() -> (Destination, mpsc::Receiver<()>) {
    let (done, completions) = mpsc::channel();
    let destination = Destination::start(move |stream| {
        exchange(stream, (2, DOWN), (1, UP));
        done.send(()).unwrap();
    });
    (destination, completions)
}

#[test]
fn megabytes_in_both_directions_are_billed_exactly() {
    let (destination, completions) = exchanging();
    let mut gateway = Gateway::forwarding(destination.address, "");
    for ingress in INGRESSES {
        exchange(ingress.open(&gateway, destination.address), (1, UP), (2, DOWN));
        completions.recv().unwrap();
    }
    gateway.stop();
    let flows = INGRESSES.len() as u64;
    assert_eq!(gateway.usage(), (flows, flows * UP as u64, flows * DOWN as u64));
}

#[test]
fn ipv6_destinations_are_reached() {
    // A machine without IPv6 skips the test.
    let Ok(listener) = TcpListener::bind("[::1]:0") else { return };
    let destination = Destination::on(listener, echo);
    let mut gateway = Gateway::local("");
    check_echo(&mut tunnel(&gateway, destination.address), b"by CONNECT");
    let (mut stream, reply) = ask_socks(&gateway, &socks_request("::1", destination.address.port()));
    assert_eq!(reply, 0);
    check_echo(&mut stream, b"by SOCKS5");
    drop(stream);
    gateway.stop();
    assert_eq!(gateway.usage(), (2, 19, 19));
}

#[test]
fn each_side_may_close_first_and_still_receive() {
    let destination = Destination::start(|mut stream| {
        // The first byte decides which side ends first.
        if read_exactly(&mut stream, 1) == b"c" {
            let received = read_all(&mut stream);
            stream.write_all(&received).unwrap();
        } else {
            stream.write_all(b"said first").unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            assert_eq!(read_all(&mut stream), b"said last");
        }
    });
    let gateway = Gateway::local("");

    let mut client = tunnel(&gateway, destination.address);
    client.write_all(b"call and be heard").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut client), b"all and be heard");
    gateway.check_closed(client.local_addr().unwrap(), "client_closed");

    let mut client = tunnel(&gateway, destination.address);
    client.write_all(b"u").unwrap();
    assert_eq!(read_all(&mut client), b"said first");
    client.write_all(b"said last").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    gateway.check_closed(client.local_addr().unwrap(), "upstream_closed");
}

#[test]
fn bytes_behind_a_request_follow_the_response() {
    let destination = Destination::echo();
    let mut gateway = Gateway::local("");
    let early = pattern(3, 12_000);
    let port = destination.address.port();

    let mut client = gateway.connect();
    let request = connect_request(&destination.address.to_string());
    client.write_all(&[request.as_bytes(), &early].concat()).unwrap();
    assert_eq!(read_response(&mut client).status, 200);
    assert!(read_exactly(&mut client, early.len()) == early);
    drop(client);

    // A client that waits for no response.
    let mut client = gateway.connect();
    client.write_all(&[&[5, 1, 0][..], &socks_request("127.0.0.1", port), &early].concat()).unwrap();
    assert_eq!(read_exactly(&mut client, 2), [5, 0]);
    assert_eq!(read_reply(&mut client), 0);
    assert!(read_exactly(&mut client, early.len()) == early);
    drop(client);

    gateway.stop();
    assert_eq!(gateway.usage(), (2, 24_000, 24_000), "requests and responses are not billed");
}

#[test]
fn only_the_urgent_byte_is_dropped() {
    let (report, reports) = mpsc::channel();
    let destination = Destination::start(move |mut stream| report.send(read_all(&mut stream)).unwrap());
    let mut gateway = Gateway::forwarding(destination.address, "");
    let mut up = 0;
    // A read stops short at the urgent mark, and splice(2) does not pass it. Neither is the end of the
    // stream.
    for (ingress, count) in INGRESSES.iter().flat_map(|ingress| [(ingress, 6), (ingress, 3_000_000)]) {
        let sent = pattern(8, count);
        let mut stream = ingress.open(&gateway, destination.address);
        stream.write_all(&sent).unwrap();
        rustix::net::send(&stream, b"!", SendFlags::OOB).unwrap();
        stream.write_all(&sent).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_all(&mut stream), b"");
        assert!(reports.recv().unwrap() == [&sent[..], &sent].concat(), "{ingress:?} {count}");
        up += 2 * count as u64;
    }
    gateway.stop();
    assert_eq!(gateway.usage(), (2 * INGRESSES.len() as u64, up, 0));
}

#[test]
fn client_half_closed_before_accept_is_served() {
    let destination = Destination::start(|mut stream| {
        let received = read_all(&mut stream);
        stream.write_all(&received).unwrap();
    });
    let mut gateway = Gateway::forwarding(destination.address, "");
    let sent = pattern(5, 100_000);
    let mut clients: Vec<TcpStream> =
        (0..50).map(|_| Ingress::Forward.open(&gateway, destination.address)).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.write_all(&sent[..number * 2_000]).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
    }
    for (number, mut client) in clients.into_iter().enumerate() {
        assert!(read_all(&mut client) == sent[..number * 2_000]);
    }
    gateway.stop();
    let bytes = (0..50).map(|number| number * 2_000).sum();
    assert_eq!(gateway.usage(), (50, bytes, bytes));
}

/// The number of connections to `address` that are established or about to be, accepted or not.
fn connections_to(address: SocketAddr) -> usize {
    const ESTABLISHED: u8 = 1;
    const SYN_RECV: u8 = 3;
    assert!(address.is_ipv4(), "{address} is not in the IPv4 table");
    let is_open = |&(local, state): &_| local == address && [ESTABLISHED, SYN_RECV].contains(&state);
    kernel_sockets().into_iter().filter(is_open).count()
}

#[test]
fn client_reset_before_accept_causes_no_dial() {
    const LEFT: usize = 20;
    let destination = Destination::echo();
    for strategy in STRATEGIES {
        let gateway = Gateway::forwarding(destination.address, strategy);
        let before = destination.accepted();
        // The kernel still completes connections.
        gateway.pause();
        (0..LEFT).for_each(|_| reset(TcpStream::connect(gateway.listeners[1]).unwrap()));
        // A busy kernel delivers them later, each CPU its own.
        eventually("all resets have arrived", || connections_to(gateway.listeners[1]) == 0);
        gateway.resume();
        check_echo(&mut Ingress::Forward.open(&gateway, destination.address), b"the next client is served");
        gateway.await_metric("tollgate_connections_active", 0.0);
        gateway.await_metric("tollgate_handshakes_active", 0.0);
        assert_eq!(destination.accepted() - before, 1, "{strategy}");
    }
}

#[test]
fn bytes_of_a_destination_that_speaks_first_arrive() {
    let destination = Destination::start(|mut stream| {
        stream.write_all(b"220 ready\r\n").unwrap();
        echo(stream);
    });
    let gateway = Gateway::forwarding(destination.address, "");
    for ingress in INGRESSES {
        let mut client = ingress.open(&gateway, destination.address);
        assert_eq!(read_exactly(&mut client, 11), b"220 ready\r\n");
        check_echo(&mut client, b"and goes on");
    }
}

#[test]
fn request_sent_byte_by_byte_is_served() {
    let destination = Destination::echo();
    let gateway = Gateway::local("");
    let one_by_one = |stream: &mut TcpStream, bytes: &[u8]| {
        stream.set_nodelay(true).unwrap();
        for byte in bytes {
            stream.write_all(&[*byte]).unwrap();
        }
    };

    let mut client = gateway.connect();
    one_by_one(&mut client, connect_request(&destination.address.to_string()).as_bytes());
    assert_eq!(read_response(&mut client).status, 200);
    check_echo(&mut client, b"by CONNECT");

    let mut client = gateway.connect();
    one_by_one(&mut client, &[5, 1, 0]);
    assert_eq!(read_exactly(&mut client, 2), [5, 0]);
    one_by_one(&mut client, &socks_request("localhost", destination.address.port()));
    assert_eq!(read_reply(&mut client), 0);
    check_echo(&mut client, b"by SOCKS5");
}

#[test]
fn stalled_receiver_stops_its_sender_without_loss() {
    check_backpressure(|_| {});
}

#[test]
fn urgent_byte_to_a_slow_receiver_loses_nothing() {
    // As long as the source never runs dry nothing shows that the byte was passed.
    check_backpressure(|client| {
        rustix::net::send(client, b"!", SendFlags::OOB).unwrap();
    });
}

/// Sends until the gateway reads no more, while the destination does not read, then sends the rest; calls
/// `act` once.
fn check_backpressure(action: fn(&TcpStream)) {
    let (go, may_read) = mpsc::channel::<()>();
    let (may_read, (report, reports)) = (Mutex::new(may_read), mpsc::channel());
    let destination = Destination::start(move |mut stream| {
        may_read.lock().unwrap().recv().unwrap();
        report.send(read_all(&mut stream)).unwrap();
    });
    let gateway = Gateway::local("");
    let mut client = tunnel(&gateway, destination.address);
    let sent = pattern(4, 40_000_000);
    let mut count = 500_000;
    client.write_all(&sent[..count]).unwrap();
    action(&client);
    client.set_nonblocking(true).unwrap();
    // Full means that nothing was taken for as long as the gateway needs to settle.
    let mut full = 0;
    eventually("the sender is stopped", || {
        match client.write(&sent[count..]) {
            Ok(taken) => (count, full) = (count + taken, 0),
            Err(_) => full += 1,
        }
        full > 20
    });
    // The sockets of a tunnel store some 20 MB at most.
    assert!(count < sent.len(), "the gateway does not buffer unread bytes without bound");
    client.set_nonblocking(false).unwrap();
    go.send(()).unwrap();
    client.write_all(&sent[count..]).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert!(reports.recv().unwrap() == sent);
}
