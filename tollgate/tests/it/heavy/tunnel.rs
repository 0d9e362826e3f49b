//! Tunnels opened by hand, where a test needs thousands of them or full speed.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

/// How a tunnel is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    /// A listener with a fixed destination: nothing is said.
    Forward,
    /// HTTP CONNECT.
    Connect,
    /// SOCKS5 without credentials.
    Socks5,
}

/// Opens a tunnel through the listener `by` to `to`, which is an IPv4 address, and awaits that it stands.
pub(crate) fn open(way: Way, by: SocketAddr, to: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(by).unwrap();
    match way {
        Way::Forward => {}
        Way::Connect => {
            write!(stream, "CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").unwrap();
            let answer = read_head(&mut stream);
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
        Way::Socks5 => ask_socks5(&mut stream, to),
    }
    stream
}

/// RFC 1928: no authentication, CONNECT, and an answer with an IPv4 address.
fn ask_socks5(stream: &mut TcpStream, to: SocketAddr) {
    let SocketAddr::V4(to) = to else { panic!("only IPv4 is spoken here") };
    stream.write_all(&[5, 1, 0]).unwrap();
    let mut method = [0; 2];
    stream.read_exact(&mut method).unwrap();
    assert_eq!(method, [5, 0]);
    let mut request = vec![5, 1, 0, 1];
    request.extend(to.ip().octets());
    request.extend(to.port().to_be_bytes());
    stream.write_all(&request).unwrap();
    let mut answer = [0; 10];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..4], [5, 0, 0, 1]);
}

/// Reads the head of an answer and not a byte more.
fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}
