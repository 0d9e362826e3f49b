//! Ten gigabytes in each direction at the same time: no byte is lost or moved, and the bill is what both
//! peers counted.

use std::net::{Shutdown, TcpListener};
use std::thread;

use super::stripes::{bytes, receive, send};
use super::{CONNECT, SOCKS5};
use crate::harness::{EVERY_CPU, Gateway};
use crate::peers::Ingress;

#[test]
#[ignore = "takes a minute or more: cargo xtask services"]
fn ten_gigabytes_each_way_through_forward() {
    check_bulk(Ingress::Forward);
}

#[test]
#[ignore = "takes a minute or more: cargo xtask services"]
fn ten_gigabytes_each_way_through_connect() {
    check_bulk(CONNECT);
}

#[test]
#[ignore = "takes a minute or more: cargo xtask services"]
fn ten_gigabytes_each_way_through_socks5() {
    check_bulk(SOCKS5);
}

fn check_bulk(ingress: Ingress) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap();
    let mut gateway = Gateway::forwarding(server, EVERY_CPU);
    let client = ingress.open(&gateway, server);
    let (upstream, _) = listener.accept().unwrap();
    let [up, down] = thread::scope(|scope| {
        let sources = [(&client, 1), (&upstream, 2)];
        let sources = sources.map(|(stream, kind)| {
            scope.spawn(move || {
                let sent = send(stream, kind);
                stream.shutdown(Shutdown::Write).unwrap();
                sent
            })
        });
        let sinks = [(&upstream, 1), (&client, 2)];
        let sinks = sinks.map(|(stream, kind)| scope.spawn(move || receive(stream, kind)));
        let sent = sources.map(|source| source.join().unwrap());
        assert_eq!(sinks.map(|sink| sink.join().unwrap()), sent, "{ingress:?}");
        sent
    });
    assert_eq!([up, down], [bytes(); 2]);
    gateway.stop();
    assert_eq!(gateway.usage_of("me"), (1, up, down), "{ingress:?}");
}
