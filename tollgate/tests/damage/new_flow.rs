//! A new flow through a gateway whose bytes are known, because both sides end in order.
//!
//! Guarantees: no call blocks for longer than [`TIMEOUT`].

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use crate::account::Line;
use crate::flow::{client_address, destination_address};

const TIMEOUT: Duration = Duration::from_secs(5);
const HEAD_BYTES_MAX: usize = 4096;

/// Runs flow `number` through `gateway`; returns its destination and its expected bill.
///
/// # Errors
/// The flow did not complete; how much it moved is not known.
pub(crate) fn new_flow(
    gateway: SocketAddr,
    number: u32,
    (up, down): (usize, usize),
) -> io::Result<(String, Line)> {
    let origin = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let to = SocketAddr::from((destination_address(number), origin.local_addr()?.port()));
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((client_address(number), 0)).into())?;
    socket.connect_timeout(&gateway.into(), TIMEOUT)?;
    let mut client = with_timeouts(socket.into())?;
    write!(client, "CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n")?;
    read_head(&mut client)?;
    // The gateway has connected to the origin before it responds.
    let (peer, _) = origin.accept()?;
    let mut peer = with_timeouts(peer)?;
    client.write_all(&vec![0x5a; up])?;
    client.shutdown(Shutdown::Write)?;
    let came_up = peer.read_to_end(&mut Vec::new())?;
    peer.write_all(&vec![0xa5; down])?;
    drop(peer);
    let came_down = client.read_to_end(&mut Vec::new())?;
    if (came_up, came_down) != (up, down) {
        return Err(io::Error::other(format!("{came_up} and {came_down} bytes arrived, of {up} and {down}")));
    }
    let line = Line { flows: 1, up: up as u64, down: down as u64, ..Line::default() };
    Ok((to.ip().to_string(), line))
}

fn with_timeouts(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

fn read_head(client: &mut TcpStream) -> io::Result<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && head.len() < HEAD_BYTES_MAX {
        client.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    match head.starts_with(b"HTTP/1.1 200") {
        true => Ok(()),
        false => Err(io::Error::other(format!("the gateway refuses the request: {}", head.escape_ascii()))),
    }
}
