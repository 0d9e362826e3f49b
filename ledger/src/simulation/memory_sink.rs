//! The simulation's database: a sink in memory that loses what was not checkpointed.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

use sys::clock::WallNanos;

use crate::entry::Entry;
use crate::numbering::{AccountsAhead, Names, Numbers};
use crate::record::{CloseReason, Record};
use crate::sink::{Sink, SinkError};

/// What each flow is billed: bytes up and down, and the reason of its end.
pub(super) type Bills = BTreeMap<u128, (u64, u64, CloseReason)>;

/// Bytes up and down of flows.
pub(super) type Counts = BTreeMap<u128, (u64, u64)>;

/// The rows of the database, which are copied as a whole at checkpoints.
#[derive(Clone, Debug, Default)]
struct Rows {
    epoch: u32,
    applied: u64,
    finals: BTreeMap<u128, Record>,
    live: BTreeMap<u128, (u32, Record)>,
    /// Flows with a second final.
    doubled: BTreeSet<u128>,
    /// The last edge: its run and its moment.
    edge: (u32, WallNanos),
    /// What each flow was counted in front of the edge of a moment.
    edges: BTreeMap<WallNanos, Counts>,
    /// A flow with an entry behind the edge of its run, and a moment before it.
    early: Option<u128>,
    /// The account of each user, of entries and of numberings.
    accounts: BTreeMap<String, u32>,
    /// The greatest account that was seen.
    last_account: u32,
    /// Names of sets, and policies, in the order of their numbers.
    names: [Vec<Vec<u8>>; 2],
}

/// The visible rows, those of the last checkpoint, and every entry that was ever applied.
#[derive(Clone, Debug, Default)]
struct Database {
    rows: Rows,
    stable: Rows,
    log: BTreeMap<u64, Entry>,
    /// Of entries that come. Each process tells of them anew.
    ahead: AccountsAhead,
}

/// Clones are the same database.
#[derive(Clone, Debug, Default)]
pub(super) struct MemorySink(Arc<Mutex<Database>>);

impl MemorySink {
    /// The database after a power failure.
    pub(super) fn after_power_failure(&self) -> MemorySink {
        let Database { stable, log, .. } = self.lock().clone();
        MemorySink(Arc::new(Mutex::new(Database {
            rows: stable.clone(),
            stable,
            log,
            ..Database::default()
        })))
    }

    /// Another database with the same rows. Of entries that a power failure took from it, the log has none: a
    /// journal that is damaged as well may give their numbers to others.
    pub(super) fn copy(&self) -> MemorySink {
        let mut database = self.lock().clone();
        database.log.split_off(&(database.rows.applied + 1));
        MemorySink(Arc::new(Mutex::new(database)))
    }

    /// The run and the number of the last entry.
    pub(super) fn applied(&self) -> (u32, u64) {
        let rows = &self.lock().rows;
        (rows.epoch, rows.applied)
    }

    /// Every entry that was ever applied, by number.
    pub(super) fn log(&self) -> BTreeMap<u64, Entry> {
        self.lock().log.clone()
    }

    /// The final of a flow.
    pub(super) fn final_of(&self, flow: u128) -> Option<Record> {
        self.lock().rows.finals.get(&flow).copied()
    }

    /// The finals of all closed flows, in the order of their ids.
    pub(super) fn finals(&self) -> Vec<Record> {
        self.lock().rows.finals.values().copied().collect()
    }

    /// Flows with an interim and without a final.
    pub(super) fn open_flows(&self) -> HashSet<u128> {
        self.lock().rows.live.keys().copied().collect()
    }

    /// Flows that ended with their process and were in no table.
    pub(super) fn lost(&self) -> usize {
        let rows = &self.lock().rows;
        rows.finals.values().filter(|record| record.flow().reason == CloseReason::Lost).count()
    }

    /// What each closed flow is billed.
    pub(super) fn bills(&self) -> Bills {
        let rows = &self.lock().rows;
        let bill = |record: &Record| {
            let flow = record.flow();
            (flow.legs.upstream_tx, flow.legs.client_tx, flow.reason)
        };
        rows.finals.iter().map(|(id, record)| (*id, bill(record))).collect()
    }

    /// What each flow was counted in front of the edge of this moment, if the database has it.
    pub(super) fn counts_at_edge(&self, at: WallNanos) -> Option<Counts> {
        self.lock().rows.edges.get(&at).cloned()
    }

    /// A flow that came behind an edge with a moment before it, if there is any.
    pub(super) fn early(&self) -> Option<u128> {
        self.lock().rows.early
    }

    /// A flow with two finals, if there is any.
    pub(super) fn doubled(&self) -> Option<u128> {
        self.lock().rows.doubled.first().copied()
    }

    fn lock(&self) -> MutexGuard<'_, Database> {
        self.0.lock().expect("no thread panics while it holds the lock")
    }
}

impl Rows {
    fn apply(&mut self, epoch: u32, entry: &Entry, ahead: &AccountsAhead) {
        if let Some(flow) = entry.flow() {
            if self.edge.0 == epoch && flow.closed < self.edge.1 {
                self.early = Some(flow.id);
            }
            self.account_of(flow.user, flow.account, ahead);
        }
        match entry {
            Entry::Edge { epoch, at } => {
                self.edge = (*epoch, *at);
                self.edges.insert(*at, self.counts());
            }
            Entry::Interim(record) => {
                self.live.insert(record.identity().id(), (epoch, *record));
            }
            Entry::Final(record) => self.finish(*record),
            Entry::RunBegan { epoch: began, .. } => {
                let ended: Vec<Record> =
                    self.live.values().filter(|(of, _)| of <= began).map(|(_, record)| *record).collect();
                for record in ended {
                    let flow = record.flow();
                    let lost =
                        Record::from_parts(*record.identity(), flow.closed, CloseReason::Lost, flow.legs);
                    self.finish(lost.with_requests(flow.requests));
                }
            }
            Entry::Gap { .. }
            | Entry::RunEnded { .. }
            | Entry::Accepted(_)
            | Entry::Granted(_)
            | Entry::Noticed(_)
            | Entry::Skipped(_) => {}
        }
    }

    /// The account of `user`: the one that it has, the one that it comes with, 0 if with none, the one that
    /// it comes with later, or the next one.
    fn account_of(&mut self, user: &str, account: u32, ahead: &AccountsAhead) -> u32 {
        self.last_account = self.last_account.max(account).max(ahead.last());
        if let Some(known) = self.accounts.get(user) {
            return *known;
        }
        let comes_with = (account > 0).then_some(account).or_else(|| ahead.find(user));
        let account = comes_with.unwrap_or(self.last_account + 1);
        self.last_account = self.last_account.max(account);
        self.accounts.insert(user.to_owned(), account);
        account
    }

    /// Bytes up and down of each flow, as it was last counted.
    fn counts(&self) -> Counts {
        let records = self.live.iter().map(|(id, (_, record))| (id, record)).chain(&self.finals);
        let bytes = |record: &Record| (record.flow().legs.upstream_tx, record.flow().legs.client_tx);
        records.map(|(id, record)| (*id, bytes(record))).collect()
    }

    fn finish(&mut self, record: Record) {
        let id = record.identity().id();
        self.live.remove(&id);
        if self.finals.insert(id, record).is_some() {
            self.doubled.insert(id);
        }
    }
}

impl Sink for MemorySink {
    fn applied_lsn(&mut self) -> Result<Option<u64>, SinkError> {
        let (_, lsn) = self.applied();
        Ok((lsn > 0).then_some(lsn))
    }

    fn expect_accounts(&mut self, accounts: AccountsAhead) {
        self.lock().ahead = accounts;
    }

    fn apply(&mut self, epoch: u32, first_lsn: u64, entries: &[Entry]) -> Result<(), SinkError> {
        let Database { rows, log, ahead, .. } = &mut *self.lock();
        if rows.applied > 0 && first_lsn > rows.applied + 1 {
            return Err(SinkError::Fatal(format!("{} is due, and {first_lsn} came", rows.applied + 1)));
        }
        let is_new = first_lsn + entries.len() as u64 > rows.applied + 1;
        if is_new && epoch < rows.epoch {
            return Err(SinkError::Fatal(format!("run {epoch} came after run {}", rows.epoch)));
        }
        for (lsn, entry) in (first_lsn..).zip(entries) {
            if lsn > rows.applied {
                rows.apply(epoch, entry, ahead);
                (rows.applied, rows.epoch) = (lsn, epoch);
            }
            if log.insert(lsn, *entry).is_some_and(|before| before != *entry) {
                return Err(SinkError::Fatal(format!("entry {lsn} was another one before")));
            }
        }
        Ok(())
    }

    fn number(&mut self, names: &Names) -> Result<Numbers, SinkError> {
        let Database { rows, stable, ahead, .. } = &mut *self.lock();
        let accounts = names.users.iter().map(|user| rows.account_of(&user.name, 0, ahead)).collect();
        let [sets, policies] = &mut rows.names;
        let numbers = Numbers {
            accounts,
            sets: names.sets.iter().map(|set| position(sets, set.as_bytes()) as u16).collect(),
            policy: position(policies, &names.policy) as u32,
            notes: Vec::new(),
        };
        stable.accounts.clone_from(&rows.accounts);
        stable.last_account = rows.last_account;
        stable.names.clone_from(&rows.names);
        Ok(numbers)
    }

    fn checkpoint(&mut self) -> Result<u64, SinkError> {
        let Database { rows, stable, .. } = &mut *self.lock();
        *stable = rows.clone();
        Ok(rows.applied)
    }

    fn seal(&mut self) -> Result<(), SinkError> {
        self.checkpoint().map(drop)
    }
}

/// The number of a name, counted from 1; a new one is appended.
fn position(names: &mut Vec<Vec<u8>>, name: &[u8]) -> usize {
    let known = names.iter().position(|known| known == name).unwrap_or(names.len());
    if known == names.len() {
        names.push(name.to_owned());
    }
    known + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::conformance::{SinkFixture, check};

    impl SinkFixture for MemorySink {
        type Sink = MemorySink;

        fn sink(&mut self) -> &mut MemorySink {
            self
        }

        fn restart(&mut self) {
            *self = self.after_power_failure();
        }

        /// It took effect.
        fn apply_unfinished(&mut self, epoch: u32, first_lsn: u64, entries: &[Entry]) {
            self.apply(epoch, first_lsn, entries).unwrap();
        }

        fn finals(&mut self) -> BTreeMap<u128, u64> {
            assert_eq!(self.doubled(), None);
            self.bills().into_iter().map(|(id, (up, ..))| (id, up)).collect()
        }
    }

    #[test]
    fn memory_keeps_the_contract_of_a_sink() {
        check(MemorySink::default);
    }
}
