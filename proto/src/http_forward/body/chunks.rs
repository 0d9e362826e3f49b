//! The chunked transfer coding (RFC 9112, section 7.1), checked in transit.
//!
//! Guarantees: every byte of a frame follows the grammar, with CRLF and without spaces, so that every reader
//! finds the same chunks. Extensions, which have no meaning beyond a hop, are removed and bounded. Trailers
//! are bounded, and can change neither where the message ends nor which user may have it.

use super::{BodyError, Consumed};
use crate::http_head::{HeadError, KnownHeader, parse_lines};
use crate::limits::{CHUNK_EXTENSION_BYTES_MAX, CHUNK_SIZE_DIGITS_MAX, HEADERS_MAX, TRAILER_BYTES_MAX};

/// Names that are forbidden in trailers, besides the headers that a proxy interprets: they control access,
/// say how the body is read, or announce trailers.
const NOT_IN_TRAILERS: [&str; 8] = [
    "Authorization",
    "Content-Encoding",
    "Content-Range",
    "Content-Type",
    "Cookie",
    "Set-Cookie",
    "Trailer",
    "WWW-Authenticate",
];

/// The parser of a chunked body.
#[derive(Debug)]
pub(super) struct Chunks {
    state: State,
    /// The size of the chunk whose line is being read.
    size: u64,
    /// Bytes of extensions so far, in all chunks.
    extension_bytes: usize,
    /// Trailer lines as received, with the empty line at their end. <= TRAILER_BYTES_MAX
    trailer: Vec<u8>,
    /// Whether frames are removed too.
    dechunk: bool,
    /// Whether trailers are removed.
    drops_trailers: bool,
}

/// The next expected part. `...Return` expects CR, `...LineFeed` expects LF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A digit of the size, after this many digits.
    Size(u8),
    Extension,
    SizeLineFeed,
    Data,
    DataReturn,
    DataLineFeed,
    /// After the last chunk: the first byte of a trailer, or of the end.
    TrailerOrEnd,
    EndLineFeed,
    Trailer,
    Complete,
}

impl Chunks {
    pub(super) fn new(dechunk: bool) -> Self {
        let (state, trailer) = (State::Size(0), Vec::new());
        Self { state, size: 0, extension_bytes: 0, trailer, dechunk, drops_trailers: false }
    }

    pub(super) fn drop_trailers(&mut self) {
        self.drops_trailers = true;
    }

    /// Whether frames are removed too.
    pub(super) fn dechunks(&self) -> bool {
        self.dechunk
    }

    pub(super) fn is_complete(&self) -> bool {
        self.state == State::Complete
    }

    pub(super) fn take_trailers(&mut self) -> Vec<u8> {
        let trailers = if self.is_complete() { std::mem::take(&mut self.trailer) } else { Vec::new() };
        if self.dechunk { Vec::new() } else { trailers }
    }

    pub(super) fn consume(&mut self, bytes: &mut [u8]) -> Result<Consumed, BodyError> {
        let mut progress = Consumed::default();
        while progress.consumed < bytes.len() && !self.is_complete() {
            if self.state == State::Data {
                let available = bytes.len() - progress.consumed;
                let count = usize::try_from(self.size).map_or(available, |size| size.min(available));
                forward(bytes, &mut progress, count);
                self.size -= count as u64;
                if self.size == 0 {
                    self.state = State::DataReturn;
                }
                continue;
            }
            let is_forwarded = self.step(bytes[progress.consumed])?;
            if is_forwarded && !self.dechunk {
                forward(bytes, &mut progress, 1);
            } else {
                progress.consumed += 1;
            }
        }
        Ok(progress)
    }

    /// Takes one byte of a frame; returns whether it is forwarded.
    fn step(&mut self, byte: u8) -> Result<bool, BodyError> {
        self.state = match (self.state, byte) {
            (State::Size(digits), b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                if digits == CHUNK_SIZE_DIGITS_MAX {
                    return Err(BodyError::ChunkLineTooLong);
                }
                let digit =
                    char::from(byte).to_digit(16).expect("the pattern admits hexadecimal digits only");
                self.size = self.size * 16 + u64::from(digit);
                State::Size(digits + 1)
            }
            (State::Size(1..), b'\r') => State::SizeLineFeed,
            (State::Extension, b'\r') => State::SizeLineFeed,
            (State::Size(1..), b';') => {
                self.count_extension()?;
                self.state = State::Extension;
                return Ok(false);
            }
            (State::Extension, b'\t' | b' '..=b'~' | 0x80..) => {
                self.count_extension()?;
                return Ok(false);
            }
            (State::SizeLineFeed, b'\n') if self.size == 0 => State::TrailerOrEnd,
            (State::SizeLineFeed, b'\n') => State::Data,
            (State::DataReturn, b'\r') => State::DataLineFeed,
            (State::DataLineFeed, b'\n') => State::Size(0),
            (State::TrailerOrEnd, b'\r') => State::EndLineFeed,
            (State::EndLineFeed, b'\n') => State::Complete,
            (State::TrailerOrEnd | State::Trailer, byte) => {
                self.state = State::Trailer;
                return self.collect_trailer(byte).map(|()| false);
            }
            (State::DataReturn | State::DataLineFeed, _) => return Err(BodyError::ChunkEndMissing),
            (State::EndLineFeed, _) => return Err(BodyError::TrailerMalformed),
            _ => return Err(BodyError::ChunkSizeMalformed),
        };
        Ok(true)
    }

    fn count_extension(&mut self) -> Result<(), BodyError> {
        self.extension_bytes += 1;
        if self.extension_bytes > CHUNK_EXTENSION_BYTES_MAX {
            return Err(BodyError::ChunkLineTooLong);
        }
        Ok(())
    }

    fn collect_trailer(&mut self, byte: u8) -> Result<(), BodyError> {
        if self.trailer.len() == TRAILER_BYTES_MAX {
            return Err(BodyError::TrailerTooLong);
        }
        // Fails at once: a sender that ends lines in LF alone never sends the CRLF that ends the trailers.
        if byte == b'\n' && !self.trailer.ends_with(b"\r") {
            return Err(BodyError::TrailerMalformed);
        }
        self.trailer.push(byte);
        if self.trailer.ends_with(b"\r\n\r\n") {
            check_trailers(&self.trailer)?;
            if self.drops_trailers {
                self.trailer.drain(..self.trailer.len() - b"\r\n".len());
            }
            self.state = State::Complete;
        }
        Ok(())
    }
}

/// Keeps the next `count` bytes: moves them to the front if bytes before them were removed.
fn forward(bytes: &mut [u8], progress: &mut Consumed, count: usize) {
    if progress.forwarded < progress.consumed {
        bytes.copy_within(progress.consumed..progress.consumed + count, progress.forwarded);
    }
    progress.consumed += count;
    progress.forwarded += count;
}

/// Checks trailers. They are forwarded unchanged: regenerated lines could be longer, and exceed the limit of
/// a next hop that has the same one.
fn check_trailers(trailer: &[u8]) -> Result<(), BodyError> {
    let mut storage = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let lines = parse_lines(trailer, &mut storage).map_err(|error| match error {
        HeadError::TooManyHeaders => BodyError::TrailerTooLong,
        _ => BodyError::TrailerMalformed,
    })?;
    let is_forbidden = |line: &httparse::Header<'_>| {
        let is_listed = NOT_IN_TRAILERS.iter().any(|name| line.name.eq_ignore_ascii_case(name));
        is_listed || KnownHeader::from_name(line.name) != KnownHeader::Other
    };
    if lines.iter().any(is_forbidden) { Err(BodyError::TrailerForbidden) } else { Ok(()) }
}
