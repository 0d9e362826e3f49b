//! Pipes, and moving a stream's pages through them without copying (`splice(2)`).
//!
//! Guarantees: a [`Pipe`] counts the bytes inside, which explains a `WouldBlock`: with an empty pipe the
//! source has no bytes, otherwise the pipe may be full.
//!
//! Not handled here: when splicing pays (`gateway`'s relay), and a bound on the number of pipes.

use std::io;
use std::os::fd::AsFd;

use crate::kernel::{self, Descriptor};

/// A pipe, and the number of bytes inside.
#[derive(Debug)]
pub struct Pipe {
    reader: Descriptor,
    writer: Descriptor,
    buffered: u32,
    /// The capacity that was asked for last, and not refused since.
    capacity: u32,
}

impl Pipe {
    /// A new, empty pipe of about `capacity` bytes. It may be smaller: an unprivileged process gets 8 KiB
    /// once its user has `fs.pipe-user-pages-soft` pages in pipes (see `pipe(7)`).
    ///
    /// # Errors
    /// `EMFILE` or `ENFILE`.
    pub fn new(capacity: u32) -> io::Result<Pipe> {
        let (reader, writer) = kernel::pipe()?;
        // It fails above `fs.pipe-max-size` or the user's page limit; the pipe then keeps its default size.
        let _ = kernel::set_pipe_capacity(writer.as_fd(), capacity);
        Ok(Pipe { reader, writer, buffered: 0, capacity })
    }

    /// Changes the capacity. After an error the pipe is as before.
    ///
    /// # Errors
    /// `EPERM` for more than `fs.pipe-max-size` or than `fs.pipe-user-pages-soft` leaves to the user, without
    /// privilege; `EBUSY` if the bytes inside need more; `ENOMEM`.
    pub fn resize(&mut self, capacity: u32) -> io::Result<()> {
        kernel::set_pipe_capacity(self.writer.as_fd(), capacity)?;
        self.capacity = capacity;
        Ok(())
    }

    /// The capacity in bytes, of which a page that is not full takes a whole one. The user's limits may have
    /// left a new pipe with less.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The number of bytes inside.
    pub fn buffered(&self) -> u32 {
        self.buffered
    }

    /// Moves up to `bytes_max` bytes from the stream `source` into the pipe; returns how many. Zero is the
    /// stream's end, or an urgent byte, past which splice cannot move: a read shows which.
    ///
    /// # Errors
    /// `WouldBlock` when the source has no bytes or the pipe is full; the stream's own errors.
    pub fn fill_from(&mut self, source: impl AsFd, bytes_max: usize) -> io::Result<usize> {
        let moved = retry(|| kernel::splice(source.as_fd(), self.writer.as_fd(), bytes_max))?;
        self.buffered += u32::try_from(moved).expect("splice moves at most the requested bytes");
        Ok(moved)
    }

    /// Moves up to `bytes_max` bytes from the pipe into the stream `sink`; returns how many. For sockets use
    /// [`crate::socket::Socket::send_from`].
    ///
    /// # Errors
    /// `WouldBlock` when the sink's buffer is full; the stream's own errors.
    pub(crate) fn drain_to(&mut self, sink: impl AsFd, bytes_max: usize) -> io::Result<usize> {
        let moved = retry(|| kernel::splice(self.reader.as_fd(), sink.as_fd(), bytes_max))?;
        self.buffered -= u32::try_from(moved).expect("splice moves at most the requested bytes");
        Ok(moved)
    }

    /// Moves the bytes inside to the end of `buffer`. If a read fails, the remaining bytes stay inside.
    pub fn drain_into(&mut self, buffer: &mut Vec<u8>) {
        buffer.reserve_exact(self.buffered as usize);
        while self.buffered > 0 {
            match retry(|| kernel::read_into_spare(self.reader.as_fd(), buffer)) {
                Ok(count @ 1..) => {
                    self.buffered -= u32::try_from(count).expect("a read returns at most `held`")
                }
                Ok(0) | Err(_) => break,
            }
        }
    }
}

fn retry(mut call: impl FnMut() -> rustix::io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn resized_pipe_keeps_its_bytes() {
        let (mut source, source_end) = UnixStream::pair().unwrap();
        source_end.set_nonblocking(true).unwrap();
        let mut pipe = Pipe::new(64 * 1024).unwrap();
        source.write_all(b"inside").unwrap();
        assert_eq!(pipe.fill_from(&source_end, 4096).unwrap(), 6);
        // To grow it may be refused: a user's processes share the pages of their pipes.
        pipe.resize(8 * 1024).unwrap();
        assert_eq!((pipe.capacity(), pipe.buffered()), (8 * 1024, 6));
        // More than the kernel has for any process.
        assert!(pipe.resize(u32::MAX).is_err());
        assert_eq!((pipe.capacity(), pipe.buffered()), (8 * 1024, 6));
        let mut emptied = Vec::new();
        pipe.drain_into(&mut emptied);
        assert_eq!(emptied, b"inside");
    }

    #[test]
    fn pipe_moves_bytes_and_counts_them() {
        let (mut source, source_end) = UnixStream::pair().unwrap();
        let (sink_end, mut sink) = UnixStream::pair().unwrap();
        source_end.set_nonblocking(true).unwrap();
        let mut pipe = Pipe::new(64 * 1024).unwrap();
        assert_eq!(pipe.fill_from(&source_end, 4096).unwrap_err().kind(), io::ErrorKind::WouldBlock);

        source.write_all(b"through the pipe").unwrap();
        assert_eq!(pipe.fill_from(&source_end, 4096).unwrap(), 16);
        assert_eq!(pipe.buffered(), 16);
        assert_eq!(pipe.drain_to(&sink_end, 7).unwrap(), 7);
        assert_eq!(pipe.buffered(), 9);
        assert_eq!(pipe.drain_to(&sink_end, 9).unwrap(), 9);
        assert_eq!(pipe.buffered(), 0);
        let mut received = [0; 16];
        sink.read_exact(&mut received).unwrap();
        assert_eq!(&received, b"through the pipe");

        source.write_all(b"out of the pipe").unwrap();
        assert_eq!(pipe.fill_from(&source_end, 4096).unwrap(), 15);
        let mut emptied = b"before: ".to_vec();
        pipe.drain_into(&mut emptied);
        assert_eq!((&emptied[..], pipe.buffered()), (&b"before: out of the pipe"[..], 0));

        drop(source);
        assert_eq!(pipe.fill_from(&source_end, 4096).unwrap(), 0);
    }
}
