//! Questions about the usage in a ledger, and the interface of an engine that answers them.
//!
//! Guarantees: what an answer means does not depend on the engine. `query/conformance.rs` has that as tests.

#[cfg(test)]
pub(crate) mod conformance;
pub(crate) mod order;
pub(crate) mod window;
pub(crate) mod zone;

use std::collections::BTreeSet;
use std::error::Error;

use jiff::tz::TimeZone;
use sys::clock::WallNanos;

use crate::database::month::{DAY_NS, HOUR_NS, QUARTER_NS};
use crate::database::schema::integer;
use crate::record::Class;
use window::Window;

/// The usage of a ledger as of one moment. An implementation must guarantee:
///
/// 1. **One moment.** All answers have the same entries: an entry that is applied later is in none.
/// 2. **Quarter-hours.** A byte belongs to the quarter-hour in which it was counted. What a flow moved in a
///    quarter-hour before its last one counts at that one's last nanosecond. What it moved in its last one
///    counts when the flow ends; of an open flow, at its last count.
/// 3. **Totals.** The counts of an entry are totals of its flow. A count below a known one, and a moment
///    before the known one, change nothing; nor does an interim without any higher count.
/// 4. **Ends.** An open flow is one of `live`. One that ended is one of `flows`, with its requests and its
///    uncertain bytes, at its end. A run that begins ends the open flows of earlier runs, as they were last
///    counted.
/// 5. **Filter.** Usage is admitted that meets every field: from `since` on, and before `until`. The last
///    moment, 2^63 - 1 ns, stands for all later ones, and is before an `until` of that moment or later.
/// 6. **Sums.** The rows of any keys add up to the total of the same filter. A group without flows, requests
///    and bytes has no row.
/// 7. **Names.** A flow belongs to the account of its first entry, to the end. Rows have the account's
///    present name; a filter finds it by that and by each earlier name that no other account has now. A name
///    that has no account has no usage. A set is found by its name, which does not change.
///    All usage of an account, at whatever time, is of the team with which it was last numbered, also if its
///    user was removed since.
/// 8. **Order.** Groups are ordered by their first key, then by the second, and so on: times ascending,
///    others by bytes in both directions, descending, and equal ones by name.
/// 9. **Periods.** Quarter-hours, hours, days and months are those of the zone, and have distinct names.
/// 10. **No wrong number.** A sum beyond 2^63 - 2 is an error.
/// 11. **Entries ahead.** An engine may also read entries that are durable in the journal and not applied.
///     Then its rows, totals, users and sets are as if these were applied. Flows and consents are listed
///     without them.
/// 12. **Flows.** A list has open flows first, the last opened one at the top. Closed ones follow by the
///     month of their end, the latest first, and in it the last recorded first. Each has all that it moved,
///     at whatever time.
///
/// An engine may keep a part of a month's flows as sums by user, host, class, set and quarter-hour: those
/// count at the end of their quarter-hour, have no port and protocol, and are not listed. Rows leave out what
/// is not kept any more ([`Answer::missing`]). Rows and totals leave out what is damaged, and may have later
/// ones of the sums that are kept ([`Completeness`]).
pub trait Usage {
    /// Why a question has no answer.
    type Error: Error + Send + Sync + 'static;

    /// The same usage, with answers by the quarter-hours, hours, days and months of `zone`, in place of UTC.
    fn in_zone(self, zone: TimeZone) -> Self
    where
        Self: Sized;

    /// The usage that `filter` admits, one row for each group with the same `keys`.
    fn rows(&self, filter: &Filter, keys: &[GroupBy]) -> Result<Answer, Self::Error>;

    /// The sum of all usage that `filter` admits, under the key `total`.
    fn total(&self, filter: &Filter) -> Result<Row, Self::Error>;

    /// At most `limit` flows that `filter` admits: those that closed, or were last counted, in its span.
    fn flows(&self, filter: &Filter, limit: usize) -> Result<Vec<FlowRow>, Self::Error>;

    /// The names of users with any flow, also of removed ones, and their earlier names.
    fn users(&self) -> Result<BTreeSet<String>, Self::Error>;

    /// Whether [`Usage::users`] has this name.
    fn has_user(&self, name: &str) -> Result<bool, Self::Error>;

    /// The teams that have a user, also a removed one.
    fn teams(&self) -> BTreeSet<String>;

    /// The named sets that have a number, also those that no configuration has any more.
    fn sets(&self) -> BTreeSet<String>;

    /// The losses that an operator accepted: time, author and text of each.
    fn consents(&self) -> Result<Vec<String>, Self::Error>;

    /// How complete the answers so far are.
    fn completeness(&self) -> Completeness;
}

/// How complete the answers of an engine are.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Completeness {
    /// Whether they include entries that the store lacks, and that change a sum.
    pub includes_unapplied: bool,
    /// Why entries of the journal that the store lacks are missing, if some are.
    pub unread: Option<String>,
    /// Whether an answer lacks a row that is damaged.
    pub has_damaged_rows: bool,
    /// The months, as `2026-01`, of which an answer has sums of later entries too. While a gateway writes,
    /// another snapshot has the answer.
    pub months_ahead: Vec<String>,
}

/// Which flows count. The default admits all.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Filter {
    /// Bytes that were counted at this moment or later.
    pub since: Option<WallNanos>,
    /// Bytes that were counted before this moment.
    pub until: Option<WallNanos>,
    /// Flows of this user.
    pub user: Option<String>,
    /// Flows of the users of this team. An empty name is no team's.
    pub team: Option<String>,
    /// Flows to this host, as requested.
    pub host: Option<String>,
    /// Flows of this class.
    pub class: Option<Class>,
    /// Flows that this named set admitted.
    pub set: Option<String>,
}

impl Filter {
    /// The span of the moments that are admitted.
    pub(crate) fn window(&self) -> Window {
        let since_ns = self.since.map_or(0, |moment| integer(moment.0));
        // The ledger has no later moment; it is included if there is no `until`.
        let last_ns = match self.until.map(|moment| integer(moment.0)) {
            None | Some(i64::MAX) => i64::MAX,
            Some(end_ns) => end_ns - 1,
        };
        Window { since_ns, last_ns }
    }
}

/// The key by which flows are grouped.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum GroupBy {
    /// The user's name.
    User,
    /// The team of the user; empty if it has none.
    Team,
    /// The host as requested.
    Host,
    /// The port as requested. Empty where it is not known: flows beyond a month's row limit are kept as sums
    /// by host.
    Port,
    /// The protocol of the request: `http_connect`, `http`, `socks5` or `forward`. Empty as for the port.
    Protocol,
    /// `external` or `internal`.
    Class,
    /// The named set that admitted the flow; empty if none did.
    Set,
    /// The quarter-hour in which the bytes were counted, as `2026-01-31T23:45Z`.
    Quarter,
    /// The hour in which the bytes were counted, as `2026-01-31T23:00Z`.
    Hour,
    /// The day in which the bytes were counted, as `2026-01-31`.
    Day,
    /// The month in which the bytes were counted, as `2026-01`.
    Month,
}

impl GroupBy {
    pub(crate) fn is_time(self) -> bool {
        matches!(self, Self::Quarter | Self::Hour | Self::Day | Self::Month)
    }

    /// The length of its periods, if all have the same.
    pub(crate) fn period_ns(self) -> Option<i64> {
        match self {
            Self::Quarter => Some(QUARTER_NS),
            Self::Hour => Some(HOUR_NS),
            Self::Day => Some(DAY_NS),
            _ => None,
        }
    }

    /// Whether it is a text, with which no other group has its key.
    pub(crate) fn is_text(self) -> bool {
        matches!(self, Self::Team | Self::Host | Self::Port | Self::Protocol | Self::Class)
    }

    /// Whether the rollups have this key.
    pub(crate) fn is_rolled_up(self) -> bool {
        !matches!(self, Self::Host | Self::Port | Self::Protocol)
    }
}

/// Usage by group.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Answer {
    /// The groups.
    pub rows: Vec<Row>,
    /// The months, as `2026-01`, whose details are needed for a complete result and no longer kept. Empty if
    /// the result is complete.
    pub missing: Vec<String>,
}

/// The usage of one group.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Row {
    /// The values of the keys, in the order of the request.
    pub keys: Vec<String>,
    /// Closed flows.
    pub flows: u64,
    /// Open flows.
    pub live: u64,
    /// Requests of plain HTTP, of the closed flows; a tunnel has none.
    pub requests: u64,
    /// Bytes toward the upstream.
    pub up: u64,
    /// Bytes toward the client.
    pub down: u64,
    /// Bytes toward the upstream of which it is not known whether they were sent; not in `up`.
    pub uncertain_up: u64,
    /// Bytes toward the client of which it is not known whether they were sent; not in `down`.
    pub uncertain_down: u64,
}

/// One flow.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FlowRow {
    /// Unique forever.
    pub id: u128,
    /// When its connection was accepted.
    pub opened: WallNanos,
    /// When it closed; of an open flow, when it was last counted.
    pub closed: WallNanos,
    /// Whether it is open.
    pub live: bool,
    /// The user's present name.
    pub user: String,
    /// The host as requested.
    pub host: String,
    /// The port as requested.
    pub port: u16,
    /// The dialled address, if one was dialled.
    pub address: Option<String>,
    /// The client's end of its connection.
    pub client: String,
    /// `external` or `internal`.
    pub class: String,
    /// The protocol of the client's request.
    pub protocol: String,
    /// The rule that decided on the request.
    pub rule: String,
    /// The reason for its end; empty while it is open.
    pub reason: String,
    /// Bytes toward the upstream.
    pub up: u64,
    /// Bytes toward the client.
    pub down: u64,
    /// Bytes toward the upstream of which it is not known whether they were sent; not in `up`.
    pub uncertain_up: u64,
    /// Bytes toward the client of which it is not known whether they were sent; not in `down`.
    pub uncertain_down: u64,
}
