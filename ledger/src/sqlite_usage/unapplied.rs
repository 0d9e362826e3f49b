//! Entries that the journal has and the database lacks: while the database cannot be written, or between two
//! transactions.
//!
//! Guarantees: an entry counts once, when its frame is proved to be durable. Each change is the one that the
//! applier will make to the sums. Entries that nothing proves, and flows that only the live table has, are
//! not included.

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::Connection;

use super::groups::{Groups, Sums, TOTAL};
use super::{QueryError, each};
use crate::database::month::QUARTER_NS;
use crate::database::registry::Registry;
use crate::database::schema::integer;
use crate::database::{checksum, named_sets};
use crate::entry::Entry;
use crate::query::window::Window;
use crate::query::zone::Zone;
use crate::query::{Filter, GroupBy};
use crate::record::{Flow, Record};

/// The changes of the sums by entries beyond the database's last one.
#[derive(Debug)]
pub(super) struct UnappliedEntries {
    registry: Arc<Registry>,
    changes: Vec<Change>,
    /// The open flows.
    flows: HashMap<u128, LiveCounts>,
}

/// A change of the sums, and the fields of its flow.
#[derive(Clone, Debug)]
struct Change {
    at_ns: i64,
    fields: GroupFields,
    sums: Sums,
}

/// The fields by which flows are grouped.
#[derive(Clone, Debug)]
struct GroupFields {
    /// The present name.
    user: String,
    set: String,
    host: String,
    port: String,
    protocol: String,
    class: String,
}

/// The last counts of an open flow.
#[derive(Clone, Debug)]
struct LiveCounts {
    at_ns: i64,
    up: i64,
    down: i64,
    requests: i64,
    uncertain: (i64, i64),
    fields: GroupFields,
}

impl UnappliedEntries {
    /// No entries.
    pub(super) fn new(registry: &Arc<Registry>) -> UnappliedEntries {
        UnappliedEntries { registry: Arc::clone(registry), changes: Vec::new(), flows: HashMap::new() }
    }

    /// Whether there are no changes.
    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Loads the open flows of `gateway` from the database.
    pub(super) fn load_live(&mut self, connection: &Connection, gateway: i64) -> Result<(), QueryError> {
        each(connection, &format!("SELECT * FROM live WHERE gateway = {gateway}"), |row| {
            checksum::check(row, "live")?;
            let id: [u8; 16] = row.get("id")?;
            let fields = GroupFields {
                user: self.registry.accounts.name(row.get("account")?),
                set: self.registry.sets.name(row.get("set_number")?),
                host: row.get("host")?,
                port: row.get::<_, i64>("port")?.to_string(),
                protocol: row.get("protocol")?,
                class: row.get("class")?,
            };
            let earlier = LiveCounts {
                // As in `live`: of a flow that was counted by hours, the end of its hour.
                at_ns: row.get::<_, i64>("counted_ns")?.max(row.get::<_, i64>("quarter")? * QUARTER_NS),
                up: row.get("upstream_tx")?,
                down: row.get("client_tx")?,
                requests: row.get("requests")?,
                uncertain: (row.get("uncertain_up")?, row.get("uncertain_down")?),
                fields,
            };
            self.flows.insert(u128::from_be_bytes(id), earlier);
            Ok(())
        })
    }

    /// Adds the next entry.
    pub(super) fn add(&mut self, entry: &Entry) {
        match entry {
            Entry::Interim(record) => self.count(record, false),
            Entry::Final(record) => self.count(record, true),
            Entry::RunBegan { .. } => self.end_all(),
            Entry::Gap { .. }
            | Entry::RunEnded { .. }
            | Entry::Edge { .. }
            | Entry::Accepted(_)
            | Entry::Skipped(_) => {}
        }
    }

    fn count(&mut self, record: &Record, is_over: bool) {
        let flow = record.flow();
        let requests = integer(flow.requests);
        let earlier = self.flows.remove(&flow.id);
        let before = earlier.as_ref().map_or((0, 0), |earlier| (earlier.up, earlier.down));
        let up = integer(flow.legs.upstream_tx).max(before.0);
        let down = integer(flow.legs.client_tx).max(before.1);
        let uncertain = (flow.uncertain.up.into(), flow.uncertain.down.into());
        // A clock that goes back does not move a flow into an earlier hour.
        let at_ns = integer(flow.closed.0).max(earlier.as_ref().map_or(0, |earlier| earlier.at_ns));
        let fields = earlier
            .as_ref()
            .map_or_else(|| GroupFields::new(&self.registry, &flow), |earlier| earlier.fields.clone());
        if let Some(earlier) = earlier {
            self.change(earlier.at_ns, &earlier.fields, [0, -1, 0, 0, 0, 0, 0]);
        }
        let moved = (up - before.0, down - before.1);
        if is_over {
            self.change(at_ns, &fields, [1, 0, requests, moved.0, moved.1, uncertain.0, uncertain.1]);
        } else {
            self.change(at_ns, &fields, [0, 1, 0, moved.0, moved.1, 0, 0]);
            self.flows.insert(flow.id, LiveCounts { at_ns, up, down, requests, uncertain, fields });
        }
    }

    /// A run began: the flows that were open have ended.
    fn end_all(&mut self) {
        for earlier in std::mem::take(&mut self.flows).into_values() {
            let (up, down) = earlier.uncertain;
            self.change(earlier.at_ns, &earlier.fields, [1, -1, earlier.requests, 0, 0, up, down]);
        }
    }

    fn change(&mut self, at_ns: i64, fields: &GroupFields, sums: Sums) {
        self.changes.push(Change { at_ns, fields: fields.clone(), sums });
    }

    /// Adds the changes that `filter` admits in `window`.
    pub(super) fn add_to(
        &self,
        filter: &Filter,
        keys: &[GroupBy],
        (window, zone): (Window, &Zone),
        groups: &mut Groups<'_>,
    ) -> Result<(), QueryError> {
        let present = |name: &String| {
            let account = self.registry.accounts.find(name);
            account.map_or_else(|| name.clone(), |account| self.registry.accounts.name(account))
        };
        let filtered_user = filter.user.as_ref().map(present);
        let admits = |change: &&Change| {
            let GroupFields { user, host, class, set, .. } = &change.fields;
            (window.since_ns..=window.last_ns).contains(&change.at_ns)
                && filtered_user.as_ref().is_none_or(|value| value == user)
                && filter.set.as_ref().is_none_or(|value| value == set)
                && filter.host.as_ref().is_none_or(|value| value == host)
                && filter.class.is_none_or(|value| value.as_str() == class)
        };
        for change in self.changes.iter().filter(admits) {
            let key = match keys {
                [] => vec![TOTAL.to_owned()],
                keys => keys.iter().map(|key| change.key(*key, zone)).collect(),
            };
            groups.sum(key, change.sums)?;
        }
        Ok(())
    }
}

impl GroupFields {
    fn new(registry: &Registry, flow: &Flow<'_>) -> GroupFields {
        let account = registry.account(flow.account, flow.user);
        let has_name = account > 0 && !registry.accounts.lacks(flow.user, account);
        GroupFields {
            // The applier will name an account after its user's name.
            user: if has_name { registry.accounts.name(account) } else { flow.user.to_owned() },
            set: match registry.sets.lacks(flow.set.into()) {
                true => named_sets::name_in_rule(flow.rule).to_owned(),
                false => registry.sets.name(flow.set.into()),
            },
            host: flow.host.to_owned(),
            port: flow.port.to_string(),
            protocol: flow.protocol.as_str().to_owned(),
            class: flow.class.as_str().to_owned(),
        }
    }
}

impl Change {
    /// The value of this key, as the database query would return it.
    fn key(&self, key: GroupBy, zone: &Zone) -> String {
        match key {
            GroupBy::User => self.fields.user.clone(),
            GroupBy::Host => self.fields.host.clone(),
            GroupBy::Port => self.fields.port.clone(),
            GroupBy::Protocol => self.fields.protocol.clone(),
            GroupBy::Class => self.fields.class.clone(),
            GroupBy::Set => self.fields.set.clone(),
            GroupBy::Quarter | GroupBy::Hour | GroupBy::Day | GroupBy::Month => zone.name(key, self.at_ns),
        }
    }
}
