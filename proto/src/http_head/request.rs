//! A request's head: the method, the target as sent, and the header lines.
//!
//! Guarantees: a parsed head has no line that another parser could read differently.
//!
//! Not handled here: the meaning of the target (`http_connect`, `http_forward`).

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
    /// Parses one request head: exactly the bytes that [`super::HeadScanner`] delimited, closing empty line
    /// included.
    ///
    /// # Errors
    /// A fault in its lines; the target is not checked yet.
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

    /// Whether it requests a tunnel.
    pub fn is_connect(&self) -> bool {
        self.method == "CONNECT"
    }

    /// Whether the body of our own response should be JSON: `Accept` lists `application/json`.
    pub fn accepts_json(&self) -> bool {
        self.fields.accepts_json
    }

    /// The form of the request target.
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
    /// Without the header lines and the target: both may contain credentials.
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
    /// `/path`: the client treats the proxy as a web server.
    Origin,
    /// `http://host/path`: a plain request to forward.
    Absolute,
    /// `host:port`, or any text of no other form.
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
