//! A denial in HTTP: the response that states why a request is refused.
//!
//! Guarantees: one complete response per call; no text from a rule, a user or a client can add a header, end
//! one, or break out of a quoted string.

use std::io::Write;

/// A denial, as text for a person and as headers for a program.
#[derive(Clone, Copy, Debug)]
pub struct DenialResponse<'a> {
    /// The HTTP status, 400 to 599.
    pub status: u16,
    /// The reason phrase after the status; see [`reason_phrase`] for the standard ones.
    pub title: &'a str,
    /// One sentence for a person.
    pub reason: &'a str,
    /// The error type for `Proxy-Status`, one of [`proxy_error`].
    pub proxy_status_error: Option<&'a str>,
    /// The deciding rule.
    pub rule: Option<&'a str>,
    /// The id of this request in the log.
    pub request_id: &'a str,
    /// The value of `Retry-After`, in seconds.
    pub retry_after_s: Option<u32>,
    /// The realm of `Proxy-Authenticate`; with status 407 only.
    pub challenge: Option<&'a str>,
    /// Whether the body is JSON rather than text.
    pub json: bool,
    /// The value of `Date` (RFC 9110, section 5.6.7).
    pub date: Option<&'a str>,
    /// Whether the connection ends after it.
    pub closes: bool,
    /// Whether only the head is sent, as the response to HEAD.
    pub head_only: bool,
}

/// The methods in the `Allow` header of a 405. Other tokens are forwarded too.
pub const ALLOWED_METHODS: &str = "CONNECT, GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

/// The error types of RFC 9209, section 2.3, that a gateway needs.
pub mod proxy_error {
    /// The name took too long to resolve.
    pub const DNS_TIMEOUT: &str = "dns_timeout";
    /// The name could not be resolved.
    pub const DNS_ERROR: &str = "dns_error";
    /// The next hop is not available, also for lack of our own resources.
    pub const DESTINATION_UNAVAILABLE: &str = "destination_unavailable";
    /// The address is forbidden by configuration.
    pub const DESTINATION_IP_PROHIBITED: &str = "destination_ip_prohibited";
    /// There is no route to the address.
    pub const DESTINATION_IP_UNROUTABLE: &str = "destination_ip_unroutable";
    /// The destination refused the connection.
    pub const CONNECTION_REFUSED: &str = "connection_refused";
    /// The destination closed the connection while it was being opened.
    pub const CONNECTION_TERMINATED: &str = "connection_terminated";
    /// The connection took too long to open.
    pub const CONNECTION_TIMEOUT: &str = "connection_timeout";
    /// The client has as many connections as it may have.
    pub const CONNECTION_LIMIT_REACHED: &str = "connection_limit_reached";
    /// The request is malformed.
    pub const HTTP_REQUEST_ERROR: &str = "http_request_error";
    /// Policy refuses the request.
    pub const HTTP_REQUEST_DENIED: &str = "http_request_denied";
    /// The proxy responds by itself, without an attempt at the next hop.
    pub const PROXY_INTERNAL_RESPONSE: &str = "proxy_internal_response";
    /// The destination's response violates its protocol.
    pub const HTTP_PROTOCOL_ERROR: &str = "http_protocol_error";
    /// The destination's response ended too early.
    pub const HTTP_RESPONSE_INCOMPLETE: &str = "http_response_incomplete";
    /// The head of the destination's response is too large.
    pub const HTTP_RESPONSE_HEADER_SECTION_SIZE: &str = "http_response_header_section_size";
    /// The destination's response has an unknown transfer coding.
    pub const HTTP_RESPONSE_TRANSFER_CODING: &str = "http_response_transfer_coding";
    /// The destination did not respond in time.
    pub const HTTP_RESPONSE_TIMEOUT: &str = "http_response_timeout";
    /// The destination changed to a protocol that the request did not offer.
    pub const HTTP_UPGRADE_FAILED: &str = "http_upgrade_failed";
    /// The proxy failed.
    pub const PROXY_INTERNAL_ERROR: &str = "proxy_internal_error";
    /// The request would return to the proxy itself.
    pub const PROXY_LOOP_DETECTED: &str = "proxy_loop_detected";
}

/// Appends a complete response that refuses a request.
pub fn write_denial(out: &mut Vec<u8>, denial: &DenialResponse<'_>) {
    assert!((400..600).contains(&denial.status), "a denial is an error: {}", denial.status);
    let body = if denial.json { json_body(denial) } else { text_body(denial) };
    push_number(out, "HTTP/1.1 ", denial.status.into());
    out.push(b' ');
    push_visible(out, denial.title);
    let media = if denial.json { "application/json" } else { "text/plain; charset=utf-8" };
    push(out, "\r\nContent-Type: ");
    push(out, media);
    push_number(out, "\r\nContent-Length: ", body.len());
    push(out, if denial.closes { "\r\nConnection: close" } else { "" });
    push(out, "\r\nCache-Control: no-store\r\n");
    if let Some(date) = denial.date {
        push(out, "Date: ");
        push_visible(out, date);
        push(out, "\r\n");
    }
    push_proxy_status(out, denial);
    push(out, "X-Request-Id: ");
    push_visible(out, denial.request_id);
    push(out, "\r\n");
    if let Some(seconds) = denial.retry_after_s {
        push_number(out, "Retry-After: ", seconds as usize);
        push(out, "\r\n");
    }
    if let Some(realm) = denial.challenge {
        push(out, "Proxy-Authenticate: Basic realm=\"");
        push_quoted(out, realm);
        push(out, "\", charset=\"UTF-8\"\r\n");
    }
    if denial.status == 405 {
        // RFC 9110, section 15.5.6: a 405 must list the allowed methods.
        push(out, "Allow: ");
        push(out, ALLOWED_METHODS);
        push(out, "\r\n");
    }
    push(out, "\r\n");
    if !denial.head_only {
        out.extend_from_slice(&body);
    }
}

/// The standard reason phrase for each status that the gateway uses; empty for any other.
pub fn reason_phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        405 => "Method Not Allowed",
        407 => "Proxy Authentication Required",
        408 => "Request Timeout",
        414 => "URI Too Long",
        417 => "Expectation Failed",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        508 => "Loop Detected",
        _ => "",
    }
}

/// RFC 9209: a list member named after the proxy, whose parameters state the error.
fn push_proxy_status(out: &mut Vec<u8>, denial: &DenialResponse<'_>) {
    push(out, "Proxy-Status: tollgate");
    if let Some(error) = denial.proxy_status_error {
        push(out, "; error=");
        push_token(out, error);
    }
    if let Some(rule) = denial.rule {
        push(out, "; details=\"");
        push_quoted(out, rule);
        push(out, "\"");
    }
    push(out, "\r\n");
}

fn text_body(denial: &DenialResponse<'_>) -> Vec<u8> {
    let mut body = Vec::with_capacity(256);
    push_number(&mut body, "", denial.status.into());
    push(&mut body, " ");
    push_line(&mut body, "", denial.title);
    push_line(&mut body, "", denial.reason);
    if let Some(rule) = denial.rule {
        push_line(&mut body, "rule: ", rule);
    }
    push_line(&mut body, "request id: ", denial.request_id);
    body
}

fn json_body(denial: &DenialResponse<'_>) -> Vec<u8> {
    let mut body = Vec::with_capacity(256);
    push_number(&mut body, "{\"status\":", denial.status.into());
    push_member(&mut body, "title", denial.title);
    push_member(&mut body, "reason", denial.reason);
    if let Some(error) = denial.proxy_status_error {
        push_member(&mut body, "error", error);
    }
    if let Some(rule) = denial.rule {
        push_member(&mut body, "rule", rule);
    }
    push_member(&mut body, "request_id", denial.request_id);
    if let Some(seconds) = denial.retry_after_s {
        push_number(&mut body, ",\"retry_after_s\":", seconds as usize);
    }
    push(&mut body, "}\n");
    body
}

fn push(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
}

fn push_number(out: &mut Vec<u8>, before: &str, number: usize) {
    write!(out, "{before}{number}").expect("a vector takes every write");
}

/// One line of a text body: control characters become spaces, so that no text makes a second line.
fn push_line(out: &mut Vec<u8>, before: &str, text: &str) {
    push(out, before);
    let mut buffer = [0; 4];
    for character in text.chars().map(|character| if character.is_control() { ' ' } else { character }) {
        push(out, character.encode_utf8(&mut buffer));
    }
    out.push(b'\n');
}

/// Text inside a header: bytes other than visible ASCII and the space are percent-encoded.
fn push_visible(out: &mut Vec<u8>, text: &str) {
    for &byte in text.as_bytes() {
        push_visible_byte(out, byte);
    }
}

/// The inside of an sf-string (RFC 8941, section 3.3.3): quotes and backslashes escaped, only visible ASCII.
fn push_quoted(out: &mut Vec<u8>, text: &str) {
    for &byte in text.as_bytes() {
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        push_visible_byte(out, byte);
    }
}

fn push_visible_byte(out: &mut Vec<u8>, byte: u8) {
    match byte {
        b' '..=b'~' => out.push(byte),
        _ => write!(out, "%{byte:02x}").expect("a vector takes every write"),
    }
}

/// An sf-token (RFC 8941, section 3.3.4); forbidden bytes are removed.
fn push_token(out: &mut Vec<u8>, text: &str) {
    out.extend(text.bytes().filter(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(byte)));
}

/// `,"name":"text"` with the escapes of RFC 8259, section 7.
fn push_member(out: &mut Vec<u8>, name: &str, text: &str) {
    push(out, ",\"");
    push(out, name);
    push(out, "\":\"");
    for &byte in text.as_bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            0..0x20 => write!(out, "\\u{byte:04x}").expect("a vector takes every write"),
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}
