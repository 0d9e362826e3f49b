//! A response's head: the status and the header lines, parsed as strictly as a request's.

use super::error::{HeadError, ResponseError};
use super::fields::{Fields, KnownHeader};
use super::{HeaderStorage, Version, lines};

/// The head of a response, tokenized.
pub struct ResponseHead<'a> {
    /// The status, 100 to 999: three digits; RFC 9110 defines no status from 600 on.
    pub status: u16,
    /// The reason phrase; may be empty.
    pub(crate) reason: &'a str,
    /// The destination's version.
    pub version: Version,
    pub(crate) fields: Fields<'a>,
}

impl<'a> ResponseHead<'a> {
    /// Parses one response head: exactly the bytes that [`super::HeadScanner`] delimited.
    ///
    /// # Errors
    /// A fault in its lines.
    pub fn parse(head: &'a [u8], storage: &'a mut HeaderStorage<'a>) -> Result<Self, ResponseError> {
        // Checked first: for the banner of another protocol an error about its lines would mislead.
        if !head.starts_with(b"HTTP/1.") {
            return Err(ResponseError::StatusLineMalformed);
        }
        lines::check(head)?;
        let mut tokens = httparse::Response::new(&mut []);
        let config = httparse::ParserConfig::default();
        match config.parse_response_with_uninit_headers(&mut tokens, head, &mut storage.0) {
            Ok(httparse::Status::Complete(length)) if length == head.len() => {}
            Ok(_) => return Err(HeadError::NotOneHead.into()),
            Err(error) => {
                let error = lines::explain(error, head).map(ResponseError::Head);
                return Err(error.unwrap_or(ResponseError::StatusLineMalformed));
            }
        }
        let (Some(status @ 100..), Some(version)) = (tokens.code, Version::from_minor(tokens.version)) else {
            return Err(ResponseError::StatusLineMalformed);
        };
        let reason = tokens.reason.unwrap_or_default();
        Ok(Self { status, reason, version, fields: Fields::collect(tokens.headers)? })
    }

    /// Whether the trailers of its body may be forwarded.
    pub fn may_forward_trailers(&self) -> bool {
        self.fields.may_forward_trailers()
    }

    /// Whether it has a `Date` to forward. A proxy adds a missing one (RFC 9110, section 6.6.1).
    pub fn has_date(&self) -> bool {
        self.fields.forwarded_lines().any(|line| KnownHeader::from_name(line.name) == KnownHeader::Date)
    }
}
