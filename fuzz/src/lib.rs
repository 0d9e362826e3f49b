//! The invariants of the parsers, one function for each fuzz target. It panics on an input that breaks one.

#![forbid(unsafe_code)]

mod choices;
mod config;
mod entry;
mod forward;
mod journal;
mod segments;
#[path = "../../proto/tests/it/server.rs"]
mod server;

use std::fmt::Debug;

pub use config::config;
pub use entry::entry;
pub use forward::http_forward;
pub use journal::journal;
use policy::Rule;
use proto::credentials::{Credentials, basic_credentials};
use proto::http_connect::Connect;
use proto::http_head::{HeadScanner, HeaderStorage, RequestHead};
use proto::limits::{HEAD_BYTES_MAX, HEADERS_MAX};
use proto::socks5::{self, Socks5Error};
use proto::target::{Host, Target};

/// An accepted target is parsed from its own text to the same target, and its name is never an address.
pub fn target(data: &[u8]) {
    if let Ok(target) = Target::parse_authority(data) {
        assert_target(&target);
        assert_eq!(Target::parse_authority(target.to_string().as_bytes()), Ok(target));
    }
    if let Ok(host) = Host::parse(data) {
        assert_host(&host);
        assert_eq!(Host::parse(host.to_string().as_bytes()), Ok(host));
    }
}

/// A head's end does not depend on how its bytes arrive, and `httparse` agrees with an accepted head.
///
/// The first byte of the input is the length of the part that arrives first.
pub fn http_connect(data: &[u8]) {
    let Some((&split, buffer)) = data.split_first() else { return };
    let _ = basic_credentials(buffer);
    let whole = HeadScanner::default().find(buffer);
    let mut scanner = HeadScanner::default();
    let in_pieces = match scanner.find(&buffer[..buffer.len().min(split.into())]) {
        Ok(None) => scanner.find(buffer),
        early => early,
    };
    assert_eq!(whole, in_pieces);
    assert_eq!(whole.ok().flatten(), naive_head_end(buffer));
    let Ok(Some(length)) = whole else { return };
    let head = &buffer[..length];
    let mut storage = HeaderStorage::new();
    match RequestHead::parse(head, &mut storage) {
        Ok(request) => assert_httparse_agrees(head, &request),
        Err(error) => assert!((400..600).contains(&error.status())),
    }
}

/// A message is never longer than the input, and the result for a prefix never contradicts the whole.
pub fn socks5(data: &[u8]) {
    assert_incremental(data, socks5::greeting);
    assert_incremental(data, |buffer| {
        let parsed = socks5::user_password(buffer)?;
        let plain = |credentials: Credentials| (credentials.user, credentials.secret.expose().to_vec());
        Ok(parsed.map(|(credentials, length)| (credentials.map(plain), length)))
    });
    assert_incremental(data, socks5::request);
    if let Ok(Some((target, _))) = socks5::request(data) {
        assert_target(&target);
    }
}

/// The end of the first empty line, within the bound of a head.
fn naive_head_end(buffer: &[u8]) -> Option<usize> {
    (1..=buffer.len().min(HEAD_BYTES_MAX)).find(|&end| {
        let head = &buffer[..end];
        matches!(head, b"\n" | b"\r\n") || head.ends_with(b"\n\n") || head.ends_with(b"\n\r\n")
    })
}

fn assert_target(target: &Target) {
    assert_host(&target.host);
}

fn assert_host(host: &Host) {
    match host {
        Host::Address(address) => assert_eq!(*address, address.to_canonical()),
        Host::Name(name) => {
            let name = name.as_str();
            assert!((1..=253).contains(&name.len()));
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || b"0123456789-_.".contains(&byte)));
            assert!(name.split('.').all(|label| (1..=63).contains(&label.len())));
            let last_label = name.rsplit('.').next().expect("a name has a label");
            let digits = last_label.strip_prefix("0x");
            assert!(!last_label.bytes().all(|byte| byte.is_ascii_digit()));
            assert!(!digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit())));
        }
    }
}

fn assert_httparse_agrees(head: &[u8], request: &RequestHead<'_>) {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut oracle = httparse::Request::new(&mut headers);
    assert_eq!(oracle.parse(head), Ok(httparse::Status::Complete(head.len())));
    assert!(!head.split(|&byte| byte == b'\n').rev().skip(1).any(|line| !line.ends_with(b"\r")));
    assert_eq!(oracle.method, Some(request.method));
    let header_count =
        |name: &str| oracle.headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name)).count();
    assert!(header_count("Host") <= 1);
    if !request.is_connect() {
        return;
    }
    match Connect::read(request) {
        Ok(connect) => {
            assert_target(&connect.target);
            assert_eq!(header_count("Transfer-Encoding"), 0);
            assert_eq!(header_count("Proxy-Authorization"), usize::from(connect.authorization.is_some()));
            let authority = oracle.path.expect("a complete request has a target");
            assert_eq!(Target::parse_authority(authority.as_bytes()), Ok(connect.target));
        }
        Err(error) => assert!((400..600).contains(&error.status())),
    }
}

/// An accepted rule of the configuration is parsed from its own text to the same rule.
pub fn rule(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    match Rule::parse(text) {
        Ok(rule) => assert_eq!(Rule::parse(&rule.to_string()), Ok(rule)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn assert_incremental<T: PartialEq + Debug>(
    data: &[u8],
    parse: impl Fn(&[u8]) -> Result<Option<(T, usize)>, Socks5Error>,
) {
    let whole = parse(data);
    if let Ok(Some((_, length))) = &whole {
        assert!(*length <= data.len());
        assert_eq!(parse(&data[..*length]), whole);
        assert_eq!(parse(&data[..*length - 1]), Ok(None));
    }
    let half = parse(&data[..data.len() / 2]);
    assert!(half == Ok(None) || half == whole);
    if let Err(error) = whole {
        let mut refusal = Vec::new();
        error.write_refusal(&mut refusal);
        assert!(refusal.is_empty() == matches!(error, Socks5Error::GreetingVersion(_)));
    }
}
