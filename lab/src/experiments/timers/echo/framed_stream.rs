//! A connection as either end of the echo has it: a socket, its registration, what has arrived and what is to
//! be sent. Promises: what arrives together is read together, what is answered together is sent together, and
//! no call is tried that is known to block. Leaves to others: what frames mean.

use std::io;
use std::rc::Rc;

use anyhow::{Result, ensure};
use engine::reactor::{Interest, RawToken, Reactor, Registration, WakeTarget};
use sys::epoll::{Readiness, StreamEnd};
use sys::socket::Socket;

use super::CALLS_PER_CONNECTION;
use super::frame::{self, FRAME_BYTES_MAX, Frame};

/// Room for what arrives in one read, and for what waits to be sent.
const BUFFER_BYTES: usize = 4_096;

// No more than a connection's calls are ever on the wire, so a peer that sends more is none of ours.
const _: () = assert!(BUFFER_BYTES >= CALLS_PER_CONNECTION * FRAME_BYTES_MAX);

pub(super) struct FramedStream {
    socket: Socket,
    registration: Registration,
    /// Arrived and not taken: less than a frame between two wakes.
    input: Vec<u8>,
    output: Vec<u8>,
}

/// Whether there will be more.
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

    /// Reads what `readiness` promises, and hands each frame to `each` with the place for what it brings
    /// about.
    ///
    /// # Errors
    /// The stream's own, a frame that is none, or what `each` says.
    pub(super) fn receive(
        &mut self,
        readiness: Readiness,
        mut each: impl FnMut(Frame<'_>, &mut Vec<u8>) -> Result<()>,
    ) -> Result<Stream> {
        let mut has_more = readiness.readable;
        while has_more {
            let room = self.input.capacity() - self.input.len();
            match self.socket.recv_into_spare(&mut self.input) {
                Ok(0) => return Ok(Stream::Ended),
                Ok(count) => has_more = count == room || readiness.end != StreamEnd::Open,
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

    /// Where frames wait for `flush`.
    pub(super) fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Sends what waits, as far as the kernel takes it, and asks to be told when it takes more. Returns
    /// whether all is sent.
    ///
    /// # Errors
    /// The stream's own, or the peer does not read.
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
