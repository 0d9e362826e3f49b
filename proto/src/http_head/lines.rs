//! The lines of a head, or of trailers: their ends, and the meaning of the tokenizer's errors.
//!
//! Guarantees: every line ends in CRLF and is not folded, and the only empty one is the last.

use super::error::HeadError;

/// Parses header lines without a first line, such as trailers, their closing empty line included.
pub(crate) fn parse_lines<'a, 'b>(
    lines: &'a [u8],
    storage: &'b mut [httparse::Header<'a>],
) -> Result<&'b [httparse::Header<'a>], HeadError> {
    check(lines)?;
    match httparse::parse_headers(lines, storage) {
        Ok(httparse::Status::Complete((length, headers))) if length == lines.len() => Ok(headers),
        Ok(_) => Err(HeadError::NotOneHead),
        Err(error) => Err(explain(error, lines).unwrap_or(HeadError::HeaderNameMalformed)),
    }
}

/// Checks the lines of one whole head.
pub(super) fn check(head: &[u8]) -> Result<(), HeadError> {
    let mut rest = head;
    while let Some(line_feed) = rest.iter().position(|&byte| byte == b'\n') {
        let (line, after) = rest.split_at(line_feed + 1);
        let is_first = rest.len() == head.len();
        match line {
            [b'\r', b'\n'] if is_first => return Err(HeadError::FirstLineEmpty),
            [b'\r', b'\n'] if after.is_empty() => return Ok(()),
            [b'\r', b'\n'] => return Err(HeadError::NotOneHead),
            [b' ' | b'\t', ..] if !is_first => return Err(HeadError::HeaderFolded),
            [.., b'\r', b'\n'] => {}
            _ => return Err(HeadError::LineFeedBare),
        }
        rest = after;
    }
    Err(HeadError::NotOneHead)
}

/// The tokenizer's error as one with a remedy; `None` if the fault is in the first line.
pub(super) fn explain(error: httparse::Error, head: &[u8]) -> Option<HeadError> {
    if error == httparse::Error::TooManyHeaders {
        return Some(HeadError::TooManyHeaders);
    }
    if head.windows(2).any(|pair| pair[0] == b'\r' && pair[1] != b'\n') {
        return Some(HeadError::CarriageReturnBare);
    }
    match error {
        httparse::Error::HeaderName => Some(HeadError::HeaderNameMalformed),
        httparse::Error::HeaderValue => Some(HeadError::HeaderValueMalformed),
        _ => None,
    }
}
