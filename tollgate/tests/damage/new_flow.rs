//! A visit: one new flow through a gateway whose bytes are known, for it ends in order on both sides.
//!
//! Promises: no call waits for more than some seconds. Leaves to others: whether it is billed.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use crate::account::Line;
use crate::flow::{client_address, destination_address};

const TIMEOUT: Duration = Duration::from_secs(5);
const HEAD_BYTES_MAX: usize = 4096;

/// Goes through `gateway` as flow `number`; its destination and what is to be billed for it.
///
/// # Errors
/// It was not let through to its end; what of it was moved is not known.
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
    // The gateway has reached the origin before it says so.
    let (peer, _) = origin.accept()?;
    let mut peer = with_timeouts(peer)?;
    client.write_all(&vec![0x5a; up])?;
    client.shutdown(Shutdown::Write)?;
    let came_up = peer.read_to_end(&mut Vec::new())?;
    peer.write_all(&vec![0xa5; down])?;
    drop(peer);
    let came_down = client.read_to_end(&mut Vec::new())?;
    if (came_up, came_down) != (up, down) {
        return Err(io::Error::other(format!("{came_up} and {came_down} bytes came, of {up} and {down}")));
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
        false => Err(io::Error::other(format!("the gateway refuses: {}", head.escape_ascii()))),
    }
}
