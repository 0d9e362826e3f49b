//! Formats an event as a line: one JSON object, in ASCII, ended by a line feed.
//!
//! Guarantees: whatever the values contain, a line is one object on one line, and a terminal that shows it
//! executes nothing: every character that is not printable ASCII is escaped. Nothing is allocated once the
//! buffer has grown, except for escaped characters and for messages.

use std::net::{IpAddr, SocketAddr};

use jiff::Timestamp;
use ledger::record::Flow;
use sys::clock::WallNanos;

use super::{Event, EventKind, NO_SAMPLING, Slot};
use crate::text_format::PutText as _;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// The severity of a message of the control side.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Level {
    /// All is well.
    Info,
    /// Something does not work as requested.
    Warning,
    /// Something does not work.
    Error,
}

impl Level {
    fn as_str(self) -> &'static str {
        match self {
            Level::Info => "info",
            Level::Warning => "warning",
            Level::Error => "error",
        }
    }
}

/// The value of a message's field.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// Any text.
    Text(&'a str),
    /// A number.
    Number(u64),
    /// A boolean.
    Flag(bool),
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Value<'a> {
        Value::Text(text)
    }
}

impl From<u64> for Value<'_> {
    fn from(number: u64) -> Self {
        Value::Number(number)
    }
}

impl From<bool> for Value<'_> {
    fn from(flag: bool) -> Self {
        Value::Flag(flag)
    }
}

/// A field's name, with the comma before it and the colon after it.
macro_rules! name {
    ($name:literal) => {
        concat!(",\"", $name, "\":")
    };
}

/// Writes lines, and caches the text of the last second: calendar arithmetic would be the most expensive part
/// of a line.
#[derive(Default)]
pub(super) struct LineWriter {
    second: u64,
    second_text: String,
}

impl LineWriter {
    /// Appends the line of a flow's event. Unknown fields are omitted.
    pub(super) fn event(&mut self, out: &mut Vec<u8>, Slot { event, details }: &Slot) {
        let flow = event.record.flow();
        if let EventKind::Suppressed(count) | EventKind::FlowsLeftOut(count) = event.kind {
            return self.left_out(out, event, &flow, count);
        }
        let mut line = JsonObject::open(out);
        let (id, begun) = event.request.map_or((flow.id, flow.opened), |request| (request.id, request.begun));
        line.id(name!("id"), id);
        line.time(name!("ts"), self.time(event.at));
        line.plain_text(name!("event"), event.kind.as_str());
        let user = if event.is_claimed { name!("attempted_user") } else { name!("user") };
        line.text_unless_empty(user, flow.user);
        line.socket_address(name!("listener"), event.listener);
        if let Some(protocol) = event.protocol {
            line.plain_text(name!("protocol"), protocol.as_str());
        }
        line.socket_address(name!("client_addr"), flow.client);
        line.text_unless_empty(name!("requested_host"), flow.host);
        if flow.port != 0 {
            line.number(name!("requested_port"), flow.port.into());
        }
        if let Some(address) = flow.address {
            line.address(name!("resolved_ip"), address);
        }
        line.addresses_unless_empty(name!("tried"), details.tried());
        line.text_unless_empty(name!("rule"), flow.rule);
        line.plain_text(name!("decision"), event.decision.as_str());
        line.plain_text(name!("reason"), event.reason);
        line.text_unless_empty(name!("text"), details.text());
        if let Some(dns_us) = event.dns_us {
            line.milliseconds(name!("dns_ms"), dns_us.into());
        }
        if let Some(connect_us) = event.connect_us {
            line.milliseconds(name!("connect_ms"), connect_us.into());
        }
        if let Some(answered) = event.request {
            line.id(name!("flow_id"), flow.id);
            line.number(name!("request_number"), answered.number);
            line.plain_text(name!("method"), answered.method);
            if let Some(status) = answered.status {
                line.number(name!("status"), status.into());
            }
        }
        line.text_unless_empty(name!("path"), details.path());
        if event.sample > NO_SAMPLING {
            line.number(name!("sample"), event.sample.into());
        }
        if matches!(event.kind, EventKind::LateDecision | EventKind::Close) {
            // If the wall clock was set back in between, this is 0.
            let nanos = flow.closed.0.saturating_sub(begun.0);
            line.milliseconds(name!("duration_ms"), nanos / 1_000);
        }
        if event.kind == EventKind::Close {
            close_fields(&mut line, &flow);
        }
        line.close();
    }

    fn left_out(&mut self, out: &mut Vec<u8>, event: &Event, flow: &Flow<'_>, count: u64) {
        let mut line = self.open(out, event.at, event.kind.as_str());
        line.text_unless_empty(name!("user"), flow.user);
        let network = flow.client.ip();
        if !network.is_unspecified() {
            line.network(name!("source"), network);
        }
        line.text_unless_empty(name!("reason"), event.reason);
        line.number(name!("count"), count);
        line.close();
    }

    /// Appends the line that reports how many lines about unknown clients were withheld.
    pub(super) fn withheld(&mut self, out: &mut Vec<u8>, now: WallNanos, count: u64) {
        let mut line = self.open(out, now, "left_out");
        line.plain_text(name!("reason"), "disk_nearly_full");
        line.number(name!("count"), count);
        line.close();
    }

    /// Appends the line that reports how many lines were dropped since the last such line.
    pub(super) fn dropped(&mut self, out: &mut Vec<u8>, now: WallNanos, count: u64) {
        let mut line = self.open(out, now, "log_dropped");
        line.number(name!("count"), count);
        line.close();
    }

    /// Appends the line of a message. The names in `fields` are the program's own and need no escape.
    pub(super) fn message(
        &mut self,
        out: &mut Vec<u8>,
        now: WallNanos,
        level: Level,
        text: &str,
        fields: &[(&'static str, Value<'_>)],
    ) {
        let mut line = self.open(out, now, "message");
        line.plain_text(name!("level"), level.as_str());
        line.text(name!("text"), text);
        for (name, value) in fields {
            let name = &format!(",\"{name}\":");
            match value {
                Value::Text(text) => line.text(name, text),
                Value::Number(number) => line.number(name, *number),
                Value::Flag(flag) => line.flag(name, *flag),
            }
        }
        line.close();
    }

    /// Opens a line without a flow: with its time and the name of its event.
    fn open<'a>(&mut self, out: &'a mut Vec<u8>, at: WallNanos, event: &str) -> JsonObject<'a> {
        let mut line = JsonObject::open(out);
        line.time(name!("ts"), self.time(at));
        line.plain_text(name!("event"), event);
        line
    }

    /// RFC 3339, UTC, with milliseconds.
    fn time(&mut self, at: WallNanos) -> Time<'_> {
        let second = at.0 / NANOS_PER_SECOND;
        if second != self.second || self.second_text.is_empty() {
            self.second = second;
            // 64-bit nanoseconds end in 2554, so the clamp never applies.
            let timestamp = Timestamp::from_second(second as i64).unwrap_or(Timestamp::MAX);
            self.second_text = timestamp.strftime("%Y-%m-%dT%H:%M:%S").to_string();
        }
        Time { second: &self.second_text, milliseconds: at.0 % NANOS_PER_SECOND / 1_000_000 }
    }
}

/// The fields that are known only at the end of a flow.
fn close_fields(line: &mut JsonObject<'_>, flow: &Flow<'_>) {
    line.plain_text(name!("close_reason"), flow.reason.as_str());
    line.number(name!("client_rx"), flow.legs.client_rx);
    line.number(name!("upstream_tx"), flow.legs.upstream_tx);
    line.number(name!("upstream_rx"), flow.legs.upstream_rx);
    line.number(name!("client_tx"), flow.legs.client_tx);
}

struct Time<'a> {
    second: &'a str,
    milliseconds: u64,
}

/// A JSON object that is being written. Each field's name includes its punctuation, see [`name!`]: names are
/// the program's own, and need no escape.
struct JsonObject<'a> {
    out: &'a mut Vec<u8>,
    /// The offset of its first byte.
    start: usize,
}

impl<'a> JsonObject<'a> {
    fn open(out: &'a mut Vec<u8>) -> JsonObject<'a> {
        let start = out.len();
        JsonObject { out, start }
    }

    fn text(&mut self, name: &str, text: &str) {
        self.quoted(name, |out| escape(out, text));
    }

    fn text_unless_empty(&mut self, name: &str, text: &str) {
        if !text.is_empty() {
            self.text(name, text);
        }
    }

    /// A text of the program's own that needs no escape.
    fn plain_text(&mut self, name: &str, word: &str) {
        self.quoted(name, |out| out.put(word.as_bytes()));
    }

    fn id(&mut self, name: &str, id: u128) {
        self.quoted(name, |out| out.put_hex(id));
    }

    fn time(&mut self, name: &str, Time { second, milliseconds }: Time<'_>) {
        self.quoted(name, |out| {
            out.put(second.as_bytes());
            out.put(b".");
            out.put_thousandths(milliseconds);
            out.put(b"Z");
        });
    }

    /// An IPv4 address, or an IPv6 /64.
    fn network(&mut self, name: &str, network: IpAddr) {
        self.quoted(name, |out| {
            out.put_address(network);
            out.put(if network.is_ipv6() { b"/64" } else { b"" });
        });
    }

    fn address(&mut self, name: &str, address: IpAddr) {
        self.quoted(name, |out| out.put_address(address));
    }

    /// A list of addresses.
    fn addresses_unless_empty(&mut self, name: &str, addresses: impl Iterator<Item = IpAddr>) {
        let mut before: &[u8] = b"[\"";
        for address in addresses {
            self.out.put(if before.len() == 2 { name.as_bytes() } else { b"" });
            self.out.put(before);
            self.out.put_address(address);
            before = b"\",\"";
        }
        if before.len() > 2 {
            self.out.put(b"\"]");
        }
    }

    fn socket_address(&mut self, name: &str, address: SocketAddr) {
        self.quoted(name, |out| out.put_socket_address(address));
    }

    fn quoted(&mut self, name: &str, put: impl FnOnce(&mut Vec<u8>)) {
        self.out.put(name.as_bytes());
        self.out.push(b'"');
        put(self.out);
        self.out.push(b'"');
    }

    fn number(&mut self, name: &str, number: u64) {
        self.out.put(name.as_bytes());
        self.out.put_number(number);
    }

    /// Microseconds, written as milliseconds with a fraction.
    fn milliseconds(&mut self, name: &str, microseconds: u64) {
        self.number(name, microseconds / 1_000);
        self.out.put(b".");
        self.out.put_thousandths(microseconds);
    }

    fn flag(&mut self, name: &str, flag: bool) {
        self.out.put(name.as_bytes());
        self.out.put(if flag { b"true" } else { b"false" });
    }

    fn close(self) {
        // Every object has a field, and every field begins with a comma.
        self.out[self.start] = b'{';
        self.out.put(b"}\n");
    }
}

/// Appends the text of a JSON string (RFC 8259, section 7). More is escaped than JSON requires: control
/// characters of terminals (also C1), letters that change the writing direction, and whatever else could
/// disguise a line.
fn escape(out: &mut Vec<u8>, mut text: &str) {
    // Nearly every text is plain, and a scan of its bytes shows that sooner than one of its characters.
    let is_plain = |byte: &u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
    if text.as_bytes().iter().all(is_plain) {
        return out.put(text.as_bytes());
    }
    let is_special = |c: char| !matches!(c, ' '..='~') || matches!(c, '"' | '\\');
    while let Some(at) = text.find(is_special) {
        out.extend_from_slice(&text.as_bytes()[..at]);
        let special = text[at..].chars().next().expect("a character was found there");
        match special {
            '"' | '\\' => out.extend_from_slice(&[b'\\', special as u8]),
            _ => {
                for unit in special.encode_utf16(&mut [0; 2]) {
                    out.put(format!("\\u{unit:04x}").as_bytes());
                }
            }
        }
        text = &text[at + special.len_utf8()..];
    }
    out.extend_from_slice(text.as_bytes());
}
