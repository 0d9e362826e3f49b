//! How an event becomes a line: one JSON object, in ASCII, ended by a line feed.
//!
//! Promises: whatever the values hold, a line is one object on one line, and showing it on a terminal does
//! nothing: every character that is not printable ASCII is escaped. No allocation once the buffer has grown.
//! Leaves to others: where lines go (`writer.rs`).

use std::fmt::{self, Display, Formatter};
use std::io::Write as _;

use jiff::Timestamp;
use ledger::record::Flow;
use sys::clock::WallNanos;

use super::{Event, EventKind};

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// How much a message of the control side matters.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Level {
    /// All is well.
    Info,
    /// Something does not work as it was asked to.
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
    /// A fact.
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

/// Writes lines, and remembers the text of the last second: calendar arithmetic would be the dearest part of
/// a line.
#[derive(Default)]
pub(super) struct LineWriter {
    second: u64,
    second_text: String,
}

impl LineWriter {
    /// Appends the line of a flow's event. What the event does not know is left out.
    pub(super) fn event(&mut self, out: &mut Vec<u8>, event: &Event) {
        let flow = event.record.flow();
        let mut line = Object::open(out);
        line.plain("id", format_args!("{:032x}", flow.id));
        line.plain("ts", self.time(event.at));
        line.text("event", event.kind.as_str());
        line.text_unless_empty("user", flow.user);
        line.plain("listener", event.listener);
        if let Some(protocol) = event.protocol {
            line.text("protocol", protocol.as_str());
        }
        line.plain("client_addr", flow.client);
        line.text_unless_empty("requested_host", flow.host);
        if flow.port != 0 {
            line.number("requested_port", flow.port.into());
        }
        if let Some(address) = flow.address {
            line.plain("resolved_ip", address);
        }
        line.text_unless_empty("rule", flow.rule);
        line.text("decision", if event.allowed { "allow" } else { "deny" });
        line.text("reason", event.reason);
        if let Some(dns_us) = event.dns_us {
            line.milliseconds("dns_ms", dns_us.into());
        }
        if let Some(connect_us) = event.connect_us {
            line.milliseconds("connect_ms", connect_us.into());
        }
        if let Some(answered) = event.answered {
            line.text("method", answered.method);
            if let Some(status) = answered.status {
                line.number("status", status.into());
            }
        }
        if event.kind == EventKind::Close {
            closing(&mut line, &flow);
        }
        line.close();
    }

    /// Appends the line that says how many lines are missing since the last such line.
    pub(super) fn dropped(&mut self, out: &mut Vec<u8>, now: WallNanos, count: u64) {
        let mut line = Object::open(out);
        line.plain("ts", self.time(now));
        line.text("event", "log_dropped");
        line.number("count", count);
        line.close();
    }

    /// Appends the line of a message. The names in `fields` are ours and need no escape.
    pub(super) fn message(
        &mut self,
        out: &mut Vec<u8>,
        now: WallNanos,
        level: Level,
        text: &str,
        fields: &[(&'static str, Value<'_>)],
    ) {
        let mut line = Object::open(out);
        line.plain("ts", self.time(now));
        line.text("event", "message");
        line.text("level", level.as_str());
        line.text("text", text);
        for (name, value) in fields {
            match value {
                Value::Text(text) => line.text(name, text),
                Value::Number(number) => line.number(name, *number),
                Value::Flag(flag) => line.flag(name, *flag),
            }
        }
        line.close();
    }

    /// RFC 3339, UTC, with milliseconds.
    fn time(&mut self, at: WallNanos) -> impl Display + use<'_> {
        let second = at.0 / NANOS_PER_SECOND;
        if second != self.second || self.second_text.is_empty() {
            self.second = second;
            // Clamped, not wrong: 64-bit nanoseconds end in 2554.
            let timestamp = Timestamp::from_second(second as i64).unwrap_or(Timestamp::MAX);
            self.second_text = timestamp.strftime("%Y-%m-%dT%H:%M:%S").to_string();
        }
        Time { second: &self.second_text, milliseconds: at.0 % NANOS_PER_SECOND / 1_000_000 }
    }
}

/// What is known only at the end.
fn closing(line: &mut Object<'_>, flow: &Flow<'_>) {
    // A wall clock that was set back in between makes this 0.
    line.milliseconds("duration_ms", flow.closed.0.saturating_sub(flow.opened.0) / 1_000);
    line.text("close_reason", flow.reason.as_str());
    line.number("client_rx", flow.legs.client_rx);
    line.number("upstream_tx", flow.legs.upstream_tx);
    line.number("upstream_rx", flow.legs.upstream_rx);
    line.number("client_tx", flow.legs.client_tx);
}

struct Time<'a> {
    second: &'a str,
    milliseconds: u64,
}

impl Display for Time<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{:03}Z", self.second, self.milliseconds)
    }
}

/// A JSON object that is being written. Names are ours: they need no escape.
struct Object<'a> {
    out: &'a mut Vec<u8>,
    separator: &'static str,
}

impl<'a> Object<'a> {
    fn open(out: &'a mut Vec<u8>) -> Object<'a> {
        Object { out, separator: "{\"" }
    }

    fn name(&mut self, name: &str) {
        self.out.extend_from_slice(self.separator.as_bytes());
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
        self.separator = ",\"";
    }

    fn text(&mut self, name: &str, text: &str) {
        self.name(name);
        self.out.push(b'"');
        escape(self.out, text);
        self.out.push(b'"');
    }

    fn text_unless_empty(&mut self, name: &str, text: &str) {
        if !text.is_empty() {
            self.text(name, text);
        }
    }

    /// A value of ours that never needs an escape: an address, an id, a time.
    fn plain(&mut self, name: &str, value: impl Display) {
        self.name(name);
        write!(self.out, "\"{value}\"").expect(VEC_TAKES_ALL);
    }

    fn number(&mut self, name: &str, number: u64) {
        self.name(name);
        write!(self.out, "{number}").expect(VEC_TAKES_ALL);
    }

    /// Microseconds, written as milliseconds with a fraction.
    fn milliseconds(&mut self, name: &str, microseconds: u64) {
        self.name(name);
        write!(self.out, "{}.{:03}", microseconds / 1_000, microseconds % 1_000).expect(VEC_TAKES_ALL);
    }

    fn flag(&mut self, name: &str, flag: bool) {
        self.name(name);
        self.out.extend_from_slice(if flag { b"true" } else { b"false" });
    }

    fn close(self) {
        self.out.extend_from_slice(b"}\n");
    }
}

const VEC_TAKES_ALL: &str = "a vector takes whatever is written to it";

/// Appends the text of a JSON string (RFC 8259, section 7). More is escaped than JSON asks for: control
/// characters of terminals (also C1), letters that change the direction of writing, and whatever else could
/// make a line look like what it is not.
fn escape(out: &mut Vec<u8>, mut text: &str) {
    let is_special = |c: char| !matches!(c, ' '..='~') || matches!(c, '"' | '\\');
    while let Some(at) = text.find(is_special) {
        out.extend_from_slice(&text.as_bytes()[..at]);
        let special = text[at..].chars().next().expect("a character was found there");
        match special {
            '"' | '\\' => out.extend_from_slice(&[b'\\', special as u8]),
            _ => {
                for unit in special.encode_utf16(&mut [0; 2]) {
                    write!(out, "\\u{unit:04x}").expect(VEC_TAKES_ALL);
                }
            }
        }
        text = &text[at + special.len_utf8()..];
    }
    out.extend_from_slice(text.as_bytes());
}
