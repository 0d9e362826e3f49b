//! What was used of quotas before this process, or this configuration, knew them: from the ledger.
//!
//! Guarantees: a quota holds once its used bytes are known; until then new flows that would draw on it are
//! refused. Bytes of which it is not known whether they were sent count as used. A byte that is counted here
//! and drawn at the same time counts twice, and none counts not at all.
//!
//! ```text
//!   threads draw on the new quotas --> the ledger journals all counts --> the used bytes are read and added
//! ```

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use ledger::SqliteUsage;
use ledger::query::{Filter, GroupBy, Row, Usage as _};
use sys::clock::{self, WallNanos};

use crate::config::Config;
use crate::credit::QuotaMeter;
use crate::credit::quota_meter::{Coverage, Owner};
use crate::observe::log::{Level, Log};
use crate::snapshot::{CreditTable, Snapshot};

/// Adds the used bytes of all quotas of `snapshot` of which they are not known. A failure goes to the log, and
/// leaves them unknown.
pub(crate) fn settle(directory: &Path, snapshot: &Snapshot, log: &Log) {
    let now = clock::steady_wall();
    let unknown: Vec<&Arc<QuotaMeter>> =
        snapshot.credit.quotas().filter(|quota| !quota.status(now).is_known).collect();
    if unknown.is_empty() {
        return;
    }
    if let Err(error) = settle_all(directory, snapshot, &unknown, now) {
        let text = format!("what was used of {} quotas is not known: {error}", unknown.len());
        let remedy = "requests that draw on them are refused until a reload can read the ledger";
        log.write_message(Level::Error, &text, &[("remedy", remedy.into())]);
    }
}

fn settle_all(
    directory: &Path,
    snapshot: &Snapshot,
    unknown: &[&Arc<QuotaMeter>],
    now: WallNanos,
) -> Result<(), ledger::QueryError> {
    let usage = SqliteUsage::open_with_journal(directory)?;
    let mut by_start: BTreeMap<u64, Vec<&Arc<QuotaMeter>>> = BTreeMap::new();
    for quota in unknown {
        by_start.entry(quota.status(now).period.start.0).or_default().push(quota);
    }
    for (start, quotas) in by_start {
        let filter = Filter { since: Some(WallNanos(start)), ..Filter::default() };
        let rows = |owner| -> Result<Vec<Row>, ledger::QueryError> {
            Ok(usage.rows(&filter, &[owner, GroupBy::Class, GroupBy::Set])?.rows)
        };
        let (of_users, of_teams) = match quotas.iter().any(|quota| is_team(quota)) {
            true => (rows(GroupBy::User)?, rows(GroupBy::Team)?),
            false => (rows(GroupBy::User)?, Vec::new()),
        };
        let (of_users, of_teams) = (Used::new(&of_users), Used::new(&of_teams));
        for quota in quotas {
            let bytes = match &quota.terms().owner {
                Owner::User(name) => of_users.of(name, quota, &snapshot.credit),
                Owner::Team(name) => below(&snapshot.config, name)
                    .map(|team| of_teams.of(team, quota, &snapshot.credit))
                    .fold(0, u64::saturating_add),
            };
            quota.settle_used(WallNanos(start), bytes, now);
        }
    }
    Ok(())
}

fn is_team(quota: &QuotaMeter) -> bool {
    matches!(quota.terms().owner, Owner::Team(_))
}

/// The usage of a span, by user or by team.
struct Used<'r>(HashMap<&'r str, Vec<&'r Row>>);

impl<'r> Used<'r> {
    /// That of rows whose keys are owner, class and set.
    fn new(rows: &'r [Row]) -> Used<'r> {
        let mut by_owner: HashMap<&str, Vec<&Row>> = HashMap::new();
        for row in rows {
            by_owner.entry(row.keys[0].as_str()).or_default().push(row);
        }
        Used(by_owner)
    }

    /// The bytes of an owner that count for `quota`.
    fn of(&self, owner: &str, quota: &QuotaMeter, credit: &CreditTable) -> u64 {
        let rows = self.0.get(owner).into_iter().flatten();
        rows.filter(|row| covers(quota, row, credit))
            .map(|row| bytes(quota, row))
            .fold(0, u64::saturating_add)
    }
}

/// The team called `name`, and all teams below it.
fn below<'c>(config: &'c Config, name: &'c str) -> impl Iterator<Item = &'c str> {
    let is_below = move |position: usize| {
        let above = |position: &usize| config.teams[*position].parent;
        std::iter::successors(Some(position), above).any(|position| *config.teams[position].name == *name)
    };
    config
        .teams
        .iter()
        .enumerate()
        .filter(move |(position, _)| is_below(*position))
        .map(|(_, team)| &*team.name)
}

fn covers(quota: &QuotaMeter, row: &Row, credit: &CreditTable) -> bool {
    match quota.terms().coverage {
        Coverage::All => true,
        Coverage::Class(class) => row.keys[1] == class.as_str(),
        Coverage::Set(set) => row.keys[2] == credit.set_name(set),
    }
}

fn bytes(quota: &QuotaMeter, row: &Row) -> u64 {
    let up = if quota.terms().up { row.up + row.uncertain_up } else { 0 };
    let down = if quota.terms().down { row.down + row.uncertain_down } else { 0 };
    up + down
}
