//! The header lines of a head: those about this connection and this body, and the ones to forward (RFC 9110,
//! section 7.6.1).
//!
//! Guarantees: a header that must be unique occurs once. A header named by `Connection` is never forwarded,
//! nor is one with a proxy's credentials.

use super::error::HeadError;
use super::{Framing, Version};
use crate::limits::CONNECTION_OPTIONS_MAX;

/// The header lines of one head.
pub(crate) struct Fields<'a> {
    lines: &'a [httparse::Header<'a>],
    pub(crate) host: Option<&'a [u8]>,
    pub(crate) proxy_authorization: Option<&'a [u8]>,
    pub(crate) content_length: Option<&'a [u8]>,
    pub(crate) transfer_encoding: Option<&'a [u8]>,
    pub(crate) expect: Option<&'a [u8]>,
    pub(crate) max_forwards: Option<&'a [u8]>,
    pub(crate) upgrade: Option<&'a [u8]>,
    pub(crate) accepts_json: bool,
    pub(crate) has_via: bool,
    /// `TE` lists `trailers`.
    pub(crate) takes_trailers: bool,
    /// `Connection` or `Proxy-Connection` lists `close`.
    pub(crate) closes: bool,
    /// `Connection` lists `keep-alive`, which HTTP/1.0 needs.
    pub(crate) keeps_alive: bool,
    /// `Connection` lists `upgrade`.
    pub(crate) upgrades: bool,
    /// `Connection` lists other names, so that each line's name must be compared with the list.
    names_other_headers: bool,
    /// Items of `Connection` so far. <= CONNECTION_OPTIONS_MAX
    connection_options: usize,
}

impl<'a> Fields<'a> {
    pub(super) fn collect(lines: &'a [httparse::Header<'a>]) -> Result<Self, HeadError> {
        let mut fields = Self {
            lines,
            host: None,
            proxy_authorization: None,
            content_length: None,
            transfer_encoding: None,
            expect: None,
            max_forwards: None,
            upgrade: None,
            accepts_json: false,
            has_via: false,
            takes_trailers: false,
            closes: false,
            keeps_alive: false,
            upgrades: false,
            names_other_headers: false,
            connection_options: 0,
        };
        for line in lines {
            fields.record(line)?;
        }
        Ok(fields)
    }

    fn record(&mut self, line: &httparse::Header<'a>) -> Result<(), HeadError> {
        let (slot, name) = match KnownHeader::from_name(line.name) {
            KnownHeader::Host => (&mut self.host, "Host"),
            KnownHeader::ProxyAuthorization => (&mut self.proxy_authorization, "Proxy-Authorization"),
            KnownHeader::ContentLength => (&mut self.content_length, "Content-Length"),
            KnownHeader::TransferEncoding => (&mut self.transfer_encoding, "Transfer-Encoding"),
            KnownHeader::Expect => (&mut self.expect, "Expect"),
            KnownHeader::MaxForwards => (&mut self.max_forwards, "Max-Forwards"),
            KnownHeader::Accept => {
                self.accepts_json |= names_json(line.value);
                return Ok(());
            }
            KnownHeader::Te => {
                self.takes_trailers |= list(line.value).any(|item| item.eq_ignore_ascii_case(b"trailers"));
                return Ok(());
            }
            KnownHeader::Upgrade => {
                // Several lines make a list, and a list is not a single protocol: empty means none.
                self.upgrade = Some(if self.upgrade.is_none() { line.value } else { b"" });
                return Ok(());
            }
            KnownHeader::Connection => return self.record_connection(line.value),
            KnownHeader::Via => {
                self.has_via = true;
                return Ok(());
            }
            KnownHeader::ProxyConnection => {
                self.closes |= list(line.value).any(|item| item.eq_ignore_ascii_case(b"close"));
                return Ok(());
            }
            _ => return Ok(()),
        };
        if slot.replace(line.value).is_some() { Err(HeadError::HeaderRepeated(name)) } else { Ok(()) }
    }

    fn record_connection(&mut self, value: &[u8]) -> Result<(), HeadError> {
        self.connection_options += value.split(|&byte| byte == b',').count();
        if self.connection_options > CONNECTION_OPTIONS_MAX {
            return Err(HeadError::ConnectionTooLong);
        }
        for option in list(value) {
            let Ok(name) = str::from_utf8(option) else { return Err(HeadError::ConnectionMalformed) };
            if !is_token(option) {
                return Err(HeadError::ConnectionMalformed);
            }
            match KnownHeader::from_name(name) {
                // Their removal would change the message's destination, its end, or what its sender waits
                // for.
                KnownHeader::Host
                | KnownHeader::ContentLength
                | KnownHeader::TransferEncoding
                | KnownHeader::Expect
                | KnownHeader::MaxForwards => return Err(HeadError::ConnectionMalformed),
                KnownHeader::KeepAlive => self.keeps_alive = true,
                KnownHeader::Upgrade => self.upgrades = true,
                KnownHeader::Close => self.closes = true,
                known => self.names_other_headers |= known.is_forwarded(),
            }
        }
        Ok(())
    }

    /// The lines to forward to the next hop.
    pub(crate) fn forwarded_lines(&self) -> impl Iterator<Item = &httparse::Header<'a>> {
        self.lines.iter().filter(|line| {
            let is_named = self.names_other_headers && self.is_named_by_connection(line.name);
            !is_named && KnownHeader::from_name(line.name).is_forwarded()
        })
    }

    /// Whether trailers may be forwarded: if `Connection` names unknown fields, one of them could be a
    /// trailer (RFC 9110, section 7.6.1).
    pub(crate) fn may_forward_trailers(&self) -> bool {
        !self.names_other_headers
    }

    /// The values of all lines with this name.
    pub(crate) fn values(&self, name: KnownHeader) -> impl Iterator<Item = &'a [u8]> {
        self.lines.iter().filter(move |line| KnownHeader::from_name(line.name) == name).map(|line| line.value)
    }

    fn is_named_by_connection(&self, name: &str) -> bool {
        self.values(KnownHeader::Connection)
            .flat_map(list)
            .any(|option| option.eq_ignore_ascii_case(name.as_bytes()))
    }

    /// The framing that the headers state; `None` if they state none.
    pub(crate) fn framing(&self, version: Version) -> Result<Option<Framing>, HeadError> {
        match (self.transfer_encoding, self.content_length) {
            (None, None) => Ok(None),
            (None, Some(length)) => parse_length(length).map(|length| Some(Framing::Length(length))),
            (Some(_), Some(_)) => Err(HeadError::FramingConflict),
            (Some(_), None) if version == Version::Http10 => Err(HeadError::CodingInHttp10),
            (Some(coding), None) if coding.eq_ignore_ascii_case(b"chunked") => Ok(Some(Framing::Chunked)),
            (Some(coding), None) => Err(match list(coding).last() {
                Some(last) if last.eq_ignore_ascii_case(b"chunked") => HeadError::CodingUnknown,
                _ => HeadError::ChunkedNotLast,
            }),
        }
    }
}

/// The headers that a proxy interprets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KnownHeader {
    Accept,
    /// No header has this name: it is an option in `Connection`.
    Close,
    Connection,
    ContentLength,
    Date,
    Expect,
    Host,
    Http2Settings,
    KeepAlive,
    MaxForwards,
    ProxyAuthenticate,
    ProxyAuthenticationInfo,
    ProxyAuthorization,
    ProxyConnection,
    Te,
    TransferEncoding,
    Upgrade,
    Via,
    Other,
}

impl KnownHeader {
    /// The header with this name, in any case.
    pub(crate) fn from_name(name: &str) -> Self {
        // By length first: the usual header then costs one integer comparison.
        let candidates: &[(&str, Self)] = match name.len() {
            2 => &[("TE", Self::Te)],
            3 => &[("Via", Self::Via)],
            4 => &[("Host", Self::Host), ("Date", Self::Date)],
            5 => &[("Close", Self::Close)],
            6 => &[("Accept", Self::Accept), ("Expect", Self::Expect)],
            7 => &[("Upgrade", Self::Upgrade)],
            10 => &[("Connection", Self::Connection), ("Keep-Alive", Self::KeepAlive)],
            12 => &[("Max-Forwards", Self::MaxForwards)],
            14 => &[("Content-Length", Self::ContentLength), ("HTTP2-Settings", Self::Http2Settings)],
            16 => &[("Proxy-Connection", Self::ProxyConnection)],
            17 => &[("Transfer-Encoding", Self::TransferEncoding)],
            18 => &[("Proxy-Authenticate", Self::ProxyAuthenticate)],
            19 => &[("Proxy-Authorization", Self::ProxyAuthorization)],
            25 => &[("Proxy-Authentication-Info", Self::ProxyAuthenticationInfo)],
            _ => &[],
        };
        let found = candidates.iter().find(|(candidate, _)| candidate.eq_ignore_ascii_case(name));
        found.map_or(Self::Other, |(_, known)| *known)
    }

    /// Whether its lines are forwarded unchanged. The others are for this hop only, or generated anew for the
    /// next one.
    fn is_forwarded(self) -> bool {
        matches!(self, Self::Accept | Self::Date | Self::Via | Self::Other)
    }
}

/// The items of a list (RFC 9110, section 5.6.1), without empty ones.
pub(super) fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii).filter(|item| !item.is_empty())
}

/// Whether it is a token (RFC 9110, section 5.6.2).
pub(crate) fn is_token(text: &[u8]) -> bool {
    let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !text.is_empty() && text.iter().all(is_allowed)
}

/// Parses a `Content-Length` that all parsers read alike: `str::parse` alone would accept a sign.
fn parse_length(value: &[u8]) -> Result<u64, HeadError> {
    let digits = str::from_utf8(value).unwrap_or_default();
    let has_one_spelling = digits == "0" || !digits.starts_with('0');
    if !has_one_spelling || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(HeadError::LengthMalformed);
    }
    // Many parsers have signed lengths.
    let length = digits.parse::<i64>().map_err(|_| HeadError::LengthMalformed)?;
    Ok(length.unsigned_abs())
}

/// Whether an `Accept` value lists `application/json` with a weight above zero (RFC 9110, section 12.5.1).
fn names_json(accept: &[u8]) -> bool {
    accept.split(|&byte| byte == b',').any(|range| {
        let mut parts = range.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
        let is_json = parts.next().is_some_and(|media| media.eq_ignore_ascii_case(b"application/json"));
        is_json && !parts.any(is_weight_zero)
    })
}

fn is_weight_zero(parameter: &[u8]) -> bool {
    let [b'q' | b'Q', b'=', weight @ ..] = parameter else { return false };
    weight.first() == Some(&b'0') && weight.iter().all(|byte| matches!(byte, b'0' | b'.'))
}
