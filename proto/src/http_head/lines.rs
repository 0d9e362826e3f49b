//! The lines of a head, or of trailers: where they end and what the tokenizer's complaints about them mean.
//! Promises: every line ends in CRLF and stands alone, and the only empty one is the last. Leaves to others:
//! what stands in a line.

use super::error::HeadError;

/// Reads header lines that no first line stands before, such as trailers, their closing empty line included.
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

/// What the tokenizer complains about, in words that name what to change; `None` if it is the first line.
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
