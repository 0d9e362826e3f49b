//! A connection of either end of the echo: a socket, its registration, received bytes and bytes to be sent.
//!
//! Guarantees: frames that arrive together are read together, answers of one pass are sent together, and no
//! call is tried that is known to block.

use std::io;
use std::rc::Rc;

use anyhow::{Result, ensure};
use engine::reactor::{Interest, RawToken, Reactor, Registration, WakeTarget};
use sys::epoll::{Readiness, StreamEnd};
use sys::socket::Socket;

use super::CALLS_PER_CONNECTION;
use super::frame::{self, FRAME_BYTES_MAX, Frame};

/// Capacity for the bytes of one read, and for bytes that wait to be sent.
const BUFFER_BYTES: usize = 4_096;

// No more than a connection's calls are ever on the wire, so a peer that sends more is not an end of the
// echo.
const _: () = assert!(BUFFER_BYTES >= CALLS_PER_CONNECTION * FRAME_BYTES_MAX);

pub(super) struct FramedStream {
    socket: Socket,
    registration: Registration,
    /// Received and not parsed: less than a frame between two wakes.
    input: Vec<u8>,
    output: Vec<u8>,
}

/// Whether more bytes will arrive.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Stream {
    Open,
    Ended,
}

impl FramedStream {
    /// A connection whose events come with `tag`.
    ///
    /// # Errors
    /// As `Registration::new`.
    pub(super) fn new(reactor: &Reactor, socket: Socket, tag: RawToken) -> io::Result<Self> {
        let registration = Registration::new(reactor, &socket, Interest::Read, WakeTarget::Token(tag))?;
        let (input, output) = (Vec::with_capacity(BUFFER_BYTES), Vec::with_capacity(BUFFER_BYTES));
        Ok(Self { socket, registration, input, output })
    }

    /// Reads what `readiness` promises, and passes each frame to `each` with the buffer for its answer.
    ///
    /// # Errors
    /// An error of the stream, a wrong frame, or an error of `each`.
    pub(super) fn receive(
        &mut self,
        readiness: Readiness,
        mut each: impl FnMut(Frame<'_>, &mut Vec<u8>) -> Result<()>,
    ) -> Result<Stream> {
        let mut has_more = readiness.readable;
        while has_more {
            let free = self.input.capacity() - self.input.len();
            match self.socket.recv_into_spare(&mut self.input) {
                Ok(0) => return Ok(Stream::Ended),
                Ok(count) => has_more = count == free || readiness.end != StreamEnd::Open,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
            let mut taken = 0;
            while let Some(frame) = frame::first(&self.input[taken..])? {
                taken += frame.bytes();
                each(frame, &mut self.output)?;
            }
            self.input.drain(..taken);
        }
        Ok(Stream::Open)
    }

    /// The buffer of frames for `flush`.
    pub(super) fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Sends the buffer as far as the kernel accepts it, and registers for more. Returns whether all is sent.
    ///
    /// # Errors
    /// An error of the stream, or the peer does not read.
    pub(super) fn flush(&mut self, reactor: &Reactor) -> Result<bool> {
        ensure!(self.output.len() <= BUFFER_BYTES, "the peer does not read its frames");
        if self.output.is_empty() {
            return Ok(true);
        }
        match self.socket.send(&self.output) {
            Ok(sent) => drop(self.output.drain(..sent)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        if !self.output.is_empty() {
            self.registration.report_writable(reactor, &self.socket)?;
        }
        Ok(self.output.is_empty())
    }

    /// Ends the connection.
    pub(super) fn close(self, reactor: &Rc<Reactor>) {
        reactor.forget(self.registration.key());
    }
}
