//! A flow: a client's connection to the gateway, and that of the gateway to the destination.
//!
//! Guarantees: the destination's address tells the flow; the client's address tells its user. The bytes that
//! count are those of the destination's end, and those of the client's end without what the gateway itself
//! responds.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use crate::end::End;
use crate::plan::{FlowPlan, Kind};

/// A small receive buffer, in bytes.
const SMALL_BUFFER_BYTES: usize = 16 * 1024;

/// How long the connection to a busy gateway may take.
const CONNECT_MAX: Duration = Duration::from_secs(60);

/// A flow that was opened.
pub(crate) struct Flow {
    pub(crate) plan: FlowPlan,
    pub(crate) client: End,
    /// `None` until the gateway has connected.
    pub(crate) origin: Option<End>,
}

/// What the gateway responded.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Response {
    /// Nothing whole yet.
    None,
    /// The destination is connected, or has responded; behind so many bytes of the gateway's own.
    Open(u64),
    /// A quota is spent.
    Denied,
    /// Anything else.
    Other,
}

impl Flow {
    /// Connects to the gateway, for the destination at `target`.
    ///
    /// # Errors
    /// Those of connecting.
    pub(crate) fn open(
        plan: FlowPlan,
        from: Ipv4Addr,
        gateway: SocketAddr,
        target: SocketAddr,
    ) -> std::io::Result<Flow> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        if plan.client.has_small_buffer {
            socket.set_recv_buffer_size(SMALL_BUFFER_BYTES)?;
        }
        socket.bind(&SocketAddr::from((from, 0)).into())?;
        socket.connect_timeout(&gateway.into(), CONNECT_MAX)?;
        let (head, may_send) = match plan.kind {
            Kind::Tunnel { is_eager } => {
                (format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"), is_eager)
            }
            Kind::Request => {
                let length = plan.client.bytes;
                let head = format!(
                    "POST http://{target}/ HTTP/1.1\r\nHost: {target}\r\nContent-Length: {length}\r\n\
                     Connection: close\r\n\r\n"
                );
                (head, true)
            }
        };
        let client = End::new(socket.into(), plan.client, head.into_bytes(), may_send);
        Ok(Flow { plan, client, origin: None })
    }

    /// Attaches the gateway's connection to the destination.
    pub(crate) fn attach_origin(&mut self, stream: TcpStream) {
        let sends_at_once = self.plan.kind != Kind::Request;
        let end = End::new(stream, self.plan.origin, Vec::new(), sends_at_once);
        assert!(self.origin.replace(end).is_none(), "a flow has one connection to its destination");
    }

    /// Both ends.
    pub(crate) fn ends(&self) -> impl Iterator<Item = &End> {
        std::iter::once(&self.client).chain(&self.origin)
    }

    /// The same, to change them.
    pub(crate) fn ends_mut(&mut self) -> impl Iterator<Item = &mut End> {
        std::iter::once(&mut self.client).chain(&mut self.origin)
    }

    /// Reacts to what has arrived.
    pub(crate) fn proceed(&mut self) {
        match self.plan.kind {
            Kind::Tunnel { .. } => match self.response() {
                Response::Open(_) => self.client.may_send = true,
                // Without a tunnel nothing more is sent.
                Response::None if self.client.has_read_all() => self.client.stop_writing(),
                Response::None => {}
                Response::Denied | Response::Other => self.client.stop_writing(),
            },
            Kind::Request => self.proceed_request(),
        }
    }

    /// The destination responds to a whole request, and ends behind a cut one.
    fn proceed_request(&mut self) {
        let bytes = self.plan.client.bytes;
        if let Some(origin) = self.origin.as_mut().filter(|origin| !origin.may_send) {
            let head = head_bytes(&origin.first);
            if head.is_some_and(|head| origin.received == head + bytes) {
                let length = self.plan.origin.bytes;
                let head =
                    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
                origin.send(head.into_bytes());
            } else if origin.has_read_all() {
                origin.stop_writing();
            }
        }
    }

    /// What the gateway responded.
    pub(crate) fn response(&self) -> Response {
        let first = &self.client.first;
        let Some(head) = head_bytes(first) else { return Response::None };
        match (first.get(9..12), self.plan.kind) {
            (Some(b"200"), Kind::Tunnel { .. }) => Response::Open(head),
            // A head that the destination sent, and the gateway forwarded: it counts.
            (Some(b"200"), Kind::Request) => Response::Open(0),
            (Some(b"429"), _) => Response::Denied,
            _ => Response::Other,
        }
    }

    /// The bytes that count, up and down.
    pub(crate) fn counted(&self) -> (u64, u64) {
        let down = match self.response() {
            Response::Open(head) => self.client.received - head,
            Response::None | Response::Denied | Response::Other => 0,
        };
        (self.origin.as_ref().map_or(0, |origin| origin.received), down)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.ends().all(End::is_over)
    }
}

/// The length of a message's head with its empty line.
fn head_bytes(first: &[u8]) -> Option<u64> {
    first.windows(4).position(|bytes| bytes == b"\r\n\r\n").map(|at| at as u64 + 4)
}
