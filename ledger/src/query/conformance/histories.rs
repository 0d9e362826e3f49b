//! Random histories of a ledger: flows over quarter-hours and months under clocks that go back, runs that
//! end, and users that are renamed.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::select;
use sys::clock::WallNanos;

use super::{FEBRUARY, PLAIN, SECOND, began, users, with_teams};
use crate::entry::Entry;
use crate::memory_usage::History;
use crate::numbering::Names;
use crate::record::{Class, Flow, Legs, Protocol, Record, Uncertain};

/// What happens to a ledger.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// A configuration is numbered.
    Number(Names),
    /// A run writes an entry.
    Apply(u32, Box<Entry>),
}

/// A step from which a history is made.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    kind: Kind,
    slot: usize,
    advance_s: u64,
    /// How far the wall clock is behind at this step.
    behind_s: u64,
    up: u64,
    down: u64,
    requests: u64,
    uncertain: u32,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Interim,
    /// An interim with lower counts than an earlier one.
    Stale,
    Final,
    RunBegan,
    Gap,
    /// One of [`CONFIGURATIONS`].
    Number(usize),
}

/// Any step; without numberings all users are known by their names alone.
pub(crate) fn step(with_numberings: bool) -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        8 => Just(Kind::Interim),
        1 => Just(Kind::Stale),
        4 => Just(Kind::Final),
        1 => Just(Kind::RunBegan),
        1 => Just(Kind::Gap),
        u32::from(with_numberings) => (0..CONFIGURATIONS.len()).prop_map(Kind::Number),
    ];
    let advance = select(vec![0, 1, 1_200, 1_200, 18_000, 777_600]);
    let behind = select(vec![0, 0, 0, 0, 3_700, 90_000, 3_000_000]);
    let bytes = (select(vec![0, 0, 1, 7, u64::from(u32::MAX)]), 0..3_u64);
    let steps = (kind, 0..SLOTS.len(), advance, behind, bytes, 0..2_u64, 0..3_u32);
    steps.prop_map(|(kind, slot, advance_s, behind_s, (up, down), requests, uncertain)| Step {
        kind,
        slot,
        advance_s,
        behind_s,
        up,
        down,
        requests,
        uncertain,
    })
}

/// A configuration: users, each with its team and its former names.
type Configuration = &'static [(&'static str, &'static str, &'static [&'static str])];

/// Users come, go and are renamed; their names are given to others.
const CONFIGURATIONS: [Configuration; 5] = [
    &[("ann", "web", &[]), ("ci", "", &[]), ("bob", "db", &[])],
    &[("build", "web", &["ci"]), ("bob", "db", &[])],
    &[("build", "web", &["ci"]), ("ci", "db", &[]), ("ann", "", &[])],
    &[("ann", "db", &["bob"]), ("ci", "web", &["build"])],
    &[("ops", "db", &["ann", "bob"]), ("build", "", &[])],
];

/// The names in all configurations, and of users that none has.
pub(crate) const USERS: [&str; 6] = ["ann", "ci", "bob", "build", "ops", "eve"];
pub(crate) const HOSTS: [&str; 3] = ["a.example", "b.example", "db.corp"];
pub(crate) const TEAMS: [&str; 3] = ["web", "db", ""];
pub(crate) const SETS: [&str; 2] = ["corp", "edge"];

/// The fields of the flows that follow one another in each slot.
const SLOTS: [Flow<'_>; 7] = [
    Flow { user: "ann", host: "a.example", protocol: Protocol::HttpConnect, ..PLAIN },
    Flow { user: "ci", host: "a.example", ..PLAIN },
    Flow { user: "ann", host: "b.example", port: 22, protocol: Protocol::HttpConnect, ..PLAIN },
    Flow {
        user: "bob",
        host: "db.corp",
        port: 5432,
        class: Class::Internal,
        set: 1,
        rule: "@corp[0] db.corp",
        ..PLAIN
    },
    Flow { user: "ci", host: "b.example", port: 80, set: 2, rule: "@edge[1] b.example", ..PLAIN },
    Flow { user: "build", host: "a.example", port: 80, protocol: Protocol::Http, ..PLAIN },
    Flow { user: "eve", host: "a.example", ..PLAIN },
];

/// Four hours before the end of a month.
const BEGINNING: u64 = FEBRUARY - 4 * 3_600 * SECOND;

/// The history that `steps` make.
pub(crate) fn acts(steps: &[Step]) -> Vec<Act> {
    let mut maker = Maker { clock: BEGINNING, epoch: 1, ..Maker::default() };
    steps.iter().for_each(|step| maker.add(step));
    maker.acts
}

/// The entries of a history without numberings, each with its run.
pub(crate) fn entries(steps: &[Step]) -> Vec<(u32, Entry)> {
    let entry = |act| match act {
        Act::Apply(epoch, entry) => Some((epoch, *entry)),
        Act::Number(_) => None,
    };
    acts(steps).into_iter().filter_map(entry).collect()
}

#[derive(Default)]
struct Maker {
    acts: Vec<Act>,
    clock: u64,
    epoch: u32,
    entries: u64,
    flows: u128,
    /// The open flow of each slot.
    open: BTreeMap<usize, Flow<'static>>,
    /// The accounts that a gateway knows.
    accounts: BTreeMap<String, u32>,
    history: History,
}

impl Maker {
    fn add(&mut self, step: &Step) {
        self.clock += step.advance_s * SECOND;
        let at = WallNanos(self.clock - step.behind_s * SECOND);
        match step.kind {
            Kind::Interim => {
                let flow = self.count(step, at);
                self.apply(Entry::Interim(Record::new(&flow)));
            }
            Kind::Stale => {
                let mut flow = self.count(&Step { up: 0, down: 0, requests: 0, ..step.clone() }, at);
                (flow.legs.client_rx, flow.legs.upstream_tx) = (0, flow.legs.upstream_tx / 2);
                self.apply(Entry::Interim(Record::new(&flow)));
            }
            Kind::Final => self.close(step, at),
            Kind::RunBegan => {
                self.epoch += 1;
                // As after a kill: the next run first closes the flows in the live table.
                if self.open.contains_key(&step.slot) {
                    self.close(step, at);
                }
                self.open.clear();
                self.apply(began(self.epoch, at.0));
            }
            Kind::Gap => {
                let (epoch, first_lsn) = (self.epoch, self.entries);
                self.apply(Entry::Gap { epoch, at, first_lsn });
            }
            Kind::Number(configuration) => {
                let configuration = CONFIGURATIONS[configuration];
                let named: Vec<_> = configuration.iter().map(|(name, _, former)| (*name, *former)).collect();
                let teams: Vec<&str> = configuration.iter().map(|(_, team, _)| *team).collect();
                let names = with_teams(users(&named), &teams);
                let accounts = self.history.number(&names).accounts;
                let names_only = names.users.iter().map(|user| user.name.clone());
                self.accounts = names_only.zip(accounts).collect();
                self.acts.push(Act::Number(names));
            }
        }
    }

    /// The flow of the slot with its next counts.
    fn count(&mut self, step: &Step, at: WallNanos) -> Flow<'static> {
        let flow = self.open.entry(step.slot).or_insert_with(|| {
            self.flows += 1;
            let slot = SLOTS[step.slot];
            let account = self.accounts.get(slot.user).copied().unwrap_or(0);
            Flow { id: self.flows, opened: WallNanos(BEGINNING + self.flows as u64), account, ..slot }
        });
        let (up, down) = (flow.legs.upstream_tx + step.up, flow.legs.client_tx + step.down);
        flow.legs = Legs { client_rx: up, upstream_tx: up, upstream_rx: down, client_tx: down };
        flow.requests += step.requests;
        flow.uncertain = Uncertain { up: step.uncertain, down: step.uncertain / 2 };
        Flow { closed: at, ..*flow }
    }

    fn close(&mut self, step: &Step, at: WallNanos) {
        let flow = self.count(step, at);
        self.open.remove(&step.slot);
        self.apply(Entry::Final(Record::new(&flow)));
    }

    fn apply(&mut self, entry: Entry) {
        self.entries += 1;
        self.history.apply(self.epoch, &entry);
        self.acts.push(Act::Apply(self.epoch, Box::new(entry)));
    }
}
