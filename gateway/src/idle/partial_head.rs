//! The head of a next request, while it is incomplete and no task serves its connection.
//!
//! Guarantees: each byte is read and searched once, up to the bound of a head; the deadline counts from the
//! first byte; the bytes are overwritten when they are dropped, for they may hold a password.

use std::io;

use proto::http_head::HeadScanner;
use sys::clock::Nanos;
use sys::epoll::{Readiness, StreamEnd};
use sys::socket::Socket;
use zeroize::Zeroize;

use crate::buffers::grow;

/// The received part of a head.
pub(crate) struct PartialHead {
    bytes: Vec<u8>,
    scanner: HeadScanner,
    deadline: Nanos,
}

impl PartialHead {
    /// A head of which `bytes` have arrived, and which has to be complete at `deadline`.
    pub(crate) fn new(bytes: Vec<u8>, deadline: Nanos) -> PartialHead {
        PartialHead { bytes, scanner: HeadScanner::default(), deadline }
    }

    /// When the head has to be complete.
    pub(crate) fn deadline(&self) -> Nanos {
        self.deadline
    }

    /// Whether no byte has arrived.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The bytes that have arrived.
    pub(crate) fn into_bytes(mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// Reads from `socket` while `readiness` promises bytes. Returns whether a task has to serve the
    /// connection: the head is complete or malformed, or the stream has ended.
    pub(super) fn read_from(&mut self, socket: &Socket, readiness: &mut Readiness) -> bool {
        while readiness.readable {
            grow(&mut self.bytes);
            let capacity = self.bytes.capacity() - self.bytes.len();
            match socket.recv_into_spare(&mut self.bytes) {
                Ok(0) => return true,
                // A short read has emptied the socket, unless its end was announced.
                Ok(count) => {
                    readiness.readable = count == capacity || readiness.end != StreamEnd::Open;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => readiness.readable = false,
                Err(_) => return true,
            }
            if !matches!(self.scanner.find_request(&self.bytes), Ok(None)) {
                return true;
            }
        }
        false
    }
}

impl Drop for PartialHead {
    fn drop(&mut self) {
        self.bytes.zeroize();
    }
}
