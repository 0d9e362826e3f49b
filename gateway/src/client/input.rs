//! Reading from a client: heads, and bodies that are discarded.

use proto::http_head::{HeadScanner, RequestError};

use super::{Client, HandshakeError};
use crate::limits::LINGER_BYTES_MAX;

impl Client {
    /// Waits until a whole head has arrived; returns its length.
    ///
    /// # Errors
    /// The head is too long, or the client closed.
    pub(crate) async fn await_head(&mut self) -> Result<usize, HandshakeError> {
        let mut scanner = HeadScanner::default();
        loop {
            match self.find_head(&mut scanner)? {
                Some(length) => return Ok(length),
                None => self.read_more().await?,
            }
        }
    }

    /// The length of the head that has arrived; `None` while it is incomplete. To be called at a request's
    /// beginning.
    ///
    /// # Errors
    /// The head is too long, or the client closed.
    pub(crate) fn available_head(&mut self) -> Result<Option<usize>, HandshakeError> {
        let mut scanner = HeadScanner::default();
        loop {
            if let Some(length) = self.find_head(&mut scanner)? {
                return Ok(Some(length));
            }
            match self.stream.read_now(self.input.spare()) {
                Ok(None) => return Ok(None),
                Ok(Some(0)) | Err(_) => return Err(HandshakeError::ClientClosed),
                Ok(Some(_)) => {}
            }
        }
    }

    fn find_head(&mut self, scanner: &mut HeadScanner) -> Result<Option<usize>, RequestError> {
        // Before the head can turn out malformed: the denial of a HEAD has no body either.
        if self.input.unread().starts_with(b"HEAD ") {
            self.reply_protocol.set_head();
        }
        scanner.find_request(self.input.unread())
    }

    /// Whether the head that has arrived requests a tunnel.
    pub(crate) fn requests_tunnel(&self) -> bool {
        self.input.unread().starts_with(b"CONNECT ")
    }

    /// Waits for more bytes.
    ///
    /// # Errors
    /// [`HandshakeError::ClientClosed`] at the stream's end or failure.
    ///
    /// # Panics
    /// If the buffer is full: parsers fail at bounds below it.
    pub(crate) async fn read_more(&mut self) -> Result<(), HandshakeError> {
        match self.stream.read(self.input.spare()).await {
            Ok(0) | Err(_) => Err(HandshakeError::ClientClosed),
            Ok(_) => Ok(()),
        }
    }

    /// Reads what has arrived, without waiting. Returns whether anything has: bytes, or the end, which stays
    /// to be read.
    ///
    /// # Errors
    /// [`HandshakeError::ClientClosed`] at the stream's failure.
    pub(crate) fn read_available(&mut self) -> Result<bool, HandshakeError> {
        let read = self.stream.read_now(self.input.spare_if_drained());
        Ok(read.map_err(|_| HandshakeError::ClientClosed)?.is_some())
    }

    /// Discards the next `remaining` bytes: the body of a request to which the response is the gateway's own.
    ///
    /// # Errors
    /// [`HandshakeError::ClientClosed`] at the stream's end or failure.
    pub(crate) async fn discard_body(&mut self, mut remaining: u64) -> Result<(), HandshakeError> {
        loop {
            let available = self.input.unread().len();
            let count = usize::try_from(remaining).map_or(available, |remaining| remaining.min(available));
            self.input.consume(count);
            remaining -= count as u64;
            if remaining == 0 {
                return Ok(());
            }
            self.input.clear();
            self.read_more().await?;
        }
    }

    /// Discards all input, until the client closes or `discarded` reaches [`LINGER_BYTES_MAX`].
    pub(super) async fn discard_input(&mut self, discarded: &mut usize) -> Result<(), HandshakeError> {
        while *discarded < LINGER_BYTES_MAX {
            self.input.clear();
            self.read_more().await?;
            *discarded += self.input.unread().len();
        }
        Ok(())
    }
}
