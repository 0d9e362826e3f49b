//! Where a body ends, followed while its bytes pass.
//! Promises: what is taken belongs to the body, and what is kept is what goes on; however the bytes are
//! split, the same bytes are kept. Leaves to others: chunks (`chunks`), and reading and writing.

mod chunks;

use chunks::Chunks;

use crate::http_head::Framing;

/// Why a body cannot be passed on; the doing of whoever sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// The connection ended before the body did.
    #[error("the body ends too early")]
    Truncated,
    /// Not a hexadecimal number followed by CRLF or an extension.
    #[error("the size of a chunk is malformed")]
    ChunkSizeMalformed,
    /// More than a chunk's size may have of digits and extensions, or a body of extensions.
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
    /// A trailer that would change what the head said (RFC 9110, section 6.5.1).
    #[error("a trailer has a name that may stand in a head only")]
    TrailerForbidden,
}

/// A body on its way.
#[derive(Debug)]
pub struct Body(State);

#[derive(Debug)]
enum State {
    /// So many bytes are still to come.
    Length(u64),
    /// Boxed, since few bodies are chunked.
    Chunked(Box<Chunks>),
    UntilClose,
    Complete,
}

/// What [`Body::take`] did with the bytes that it was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Consumed {
    /// Bytes from the first on that belong to the body. What follows them is another message's.
    pub taken: usize,
    /// How many of them go on: they lie at the front now. kept <= taken
    pub kept: usize,
}

impl Body {
    /// The body of a message framed so.
    pub fn new(framing: Framing) -> Self {
        Self(match framing {
            Framing::None | Framing::Length(0) => State::Complete,
            Framing::Length(remaining) => State::Length(remaining),
            Framing::Chunked => State::Chunked(Box::new(Chunks::new(false))),
            Framing::UntilClose => State::UntilClose,
        })
    }

    /// The same for a receiver who knows no chunks: their data alone goes on.
    pub fn unwrapped(framing: Framing) -> Self {
        match framing {
            Framing::Chunked => Self(State::Chunked(Box::new(Chunks::new(true)))),
            framing => Self::new(framing),
        }
    }

    /// The same without its trailers: they are read, and do not go on.
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
    /// The sender's framing is broken. What was kept before may have gone on already.
    pub fn take(&mut self, bytes: &mut [u8]) -> Result<Consumed, BodyError> {
        let all = |count: usize| Consumed { taken: count, kept: count };
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
            State::Chunked(chunks) => chunks.take(bytes),
        }
    }

    /// How many bytes to read for it at a time, at most `most`: of a body whose length is known, none beyond.
    pub fn room(&self, most: usize) -> usize {
        match &self.0 {
            State::Length(remaining) => {
                usize::try_from(*remaining).map_or(most, |remaining| remaining.min(most))
            }
            _ => most,
        }
    }

    /// Whether its end shows only in what is read, so that a read may go beyond it.
    pub fn is_chunked(&self) -> bool {
        matches!(self.0, State::Chunked(_))
    }

    /// What goes on behind the last byte that was kept: trailers. Empty the second time.
    pub fn take_tail(&mut self) -> Vec<u8> {
        match &mut self.0 {
            State::Chunked(chunks) => chunks.take_tail(),
            _ => Vec::new(),
        }
    }

    /// Whether its end has come.
    pub fn is_complete(&self) -> bool {
        match &self.0 {
            State::Complete => true,
            State::Chunked(chunks) => chunks.is_complete(),
            State::Length(_) | State::UntilClose => false,
        }
    }

    /// Notes that the connection has ended.
    ///
    /// # Errors
    /// [`BodyError::Truncated`] if the body needs more.
    pub fn end(&mut self) -> Result<(), BodyError> {
        if matches!(self.0, State::UntilClose) {
            self.0 = State::Complete;
        }
        if self.is_complete() { Ok(()) } else { Err(BodyError::Truncated) }
    }
}
