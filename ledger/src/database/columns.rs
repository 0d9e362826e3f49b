//! The identity and the counters of a flow as columns of the tables `live` and `flow`.
//!
//! Guarantees: merged counters never decrease, and a flow's moments never go back.

use std::borrow::Cow;

use rusqlite::Row;
use rusqlite::types::ValueRef;

use super::month::HOUR_NS;
use super::schema::integer;
use crate::record::Flow;

/// The names of [`FlowColumns::values`] and [`CounterColumns::values`]; the moment is `closed_ns` in `flow`.
macro_rules! columns {
    ($moment:literal) => {
        concat!(
            "id, opened_ns, user, host, port, address, client, class, protocol, rule, cut, ",
            $moment,
            ", client_rx, upstream_tx, upstream_rx, client_tx, uncertain_up, uncertain_down, ",
            "up_before, down_before"
        )
    };
}
pub(crate) use columns;

/// The identity of a flow.
pub(crate) struct FlowColumns<'a> {
    /// Big-endian, so that ids sort in the database as they do here.
    pub(crate) id: [u8; 16],
    pub(crate) opened_ns: i64,
    pub(crate) user: &'a str,
    pub(crate) host: &'a str,
    pub(crate) port: i64,
    pub(crate) address: Option<Cow<'a, str>>,
    pub(crate) client: Cow<'a, str>,
    pub(crate) class: &'a str,
    pub(crate) protocol: &'a str,
    pub(crate) rule: &'a str,
    pub(crate) cut: bool,
}

impl<'a> FlowColumns<'a> {
    pub(crate) fn from_flow(flow: &Flow<'a>, cut: bool) -> Self {
        Self {
            id: flow.id.to_be_bytes(),
            opened_ns: integer(flow.opened.0),
            user: flow.user,
            host: flow.host,
            port: flow.port.into(),
            address: flow.address.map(|address| Cow::Owned(address.to_string())),
            client: Cow::Owned(flow.client.to_string()),
            class: flow.class.as_str(),
            protocol: flow.protocol.as_str(),
            rule: flow.rule,
            cut,
        }
    }

    /// Reads a row with columns of the same names.
    pub(crate) fn read(row: &'a Row<'_>) -> rusqlite::Result<Self> {
        let text = |name| -> rusqlite::Result<&'a str> { Ok(row.get_ref(name)?.as_str()?) };
        Ok(Self {
            id: row.get("id")?,
            opened_ns: row.get("opened_ns")?,
            user: text("user")?,
            host: text("host")?,
            port: row.get("port")?,
            address: row.get_ref("address")?.as_str_or_null()?.map(Cow::Borrowed),
            client: Cow::Borrowed(text("client")?),
            class: text("class")?,
            protocol: text("protocol")?,
            rule: text("rule")?,
            cut: row.get("cut")?,
        })
    }

    pub(crate) fn values(&self) -> [ValueRef<'_>; 11] {
        let text = |text: &'a str| ValueRef::Text(text.as_bytes());
        [
            ValueRef::Blob(&self.id),
            ValueRef::Integer(self.opened_ns),
            text(self.user),
            text(self.host),
            ValueRef::Integer(self.port),
            self.address.as_deref().map_or(ValueRef::Null, |text| ValueRef::Text(text.as_bytes())),
            ValueRef::Text(self.client.as_bytes()),
            text(self.class),
            text(self.protocol),
            text(self.rule),
            ValueRef::Integer(self.cut.into()),
        ]
    }
}

/// The counters of a flow at a moment. No field is negative.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct CounterColumns {
    pub(crate) at_ns: i64,
    pub(crate) client_rx: i64,
    pub(crate) up: i64,
    pub(crate) upstream_rx: i64,
    pub(crate) down: i64,
    pub(crate) uncertain_up: i64,
    pub(crate) uncertain_down: i64,
    /// The part of `up` that was counted before the hour of `at_ns`. 0 <= up_before <= up
    pub(crate) up_before: i64,
    /// 0 <= down_before <= down
    pub(crate) down_before: i64,
}

impl CounterColumns {
    pub(crate) fn from_flow(flow: &Flow<'_>) -> Self {
        Self {
            at_ns: integer(flow.closed.0),
            client_rx: integer(flow.legs.client_rx),
            up: integer(flow.legs.upstream_tx),
            upstream_rx: integer(flow.legs.upstream_rx),
            down: integer(flow.legs.client_tx),
            uncertain_up: flow.uncertain.up.into(),
            uncertain_down: flow.uncertain.down.into(),
            up_before: 0,
            down_before: 0,
        }
    }

    /// Reads a row with these columns; the column `moment` has the moment.
    pub(crate) fn read(row: &Row<'_>, moment: &str) -> rusqlite::Result<Self> {
        Ok(Self {
            at_ns: row.get(moment)?,
            client_rx: row.get("client_rx")?,
            up: row.get("upstream_tx")?,
            upstream_rx: row.get("upstream_rx")?,
            down: row.get("client_tx")?,
            uncertain_up: row.get("uncertain_up")?,
            uncertain_down: row.get("uncertain_down")?,
            up_before: row.get("up_before")?,
            down_before: row.get("down_before")?,
        })
    }

    pub(crate) fn values(&self) -> [ValueRef<'static>; 9] {
        [
            self.at_ns,
            self.client_rx,
            self.up,
            self.upstream_rx,
            self.down,
            self.uncertain_up,
            self.uncertain_down,
            self.up_before,
            self.down_before,
        ]
        .map(ValueRef::Integer)
    }

    /// Hours since 1970.
    pub(crate) fn hour(&self) -> i64 {
        self.at_ns / HOUR_NS
    }

    /// Bytes up and down that were counted in the hour of `at_ns`.
    pub(crate) fn in_last_hour(&self) -> (i64, i64) {
        (self.up - self.up_before, self.down - self.down_before)
    }

    /// Whether any counter is higher than in `earlier`.
    pub(crate) fn exceeds(&self, earlier: &CounterColumns) -> bool {
        self.counts().into_iter().zip(earlier.counts()).any(|(count, earlier)| count > earlier)
    }

    /// Merges two counts of a flow. Counters are cumulative, so the higher one is the later one. A clock that
    /// went back cannot move a flow into an hour that it had left.
    pub(crate) fn merged_with(&self, earlier: &CounterColumns) -> CounterColumns {
        let at_ns = self.at_ns.max(earlier.at_ns);
        let moved = at_ns / HOUR_NS > earlier.hour();
        let before = |then: i64, total: i64| if moved { total } else { then };
        CounterColumns {
            at_ns,
            client_rx: self.client_rx.max(earlier.client_rx),
            up: self.up.max(earlier.up),
            upstream_rx: self.upstream_rx.max(earlier.upstream_rx),
            down: self.down.max(earlier.down),
            uncertain_up: self.uncertain_up.max(earlier.uncertain_up),
            uncertain_down: self.uncertain_down.max(earlier.uncertain_down),
            up_before: before(earlier.up_before, earlier.up),
            down_before: before(earlier.down_before, earlier.down),
        }
    }

    fn counts(&self) -> [i64; 6] {
        [self.client_rx, self.up, self.upstream_rx, self.down, self.uncertain_up, self.uncertain_down]
    }
}
