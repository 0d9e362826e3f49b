//! Where a head ends, found incrementally.
//! Promises: each byte is looked at once however the head was split, and at most `HEAD_BYTES_MAX` are looked
//! at. Leaves to others: whether the head is well-formed (`request`, `response`).

use super::error::{HeadError, HeadTooLarge, RequestError};
use crate::limits::HEAD_BYTES_MAX;

/// Remembers how much of a growing buffer was searched. One scanner serves one head.
#[derive(Debug, Default)]
pub struct HeadScanner {
    /// Bytes already searched. line_start <= scanned <= HEAD_BYTES_MAX
    scanned: usize,
    /// Where the line that is still open begins.
    line_start: usize,
}

impl HeadScanner {
    /// The length of the head at the beginning of `buffer`, its closing empty line included, or `None` while
    /// that line has not arrived. Each call must pass the bytes of the calls before, with more behind them.
    ///
    /// A bare LF ends a line here: a client that sends those gets its error from the parser at once, where
    /// waiting for a CRLF would leave it hanging until the deadline.
    pub fn find(&mut self, buffer: &[u8]) -> Result<Option<usize>, HeadTooLarge> {
        let window = &buffer[..buffer.len().min(HEAD_BYTES_MAX)];
        while let Some(offset) = window[self.scanned..].iter().position(|&byte| byte == b'\n') {
            let line_feed = self.scanned + offset;
            let line = &window[self.line_start..line_feed];
            self.scanned = line_feed + 1;
            self.line_start = self.scanned;
            if matches!(line, b"" | b"\r") {
                return Ok(Some(self.scanned));
            }
        }
        self.scanned = window.len();
        if window.len() == HEAD_BYTES_MAX { Err(HeadTooLarge) } else { Ok(None) }
    }

    /// The same of a request, whose first line has errors of its own for what is too long in it (RFC 9112,
    /// section 3).
    pub fn find_request(&mut self, buffer: &[u8]) -> Result<Option<usize>, RequestError> {
        self.find(buffer).map_err(|error| match &buffer[..HEAD_BYTES_MAX] {
            _ if self.line_start > 0 => HeadError::from(error).into(),
            line if line.contains(&b' ') => RequestError::UriTooLong,
            _ => RequestError::MethodTooLong,
        })
    }
}
