//! The identity and the counters of a flow as columns of the tables `live` and `flow`.
//!
//! Guarantees: merged counters never decrease, and a flow's moments never go back.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use rusqlite::Row;
use rusqlite::types::ValueRef;

use super::month::QUARTER_NS;
use super::rollups::SumKey;
use super::schema::integer;
use super::sums::Sums;
use crate::record::Flow;

/// The names of [`FlowColumns::values`] and [`CounterColumns::values`]; the moment is `closed_ns` in `flow`.
macro_rules! columns {
    ($moment:literal) => {
        concat!(
            "id, opened_ns, account, policy, set_number, user, host, port, address, client, class, ",
            "protocol, rule, cut, ",
            $moment,
            ", quarter, requests, ",
            "client_rx, upstream_tx, upstream_rx, client_tx, uncertain_up, uncertain_down, ",
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
    pub(crate) account: i64,
    pub(crate) policy: i64,
    pub(crate) set: i64,
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
    /// The columns of `flow`, which is billed to `account`.
    pub(crate) fn from_flow(flow: &Flow<'a>, cut: bool, account: i64) -> Self {
        Self {
            id: flow.id.to_be_bytes(),
            opened_ns: integer(flow.opened.0),
            account,
            policy: flow.policy.into(),
            set: flow.set.into(),
            user: flow.user,
            host: flow.host,
            port: flow.port.into(),
            address: flow.address.map(|address| Cow::Owned(address_text(address))),
            client: Cow::Owned(client_text(flow.client)),
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
            account: row.get("account")?,
            policy: row.get("policy")?,
            set: row.get("set_number")?,
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

    /// The key of the sums to which the flow belongs.
    pub(crate) fn sum_key(&self) -> SumKey<'static> {
        SumKey { account: self.account, class: self.class.to_owned().into(), set: self.set }
    }

    pub(crate) fn values(&self) -> [ValueRef<'_>; 14] {
        let text = |text: &'a str| ValueRef::Text(text.as_bytes());
        [
            ValueRef::Blob(&self.id),
            ValueRef::Integer(self.opened_ns),
            ValueRef::Integer(self.account),
            ValueRef::Integer(self.policy),
            ValueRef::Integer(self.set),
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

/// The text of an address. The standard formatter took a twentieth of the applier's time.
fn address_text(address: IpAddr) -> String {
    let IpAddr::V4(address) = address else { return address.to_string() };
    let mut text = String::with_capacity("255.255.255.255:65535".len());
    let mut digits = itoa::Buffer::new();
    for (index, octet) in address.octets().into_iter().enumerate() {
        if index > 0 {
            text.push('.');
        }
        text.push_str(digits.format(octet));
    }
    text
}

/// The text of an address with its port.
fn client_text(client: SocketAddr) -> String {
    if client.is_ipv6() {
        return client.to_string();
    }
    let mut text = address_text(client.ip());
    text.push(':');
    text.push_str(itoa::Buffer::new().format(client.port()));
    text
}

/// The counters of a flow at a moment. No field is negative.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct CounterColumns {
    pub(crate) at_ns: i64,
    /// The quarter-hour, counted from 1970, to which the last counted bytes belong: that of `at_ns`. Of a
    /// flow that was counted before sums had quarter-hours it is the last one of the hour.
    pub(crate) quarter: i64,
    pub(crate) requests: i64,
    pub(crate) client_rx: i64,
    pub(crate) up: i64,
    pub(crate) upstream_rx: i64,
    pub(crate) down: i64,
    pub(crate) uncertain_up: i64,
    pub(crate) uncertain_down: i64,
    /// The part of `up` that was counted before `quarter`. 0 <= up_before <= up
    pub(crate) up_before: i64,
    /// 0 <= down_before <= down
    pub(crate) down_before: i64,
}

impl CounterColumns {
    pub(crate) fn from_flow(flow: &Flow<'_>) -> Self {
        Self {
            at_ns: integer(flow.closed.0),
            quarter: integer(flow.closed.0) / QUARTER_NS,
            requests: integer(flow.requests),
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
            quarter: row.get("quarter")?,
            requests: row.get("requests")?,
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

    pub(crate) fn values(&self) -> [ValueRef<'static>; 11] {
        [
            self.at_ns,
            self.quarter,
            self.requests,
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

    /// The moment at which the last counted bytes count: `at_ns`, or the first one of a later `quarter`.
    pub(crate) fn moment_ns(&self) -> i64 {
        self.at_ns.max(self.quarter.saturating_mul(QUARTER_NS))
    }

    /// The last moment of `quarter`.
    pub(crate) fn quarter_end_ns(&self) -> i64 {
        self.quarter.saturating_mul(QUARTER_NS).saturating_add(QUARTER_NS - 1)
    }

    /// Bytes up and down that were counted in `quarter`.
    pub(crate) fn in_last_quarter(&self) -> (i64, i64) {
        (self.up - self.up_before, self.down - self.down_before)
    }

    /// What the end of the flow adds to the sums of `quarter`, without what its open row had added.
    pub(crate) fn sums_at_end(&self) -> Sums {
        let (up, down) = self.in_last_quarter();
        let Self { requests, uncertain_up, uncertain_down, .. } = *self;
        Sums { flows: 1, requests, up, down, uncertain_up, uncertain_down }
    }

    /// Whether any counter is higher than in `earlier`.
    pub(crate) fn exceeds(&self, earlier: &CounterColumns) -> bool {
        self.counts().into_iter().zip(earlier.counts()).any(|(count, earlier)| count > earlier)
    }

    /// Merges two counts of a flow. Counters are cumulative, so the higher one is the later one. A clock that
    /// went back cannot move a flow into a quarter-hour that it had left.
    pub(crate) fn merged_with(&self, earlier: &CounterColumns) -> CounterColumns {
        let quarter = self.quarter.max(earlier.quarter);
        let moved = quarter > earlier.quarter;
        let before = |then: i64, total: i64| if moved { total } else { then };
        CounterColumns {
            at_ns: self.at_ns.max(earlier.at_ns),
            quarter,
            requests: self.requests.max(earlier.requests),
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

    fn counts(&self) -> [i64; 7] {
        let bytes = [self.client_rx, self.up, self.upstream_rx, self.down];
        let [client_rx, up, upstream_rx, down] = bytes;
        [client_rx, up, upstream_rx, down, self.uncertain_up, self.uncertain_down, self.requests]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_by_the_standard_library() {
        for text in ["0.0.0.0", "10.200.3.99", "255.255.255.255", "::", "2001:db8::1", "::ffff:192.0.2.1"] {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(address_text(address), address.to_string());
            for port in [0, 80, 65_535] {
                let client = SocketAddr::new(address, port);
                assert_eq!(client_text(client), client.to_string());
            }
        }
        let scoped: SocketAddr = "[fe80::1%3]:443".parse().unwrap();
        assert_eq!(client_text(scoped), scoped.to_string());
    }
}
