//! The bytes that a client has sent and that no parser has consumed yet.
//!
//! Guarantees: bytes are kept in order and consumed once; the buffer never exceeds
//! [`CLIENT_BUFFER_BYTES_MAX`]; memory that held a password is overwritten before it moves or is freed.

use zeroize::Zeroize;

use crate::limits::{CLIENT_BUFFER_BYTES_FIRST, CLIENT_BUFFER_BYTES_MAX};

/// A growing buffer with a read position.
pub(crate) struct ReadBuffer {
    bytes: Vec<u8>,
    /// Bytes that were consumed. 0 <= consumed <= bytes.len()
    consumed: usize,
}

impl ReadBuffer {
    /// A buffer that holds `bytes`, none of them consumed.
    pub(crate) fn new(bytes: Vec<u8>) -> ReadBuffer {
        ReadBuffer { bytes, consumed: 0 }
    }

    /// The bytes that are not consumed.
    pub(crate) fn unread(&self) -> &[u8] {
        &self.bytes[self.consumed..]
    }

    /// The bytes that are not consumed, for a body that is decoded in place.
    pub(crate) fn unread_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.consumed..]
    }

    /// Whether every byte is consumed.
    pub(crate) fn is_drained(&self) -> bool {
        self.consumed == self.bytes.len()
    }

    /// Whether no byte was consumed.
    pub(crate) fn is_untouched(&self) -> bool {
        self.consumed == 0
    }

    /// Consumes the first `count` bytes of [`ReadBuffer::unread`].
    ///
    /// # Panics
    /// If there are fewer.
    pub(crate) fn consume(&mut self, count: usize) {
        assert!(count <= self.unread().len(), "only received bytes can be consumed");
        self.consumed += count;
    }

    /// Spare capacity behind the bytes, for a read: doubles a buffer that is full.
    ///
    /// # Panics
    /// If the buffer holds [`CLIENT_BUFFER_BYTES_MAX`] bytes: parsers fail at bounds below it.
    pub(crate) fn spare(&mut self) -> &mut Vec<u8> {
        grow(&mut self.bytes);
        &mut self.bytes
    }

    /// Spare capacity for one more read, which a drained buffer provides from its beginning.
    pub(crate) fn spare_if_drained(&mut self) -> &mut Vec<u8> {
        if self.is_drained() {
            self.bytes.clear();
            self.consumed = 0;
        }
        &mut self.bytes
    }

    /// Overwrites and removes the consumed bytes, so that the next request has the whole buffer.
    pub(crate) fn begin_request(&mut self) {
        self.bytes[..self.consumed].zeroize();
        self.bytes.drain(..self.consumed);
        self.consumed = 0;
    }

    /// Drops all bytes, consumed or not.
    pub(crate) fn clear(&mut self) {
        // Wiped before the memory may move: the bytes may hold a password.
        self.bytes.zeroize();
        self.consumed = 0;
    }

    /// Puts `bytes`, which were read behind a body, in place of the consumed ones: they belong to the next
    /// request.
    ///
    /// # Panics
    /// If bytes are unread: they precede a body's end.
    pub(crate) fn replace(&mut self, bytes: &[u8]) {
        assert!(self.is_drained(), "a body is read from the socket once the buffer is drained");
        self.clear();
        self.bytes.extend_from_slice(bytes);
    }

    /// The memory, for the pool of read buffers or a [`crate::idle::PartialHead`].
    pub(crate) fn into_bytes(mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for ReadBuffer {
    fn drop(&mut self) {
        self.bytes.zeroize();
    }
}

/// Doubles a full buffer by hand, so that the old memory is wiped: it may hold a password.
///
/// # Panics
/// If it holds [`CLIENT_BUFFER_BYTES_MAX`] bytes: parsers fail at bounds below it.
pub(crate) fn grow(buffer: &mut Vec<u8>) {
    if buffer.len() < buffer.capacity() {
        return;
    }
    assert!(buffer.len() < CLIENT_BUFFER_BYTES_MAX, "parsers fail at bounds below the buffer's");
    let capacity = (2 * buffer.capacity()).clamp(CLIENT_BUFFER_BYTES_FIRST, CLIENT_BUFFER_BYTES_MAX);
    let mut larger = Vec::with_capacity(capacity);
    larger.extend_from_slice(buffer);
    std::mem::replace(buffer, larger).zeroize();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unread_bytes_survive_growth_and_requests() {
        let mut buffer = ReadBuffer::new(Vec::with_capacity(4));
        for round in 0..100_u8 {
            buffer.spare().extend_from_slice(&[round; 40]);
            buffer.consume(if round == 0 { 10 } else { 40 });
            buffer.begin_request();
            assert_eq!(buffer.unread(), [round; 30], "30 bytes are always left");
        }
    }

    #[test]
    fn drained_buffer_is_reused() {
        let mut buffer = ReadBuffer::new(Vec::new());
        buffer.spare().extend_from_slice(b"head");
        buffer.consume(4);
        assert!(buffer.is_drained() && !buffer.is_untouched());
        buffer.spare_if_drained().extend_from_slice(b"next");
        assert!(buffer.unread() == b"next" && buffer.is_untouched());
        buffer.consume(4);
        buffer.replace(b"behind a body");
        assert_eq!(buffer.unread(), b"behind a body");
        buffer.clear();
        assert!(buffer.is_drained());
    }

    #[test]
    #[should_panic(expected = "parsers fail at bounds below")]
    fn buffer_is_bounded() {
        let mut buffer = ReadBuffer::new(vec![0; CLIENT_BUFFER_BYTES_MAX]);
        buffer.bytes.shrink_to_fit();
        buffer.spare();
    }
}
