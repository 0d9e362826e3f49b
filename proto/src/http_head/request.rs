//! A request's head: the method, the target as it is written, and the header lines.
//! Promises: what is read has no line that another parser could read differently. Leaves to others: finding
//! the head's end (`scanner`), what is asked (`http_connect`, `http_forward`).

use std::fmt;

use super::error::{HeadError, RequestError};
use super::fields::Fields;
use super::{HeaderStorage, Version, lines};

/// The head of a request, tokenized.
pub struct RequestHead<'a> {
    /// The method as sent: any token. Methods differ by case.
    pub method: &'a str,
    /// The request target as sent.
    pub(crate) uri: &'a str,
    /// The client's version.
    pub version: Version,
    pub(crate) fields: Fields<'a>,
}

impl<'a> RequestHead<'a> {
    /// Reads one request head: exactly the bytes that [`super::HeadScanner`] delimited, closing empty line
    /// included.
    ///
    /// # Errors
    /// What is wrong with its lines; what it asks for is not looked at yet.
    pub fn parse(head: &'a [u8], storage: &'a mut HeaderStorage<'a>) -> Result<Self, RequestError> {
        lines::check(head)?;
        let mut tokens = httparse::Request::new(&mut []);
        match tokens.parse_with_uninit_headers(head, &mut storage.0) {
            Ok(httparse::Status::Complete(length)) if length == head.len() => {}
            Ok(_) => return Err(HeadError::NotOneHead.into()),
            Err(error) => {
                let error = lines::explain(error, head).map(RequestError::Head);
                return Err(error.unwrap_or_else(|| explain_request_line(head)));
            }
        }
        let (Some(method), Some(uri)) = (tokens.method, tokens.path) else {
            return Err(HeadError::NotOneHead.into());
        };
        let version = Version::from_minor(tokens.version).ok_or(RequestError::VersionUnsupported)?;
        Ok(Self { method, uri, version, fields: Fields::collect(tokens.headers)? })
    }

    /// Whether a tunnel is asked for.
    pub fn is_connect(&self) -> bool {
        self.method == "CONNECT"
    }

    /// Whether the body of an answer of ours should be JSON: `Accept` names `application/json`.
    pub fn accepts_json(&self) -> bool {
        self.fields.accepts_json
    }

    /// How the request names what it wants.
    pub fn uri_form(&self) -> UriForm {
        match self.uri.as_bytes() {
            b"*" => UriForm::Asterisk,
            [b'/', ..] => UriForm::Origin,
            _ if self.uri.contains("://") => UriForm::Absolute,
            _ => UriForm::Authority,
        }
    }
}

impl fmt::Debug for RequestHead<'_> {
    /// Without the header lines and the target: either may hold credentials.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RequestHead")
            .field("method", &self.method)
            .field("form", &self.uri_form())
            .finish_non_exhaustive()
    }
}

/// The four forms of a request target (RFC 9112, section 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UriForm {
    /// `/path`: the client takes us for a web server.
    Origin,
    /// `http://host/path`: a plain request to be forwarded.
    Absolute,
    /// `host:port`, or whatever has no form of its own.
    Authority,
    /// `*`
    Asterisk,
}

fn explain_request_line(head: &[u8]) -> RequestError {
    let line = head.split(|&byte| byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|&byte| byte == b' ');
    match (words.nth(1), words.next(), words.next()) {
        (Some(_), None, None) => RequestError::VersionMissing,
        (Some(_), Some(b"HTTP/1.0" | b"HTTP/1.1"), None) => RequestError::RequestLineMalformed,
        (Some(_), Some([b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9']), None) => {
            RequestError::VersionUnsupported
        }
        _ => RequestError::RequestLineMalformed,
    }
}
