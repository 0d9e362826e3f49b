//! A body in transit: finds its end while its bytes pass through.
//!
//! Guarantees: taken bytes belong to the body, and kept bytes are forwarded. Any split of the input keeps the
//! same bytes.

mod chunks;

use chunks::Chunks;

use crate::http_head::Framing;

/// Why a body cannot be forwarded; its sender's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// The connection ended before the body did.
    #[error("the body ends too early")]
    Truncated,
    /// Not a hexadecimal number followed by CRLF or an extension.
    #[error("the size of a chunk is malformed")]
    ChunkSizeMalformed,
    /// Too many digits in a chunk's size, or too many bytes of extensions in the body.
    #[error("the line of a chunk's size is too long")]
    ChunkLineTooLong,
    /// A chunk's data is not followed by CRLF.
    #[error("a chunk does not end where its size says")]
    ChunkEndMissing,
    /// Trailers of more than `TRAILER_BYTES_MAX` bytes, or of too many lines.
    #[error("the trailers are too long")]
    TrailerTooLong,
    /// Trailers whose lines are malformed.
    #[error("a trailer is malformed")]
    TrailerMalformed,
    /// A trailer that would change the meaning of the head (RFC 9110, section 6.5.1).
    #[error("a trailer has a name that is allowed in a head only")]
    TrailerForbidden,
}

/// The state of a body in transit.
#[derive(Debug)]
pub struct Body(State);

#[derive(Debug)]
enum State {
    /// This many bytes are missing.
    Length(u64),
    /// Boxed, since few bodies are chunked.
    Chunked(Box<Chunks>),
    UntilClose,
    Complete,
}

/// What [`Body::consume`] did with its input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Consumed {
    /// The number of leading bytes that belong to the body. The following ones belong to another message.
    pub consumed: usize,
    /// How many of them are forwarded: they are at the front now. forwarded <= consumed
    pub forwarded: usize,
}

impl Body {
    /// The body of a message with this framing.
    pub fn new(framing: Framing) -> Self {
        Self(match framing {
            Framing::None | Framing::Length(0) => State::Complete,
            Framing::Length(remaining) => State::Length(remaining),
            Framing::Chunked => State::Chunked(Box::new(Chunks::new(false))),
            Framing::UntilClose => State::UntilClose,
        })
    }

    /// As [`Body::new`], for a receiver without chunked coding: only the data of chunks is forwarded.
    pub fn dechunked(framing: Framing) -> Self {
        match framing {
            Framing::Chunked => Self(State::Chunked(Box::new(Chunks::new(true)))),
            framing => Self::new(framing),
        }
    }

    /// The same body without its trailers: they are checked and not forwarded.
    #[must_use]
    pub fn without_trailers(mut self) -> Self {
        if let State::Chunked(chunks) = &mut self.0 {
            chunks.drop_trailers();
        }
        self
    }

    /// Takes the next bytes, as far as they belong to the body.
    ///
    /// # Errors
    /// The framing is malformed. Bytes that were kept before may be forwarded already.
    pub fn consume(&mut self, bytes: &mut [u8]) -> Result<Consumed, BodyError> {
        let all = |count: usize| Consumed { consumed: count, forwarded: count };
        match &mut self.0 {
            State::Complete => Ok(all(0)),
            State::UntilClose => Ok(all(bytes.len())),
            State::Length(remaining) => {
                let count =
                    usize::try_from(*remaining).map_or(bytes.len(), |remaining| remaining.min(bytes.len()));
                *remaining -= count as u64;
                if *remaining == 0 {
                    self.0 = State::Complete;
                }
                Ok(all(count))
            }
            State::Chunked(chunks) => chunks.consume(bytes),
        }
    }

    /// How many bytes to read next, at most `max`: for a body of known length, none beyond its end.
    pub fn read_limit(&self, max: usize) -> usize {
        match &self.0 {
            State::Length(remaining) => {
                usize::try_from(*remaining).map_or(max, |remaining| remaining.min(max))
            }
            _ => max,
        }
    }

    /// Whether only its bytes show where it ends, so that a read may go beyond the end.
    pub fn is_chunked(&self) -> bool {
        matches!(self.0, State::Chunked(_))
    }

    /// Whether its receiver takes the end of the connection for that of the body.
    pub fn ends_with_connection(&self) -> bool {
        match &self.0 {
            State::UntilClose => true,
            State::Chunked(chunks) => chunks.dechunks(),
            State::Length(_) | State::Complete => false,
        }
    }

    /// The trailers, which are forwarded after the last kept byte. Empty at the second call.
    pub fn take_trailers(&mut self) -> Vec<u8> {
        match &mut self.0 {
            State::Chunked(chunks) => chunks.take_trailers(),
            _ => Vec::new(),
        }
    }

    /// Whether its end is reached.
    pub fn is_complete(&self) -> bool {
        match &self.0 {
            State::Complete => true,
            State::Chunked(chunks) => chunks.is_complete(),
            State::Length(_) | State::UntilClose => false,
        }
    }

    /// Reports the end of the connection.
    ///
    /// # Errors
    /// [`BodyError::Truncated`] if the body is incomplete.
    pub fn end(&mut self) -> Result<(), BodyError> {
        if matches!(self.0, State::UntilClose) {
            self.0 = State::Complete;
        }
        if self.is_complete() { Ok(()) } else { Err(BodyError::Truncated) }
    }
}
