//! Buffers of a reactor thread, and the pools that reuse them.

mod read_buffer;

use std::cell::RefCell;

use zeroize::Zeroize;

pub(crate) use self::read_buffer::{ReadBuffer, grow};

use crate::limits::{
    CLIENT_BUFFER_BYTES_FIRST, READ_BUFFERS_POOLED_MAX, RESPONSE_BUFFER_BYTES, WRITE_BUFFERS_POOLED_MAX,
};

/// Free buffers for what clients send, at most [`READ_BUFFERS_POOLED_MAX`], of [`CLIENT_BUFFER_BYTES_FIRST`]
/// each.
#[derive(Default)]
pub(crate) struct ReadBufferPool(RefCell<Vec<Vec<u8>>>);

impl ReadBufferPool {
    /// An empty buffer.
    pub(crate) fn take(&self) -> Vec<u8> {
        self.0.borrow_mut().pop().unwrap_or_else(|| Vec::with_capacity(CLIENT_BUFFER_BYTES_FIRST))
    }

    /// Returns a buffer, its contents overwritten: they may have held a password.
    pub(crate) fn put(&self, mut buffer: Vec<u8>) {
        let mut free = self.0.borrow_mut();
        // A buffer that has grown for an unusual client is freed.
        if free.len() >= READ_BUFFERS_POOLED_MAX
            || !(1..=CLIENT_BUFFER_BYTES_FIRST).contains(&buffer.capacity())
        {
            buffer.zeroize();
            return;
        }
        // The buffer stays reachable, so the compiler keeps these stores: one memset in place of one volatile
        // write for each byte.
        buffer.clear();
        buffer.resize(buffer.capacity(), 0);
        std::hint::black_box(&mut buffer).clear();
        free.push(buffer);
    }
}

/// Free buffers for responses, at most [`WRITE_BUFFERS_POOLED_MAX`], of [`RESPONSE_BUFFER_BYTES`] each.
#[derive(Default)]
pub(crate) struct WriteBufferPool(RefCell<Vec<Vec<u8>>>);

impl WriteBufferPool {
    /// An empty buffer.
    pub(crate) fn take(&self) -> Vec<u8> {
        self.0.borrow_mut().pop().unwrap_or_else(|| Vec::with_capacity(RESPONSE_BUFFER_BYTES))
    }

    /// Returns a buffer.
    pub(crate) fn put(&self, mut buffer: Vec<u8>) {
        let mut free = self.0.borrow_mut();
        if free.len() < WRITE_BUFFERS_POOLED_MAX {
            buffer.clear();
            free.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pooled_buffer_is_empty_and_of_first_size() {
        let pool = ReadBufferPool::default();
        let mut buffer = pool.take();
        buffer.extend_from_slice(b"secret");
        pool.put(buffer);
        let buffer = pool.take();
        assert!(buffer.is_empty() && buffer.capacity() == CLIENT_BUFFER_BYTES_FIRST);
        pool.put(Vec::with_capacity(10 * CLIENT_BUFFER_BYTES_FIRST));
        assert_eq!(pool.take().capacity(), CLIENT_BUFFER_BYTES_FIRST);
    }
}
