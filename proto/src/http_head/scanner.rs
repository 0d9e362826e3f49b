//! The incremental search for the end of a head.
//!
//! Guarantees: each byte is scanned once, however the head is split, and at most `HEAD_BYTES_MAX` are
//! scanned.
//!
//! Not handled here: the syntax of the head (`request`, `response`).

use super::error::{HeadError, HeadTooLarge, RequestError};
use crate::limits::HEAD_BYTES_MAX;

/// The position of the search in a growing buffer. One scanner serves one head.
#[derive(Debug, Default)]
pub struct HeadScanner {
    /// Bytes already searched. line_start <= scanned <= HEAD_BYTES_MAX
    scanned: usize,
    /// The start of the incomplete line.
    line_start: usize,
}

impl HeadScanner {
    /// The length of the head at the beginning of `buffer`, its closing empty line included, or `None` while
    /// that line is missing. Each call must pass the bytes of the previous calls, with more appended.
    ///
    /// A bare LF ends a line here: a client that sends those then gets its error from the parser at once.
    /// Waiting for a CRLF would let it wait until the deadline.
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

    /// As [`HeadScanner::find`] for a request, whose first line has errors of its own for an overlong method
    /// or URL (RFC 9112, section 3).
    pub fn find_request(&mut self, buffer: &[u8]) -> Result<Option<usize>, RequestError> {
        self.find(buffer).map_err(|error| match &buffer[..HEAD_BYTES_MAX] {
            _ if self.line_start > 0 => HeadError::from(error).into(),
            line if line.contains(&b' ') => RequestError::UriTooLong,
            _ => RequestError::MethodTooLong,
        })
    }
}
