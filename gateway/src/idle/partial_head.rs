//! The head of a next request, while it is incomplete and no task serves its connection.
//!
//! Promises: it is read and searched where it lies, each byte once, up to the bound of a head; its deadline
//! counts from its first byte; its bytes are wiped when it goes, for they may hold a password. Leaves to
//! others: where the connection waits meanwhile (`resting`), and what the head says (`request`).

use std::io;

use proto::http_head::HeadScanner;
use sys::clock::Nanos;
use sys::epoll::{Readiness, StreamEnd};
use sys::socket::Socket;
use zeroize::Zeroize;

use crate::client::grow_buffer;

/// See the file's header.
pub(crate) struct PartialHead {
    bytes: Vec<u8>,
    scanner: HeadScanner,
    asked_by: Nanos,
}

impl PartialHead {
    /// A head of which `bytes` have arrived, and which has to be complete at `asked_by`.
    pub(crate) fn new(bytes: Vec<u8>, asked_by: Nanos) -> PartialHead {
        PartialHead { bytes, scanner: HeadScanner::default(), asked_by }
    }

    /// When the request has to be complete.
    pub(crate) fn asked_by(&self) -> Nanos {
        self.asked_by
    }

    /// Whether nothing has arrived.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// What has arrived.
    pub(crate) fn into_bytes(mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// Reads what has arrived at `socket`, of which `told` says what is worth a try. Answers whether a task
    /// has to see to it: the head is complete, is none, or ends before its time.
    pub(crate) fn read_on(&mut self, socket: &Socket, told: &mut Readiness) -> bool {
        while told.readable {
            grow_buffer(&mut self.bytes);
            let room = self.bytes.capacity() - self.bytes.len();
            match socket.recv_into_spare(&mut self.bytes) {
                Ok(0) => return true,
                // As everywhere: a short read has emptied the socket, unless its end was announced.
                Ok(count) => told.readable = count == room || told.end != StreamEnd::Open,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => told.readable = false,
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
