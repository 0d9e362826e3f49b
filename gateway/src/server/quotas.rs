//! The quotas of a running gateway: what was used of them before, their state, grants, and thresholds.
//!
//! Guarantees: a quota holds once its used bytes are known from the ledger; until then new flows that would
//! draw on it are denied. Bytes of which it is not known whether they were sent count as used. A byte that is
//! read from the ledger and drawn at the same time counts twice, and none counts not at all. A grant counts
//! once it is durable, and a threshold is reported once in its period, across restarts.
//!
//! ```text
//!   threads draw on the new quotas --> the ledger journals all counts --> the used bytes are read and added
//! ```

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ledger::SqliteUsage;
use ledger::query::{Filter, GroupBy, Row, Usage as _};
use ledger::quota::{AppendError, Grant, Notice};
use sys::clock::{self, WallNanos};

use super::Gateway;
use crate::budget::Budget;
use crate::config::Config;
use crate::credit::QuotaMeter;
use crate::credit::quota_meter::{Coverage, Owner, QuotaPast, QuotaStatus};
use crate::observe::log::{Level, Log, Value};
use crate::observe::stats::QuotaCounts;
use crate::snapshot::{CreditTable, Snapshot};

/// How long a reload waits until the journal has the counts of all flows.
const JOURNAL_WAIT_MAX: Duration = Duration::from_secs(5);

/// How long to wait until the ledger has a grant or a notice on stable storage, which takes milliseconds.
const APPEND_WAIT_MAX: Duration = Duration::from_secs(2);

/// The state of a quota, for a person or a program.
#[derive(Clone, Debug, PartialEq)]
pub struct QuotaReport {
    /// The user or team that has it.
    pub owner: Owner,
    /// Its name among its owner's quotas, as `day/external/up`.
    pub key: String,
    /// The state.
    pub status: QuotaStatus,
    /// The beginning of the present period, in its zone; empty for one that has none.
    pub period_start: String,
    /// The beginning of the next one; empty if there is none.
    pub period_end: String,
}

/// A request for more bytes in the present period of a quota.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GrantRequest {
    /// The user or team that has the quota.
    pub owner: Owner,
    /// Its key, or the beginning of it. Empty where the owner has one quota.
    pub key: String,
    /// The bytes.
    pub bytes: u64,
    /// The author.
    pub author: String,
    /// The reason.
    pub reason: String,
}

/// Takes over the past of all quotas of `snapshot` of which it is not known.
pub(crate) fn settle(directory: &Path, snapshot: &Snapshot, log: &Log) {
    let now = clock::steady_wall();
    if let Err(error) = Unsettled::of(snapshot, now).settle(directory, snapshot, now) {
        log_unsettled(&error, log);
    }
}

fn log_unsettled(error: &ledger::QueryError, log: &Log) {
    let text = format!("what was used of some quotas is not known: {error}");
    let remedy = "requests that draw on new quotas are denied until the ledger can be read";
    log.write_message(Level::Error, &text, &[("remedy", remedy.into())]);
}

/// The quotas whose used bytes are to be read, each with those that it counts before they are read.
pub(crate) struct Unsettled<'s>(Vec<(&'s Arc<QuotaMeter>, QuotaStatus)>);

impl<'s> Unsettled<'s> {
    /// Those of `snapshot`, with their present counts.
    pub(crate) fn of(snapshot: &'s Snapshot, now: WallNanos) -> Unsettled<'s> {
        Unsettled(snapshot.credit.unsettled(now).map(|quota| (quota, quota.status(now))).collect())
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes over the past of all of them.
    ///
    /// # Errors
    /// The ledger cannot be read; all stay as they are.
    fn settle(
        &self,
        directory: &Path,
        snapshot: &Snapshot,
        now: WallNanos,
    ) -> Result<(), ledger::QueryError> {
        if self.is_empty() {
            return Ok(());
        }
        let usage = SqliteUsage::open_with_journal(directory)?;
        let first = self.0.iter().map(|(_, status)| status.period.start).min().unwrap_or(now);
        let events = Events { usage: &usage, grants: usage.grants(first)?, notices: usage.notices(first)? };
        let mut by_start: BTreeMap<WallNanos, Vec<&(&Arc<QuotaMeter>, QuotaStatus)>> = BTreeMap::new();
        for unsettled in &self.0 {
            by_start.entry(unsettled.1.period.start).or_default().push(unsettled);
        }
        for (start, quotas) in by_start {
            let used = Used::since(start, &usage, quotas.iter().any(|(quota, _)| is_team(quota)))?;
            for (quota, status) in quotas {
                let bytes = used.of(quota, snapshot);
                if status.is_known {
                    quota.recount(start, status.used, bytes, now);
                } else {
                    quota.settle(start, events.past(quota, bytes, start), now);
                }
            }
        }
        Ok(())
    }
}

/// What the ledger has of quotas besides the used bytes.
struct Events<'u> {
    usage: &'u SqliteUsage,
    grants: Vec<Grant>,
    notices: Vec<Notice>,
}

impl Events<'_> {
    /// The past of a quota in its period that began at `start`, of which `used` bytes are used.
    fn past(&self, quota: &QuotaMeter, used: u64, start: WallNanos) -> QuotaPast {
        let terms = quota.terms();
        let owner = match &terms.owner {
            Owner::Team(name) => Some(ledger::quota::Owner::Team(name.to_string())),
            Owner::User(name) => self.usage.account(name).map(ledger::quota::Owner::User),
        };
        let Some(owner) = owner else { return QuotaPast { used, ..QuotaPast::default() } };
        let is_of_quota = |of: &ledger::quota::Owner, key: &str| *of == owner && *key == *terms.key;
        let granted = self.grants.iter().filter(|it| is_of_quota(&it.owner, &it.quota) && it.from == start);
        let reported =
            self.notices.iter().filter(|it| is_of_quota(&it.owner, &it.quota) && it.period_start == start);
        QuotaPast {
            used,
            granted: granted.map(|grant| grant.bytes).fold(0, u64::saturating_add),
            reported: reported.map(|notice| notice.percent).max().unwrap_or(0),
        }
    }
}

/// An owner as the ledger records it; `None` for a user without an account.
fn recorded_owner(snapshot: &Snapshot, owner: &Owner) -> Option<ledger::quota::Owner> {
    match owner {
        Owner::Team(name) => Some(ledger::quota::Owner::Team(name.to_string())),
        Owner::User(name) => {
            let number = snapshot.account(snapshot.config.policy.user(name)?).number();
            (number > 0).then_some(ledger::quota::Owner::User(number))
        }
    }
}

/// The quotas of a configuration whose gateway does not run, from its ledger. What a killed gateway had not
/// journaled is not included.
///
/// # Errors
/// The ledger cannot be read.
pub fn quotas_of(config: Config) -> Result<Vec<QuotaReport>, ledger::QueryError> {
    let directory = config.ledger.directory.clone();
    let snapshot = Snapshot::first(config, Budget::new(Vec::new()));
    let now = clock::steady_wall();
    match Unsettled::of(&snapshot, now).settle(&directory, &snapshot, now) {
        // Nothing was ever used.
        Err(ledger::QueryError::Absent { .. }) => settle_unused(&snapshot),
        settled => settled?,
    }
    Ok(reports(&snapshot))
}

/// Has the unknown quotas of `snapshot` hold, of which nothing was used.
pub(crate) fn settle_unused(snapshot: &Snapshot) {
    let now = clock::steady_wall();
    for quota in snapshot.credit.quotas() {
        quota.settle(quota.status(now).period.start, QuotaPast::default(), now);
    }
}

fn reports(snapshot: &Snapshot) -> Vec<QuotaReport> {
    let now = clock::steady_wall();
    snapshot.credit.quotas().map(|quota| report(quota, now)).collect()
}

fn report(quota: &QuotaMeter, now: WallNanos) -> QuotaReport {
    let (terms, status) = (quota.terms(), quota.status(now));
    let text = |at: WallNanos| match at.0 {
        0 | u64::MAX => String::new(),
        _ => terms.calendar.text(at),
    };
    QuotaReport {
        owner: terms.owner.clone(),
        key: terms.key.to_string(),
        status,
        period_start: text(status.period.start),
        period_end: text(status.period.end),
    }
}

impl Gateway {
    /// Takes over the past of the quotas that are not settled, if the journal takes all counts within
    /// `wait_max`; else, and if the ledger cannot be read, the next call tries again.
    fn settle_unsettled(&self, wait_max: Duration) -> Result<(), ledger::QueryError> {
        let now = clock::steady_wall();
        // What is counted before the journal has it is in what is read, and replaced by that.
        let unsettled = Unsettled::of(&self.snapshot, now);
        if unsettled.is_empty() || !self.ledger.journal_counts(wait_max) {
            return Ok(());
        }
        unsettled.settle(&self.snapshot.config.ledger.directory, &self.snapshot, now)
    }

    /// The same for a reload, whose threads serve by it already.
    pub(super) fn settle_new(&self) {
        if let Err(error) = self.settle_unsettled(JOURNAL_WAIT_MAX) {
            log_unsettled(&error, &self.log);
        }
    }

    /// The present state of all quotas, by owner and key.
    pub fn quotas(&self) -> Vec<QuotaReport> {
        reports(&self.snapshot)
    }

    /// Adds bytes to the present period of a quota, once the ledger has the grant on stable storage.
    ///
    /// # Errors
    /// A text for the operator: no quota, or several, are meant; the ledger cannot record the grant.
    pub fn grant(&self, request: &GrantRequest) -> Result<QuotaReport, String> {
        let quota = self.granted_quota(request)?;
        let (terms, now) = (quota.terms(), clock::steady_wall());
        let period = quota.status(now).period;
        let owner = recorded_owner(&self.snapshot, &terms.owner)
            .ok_or_else(|| format!("{} has no account yet: try again in a moment", terms.owner))?;
        let grant = Grant {
            id: random_id()?,
            at: clock::wall(),
            owner,
            quota: terms.key.to_string(),
            bytes: request.bytes,
            from: period.start,
            until: period.end,
            author: request.author.clone(),
            reason: request.reason.clone(),
        };
        let append = || self.ledger.append_grant(&grant, APPEND_WAIT_MAX);
        append()
            .or_else(|error| if error == AppendError::Unconfirmed { append() } else { Err(error) })
            .map_err(|error| {
                format!("the grant is not in force: {error}. `tollgate quota` shows whether it came later")
            })?;
        if !quota.grant(period.start, request.bytes, clock::steady_wall()) {
            return Err("the period has ended meanwhile: the grant counted for it alone".to_owned());
        }
        let fields = [
            ("owner", Value::Text(&terms.owner.to_string())),
            ("quota", Value::Text(&terms.key)),
            ("bytes", Value::Number(request.bytes)),
            ("author", Value::Text(&request.author)),
            ("reason", Value::Text(&request.reason)),
        ];
        self.log.write_message(Level::Info, "quota granted", &fields);
        Ok(report(quota, clock::steady_wall()))
    }

    fn granted_quota(&self, request: &GrantRequest) -> Result<&Arc<QuotaMeter>, String> {
        let of_owner = || self.snapshot.credit.quotas().filter(|quota| quota.terms().owner == request.owner);
        let meant: Vec<_> = of_owner().filter(|quota| quota.terms().key.starts_with(&*request.key)).collect();
        let exact = meant.iter().find(|quota| *quota.terms().key == *request.key);
        let keys =
            || of_owner().map(|quota| format!("`{}`", quota.terms().key)).collect::<Vec<_>>().join(", ");
        match (exact, &meant[..]) {
            (Some(quota), _) | (None, [quota]) => Ok(quota),
            (None, []) if of_owner().next().is_none() => Err(format!("{} has no quota", request.owner)),
            (None, []) => Err(format!("{} has no quota `{}`, but {}", request.owner, request.key, keys())),
            (None, _) => Err(format!("{} has several quotas: name one of {}", request.owner, keys())),
        }
    }

    /// Takes over the past of quotas that are unknown, if the ledger can be read by now, and reports the
    /// thresholds that were reached. To be called about once a second.
    pub fn check_quotas(&self) {
        // A failure was logged by the start or the reload.
        let _ = self.settle_unsettled(APPEND_WAIT_MAX);
        let (now, mut counts) = (clock::steady_wall(), QuotaCounts::default());
        for quota in self.snapshot.credit.quotas() {
            let status = quota.status(now);
            counts.count(&status);
            if status.is_known && self.report_thresholds(quota, &status, now).is_err() {
                // The journal cannot be written, which is reported elsewhere: the next call tries again.
                break;
            }
        }
        self.stats.quotas.set(counts);
    }

    fn report_thresholds(
        &self,
        quota: &QuotaMeter,
        status: &QuotaStatus,
        now: WallNanos,
    ) -> Result<(), AppendError> {
        let (reported, percent) = (quota.reported(now), status.percent());
        let reached = |threshold: &&u8| **threshold > reported && u64::from(**threshold) <= percent;
        for threshold in self.snapshot.config.quotas.thresholds.iter().filter(reached) {
            let terms = quota.terms();
            let Some(owner) = recorded_owner(&self.snapshot, &terms.owner) else { return Ok(()) };
            let notice = Notice {
                at: clock::wall(),
                owner,
                quota: terms.key.to_string(),
                period_start: status.period.start,
                percent: *threshold,
                used: status.used,
                limit: status.total(),
            };
            self.ledger.append_notice(&notice, APPEND_WAIT_MAX)?;
            quota.note_reported(status.period.start, *threshold, now);
            let fields = [
                ("owner", Value::Text(&terms.owner.to_string())),
                ("quota", Value::Text(&terms.key)),
                ("percent", Value::Number(u64::from(*threshold))),
                ("used", Value::Number(status.used)),
                ("limit", Value::Number(status.total())),
            ];
            self.log.write_message(Level::Warning, "quota threshold reached", &fields);
            self.stats.quotas.count_notice();
        }
        Ok(())
    }
}

fn random_id() -> Result<u128, String> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|error| format!("no random number for the grant: {error}"))?;
    Ok(u128::from_le_bytes(id))
}

fn is_team(quota: &QuotaMeter) -> bool {
    matches!(quota.terms().owner, Owner::Team(_))
}

/// The usage of a period: rows whose keys are owner, class and set, by the owner's name.
struct Used {
    of_users: HashMap<String, Vec<Row>>,
    of_teams: HashMap<String, Vec<Row>>,
}

impl Used {
    /// That since `start`; of teams only if they are needed.
    fn since(start: WallNanos, usage: &SqliteUsage, needs_teams: bool) -> Result<Used, ledger::QueryError> {
        let filter = Filter { since: Some(start), ..Filter::default() };
        let by = |owner| -> Result<HashMap<String, Vec<Row>>, ledger::QueryError> {
            let mut by_owner: HashMap<String, Vec<Row>> = HashMap::new();
            for row in usage.rows(&filter, &[owner, GroupBy::Class, GroupBy::Set])?.rows {
                by_owner.entry(row.keys[0].clone()).or_default().push(row);
            }
            Ok(by_owner)
        };
        let of_teams = if needs_teams { by(GroupBy::Team)? } else { HashMap::new() };
        Ok(Used { of_users: by(GroupBy::User)?, of_teams })
    }

    /// The bytes that count for `quota`.
    fn of(&self, quota: &QuotaMeter, snapshot: &Snapshot) -> u64 {
        let sum = |rows: Option<&Vec<Row>>| {
            let covered = rows.into_iter().flatten().filter(|row| covers(quota, row, &snapshot.credit));
            covered.map(|row| bytes(quota, row)).fold(0, u64::saturating_add)
        };
        match &quota.terms().owner {
            Owner::User(name) => sum(self.of_users.get(&**name)),
            Owner::Team(name) => below(&snapshot.config, name)
                .map(|team| sum(self.of_teams.get(team)))
                .fold(0, u64::saturating_add),
        }
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
