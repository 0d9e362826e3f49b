//! Entries that the journal has and the database lacks: while the database cannot be written, or between two
//! transactions.
//!
//! Guarantees: an entry counts once, when its frame is proved to be durable. All sums are those that they
//! will be once the entries are applied. Entries that nothing proves, and flows that only the live table has,
//! are not included.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rusqlite::Connection;

use super::groups::{Groups, Sums, TOTAL, closed};
use super::{QueryError, each};
use crate::database::columns::CounterColumns;
use crate::database::registry::Registry;
use crate::database::{checksum, named_sets};
use crate::entry::Entry;
use crate::query::window::Window;
use crate::query::zone::Zone;
use crate::query::{Filter, GroupBy};
use crate::quota::{Grant, Notice};
use crate::record::{Flow, Record};

/// The changes of the sums by entries beyond the database's last one.
#[derive(Debug)]
pub(super) struct UnappliedEntries {
    registry: Arc<Registry>,
    changes: Vec<Change>,
    /// The open flows.
    flows: HashMap<u128, OpenFlow>,
    /// The fields of all, each once: a full journal has millions of flows to some thousands of hosts.
    fields: HashSet<Arc<GroupFields>>,
    grants: Vec<Grant>,
    notices: Vec<Notice>,
}

/// A change of the sums, and the fields of its flow.
#[derive(Clone, Debug)]
struct Change {
    at_ns: i64,
    fields: Arc<GroupFields>,
    sums: Sums,
}

/// The fields by which flows are grouped.
#[derive(Debug, Eq, Hash, PartialEq)]
struct GroupFields {
    /// 0 if the database does not know it.
    account: i64,
    /// The present name.
    user: String,
    /// Empty if it has none.
    team: String,
    set_number: i64,
    set: String,
    /// Whether the database lacks the set, and its rule has the name.
    has_new_set: bool,
    host: String,
    port: String,
    protocol: String,
    class: String,
}

/// An open flow as it was last counted.
#[derive(Debug)]
struct OpenFlow {
    counters: CounterColumns,
    fields: Arc<GroupFields>,
    /// Whether an entry beyond the database's last one counted it: the database has it otherwise.
    is_ahead: bool,
}

impl OpenFlow {
    /// What it has in the sums at its last count, besides what it moved in earlier quarter-hours.
    fn sums(&self) -> Sums {
        let (up, down) = self.counters.in_last_quarter();
        [0, 1, 0, up, down, 0, 0]
    }
}

impl UnappliedEntries {
    /// No entries.
    pub(super) fn new(registry: &Arc<Registry>) -> UnappliedEntries {
        let (changes, flows, fields, grants, notices) = Default::default();
        UnappliedEntries { registry: Arc::clone(registry), changes, flows, fields, grants, notices }
    }

    /// Whether there are no changes.
    pub(super) fn is_empty(&self) -> bool {
        self.each().next().is_none()
    }

    /// All changes: the fields of a flow, a moment, and sums.
    fn each(&self) -> impl Iterator<Item = (&GroupFields, i64, Sums)> {
        let changes = self.changes.iter().map(|change| (&*change.fields, change.at_ns, change.sums));
        let open = self.flows.values().filter(|open| open.is_ahead);
        changes.chain(open.map(|open| (&*open.fields, open.counters.moment_ns(), open.sums())))
    }

    /// No entries, with the open flows of `gateway` in the database.
    pub(super) fn read(
        registry: &Arc<Registry>,
        connection: &Connection,
        gateway: i64,
    ) -> Result<UnappliedEntries, QueryError> {
        let mut unapplied = UnappliedEntries::new(registry);
        unapplied.load_live(connection, gateway)?;
        Ok(unapplied)
    }

    fn load_live(&mut self, connection: &Connection, gateway: i64) -> Result<(), QueryError> {
        each(connection, &format!("SELECT * FROM live WHERE gateway = {gateway}"), |row| {
            checksum::check(row, "live")?;
            let id: [u8; 16] = row.get("id")?;
            let (account, set_number) = (row.get("account")?, row.get("set_number")?);
            let fields = GroupFields {
                account,
                user: self.registry.accounts.name(account),
                team: self.registry.teams.of(account).to_owned(),
                set_number,
                set: self.registry.sets.name(set_number),
                has_new_set: false,
                host: row.get("host")?,
                port: row.get::<_, i64>("port")?.to_string(),
                protocol: row.get("protocol")?,
                class: row.get("class")?,
            };
            let counters = CounterColumns::read(row, "counted_ns")?;
            let open = OpenFlow { counters, fields: self.share(fields), is_ahead: false };
            self.flows.insert(u128::from_be_bytes(id), open);
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
            Entry::Granted(grant) => self.grants.push(grant.grant()),
            Entry::Noticed(notice) => self.notices.push(notice.notice()),
        }
    }

    fn count(&mut self, record: &Record, is_over: bool) {
        let flow = record.flow();
        let counters = CounterColumns::from_flow(&flow);
        let earlier = self.flows.get(&flow.id);
        if !is_over && earlier.is_some_and(|earlier| !counters.exceeds(&earlier.counters)) {
            return;
        }
        let open = match self.flows.remove(&flow.id) {
            None => {
                let fields = self.share(GroupFields::new(&self.registry, &flow));
                OpenFlow { counters, fields, is_ahead: true }
            }
            Some(earlier) => {
                let counters = counters.merged_with(&earlier.counters);
                self.leave(&earlier, &counters);
                OpenFlow { counters, is_ahead: true, ..earlier }
            }
        };
        if is_over {
            self.end(&open);
        } else {
            self.flows.insert(flow.id, open);
        }
    }

    /// Takes an open flow from its last count, as it is counted anew or ends. What it moved stays in its
    /// quarter-hour, if it leaves that.
    fn leave(&mut self, open: &OpenFlow, next: &CounterColumns) {
        let OpenFlow { counters, fields, is_ahead } = open;
        if !is_ahead {
            self.change(counters.moment_ns(), fields, open.sums().map(|sum| -sum));
        }
        if next.quarter > counters.quarter {
            let (up, down) = counters.in_last_quarter();
            self.change(counters.quarter_end_ns(), fields, [0, 0, 0, up, down, 0, 0]);
        }
    }

    fn end(&mut self, open: &OpenFlow) {
        let sums = closed(&open.counters.sums_at_end());
        self.change(open.counters.moment_ns(), &open.fields, sums);
    }

    /// A run began, behind all that earlier ones wrote: the open flows have ended.
    fn end_all(&mut self) {
        for open in std::mem::take(&mut self.flows).into_values() {
            self.leave(&open, &open.counters);
            self.end(&open);
        }
    }

    fn share(&mut self, fields: GroupFields) -> Arc<GroupFields> {
        let fields = Arc::new(fields);
        match self.fields.get(&fields) {
            Some(known) => Arc::clone(known),
            None => {
                self.fields.insert(Arc::clone(&fields));
                fields
            }
        }
    }

    fn change(&mut self, at_ns: i64, fields: &Arc<GroupFields>, sums: Sums) {
        if sums != Sums::default() {
            self.changes.push(Change { at_ns, fields: Arc::clone(fields), sums });
        }
    }

    /// The present names of the users of these entries, and of the open flows.
    pub(super) fn users(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|fields| fields.user.as_str())
    }

    /// The grants of these entries, each as often as it was appended.
    pub(super) fn grants(&self) -> impl Iterator<Item = &Grant> {
        self.grants.iter()
    }

    /// The notices of these entries, each as often as it was appended.
    pub(super) fn notices(&self) -> impl Iterator<Item = &Notice> {
        self.notices.iter()
    }

    /// The names of sets that the database lacks.
    pub(super) fn sets(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().filter(|fields| fields.has_new_set).map(|fields| fields.set.as_str())
    }

    /// Adds the changes that `filter` admits in `window`.
    pub(super) fn add_to(
        &self,
        filter: &Filter,
        keys: &[GroupBy],
        (window, zone): (Window, &Zone),
        groups: &mut Groups<'_>,
    ) -> Result<(), QueryError> {
        let (account, set) = (filter.account(&self.registry), filter.set(&self.registry));
        let admits = |fields: &GroupFields, at_ns| {
            (window.since_ns..=window.last_ns).contains(&at_ns)
                && account.is_none_or(|account| fields.is_of_user(account, filter))
                && filter.team.as_ref().is_none_or(|team| !team.is_empty() && *team == fields.team)
                && set.is_none_or(|set| fields.is_of_set(set, filter))
                && filter.host.as_ref().is_none_or(|value| *value == fields.host)
                && filter.class.is_none_or(|value| value.as_str() == fields.class)
        };
        for (fields, at_ns, sums) in self.each().filter(|(fields, at_ns, _)| admits(fields, *at_ns)) {
            let key = match keys {
                [] => vec![TOTAL.to_owned()],
                keys => keys.iter().map(|key| fields.key(*key, at_ns, zone)).collect(),
            };
            groups.sum(key, sums)?;
        }
        Ok(())
    }
}

impl GroupFields {
    fn new(registry: &Registry, flow: &Flow<'_>) -> GroupFields {
        let (account, set_number) = (registry.account(flow.account, flow.user), flow.set.into());
        let has_name = registry.accounts.has_name(account);
        // The applier will name an account after its user's name, and a set by the rule.
        let name = named_sets::name_in_rule(flow.rule);
        let has_new_set = registry.sets.lacks(set_number) && !name.is_empty();
        let set = if has_new_set { name.to_owned() } else { registry.sets.name(set_number) };
        GroupFields {
            account: if has_name { account } else { 0 },
            team: registry.teams.of(account).to_owned(),
            user: if has_name { registry.accounts.name(account) } else { flow.user.to_owned() },
            set_number,
            set,
            has_new_set,
            host: flow.host.to_owned(),
            port: flow.port.to_string(),
            protocol: flow.protocol.as_str().to_owned(),
            class: flow.class.as_str().to_owned(),
        }
    }
}

impl GroupFields {
    /// Whether a filter by user admits them, whose name has this account in the database, if it has any.
    fn is_of_user(&self, account: i64, filter: &Filter) -> bool {
        match self.account {
            0 => filter.user.as_ref() == Some(&self.user),
            known => known == account,
        }
    }

    /// Whether a filter by set admits them, whose name has this number in the database, if it has any.
    fn is_of_set(&self, set: i64, filter: &Filter) -> bool {
        match self.has_new_set {
            true => filter.set.as_ref() == Some(&self.set),
            false => self.set_number == set,
        }
    }

    /// The value of this key at a moment, as the database query would return it.
    fn key(&self, key: GroupBy, at_ns: i64, zone: &Zone) -> String {
        match key {
            GroupBy::User => self.user.clone(),
            GroupBy::Team => self.team.clone(),
            GroupBy::Host => self.host.clone(),
            GroupBy::Port => self.port.clone(),
            GroupBy::Protocol => self.protocol.clone(),
            GroupBy::Class => self.class.clone(),
            GroupBy::Set => self.set.clone(),
            GroupBy::Quarter | GroupBy::Hour | GroupBy::Day | GroupBy::Month => zone.name(key, at_ns),
        }
    }
}
