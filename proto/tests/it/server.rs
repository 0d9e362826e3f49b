//! A web server in memory: `hyper` parses the bytes that a client sends over one connection.
//!
//! hyper shares only the tokenizer (`httparse`) with the parsers under test.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use hyper::body::{Body as _, Incoming};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use proto::limits::HEADERS_MAX;

/// A request as a server receives it. Headers are sorted by name; equal names keep their order.
#[derive(Debug, PartialEq)]
pub(crate) struct ReceivedRequest {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
}

/// Every request that hyper finds in the bytes of one connection, or its error.
pub(crate) fn parse_with_hyper(bytes: &[u8]) -> Result<Vec<ReceivedRequest>, String> {
    let received = Rc::new(RefCell::new(Vec::new()));
    let service = service_fn(|request: Request<Incoming>| {
        let received = Rc::clone(&received);
        async move {
            let request = receive(request).await?;
            received.borrow_mut().push(request);
            Ok::<_, hyper::Error>(Response::new(String::new()))
        }
    });
    let mut builder = http1::Builder::new();
    builder.half_close(true).header_read_timeout(None).max_headers(2 * HEADERS_MAX);
    let mut connection = pin!(builder.serve_connection(Memory(bytes), service));
    // No I/O ever waits here, so polling again is enough where hyper woke its own task.
    for _ in 0..1000 {
        if let Poll::Ready(result) = connection.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return result.map(|()| received.take()).map_err(|error| error.to_string());
        }
    }
    Err("hyper waits for more bytes".to_owned())
}

/// A connection whose client has sent all bytes and reads none.
struct Memory<'a>(&'a [u8]);

impl Read for Memory<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let (now, later) = self.0.split_at(self.0.len().min(buffer.remaining()));
        buffer.put_slice(now);
        self.0 = later;
        Poll::Ready(Ok(()))
    }
}

impl Write for Memory<'_> {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

async fn receive(request: Request<Incoming>) -> Result<ReceivedRequest, hyper::Error> {
    let (parts, mut incoming) = request.into_parts();
    let mut body = Vec::new();
    while let Some(frame) = poll_fn(|context| Pin::new(&mut incoming).poll_frame(context)).await {
        body.extend_from_slice(frame?.data_ref().map_or(&[], |data| data));
    }
    let headers = parts.headers.iter();
    let mut headers: Vec<_> =
        headers.map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec())).collect();
    headers.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(ReceivedRequest { method: parts.method.to_string(), path: parts.uri.to_string(), headers, body })
}
