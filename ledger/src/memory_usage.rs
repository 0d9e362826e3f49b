//! The usage in memory: an engine that answers each question from the list of all that was applied.
//!
//! The tests compare other engines with it. It keeps what each flow moved in each quarter-hour, and no sums
//! of several flows, so that it has none that could be wrong. It shares none of their code but the order of
//! rows.

mod names;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use sys::clock::WallNanos;
use thiserror::Error;

use crate::entry::Entry;
use crate::numbering::{Names as Named, Numbers};
use crate::query::order::in_order;
use crate::query::zone::Zone;
use crate::query::{Answer, Completeness, Filter, FlowRow, GroupBy, Row, Usage};
use crate::record::{CloseReason, Flow, Record};
use names::Names;

const QUARTER_NS: i64 = 900_000_000_000;

/// All that was applied to a ledger.
#[derive(Clone, Default)]
pub(crate) struct History {
    names: Names,
    /// In the order of their first entries.
    flows: Vec<FlowHistory>,
    open: HashMap<u128, usize>,
    consents: BTreeSet<(u64, u64, String)>,
    /// The number of the last entry.
    applied: u64,
}

/// What is known of a flow.
#[derive(Clone)]
struct FlowHistory {
    /// Its first record.
    record: Record,
    account: u32,
    epoch: u32,
    /// The last moment at which it was counted.
    at_ns: i64,
    /// Bytes up and down that were counted in each quarter-hour.
    moved: BTreeMap<i64, [i64; 2]>,
    /// The highest counts: those of the legs, uncertain bytes, and requests.
    counts: [i64; 7],
    /// The reason for its end, and the number of the entry.
    end: Option<(CloseReason, u64)>,
}

/// A part of a flow's usage, at one moment: flows, live, requests, up, down, uncertain up and down.
type Item = (i64, [i64; 7]);

impl History {
    /// Gives numbers to `names`.
    pub(crate) fn number(&mut self, names: &Named) -> Numbers {
        self.names.number(names)
    }

    /// Applies the next entry, which run `epoch` wrote.
    pub(crate) fn apply(&mut self, epoch: u32, entry: &Entry) {
        self.applied += 1;
        match entry {
            Entry::Interim(record) => self.count(epoch, record, None),
            Entry::Final(record) => self.count(epoch, record, Some(record.flow().reason)),
            Entry::RunBegan { epoch: began, .. } => self.end_runs(*began),
            Entry::Accepted(consent) => {
                let text = format!("{} by {}: {}", date(consent.at.0), consent.author(), consent.what());
                self.consents.insert((consent.at.0, self.applied, text));
            }
            Entry::Gap { .. }
            | Entry::RunEnded { .. }
            | Entry::Edge { .. }
            | Entry::Granted(_)
            | Entry::Noticed(_)
            | Entry::Skipped(_) => {}
        }
    }

    /// The moments at which flows were counted.
    pub(crate) fn moments(&self) -> Vec<u64> {
        let ends = self.flows.iter().map(|history| history.at_ns);
        let quarters = self.flows.iter().flat_map(|history| history.moved.keys());
        let moments = quarters.map(|quarter| quarter * QUARTER_NS).chain(ends);
        moments.map(i64::cast_unsigned).collect()
    }

    /// The usage as of now, with entries of the journal that are not applied, each with its run.
    pub(crate) fn usage(&self, unapplied: &[(u32, Entry)]) -> MemoryUsage {
        let mut ahead = self.clone();
        unapplied.iter().for_each(|(epoch, entry)| ahead.apply(*epoch, entry));
        ahead.consents.clone_from(&self.consents);
        let has_unapplied = ahead.applied > self.applied;
        MemoryUsage { history: ahead, listed: self.flows.clone(), has_unapplied, zone: TimeZone::UTC }
    }

    fn count(&mut self, epoch: u32, record: &Record, end: Option<CloseReason>) {
        let flow = record.flow();
        let account = self.names.learn(&flow);
        let counts = counts(&flow);
        let index = self.open.get(&flow.id).copied();
        let is_higher = |known: &[i64; 7]| counts.iter().zip(known).any(|(count, known)| count > known);
        if end.is_none() && index.is_some_and(|index| !is_higher(&self.flows[index].counts)) {
            return;
        }
        let index = index.unwrap_or(self.flows.len());
        if index == self.flows.len() {
            self.flows.push(FlowHistory::new(record, account));
            self.open.insert(flow.id, index);
        }
        let history = &mut self.flows[index];
        history.epoch = epoch;
        history.advance(capped(flow.closed.0), counts);
        if let Some(reason) = end {
            history.end = Some((reason, self.applied));
            self.open.remove(&flow.id);
        }
    }

    fn end_runs(&mut self, last: u32) {
        let ended = self.open.extract_if(|_, index| self.flows[*index].epoch <= last);
        let ended: Vec<usize> = ended.map(|(_, index)| index).collect();
        ended.into_iter().for_each(|index| self.flows[index].end = Some((CloseReason::Lost, self.applied)));
    }
}

impl FlowHistory {
    fn new(record: &Record, account: u32) -> FlowHistory {
        let (moved, counts) = (BTreeMap::new(), [0; 7]);
        FlowHistory { record: *record, account, epoch: 0, at_ns: 0, moved, counts, end: None }
    }

    fn advance(&mut self, at_ns: i64, counts: [i64; 7]) {
        self.at_ns = self.at_ns.max(at_ns);
        let before = self.counts;
        self.counts.iter_mut().zip(counts).for_each(|(known, count)| *known = count.max(*known));
        let moved = self.moved.entry(self.at_ns / QUARTER_NS).or_default();
        moved[0] += self.counts[1] - before[1];
        moved[1] += self.counts[3] - before[3];
    }

    fn items(&self) -> Vec<Item> {
        let last = self.at_ns / QUARTER_NS;
        let end_ns = |quarter: i64| quarter * QUARTER_NS + (QUARTER_NS - 1);
        let moment = |quarter: i64| if quarter < last { end_ns(quarter) } else { self.at_ns };
        let moved = self.moved.iter();
        let mut items: Vec<Item> =
            moved.map(|(quarter, [up, down])| (moment(*quarter), [0, 0, 0, *up, *down, 0, 0])).collect();
        let [.., uncertain_up, uncertain_down, requests] = self.counts;
        items.push(match self.end {
            None => (self.at_ns, [0, 1, 0, 0, 0, 0, 0]),
            Some(_) => (self.at_ns, [1, 0, requests, 0, 0, uncertain_up, uncertain_down]),
        });
        items
    }
}

/// A moment or a count as the ledger keeps it.
fn capped(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn counts(flow: &Flow<'_>) -> [i64; 7] {
    let (legs, uncertain) = (&flow.legs, &flow.uncertain);
    let bytes = [legs.client_rx, legs.upstream_tx, legs.upstream_rx, legs.client_tx];
    let [client_rx, up, upstream_rx, down] = bytes.map(capped);
    [client_rx, up, upstream_rx, down, uncertain.up.into(), uncertain.down.into(), capped(flow.requests)]
}

fn date(at_ns: u64) -> String {
    Timestamp::from_second((at_ns / 1_000_000_000).cast_signed()).unwrap().to_string()
}

/// The usage of a [`History`] as of one moment.
pub(crate) struct MemoryUsage {
    history: History,
    /// The flows without those of entries that are not applied.
    listed: Vec<FlowHistory>,
    has_unapplied: bool,
    zone: TimeZone,
}

/// A sum is too large.
#[derive(Clone, Copy, Debug, Error)]
#[error("a sum is beyond its bound")]
pub(crate) struct Overflow;

impl MemoryUsage {
    /// The ones of `flows` that every field but the span admits.
    fn admitted<'f>(
        &self,
        flows: &'f [FlowHistory],
        filter: &Filter,
    ) -> impl Iterator<Item = &'f FlowHistory> + use<'f> {
        let names = &self.history.names;
        let user = filter.user.as_ref().map(|name| names.account(name));
        let set = filter.set.as_ref().map(|name| names.set(name));
        let is_member = |team: &String, account| !team.is_empty() && names.team(account) == team;
        let accounts = self.history.flows.iter().map(|history| history.account);
        let members: Option<BTreeSet<u32>> =
            filter.team.as_ref().map(|team| accounts.filter(|account| is_member(team, *account)).collect());
        let (host, class) = (filter.host.clone(), filter.class);
        flows.iter().filter(move |history| {
            let flow = history.record.flow();
            user.is_none_or(|account| account == Some(history.account))
                && members.as_ref().is_none_or(|members| members.contains(&history.account))
                && set.is_none_or(|set| set == Some(flow.set))
                && host.as_deref().is_none_or(|host| host == flow.host)
                && class.is_none_or(|class| class == flow.class)
        })
    }

    fn key(&self, key: GroupBy, history: &FlowHistory, at_ns: i64) -> String {
        let (flow, names) = (history.record.flow(), &self.history.names);
        match key {
            GroupBy::User => names.user(history.account),
            GroupBy::Team => names.team(history.account).to_owned(),
            GroupBy::Host => flow.host.to_owned(),
            GroupBy::Port => flow.port.to_string(),
            GroupBy::Protocol => flow.protocol.as_str().to_owned(),
            GroupBy::Class => flow.class.as_str().to_owned(),
            GroupBy::Set => names.set_name(flow.set),
            GroupBy::Quarter => self.period("%Y-%m-%dT%H:%M", at_ns / QUARTER_NS * QUARTER_NS),
            GroupBy::Hour => self.period("%Y-%m-%dT%H:00", at_ns),
            GroupBy::Day => self.period("%Y-%m-%d", at_ns),
            GroupBy::Month => self.period("%Y-%m", at_ns),
        }
    }

    fn period(&self, format: &str, at_ns: i64) -> String {
        let at = Timestamp::from_nanosecond(at_ns.into()).unwrap().to_zoned(self.zone.clone());
        let offset = match (format.contains('T'), self.zone == TimeZone::UTC) {
            (false, _) => "",
            (true, true) => "Z",
            (true, false) => "%:z",
        };
        at.strftime(&format!("{format}{offset}")).to_string()
    }

    fn groups(&self, filter: &Filter, keys: &[GroupBy]) -> Result<Vec<Row>, Overflow> {
        let mut groups: BTreeMap<Vec<String>, [i64; 7]> = BTreeMap::new();
        for history in self.admitted(&self.history.flows, filter) {
            for (at_ns, more) in history.items() {
                if !is_within(filter, at_ns) {
                    continue;
                }
                let keys = match keys {
                    [] => vec!["total".to_owned()],
                    keys => keys.iter().map(|key| self.key(*key, history, at_ns)).collect(),
                };
                for (sum, more) in groups.entry(keys).or_default().iter_mut().zip(more) {
                    *sum = sum.checked_add(more).filter(|sum| *sum < i64::MAX).ok_or(Overflow)?;
                }
            }
        }
        let rows = groups.into_iter().filter(|(_, sums)| sums.iter().any(|sum| *sum > 0));
        let row = |(keys, sums): (Vec<String>, [i64; 7])| {
            let [flows, live, requests, up, down, uncertain_up, uncertain_down] =
                sums.map(i64::cast_unsigned);
            Row { keys, flows, live, requests, up, down, uncertain_up, uncertain_down }
        };
        Ok(rows.map(row).collect())
    }

    fn flow_row(&self, history: &FlowHistory) -> FlowRow {
        let flow = history.record.flow();
        let [_, up, _, down, uncertain_up, uncertain_down, _] = history.counts.map(i64::cast_unsigned);
        FlowRow {
            id: flow.id,
            opened: flow.opened,
            closed: WallNanos(history.at_ns.cast_unsigned()),
            live: history.end.is_none(),
            user: self.history.names.user(history.account),
            host: flow.host.to_owned(),
            port: flow.port,
            address: flow.address.map(|address| address.to_string()),
            client: flow.client.to_string(),
            class: flow.class.as_str().to_owned(),
            protocol: flow.protocol.as_str().to_owned(),
            rule: flow.rule.to_owned(),
            reason: history.end.map_or("", |(reason, _)| reason.as_str()).to_owned(),
            up,
            down,
            uncertain_up,
            uncertain_down,
        }
    }
}

fn is_within(filter: &Filter, at_ns: i64) -> bool {
    let at_ns = at_ns.cast_unsigned();
    // The last moment of the ledger stands for all later ones.
    let ends_before = |until: u64| until <= at_ns && until < i64::MAX as u64;
    filter.since.is_none_or(|since| since.0.min(i64::MAX as u64) <= at_ns)
        && !filter.until.is_some_and(|until| ends_before(until.0))
}

impl Usage for MemoryUsage {
    type Error = Overflow;

    fn in_zone(self, zone: TimeZone) -> Self {
        Self { zone, ..self }
    }

    fn rows(&self, filter: &Filter, keys: &[GroupBy]) -> Result<Answer, Overflow> {
        let rows = in_order(self.groups(filter, keys)?, keys, &Zone::new(self.zone.clone()));
        Ok(Answer { rows, missing: Vec::new() })
    }

    fn total(&self, filter: &Filter) -> Result<Row, Overflow> {
        let none = || Row { keys: vec!["total".to_owned()], ..Row::default() };
        Ok(self.groups(filter, &[])?.pop().unwrap_or_else(none))
    }

    fn flows(&self, filter: &Filter, limit: usize) -> Result<Vec<FlowRow>, Overflow> {
        let admitted = self.admitted(&self.listed, filter);
        let mut found: Vec<&FlowHistory> =
            admitted.filter(|history| is_within(filter, history.at_ns)).collect();
        let month = |history: &FlowHistory| {
            Timestamp::from_nanosecond(history.at_ns.into()).unwrap().strftime("%Y-%m").to_string()
        };
        found.sort_by_cached_key(|history| match history.end {
            None => (1, String::new(), history.record.flow().opened.0),
            Some((_, number)) => (0, month(history), number),
        });
        Ok(found.into_iter().rev().take(limit).map(|history| self.flow_row(history)).collect())
    }

    fn users(&self) -> Result<BTreeSet<String>, Overflow> {
        let accounts = self.history.flows.iter().map(|history| history.account).collect();
        Ok(self.history.names.all_of(&accounts))
    }

    fn has_user(&self, name: &str) -> Result<bool, Overflow> {
        Ok(self.users()?.contains(name))
    }

    fn teams(&self) -> BTreeSet<String> {
        self.history.names.teams()
    }

    fn sets(&self) -> BTreeSet<String> {
        self.history.names.sets()
    }

    fn consents(&self) -> Result<Vec<String>, Overflow> {
        Ok(self.history.consents.iter().map(|(_, _, text)| text.clone()).collect())
    }

    fn completeness(&self) -> Completeness {
        Completeness { includes_unapplied: self.has_unapplied, ..Completeness::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::conformance::{UsageFixture, check};

    impl UsageFixture for History {
        type Usage = MemoryUsage;

        fn number(&mut self, names: &Named) -> Numbers {
            History::number(self, names)
        }

        fn apply(&mut self, epoch: u32, entries: &[Entry]) {
            entries.iter().for_each(|entry| History::apply(self, epoch, entry));
        }

        fn usage(&mut self, unapplied: &[(u32, Entry)]) -> MemoryUsage {
            History::usage(self, unapplied)
        }
    }

    #[test]
    fn memory_keeps_the_contract_of_usage() {
        check(History::default);
    }
}
